// SPDX-License-Identifier: Apache-2.0
// Giving a new name where the file system, or the kernel, does not know renameat2's flags: nothing that is there is replaced.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "files/folder.h"

namespace {

int refusal = 0;  // how renameat2 refuses flags

}  // namespace

extern "C" int renameat2(int, const char*, int, const char*, unsigned flags) noexcept {
  errno = flags != 0 ? refusal : EBADF;
  return -1;
}

using namespace megadp;
using namespace megadp::test;

namespace {

namespace fs = std::filesystem;

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

void test_where_flags_are_not_known(int how) {
  refusal = how;
  std::string path = fs::temp_directory_path() / "megadp-folder-XXXXXX";
  if (!check(::mkdtemp(path.data()) != nullptr, "a folder to test in")) return;
  auto folder = Folder::open(path);
  if (check(folder.ok(), "it is opened")) test_names_are_given(path, *folder);
  fs::remove_all(path);
}

}  // namespace

int main() {
  test_where_flags_are_not_known(EINVAL);
  test_where_flags_are_not_known(ENOSYS);
  return finish();
}
