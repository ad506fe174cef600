// SPDX-License-Identifier: Apache-2.0
// Where a file system cannot do all: one that does not know renameat2's flags, where nothing that is there is replaced all the same; one
// that fails to write to its device, where what was to be saved or exported is not there afterwards; and what cannot be made or opened.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/log.h"
#include "check.h"
#include "files/checkpoint_folder.h"
#include "files/folder.h"

namespace {

int refusal = 0;          // how renameat2 refuses flags; 0: it does not
int syncs_until = -1;     // one fails, alone; below 0: none does
bool has_failed = false;  // it has
std::string not_made;     // mkdir refuses it

}  // namespace

extern "C" {
int renameat2(int from_in, const char* from, int to_in, const char* to, unsigned flags) noexcept {
  if (refusal == 0) return static_cast<int>(syscall(SYS_renameat2, from_in, from, to_in, to, flags));
  errno = refusal;
  return -1;
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (not_made.empty() || path != not_made) return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  errno = EROFS;
  return -1;
}

int fsync(int fd) {
  if (syncs_until < 0 || syncs_until-- > 0) return static_cast<int>(syscall(SYS_fsync, fd));
  has_failed = true;
  errno = EIO;
  return -1;
}
}

using namespace megadp;
using namespace megadp::test;

namespace {

namespace fs = std::filesystem;

constexpr const char* kId = "0123456789abcdef";

std::string host() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

void write(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << content;
}

std::string content(const fs::path& path) {
  std::string line;
  std::ifstream(path) >> line;
  return line;
}

void test_names_are_given(const fs::path& below, const Folder& folder) {
  write(below / "new/file", "one");
  auto renamed = folder.rename_new("new", "taken");
  check(renamed.ok() && *renamed, "a folder gets a free name");
  check(content(below / "taken/file") == "one" && !fs::exists(below / "new"), "and all of it has that name");

  write(below / "new/file", "two");
  renamed = folder.rename_new("new", "taken");
  check(renamed.ok() && !*renamed, "a folder does not replace a folder");
  fs::create_directory(below / "empty");
  renamed = folder.rename_new("new", "empty");
  check(renamed.ok() && !*renamed, "nor an empty one");
  check(content(below / "taken/file") == "one" && content(below / "new/file") == "two", "and both are as they were");

  write(below / "model", "one");
  write(below / "model.new", "two");
  renamed = folder.rename_new("model.new", "model");
  check(renamed.ok() && !*renamed, "a file does not replace a file");
  check(content(below / "model") == "one" && content(below / "model.new") == "two", "and both are as they were");

  renamed = folder.rename_new("nothing", "name");
  check(!renamed.ok() && renamed.status().code() == Code::system, "what is not there gets no name");
  check(renamed.status().text().find("renaming " + below.string() + "/nothing to name") != std::string::npos, renamed.status().text());
}

template <class Test>
void in_a_folder(const Test& test) {
  std::string path = fs::temp_directory_path() / "megadp-folder-XXXXXX";
  if (!check(::mkdtemp(path.data()) != nullptr, "a folder to test in")) return;
  test(path);
  fs::remove_all(path);
}

void test_where_flags_are_not_known(int how) {
  refusal = how;
  in_a_folder([](const std::string& path) {
    auto folder = Folder::open(path);
    if (check(folder.ok(), "it is opened")) test_names_are_given(path, *folder);
  });
  refusal = 0;
}

// Each write to the device in turn fails; false: there are no more of them.
template <class Commit>
bool fails_at(int number, const char* result, const Commit& commit) {
  in_a_folder([&](const std::string& path) {
    auto pending = PendingCheckpoint::create(path, kId);
    if (!check(pending.ok(), pending.status().text())) return;
    write(fs::path(pending->folder().path()) / "a", "one");
    write(fs::path(pending->folder().path()) / "b", "two");
    syncs_until = number;
    has_failed = false;
    const Status status = commit(*pending);
    syncs_until = -1;
    pending->abandon();
    const auto left = std::distance(fs::directory_iterator(path), fs::directory_iterator());
    if (has_failed) {
      check(status.code() == Code::system && status.text().find("writing") != std::string::npos, status.text());
      check(left == 0, text(result, ", write ", number, ": ", left, " files or folders are left"));
    } else {
      check(status.ok() && left > 0, text(result, ": ", status.text()));
    }
  });
  return has_failed;
}

void test_what_is_not_sure_is_not_there() {
  int checkpoints = 0, files = 0;
  while (fails_at(checkpoints, "a checkpoint", [](PendingCheckpoint& pending) { return pending.commit({}); })) ++checkpoints;
  while (fails_at(files, "a model", [](PendingCheckpoint& pending) { return pending.commit_files({"a", "b"}); })) ++files;
  check_equal(checkpoints, 3, "writes of a checkpoint: the manifest, its folder, the directory");
  check_equal(files, 3, "writes of two files: their folder, the directory twice");
}

void test_links_are_not_followed() {
  in_a_folder([](const std::string& path) {
    const fs::path runs = fs::path(path) / "runs", elsewhere = fs::path(path) / "elsewhere";
    write(elsewhere / "file", "kept");
    fs::create_directory(runs);
    for (const std::string& name :
         {std::string(".removing-1"), text(".saving-", host(), "-fedcba9876543210"), std::string("checkpoint-000001")})
      fs::create_directory_symlink(elsewhere, runs / name);
    auto pending = PendingCheckpoint::create(runs, kId);
    if (!check(pending.ok(), pending.status().text())) return;
    check(content(elsewhere / "file") == "kept", "what a link leads to was not left by a process that died");
    check(pending->commit({}).ok(), "a checkpoint is made");
    pending->remove_old(1);
    check(fs::exists(runs / "checkpoint-000002") && !fs::is_symlink(runs / "checkpoint-000001"), "the link was an old checkpoint");
    check(content(elsewhere / "file") == "kept", "and what it leads to stays");
    for (const auto& entry : fs::directory_iterator(runs)) {
      const std::string name = entry.path().filename();
      check(!name.starts_with(".removing-") || name == ".removing-1", "the old checkpoint is there under another name");
    }
  });
}

void test_other_hosts_have_theirs() {
  in_a_folder([](const std::string& path) {
    const std::string mine = text(".saving-", host(), "-");
    const std::string dead[] = {mine + kId, mine + kId + "-1"}, others[] = {mine + "2-" + kId, text(".saving-", host(), "2-", kId),
                                                                            mine + "a", mine + kId + "0-" + kId, mine + kId + "-" + kId};
    for (const std::string& name : dead) fs::create_directory(fs::path(path) / name);
    for (const std::string& name : others) fs::create_directory(fs::path(path) / name);
    auto pending = PendingCheckpoint::create(path, "fedcba9876543210");
    check(pending.ok(), "a checkpoint is begun");
    for (const std::string& name : dead) check(!fs::exists(fs::path(path) / name), name + " was left behind here");
    for (const std::string& name : others) check(fs::exists(fs::path(path) / name), name + " is another host's");
  });
}

// Each restart of a container under another name left a part of a checkpoint, for ever, and nothing told of it.
void test_what_another_host_has_left_is_told() {
  static std::string told;
  set_log([](void*, int32_t, const char* words, size_t length) { told.append(words, length); }, nullptr);
  in_a_folder([](const std::string& path) {
    const std::string left = text(".saving-pod-1-", kId);
    fs::create_directory(fs::path(path) / left);
    std::ofstream(fs::path(path) / left / "rank-00000.safetensors") << "12345";
    check(PendingCheckpoint::create(path, kId).ok(), "a checkpoint is begun");
    deliver_logs();
    check(told.empty(), "it may be a save under way: " + told);
    const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(2);
    fs::last_write_time(fs::path(path) / left, long_ago);
    check(PendingCheckpoint::create(path, kId).ok(), "another is begun");
    deliver_logs();
    check(told.empty(), "nothing was added for long, but a file is still written: " + told);
    fs::last_write_time(fs::path(path) / left / "rank-00000.safetensors", long_ago);
    check(PendingCheckpoint::create(path, kId).ok(), "another is begun");
    deliver_logs();
    check(told.find(path + "/" + left + " was left by host pod-1 in") != std::string::npos, "folder and host: " + told);
    check(told.find("takes 5 bytes") != std::string::npos, "size: " + told);
    told.clear();
    check(PendingCheckpoint::create(path, kId).ok(), "a third is begun");
    deliver_logs();
    check(told.empty() && fs::exists(fs::path(path) / left), "it stays, and is told once: " + told);
  });
  set_log(nullptr, nullptr);
}

// Whoever may not open the newest checkpoint does not mean an older one.
void test_an_older_one_is_not_taken_for_it() {
  in_a_folder([](const std::string& path) {
    write(fs::path(path) / "checkpoint-000001/manifest.json", "{}");
    fs::create_directory(fs::path(path) / "checkpoint-000002");  // nothing in it: no checkpoint
    write(fs::path(path) / "checkpoint-000004", "a file of somebody's");
    const auto older = find_checkpoint(path);
    check(older.ok() && older->path() == path + "/checkpoint-000001", "the older one");
    for (const char* leads_to : {"checkpoint-000003", "nowhere"}) {  // which nobody can open
      fs::remove(fs::path(path) / "checkpoint-000003");
      fs::create_symlink(leads_to, fs::path(path) / "checkpoint-000003");
      const Status refused = find_checkpoint(path).status();
      check(refused.code() == Code::system && refused.text().find("/checkpoint-000003: ") != std::string::npos, refused.text());
    }
  });
}

void test_the_folder_that_is_refused_is_named() {
  in_a_folder([](const std::string& path) {
    not_made = path + "/a/b";
    const Status refused = Folder::make(path + "/a/b/c/d").status();
    check_equal(refused.text(), text("making the folder ", path, "/a/b: ", std::strerror(EROFS)), "what is said");
    not_made.clear();
  });
}

void test_numbers_end() {
  in_a_folder([](const std::string& path) {
    fs::create_directory(fs::path(path) / text("checkpoint-", UINT64_MAX - 1));
    for (const bool is_last : {false, true}) {
      auto pending = PendingCheckpoint::create(path, kId);
      if (!check(pending.ok(), pending.status().text())) return;
      const Status status = pending->commit({});
      pending->abandon();
      check_equal(status.code() == Code::invalid, is_last, status.text());
    }
  });
}

}  // namespace

int main() {
  test_where_flags_are_not_known(EINVAL);
  test_where_flags_are_not_known(ENOSYS);
  test_what_is_not_sure_is_not_there();
  test_links_are_not_followed();
  test_other_hosts_have_theirs();
  test_what_another_host_has_left_is_told();
  test_an_older_one_is_not_taken_for_it();
  test_the_folder_that_is_refused_is_named();
  test_numbers_end();
  return finish();
}
