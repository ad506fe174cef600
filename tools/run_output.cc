// SPDX-License-Identifier: Apache-2.0
#include "run_output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace megadp::tool {

void Sink::line(std::string_view prefix, std::string_view text, bool newline, int writer) {
  if (broken_) return;
  if (open_line_ >= 0 && open_line_ != writer) waiting_ += '\n';
  waiting_ += prefix;
  waiting_ += text;
  if (newline) waiting_ += '\n';
  open_line_ = newline ? -1 : writer;
}

void Sink::flush() {
  size_t done = 0;
  while (done < waiting_.size()) {
    // The descriptor may be shared with others, so it stays in blocking mode; one that polls writable takes PIPE_BUF bytes at once.
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) break;
    const ssize_t wrote = write(fd_, waiting_.data() + done, std::min<size_t>(waiting_.size() - done, PIPE_BUF));
    if (wrote < 0 && (errno == EINTR || errno == EAGAIN)) break;
    if (wrote < 0) {
      if (error_ == 0) error_ = errno;
      broken_ = errno == EPIPE;
      waiting_.clear();
      return;
    }
    done += static_cast<size_t>(wrote);
  }
  waiting_.erase(0, done);
}

void LineCutter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t room = kLongest - partial_.size();
    const size_t end = bytes.substr(0, room).find('\n');
    if (end != std::string_view::npos) {
      partial_ += bytes.substr(0, end);
      sink_.line(prefix_, partial_, true, writer_);
      partial_.clear();
      bytes.remove_prefix(end + 1);
      continue;
    }
    const size_t take = std::min(room, bytes.size());
    partial_ += bytes.substr(0, take);
    bytes.remove_prefix(take);
    if (partial_.size() < kLongest) continue;
    sink_.line(prefix_, partial_, !prefix_.empty(), writer_);
    partial_.clear();
  }
}

void LineCutter::finish() {
  if (partial_.empty()) return;
  sink_.line(prefix_, partial_, !prefix_.empty(), writer_);
  partial_.clear();
}

}  // namespace megadp::tool
