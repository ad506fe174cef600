// SPDX-License-Identifier: Apache-2.0
#include "run_leftovers.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace megadp::tool {

std::vector<pid_t> living_children() {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (const dirent* found = readdir(proc)) {
    const pid_t pid = std::atoi(found->d_name);
    if (pid <= 0) continue;
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    // "pid (name) state ppid ...": the name may hold anything, also ')'.
    const size_t after = stat.rfind(')');
    char state = 0;
    int parent = 0;
    if (after == std::string::npos || std::sscanf(stat.c_str() + after + 1, " %c %d", &state, &parent) != 2) continue;
    if (parent == getpid() && state != 'Z' && state != 'X') children.push_back(pid);
  }
  closedir(proc);
  std::sort(children.begin(), children.end());
  return children;
}

}  // namespace megadp::tool
