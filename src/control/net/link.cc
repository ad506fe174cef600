// SPDX-License-Identifier: Apache-2.0
// Sending and receiving frames with sendmsg and recvmsg.
#include "control/net/link.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace megadp {
namespace {

constexpr size_t kMaxFdsPerMessage = 253;  // SCM_MAX_FD of Linux
constexpr size_t kMaxFdsWaiting = 65536;
constexpr size_t kReadSize = 4 * 1024;  // cleared and let go of again at each receive: most come for a few hundred bytes
constexpr size_t kLargeReadSize = 1024 * 1024;
constexpr size_t kReadAtOnce = 4 * 1024 * 1024;

struct ControlBuffer {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))];
};

}  // namespace

void Link::spoil(std::string why, State state) {
  state_ = state;
  error_ = std::move(why);
  in_.clear();
  in_fds_.clear();
  large_.reset();
  large_payload_ = {};
}

// One recvmsg of at most `count` bytes, appended to `to`; descriptors go to in_fds_. Returns its result, with errno.
long Link::read_into(std::string* to, size_t count) {
  const size_t before = to->size();
  to->resize(before + count);
  iovec vector{to->data() + before, count};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const int error = errno;
  to->resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  for (cmsghdr* c = n < 0 ? nullptr : CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      in_fds_.emplace_back(fd);
    }
  }
  // Which descriptors were lost cannot be told, so none that follow could be trusted either.
  if (n >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) spoil("", State::starved);
  errno = error;
  return n;
}

long Link::read_some(size_t* total) {
  const size_t want = large_ ? std::min<size_t>(large_->length - large_payload_.size(), kLargeReadSize) : kReadSize;
  const long n = read_into(large_ ? &large_payload_ : &in_, want);
  if (n > 0) *total += static_cast<size_t>(n);
  return n;
}

bool Link::receive(std::vector<Frame>* out) {
  size_t total = 0;
  while (state_ == State::open && total < kReadAtOnce) {
    const long n = read_some(&total);
    if (state_ != State::open) break;
    if (n == 0) {
      state_ = State::closed;
    } else if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        state_ = State::closed;
        error_ = std::strerror(errno);
      }
      break;
    } else {
      parse(out);
    }
  }
  if (in_.empty()) in_.shrink_to_fit();
  return total > 0;
}

// A frame is whole once its descriptors are there too; they arrive no later than its last byte.
bool Link::finish(const FrameHeader& header, std::string payload, std::vector<Frame>* out) {
  Frame frame{static_cast<FrameType>(header.type), std::move(payload), {}};
  if (in_fds_.size() < header.fds) {
    spoil(text("a message that announces ", header.fds, " descriptors without them"));
    return false;
  }
  for (size_t i = 0; i < header.fds; ++i) {
    frame.fds.push_back(std::move(in_fds_.front()));
    in_fds_.pop_front();
  }
  out->push_back(std::move(frame));
  return true;
}

void Link::parse(std::vector<Frame>* out) {
  if (large_) {
    if (large_payload_.size() < large_->length) return;
    const FrameHeader header = *large_;
    large_.reset();
    if (!finish(header, std::exchange(large_payload_, {}), out)) return;
  }
  size_t at = 0;
  while (in_.size() - at >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, in_.data() + at, sizeof header);
    if (header.magic != kFrameMagic) return spoil(text("bytes that are no message (they begin with ", header.magic, ")"));
    if (header.length > max_payload_)
      return spoil(text("a message of ", header.length, " bytes, more than the ", max_payload_, " allowed"));
    if (in_.size() - at - sizeof header < header.length) {
      if (header.length <= kReadSize) break;
      large_ = header;
      large_payload_.reserve(header.length);  // at most max_payload_, and memory is taken only as bytes arrive
      large_payload_.assign(in_, at + sizeof header);
      at = in_.size();
      break;
    }
    if (!finish(header, in_.substr(at + sizeof header, header.length), out)) return;
    at += sizeof header + header.length;
  }
  in_.erase(0, at);
  const bool between = in_.empty() && !large_;
  if (in_fds_.size() > kMaxFdsWaiting || (between && !in_fds_.empty())) spoil("descriptors that belong to no message");
}

void Link::send(FrameType type, std::shared_ptr<const std::string> payload, std::vector<std::shared_ptr<const Fd>> fds) {
  if (state_ == State::closed) return;  // what has been received may be spoilt: the other side is told so
  Outgoing frame{{kFrameMagic, static_cast<uint16_t>(type), static_cast<uint16_t>(fds.size()), payload->size()}, std::move(payload), {}};
  frame.fds = std::move(fds);
  out_.push_back(std::move(frame));
}

// True when it may be called again at once.
bool Link::send_some(Outgoing& frame) {
  const size_t fds_now = std::min(frame.fds.size() - frame.fds_sent, kMaxFdsPerMessage);
  const bool more_fds_after = frame.fds_sent + fds_now < frame.fds.size();
  std::array<iovec, 2> vectors;
  size_t used = 0;
  if (frame.sent < sizeof frame.header) {
    vectors[used++] = {reinterpret_cast<char*>(&frame.header) + frame.sent, sizeof frame.header - frame.sent};
  }
  const size_t payload_sent = frame.sent < sizeof frame.header ? 0 : frame.sent - sizeof frame.header;
  if (payload_sent < frame.payload->size()) {
    vectors[used++] = {const_cast<char*>(frame.payload->data()) + payload_sent, frame.payload->size() - payload_sent};
  }
  if (more_fds_after) {  // one byte carries this batch, the rest is kept for the others
    used = 1;
    vectors[0].iov_len = 1;
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = used;
  ControlBuffer control{};
  if (fds_now > 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds_now * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds_now * sizeof(int));
    for (size_t i = 0; i < fds_now; ++i) {
      const int fd = frame.fds[frame.fds_sent + i]->get();
      std::memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) {
    frame.sent += static_cast<size_t>(n);
    frame.fds_sent += fds_now;
    return true;
  }
  if (errno == EINTR) return true;
  if (errno == ETOOMANYREFS) {
    waits_for_descriptors_ = true;
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS && errno != ENOMEM) {
    // What the other side sent before it closed is still to be read, so receiving decides about the state.
    out_.clear();
  }
  return false;
}

void Link::flush() {
  waits_for_descriptors_ = false;
  while (!out_.empty()) {
    Outgoing& frame = out_.front();
    if (frame.sent == sizeof frame.header + frame.payload->size()) {
      out_.pop_front();
    } else if (!send_some(frame)) {
      return;
    }
  }
}

bool Link::has_arrived() const noexcept {
  int under_way = 0;
  return idle() && (::ioctl(socket_.get(), SIOCOUTQ, &under_way) != 0 || under_way == 0);
}

void Link::shut_down_sending() noexcept {
  ::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace megadp
