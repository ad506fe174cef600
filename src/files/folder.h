// SPDX-License-Identifier: Apache-2.0
// Folders and files of checkpoints. Whatever changes the file system is called here and nowhere else, so that a test can record it and cut
// it off anywhere. Names are relative to an open folder: it may be renamed meanwhile. Sentences name the file and what the system said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace megadp {

class File {
 public:
  const std::string& path() const noexcept { return path_; }
  // All of it, or a failure.
  Status write(const void* data, size_t bytes, uint64_t at);
  // Code::corrupt if the file ends before.
  Status read(void* data, size_t bytes, uint64_t at) const;
  Result<uint64_t> bytes() const;
  // Begins to write back what lies before `end`; a hint.
  void start_writeback(uint64_t begin, uint64_t end) noexcept;
  // What was written survives a loss of power.
  Status sync();

 private:
  friend class Folder;
  File(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Fd fd_;
  std::string path_;
};

class Folder {
 public:
  static Result<Folder> open(const std::string& path);
  // Makes it, and those above it, if they are not there.
  static Result<Folder> make(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  // A link that stands in its place may lead anywhere, so whoever would change what is in it refuses one.
  enum class Links {
    followed,
    refused
  };
  Result<Folder> open_folder(const std::string& name, Links links = Links::followed) const;
  // Must not be there yet. None: another process has removed it already.
  Result<std::optional<Folder>> make_folder(const std::string& name) const;
  Result<File> create_file(const std::string& name) const;  // must not be there yet
  Result<File> open_file(const std::string& name) const;    // to read; an ordinary file
  // What has this name in it, or what a link of this name leads to.
  enum class Entry {
    none,
    folder,
    other,   // a file, say
    unknown  // this process cannot look, or the link leads nowhere
  };
  Entry entry(const std::string& name) const noexcept;
  bool has(const std::string& name) const noexcept;  // a folder or other
  Result<std::vector<std::string>> list() const;     // in no order
  // Names made or removed in it survive a loss of power.
  Status sync() const;
  // false: `to` is there already, and nothing was changed.
  Result<bool> rename_new(const std::string& from, const std::string& to) const;
  Status remove(const std::string& name) const;         // a file
  Status remove_folder(const std::string& name) const;  // with the files in it; of a link the link alone
  // Whether this process has got the folder for itself, until the folder is closed, or the process dies. Not all file systems of several
  // hosts tell these of one another.
  enum class Lock {
    mine,
    of_another,
    unknown  // a file system without locks
  };
  Lock lock() const noexcept;
  // Whether it still has this name in `in`.
  bool is_named(const Folder& in, const std::string& name) const noexcept;

 private:
  Folder(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  static Result<Folder> open_at(int in, const std::string& name, std::string path, Links links);
  Fd fd_;
  std::string path_;
};

// Of a relative path what it is relative to, which may be another folder for another process: "; the path is relative, here to DIR".
std::string relative_to(const std::string& path);

}  // namespace megadp
