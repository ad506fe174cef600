// SPDX-License-Identifier: Apache-2.0
// A rank that meets the others by a bootstrap: the files of a folder that all of them see, as of a network file system.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "world_ranks.h"

namespace megadp::test {
namespace {

struct Folder {
  std::string path;
  int rank = 0, nranks = 0, calls = 0;
  char* all = nullptr;  // of the all-gather under way
  size_t bytes = 0;

  std::string file(int of_rank) const { return text(path, "/", calls, ".", of_rank); }
};

int32_t start(void* context, const void* mine, size_t bytes, void* all, void**) {
  Folder& folder = *static_cast<Folder*>(context);
  ++folder.calls;
  folder.all = static_cast<char*>(all);
  folder.bytes = bytes;
  const std::string name = folder.file(folder.rank), unfinished = name + ".unfinished";
  std::ofstream(unfinished, std::ios::binary).write(static_cast<const char*>(mine), static_cast<std::streamsize>(bytes));
  return std::rename(unfinished.c_str(), name.c_str());
}

int32_t test(void* context, void*) {
  const Folder& folder = *static_cast<Folder*>(context);
  for (int r = 0; r < folder.nranks; ++r) {
    std::ifstream file(folder.file(r), std::ios::binary);
    if (!file) return 0;
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (bytes.size() != folder.bytes) return -1;
    bytes.copy(folder.all + static_cast<size_t>(r) * folder.bytes, folder.bytes);
  }
  return 1;
}

void finish(void*, void*) {}

}  // namespace

int be_a_rank_of_a_bootstrap(const std::string& path, int rank, int nranks) {
  Folder folder{path, rank, nranks};
  Launch launch;
  launch.launcher = launch.job = "bootstrap";
  launch.rank = rank;
  launch.nranks = nranks;
  launch.bootstrap = AllGather{&folder, start, test, finish};
  return join_and_tell(launch);
}

}  // namespace megadp::test
