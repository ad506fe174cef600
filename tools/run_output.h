// SPDX-License-Identifier: Apache-2.0
// The ranks' output on its way through `megadp run`: cut into lines, so that those of different ranks do not mix, and written without
// ever blocking the launcher, which has signals and deaths to look after.
//
//   rank 0 stdout ── LineCutter ─┐
//   rank 1 stdout ── LineCutter ─┴─ Sink ── stdout            (the same for stderr)
#pragma once

#include <string>
#include <string_view>

namespace megadp::tool {

// One of the launcher's own output streams. Bytes wait here until the descriptor takes them.
class Sink {
 public:
  explicit Sink(int fd) : fd_(fd) {}

  // A line of one writer. Without `newline` (the end of a stream that did not end its last line) the next writer's starts on a new one.
  void line(std::string_view prefix, std::string_view text, bool newline, int writer);
  // Writes what the descriptor takes at this moment.
  void flush();

  int fd() const noexcept { return fd_; }
  bool waiting() const noexcept { return !waiting_.empty(); }
  // So much waits that its writers shall wait too.
  bool full() const noexcept { return waiting_.size() > kFull; }
  // The reader has gone; what is given from now on is dropped.
  bool broken() const noexcept { return broken_; }
  // The first reason (errno) why something could not be written and is lost; 0: none. After a full disk later lines are tried again.
  int error() const noexcept { return error_; }

 private:
  static constexpr size_t kFull = 1 << 20;

  int fd_;
  std::string waiting_;
  bool broken_ = false;
  int error_ = 0;
  int open_line_ = -1;  // the writer whose last line has no end yet
};

// One output stream of one rank.
class LineCutter {
 public:
  // Longer lines are passed on in pieces, so that memory stays bounded.
  static constexpr size_t kLongest = 1 << 20;

  // An empty prefix passes whole lines through unchanged.
  LineCutter(Sink& sink, int writer, std::string prefix) : sink_(sink), writer_(writer), prefix_(std::move(prefix)) {}
  void add(std::string_view bytes);
  void finish();  // what is left, a line without an end

 private:
  Sink& sink_;
  int writer_;
  std::string prefix_;
  std::string partial_;
};

}  // namespace megadp::tool
