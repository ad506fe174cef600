// SPDX-License-Identifier: Apache-2.0
#include "control/memory_limits.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

namespace megadp {
namespace {

std::string& root() {
  static std::string& folder = *new std::string;  // never freed: other threads may register while the process ends
  return folder;
}

// The number alone in a file; none for "max" and for what cannot be read.
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(root() + path);
  uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// The sum of the numbers after these keys, of lines "key number" or "key: number kB".
std::optional<uint64_t> sum_in(const std::string& path, std::initializer_list<const char*> keys) {
  std::ifstream file(root() + path);
  std::optional<uint64_t> sum;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key, unit;
    uint64_t number = 0;
    if (!(words >> key >> number) || std::find(keys.begin(), keys.end(), key) == keys.end()) continue;
    sum = sum.value_or(0) + number * (words >> unit && unit == "kB" ? 1024 : 1);
  }
  return sum;
}

// What has a comma between its parts has this part.
bool has_part(const std::string& list, const std::string& part) {
  return ("," + list + ",").find("," + part + ",") != std::string::npos;
}

// mountinfo writes blanks and the like as \040.
std::string unescaped(const std::string& given) {
  std::string out;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string digits = given[i] == '\\' ? given.substr(i + 1, 3) : "";
    if (digits.size() == 3 && digits.find_first_not_of("01234567") == std::string::npos) {
      out += static_cast<char>(std::stoi(digits, nullptr, 8));
      i += 3;
    } else {
      out += given[i];
    }
  }
  return out;
}

struct Mount {
  std::string top, folder;  // `top`, a path of the hierarchy, is seen at `folder`
};

// Where the hierarchy of memory groups is mounted. The first mount that shows the group is taken.
std::vector<Mount> mounts(bool unified) {
  std::ifstream file(root() + "/proc/self/mountinfo");
  std::vector<Mount> found;
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line), after(line.substr(dash + 3));
    std::string skip, top, folder, type, source, options;
    before >> skip >> skip >> skip >> top >> folder;
    after >> type >> source >> options;
    if (unified ? type == "cgroup2" : type == "cgroup" && has_part(options, "memory")) found.push_back({unescaped(top), unescaped(folder)});
  }
  return found;
}

// The process's path in the hierarchy, from lines "0::/a/b" and "4:memory:/a/b".
std::optional<std::string> path_of(const std::string& pid, bool unified) {
  std::ifstream file(root() + "/proc/" + pid + "/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? line.substr(0, first) == "0" && controllers.empty() : has_part(controllers, "memory")) return line.substr(second + 1);
  }
  return std::nullopt;
}

bool exists(const std::string& path) {
  struct stat info {};
  return stat((root() + path).c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// A container may see the path of its group from outside, while its mount shows the group itself as the top one.
std::string below(const Mount& mount, const std::string& path) {
  if (mount.top == "/") return path == "/" ? "" : path;
  if (path == mount.top) return "";
  return path.compare(0, mount.top.size() + 1, mount.top + "/") == 0 ? path.substr(mount.top.size()) : "";
}

void add_groups(const std::string& pid, bool unified, std::vector<MemoryCgroup>* groups) {
  const std::optional<std::string> path = path_of(pid, unified);
  const std::vector<Mount> seen = mounts(unified);
  if (!path || seen.empty()) return;
  const Mount& mount = seen.front();
  std::string at = below(mount, *path);
  if (at.compare(0, 3, "/..") == 0 || !exists(mount.folder + at)) at.clear();
  while (true) {
    const std::string directory = mount.folder + at;
    // Version 1 could be told that a group's limits are not for the groups below it.
    if (unified || groups->empty() || number_in(directory + "/memory.use_hierarchy").value_or(1) != 0)
      groups->push_back({directory, unified});
    if (at.empty()) return;
    at.erase(at.rfind('/'));
  }
}

uint64_t less(uint64_t from, uint64_t what) {
  return from > what ? from - what : 0;
}

uint64_t left_in(const MemoryCgroup& group, uint64_t limit) {
  const uint64_t used = number_in(group.directory + (group.unified ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  const std::string stat = group.directory + "/memory.stat";
  const uint64_t reclaimable = group.unified ? sum_in(stat, {"inactive_file", "active_file", "slab_reclaimable"}).value_or(0)
                                             : sum_in(stat, {"total_inactive_file", "total_active_file"}).value_or(0);
  return less(limit, less(used, reclaimable));
}

std::string limit_file(const MemoryCgroup& group) {
  return group.directory + (group.unified ? "/memory.max" : "/memory.limit_in_bytes");
}

}  // namespace

void set_memory_root(std::string folder) {
  root() = std::move(folder);
}

std::vector<MemoryCgroup> memory_cgroups(const std::string& pid) {
  std::vector<MemoryCgroup> groups, of_version_1;
  add_groups(pid, true, &groups);
  add_groups(pid, false, &of_version_1);
  groups.insert(groups.end(), of_version_1.begin(), of_version_1.end());
  return groups;
}

std::optional<uint64_t> limit_of(const MemoryCgroup& group) {
  constexpr uint64_t none = uint64_t{1} << 62;  // version 1 writes the most whole pages that 63 bits hold if there is no limit
  const std::optional<uint64_t> limit = number_in(limit_file(group));
  return limit && *limit < none ? limit : std::nullopt;
}

std::optional<uint64_t> out_of_memory_kills(const MemoryCgroup& group) {
  return sum_in(group.directory + (group.unified ? "/memory.events" : "/memory.oom_control"), {"oom_kill"});
}

std::vector<MemoryLimit> memory_limits() {
  std::vector<MemoryLimit> limits;
  for (const MemoryCgroup& group : memory_cgroups("self")) {
    const std::optional<uint64_t> limit = limit_of(group);
    struct stat info {};
    if (!limit || stat((root() + group.directory).c_str(), &info) != 0) continue;
    limits.push_back({limit_file(group), *limit, left_in(group, *limit), info.st_dev, info.st_ino});
  }
  const std::string machine = "/proc/meminfo";
  const std::optional<uint64_t> all = sum_in(machine, {"MemTotal:"}), left = sum_in(machine, {"MemAvailable:"});
  if (all && left) limits.push_back({machine, *all, *left, 0, 0});
  return limits;
}

}  // namespace megadp
