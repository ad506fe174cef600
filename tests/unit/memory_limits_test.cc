// SPDX-License-Identifier: Apache-2.0
// What a process may still take: control groups of both versions below a made-up root, and what follows for ranks that share some of them.
#include "control/memory_limits.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "check.h"
#include "control/memory_check.h"

using namespace megadp;
using namespace megadp::test;

namespace {

namespace fs = std::filesystem;

constexpr const char* kPlenty = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n";
constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

// A made-up /proc and /sys, which goes with the object.
class Machine {
 public:
  Machine() : folder_(fs::temp_directory_path() / text("megadp-limits-", getpid())) {
    fs::remove_all(folder_);
    write("/proc/meminfo", kPlenty);
    set_memory_root(folder_);
  }
  ~Machine() {
    set_memory_root("");
    fs::remove_all(folder_);
  }
  void write(const std::string& path, const std::string& bytes) {
    fs::create_directories((folder_.string() + path).substr(0, (folder_.string() + path).rfind('/')));
    std::ofstream(folder_.string() + path) << bytes;
  }
  void remove(const std::string& path) { fs::remove_all(folder_.string() + path); }
  // Mounts both versions as systems do.
  void mount_unified(const std::string& top, const std::string& folder) {
    mountinfo_ += text("30 23 0:26 ", top, " ", folder, " rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    write("/proc/self/mountinfo", mountinfo_);
  }
  void mount_version_1(const std::string& top, const std::string& folder) {
    mountinfo_ += text("35 23 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n36 23 0:32 ", top, " ", folder,
                       " rw shared:9 - cgroup cgroup rw,memory\n");
    write("/proc/self/mountinfo", mountinfo_);
  }
  void group(const std::string& directory, const std::string& max, const std::string& current, const std::string& stat = "") {
    write(directory + "/memory.max", max + "\n");
    write(directory + "/memory.current", current + "\n");
    write(directory + "/memory.stat", stat);
  }
  void group_version_1(const std::string& directory, const std::string& limit, const std::string& usage, const std::string& stat = "") {
    write(directory + "/memory.limit_in_bytes", limit + "\n");
    write(directory + "/memory.usage_in_bytes", usage + "\n");
    write(directory + "/memory.stat", stat);
  }

 private:
  fs::path folder_;
  std::string mountinfo_ = "23 1 0:22 / /proc rw - proc proc rw\n";
};

void limits_are(const std::vector<std::pair<std::string, uint64_t>>& expected, Place at = Place::current()) {
  const std::vector<MemoryLimit> limits = memory_limits();
  if (!check(limits.size() == expected.size(), text("there are ", limits.size(), " limits, not ", expected.size()), at)) return;
  for (size_t i = 0; i < limits.size(); ++i) {
    check_equal(limits[i].file, expected[i].first, "file", at);
    check_equal(limits[i].left, expected[i].second, "left under " + expected[i].first, at);
    const bool machine = limits[i].device == 0 && limits[i].inode == 0;
    check(machine == (i + 1 == limits.size()), "the machine is the last, and the only one without a group", at);
  }
}

// Every group above counts, the one without a limit does not; page cache and what else can be taken back does not count as used.
void unified_groups_count_up_to_the_top() {
  Machine machine;
  machine.mount_unified("/", "/sys/fs/cgroup");
  machine.write("/proc/self/cgroup", "0::/a/b/c\n");
  machine.group("/sys/fs/cgroup/a/b/c", text(kGiB), text(300 * kMiB),
                text("anon 1\nfile 999\ninactive_file ", 150 * kMiB, "\nactive_file ", 30 * kMiB, "\nslab_reclaimable ", 20 * kMiB, "\n"));
  machine.group("/sys/fs/cgroup/a/b", "max", text(5 * kGiB));
  machine.group("/sys/fs/cgroup/a", text(2 * kGiB), text(kGiB), text("inactive_file ", 7 * kMiB, "\nworkingset_refault_file 8\n"));
  limits_are({{"/sys/fs/cgroup/a/b/c/memory.max", kGiB - 100 * kMiB},
              {"/sys/fs/cgroup/a/memory.max", kGiB + 7 * kMiB},
              {"/proc/meminfo", 8 * kGiB}});
}

// More in use than the limit, as after a limit was lowered: nothing is left, rather than very much.
void nothing_is_left_below_zero() {
  Machine machine;
  machine.mount_unified("/", "/sys/fs/cgroup");
  machine.write("/proc/self/cgroup", "0::/a\n");
  machine.group("/sys/fs/cgroup/a", text(kMiB), text(2 * kMiB));
  limits_are({{"/sys/fs/cgroup/a/memory.max", 0}, {"/proc/meminfo", 8 * kGiB}});
}

void version_1_counts_too() {
  Machine machine;
  machine.mount_unified("/", "/sys/fs/cgroup/unified");  // a system of both: there the unified one knows nothing of memory
  machine.mount_version_1("/", "/sys/fs/cgroup/memory");
  machine.write("/proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/job/step\n0::/\n");
  machine.group_version_1("/sys/fs/cgroup/memory", "9223372036854771712", text(6 * kGiB));
  machine.group_version_1("/sys/fs/cgroup/memory/job", text(2 * kGiB), text(kGiB), text("inactive_file 5\ntotal_inactive_file ", 9 * kMiB));
  machine.group_version_1("/sys/fs/cgroup/memory/job/step", text(kGiB), "0", text("cache ", kGiB, "\ntotal_active_file 12\n"));
  limits_are({{"/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", kGiB},
              {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", kGiB + 9 * kMiB},
              {"/proc/meminfo", 8 * kGiB}});
  machine.write("/sys/fs/cgroup/memory/job/memory.use_hierarchy", "0\n");
  limits_are({{"/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", kGiB}, {"/proc/meminfo", 8 * kGiB}});
}

// In a container: the mount shows the group as the top one, by its path from outside or by none; the path may also lead outside.
void containers_see_their_group_at_the_top() {
  Machine machine;
  machine.mount_version_1("/docker/0a1b", "/sys/fs/cgroup/memory");
  machine.group_version_1("/sys/fs/cgroup/memory", text(kGiB), text(kMiB));
  machine.group_version_1("/sys/fs/cgroup/memory/inside", text(kMiB), "0");
  machine.write("/proc/self/cgroup", "4:memory:/docker/0a1b\n");
  limits_are({{"/sys/fs/cgroup/memory/memory.limit_in_bytes", kGiB - kMiB}, {"/proc/meminfo", 8 * kGiB}});
  machine.write("/proc/self/cgroup", "4:memory:/docker/0a1b/inside\n");
  limits_are({{"/sys/fs/cgroup/memory/inside/memory.limit_in_bytes", kMiB},
              {"/sys/fs/cgroup/memory/memory.limit_in_bytes", kGiB - kMiB},
              {"/proc/meminfo", 8 * kGiB}});
  machine.write("/proc/self/cgroup", "4:memory:/docker/0a1bcd\n");
  limits_are({{"/sys/fs/cgroup/memory/memory.limit_in_bytes", kGiB - kMiB}, {"/proc/meminfo", 8 * kGiB}});

  Machine other;
  other.mount_unified("/", "/sys/fs/cgroup");
  other.group("/sys/fs/cgroup", text(kGiB), text(kMiB));
  for (const char* path : {"0::/\n", "0::/kubepods/pod7/0a1b\n", "0::/../other\n"}) {
    other.write("/proc/self/cgroup", path);
    limits_are({{"/sys/fs/cgroup/memory.max", kGiB - kMiB}, {"/proc/meminfo", 8 * kGiB}});
  }
}

void names_may_have_blanks() {
  Machine machine;
  machine.mount_unified("/", "/sys/fs/c\\040group");
  machine.write("/proc/self/cgroup", "0::/a b:c\n");
  machine.group("/sys/fs/c group/a b:c", text(kGiB), "0");
  limits_are({{"/sys/fs/c group/a b:c/memory.max", kGiB}, {"/proc/meminfo", 8 * kGiB}});
}

void what_cannot_be_read_is_no_limit() {
  Machine machine;
  limits_are({{"/proc/meminfo", 8 * kGiB}});  // no groups at all
  machine.mount_unified("/", "/sys/fs/cgroup");
  machine.write("/proc/self/cgroup", "0::/a\n");
  limits_are({{"/proc/meminfo", 8 * kGiB}});  // no such folder
  machine.group("/sys/fs/cgroup/a", "", "");
  limits_are({{"/proc/meminfo", 8 * kGiB}});
  machine.group("/sys/fs/cgroup/a", "nonsense", "nonsense", "nonsense");
  limits_are({{"/proc/meminfo", 8 * kGiB}});
  machine.group("/sys/fs/cgroup/a", text(kGiB), "");
  limits_are({{"/sys/fs/cgroup/a/memory.max", kGiB}, {"/proc/meminfo", 8 * kGiB}});
  machine.write("/proc/self/cgroup", "garbage\n::\n0\n");
  machine.write("/proc/meminfo", "MemTotal: 1 kB\n");
  check(memory_limits().empty(), "no limits at all");
  machine.remove("/proc/meminfo");
  check(memory_limits().empty(), "and none without a file");
}

void kills_are_counted() {
  Machine machine;
  machine.mount_unified("/", "/sys/fs/cgroup");
  machine.mount_version_1("/", "/sys/fs/memory");
  machine.write("/proc/71/cgroup", "0::/a\n4:memory:/old\n");
  machine.write("/sys/fs/cgroup/a/memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n");
  machine.write("/sys/fs/memory/old/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  std::vector<uint64_t> kills;
  for (const MemoryCgroup& group : memory_cgroups("71")) kills.push_back(out_of_memory_kills(group).value_or(99));
  check_equal(kills, std::vector<uint64_t>{2, 99, 5, 99}, "kills of a, its top, old, its top");
  check(memory_cgroups("72").empty(), "nothing of a process that is gone");
}

// ── what follows for ranks ──

MemoryLimit limit_of_group(uint64_t inode, uint64_t bytes, uint64_t left) {
  return {text("/group", inode, "/memory.max"), bytes, left, inode == 0 ? uint64_t{0} : 26, inode};
}

void needs_are_summed_by_group() {
  const MemoryLimit machine{"/proc/meminfo", 16 * kGiB, 8 * kGiB, 0, 0};
  // Ranks 0 and 1 in a group of their own each, under a common one; rank 2 in a third, under none.
  const std::vector<MemoryNeed> fits = {{0, kGiB, false, {limit_of_group(1, kGiB, kGiB), limit_of_group(9, 3 * kGiB, 2 * kGiB), machine}},
                                        {1, kGiB, false, {limit_of_group(2, kGiB, kGiB), limit_of_group(9, 3 * kGiB, 2 * kGiB), machine}},
                                        {2, kGiB, false, {limit_of_group(3, kGiB, kGiB), machine}}};
  check(judge_memory(fits).ok(), "just enough everywhere: " + judge_memory(fits).text());

  std::vector<MemoryNeed> own = fits;
  own[1].bytes = kGiB + 1;
  own[1].limits[1].left = own[0].limits[1].left = 3 * kGiB;
  fails(judge_memory(own), Code::memory,
        {"rank 1 needs 1073741825 bytes", "1073741824 are left of the 1073741824 that /group2/memory.max"});

  std::vector<MemoryNeed> common = fits;
  for (MemoryNeed& need : common)
    if (need.limits.size() == 3) need.limits[1].left = 2 * kGiB - 1;
  const Status refused = judge_memory(common);
  fails(refused, Code::memory,
        {"ranks 0 and 1 need together 2147483648 bytes", "2147483647 are left of the 3221225472 that /group9/memory.max allows",
         "raise that limit", "more machines", "MDP_BUFFER_IGNORE_MEMORY"});
  check_equal(refused.blame().rank, 0, "rank to blame");
  common[2].anyway = true;
  check(judge_memory(common).ok(), "one rank says anyway");

  std::vector<MemoryNeed> much(20, {0, kGiB, false, {machine}});
  for (int rank = 0; rank < 20; ++rank) much[static_cast<size_t>(rank)].rank = rank;
  fails(judge_memory(much), Code::memory, {"ranks 0 to 19 need together 21474836480", "MemAvailable of /proc/meminfo", "17179869184"});
  much[0].bytes = UINT64_MAX - 5;
  fails(judge_memory(much), Code::memory, {text(UINT64_MAX)});
}

}  // namespace

int main() {
  unified_groups_count_up_to_the_top();
  nothing_is_left_below_zero();
  version_1_counts_too();
  containers_see_their_group_at_the_top();
  names_may_have_blanks();
  what_cannot_be_read_is_no_limit();
  kills_are_counted();
  needs_are_summed_by_group();
  return finish();
}
