// SPDX-License-Identifier: Apache-2.0
// Less memory than is asked for: all ranks get the same status, in the same words, and go on. Limits are those of a made-up /proc and /sys,
// and of this process (setrlimit).
//
// usage: multi_limits [--threads]; or, under a launcher: multi_limits register MIB, which registers that much a rank, and says how it went.
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "control/memory_limits.h"
#include "job.h"

namespace {

using namespace job;
namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1 << 20;
constexpr int64_t kElements = 10 * kMiB;  // f32, so parameters and gradients are 80 MiB, and so is the state of a rank alone

std::string g_folder;

// A machine with `groups` under one limit each; a process of this test is in group 0 until it says otherwise.
void make_machine(const std::vector<uint64_t>& limits_mib) {
  const auto write = [](const std::string& path, const std::string& bytes) {
    fs::create_directories(fs::path(g_folder + path).parent_path());
    std::ofstream(g_folder + path) << bytes;
  };
  for (size_t group = 0; group < limits_mib.size(); ++group) {
    const std::string at = "/" + std::to_string(group), directory = at + "/sys/fs/cgroup";
    write(at + "/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 67108864 kB\n");
    write(at + "/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    write(at + "/proc/self/cgroup", "0::/\n");
    write(directory + "/memory.max", std::to_string(limits_mib[group] * kMiB) + "\n");
    write(directory + "/memory.current", std::to_string(kMiB) + "\n");
  }
  megadp::set_memory_root(g_folder + "/0");
}

struct Model {
  int64_t shape[1];
  mdp_param param{};
  mdp_buffer_config config{};
  explicit Model(int64_t elements) : shape{elements} {
    param.struct_size = sizeof param;
    param.name = "weight";
    param.shape = shape;
    param.ndim = 1;
    config.struct_size = sizeof config;
  }
  mdp_status on(mdp_grid* grid, mdp_buffer** out) const { return mdp_buffer_register(nullptr, grid, &config, &param, 1, out); }
};

struct OnGrid {
  mdp_grid* grid = nullptr;
  Grid owner;
  explicit OnGrid(const Rank& rank) {
    ok(mdp_grid_create(rank.comm, nullptr, &grid));
    owner.reset(grid);
  }
};

// Everyone's sentence is rank 0's, and the communicator still works.
void same_on_all(const Rank& rank) {
  char mine[1024] = "", first[1024] = "";
  std::snprintf(mine, sizeof mine, "%s", mdp_last_error());
  std::memcpy(first, mine, sizeof first);
  int64_t shape[1] = {sizeof first};
  mdp_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = MDP_DTYPE_U8;
  tensor.ndim = 1;
  tensor.data = first;
  tensor.shape = shape;
  ok(mdp_broadcast(rank.comm, &tensor, 0, nullptr, nullptr));
  require(std::strcmp(mine, first) == 0, "'", mine, "' is not what rank 0 was told: '", first, "'");
}

int64_t pages(int field) {
  std::ifstream file("/proc/self/statm");
  int64_t value = 0;
  for (int i = 0; i <= field; ++i) file >> value;
  return value;
}
int descriptors() {
  return static_cast<int>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

void too_much_is_refused(const Rank& rank) {
  const OnGrid on(rank);
  mdp_buffer* buffer = nullptr;
  ok(Model(1000).on(on.grid, &buffer));  // what is set up once is there
  mdp_buffer_destroy(buffer);
  ok(mdp_barrier(rank.comm, nullptr));
  const int files = descriptors();  // first: reading a folder makes the heap grow
  const int64_t before = pages(0);
  for (int i = 0; i < 3; ++i) {
    buffer = nullptr;
    refused(
        Model(kElements).on(on.grid, &buffer), MDP_E_MEMORY,
        {"mdp_buffer_register: rank", "104857600 that /sys/fs/cgroup/memory.max allows", "103809024 are left", "MDP_BUFFER_IGNORE_MEMORY"});
    require(buffer == nullptr, "a handle was written");
    same_on_all(rank);
  }
  if (with_processes) {  // other threads of this process come and go
    require(pages(0) == before, pages(0) - before, " pages of address space are left behind");
    require(descriptors() == files, descriptors() - files, " descriptors are left behind");
  }
  ok(Model(kMiB).on(on.grid, &buffer));
  mdp_buffer_destroy(buffer);
  Model anyway(kElements);
  if (rank.rank == rank.size - 1) anyway.config.flags = MDP_BUFFER_IGNORE_MEMORY;  // of one rank is enough
  ok(anyway.on(on.grid, &buffer));
  mdp_buffer_destroy(buffer);
}

void state_counts_too(const Rank& rank) {
  const OnGrid on(rank);
  mdp_buffer* buffer = nullptr;
  Model model(kElements);
  ok(model.on(on.grid, &buffer));
  const Buffer owner(buffer);
  make_machine({50});  // the other ranks' writes are the same
  mdp_optimizer* optimizer = nullptr;
  ok(mdp_barrier(rank.comm, nullptr));
  refused(mdp_optimizer_create(buffer, nullptr, &optimizer), MDP_E_MEMORY,
          {"mdp_optimizer_create: rank", "52428800 that /sys/fs/cgroup/memory.max allows"});
  same_on_all(rank);
}

// A save with a request writes from a copy, and no rank is killed for it; one without has none.
void a_copy_counts_too(const Rank& rank) {
  const OnGrid on(rank);
  mdp_buffer* buffer = nullptr;
  ok(Model(kElements).on(on.grid, &buffer));
  const Buffer owner(buffer);
  ok(mdp_barrier(rank.comm, nullptr));
  make_machine({10});
  mdp_checkpoint_part part{};
  part.struct_size = sizeof part;
  part.buffer = buffer;
  const std::string directory = g_folder + "/saved";
  mdp_checkpoint_config config{};
  config.struct_size = sizeof config;
  config.directory = directory.c_str();
  config.parts = &part;
  config.part_count = 1;
  mdp_request* request = nullptr;
  ok(mdp_barrier(rank.comm, nullptr));
  refused(mdp_checkpoint_save(&config, &request), MDP_E_MEMORY,
          {"mdp_checkpoint_save with a request, which writes from a copy (one without takes none): rank",
           "10485760 that /sys/fs/cgroup/memory.max allows"});
  require(request == nullptr, "a request was written");
  same_on_all(rank);
  ok(mdp_checkpoint_save(&config, nullptr));
}

// The last rank is in a group of its own, which is too small for it alone.
void one_small_group_is_told_to_all(const Rank& rank) {
  megadp::set_memory_root(g_folder + (rank.rank == rank.size - 1 ? "/1" : "/0"));
  const OnGrid on(rank);
  mdp_buffer* buffer = nullptr;
  refused(Model(kElements).on(on.grid, &buffer), MDP_E_MEMORY, {"rank 2 needs 8599", "10485760 that /sys/fs/cgroup/memory.max allows"});
  same_on_all(rank);
}

void limit(decltype(RLIMIT_AS) which, uint64_t bytes) {
  rlimit value{};
  getrlimit(which, &value);
  value.rlim_cur = bytes;
  setrlimit(which, &value);
}

void short_files_are_a_status(const Rank& rank) {
  const OnGrid on(rank);
  mdp_buffer* buffer = nullptr;
  ok(mdp_barrier(rank.comm, nullptr));
  if (rank.rank == rank.size - 1) limit(RLIMIT_FSIZE, 2 * kMiB);
  refused(Model(kElements).on(on.grid, &buffer), MDP_E_MEMORY,
          {" bytes of shared memory are wanted", "files of 2097152 bytes", "ulimit -f"});
  ok(mdp_barrier(rank.comm, nullptr));
}

// `room` of it is left to the last rank: less than its own part takes, or enough for that, but not for the other's too.
void little_address_space_is_a_status(const Rank& rank, uint64_t room) {
  const OnGrid on(rank);
  mdp_buffer* buffer = nullptr;
  ok(mdp_barrier(rank.comm, nullptr));
  if (rank.rank == rank.size - 1) limit(RLIMIT_AS, static_cast<uint64_t>(pages(0) * sysconf(_SC_PAGESIZE)) + room);
  refused(Model(kElements).on(on.grid, &buffer), MDP_E_MEMORY, {"cannot map 419", "ulimit -v"});
  ok(mdp_barrier(rank.comm, nullptr));
}

// No communicator of several ranks fits under it, since each makes shared memory of its own.
bool no_communicator_under_short_files() {
  mdp_unique_id id;
  ok(mdp_unique_id_create(&id));
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    limit(RLIMIT_FSIZE, 1000 * 1024);
    const std::string failure = run_rank(id, rank, 2, [](const Rank&) {});
    const bool told = failure.find("MDP_E_MEMORY") != std::string::npos && failure.find("ulimit -f") != std::string::npos;
    if (!told) std::cerr << "FAILED communicator under ulimit -f, rank " << rank << ": " << failure << std::endl;
    _exit(told ? 0 : 1);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    good = child > 0 && waitpid(child, &status, 0) == child && status == 0 && good;
  }
  return good;
}

int register_under_a_launcher(int64_t mib) {
  try {
    mdp_comm* comm = nullptr;
    ok(mdp_comm_create(nullptr, nullptr, &comm));
    const Comm owner(comm);
    const OnGrid on({comm, mdp_comm_rank(comm), mdp_comm_size(comm)});
    mdp_buffer* buffer = nullptr;
    ok(Model(mib * static_cast<int64_t>(kMiB) / 8).on(on.grid, &buffer));
    const Buffer buffer_owner(buffer);
    std::cout << "registered" << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cout << error.what() << std::endl;
    return 3;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "register") == 0) return register_under_a_launcher(std::atoll(argv[2]));
  threads_only(argc, argv);
  g_folder = (fs::temp_directory_path() / ("megadp-limits-test-" + std::to_string(getpid()))).string();
  bool good = true;
  make_machine({100, 10});
  good = run_processes("too much", 2, too_much_is_refused) && good;
  if (!with_processes) good = run_threads("too much", 2, too_much_is_refused) && good;
  make_machine({300, 10});
  good = run_processes("one small group", 3, one_small_group_is_told_to_all) && good;
  make_machine({1000});
  good = run_processes("short files", 3, short_files_are_a_status) && good;
  for (const uint64_t mib : {30, 60, 100}) {
    good =
        run_processes("little address space", 2, [mib](const Rank& rank) { little_address_space_is_a_status(rank, mib * kMiB); }) && good;
  }
  good = (!with_processes || no_communicator_under_short_files()) && good;
  good = run_processes("state", 1, state_counts_too) && good;
  make_machine({1000});
  good = run_processes("a copy", 2, a_copy_counts_too) && good;
  make_machine({1000});
  good = run_processes("state of two", 2, state_counts_too) && good;
  fs::remove_all(g_folder);
  std::cerr << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
