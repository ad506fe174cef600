// SPDX-License-Identifier: Apache-2.0
// Link: one connected stream socket that carries frames both ways without ever blocking. Owned by one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "control/in_child.h"
#include "control/net/frame.h"
#include "control/world.h"

namespace megadp {

class Link {
 public:
  enum class State {
    open,
    closed,   // the other side closed, reset, or is unreachable
    corrupt,  // the other side sent what is no frame; error() says what
    starved,  // descriptors were lost because this process may not have more of them
  };

  // Frames longer than max_payload are refused before they are stored.
  Link(Fd socket, uint64_t max_payload) : socket_(std::move(socket)), max_payload_(max_payload) {}

  int fd() const noexcept { return socket_.get(); }
  State state() const noexcept { return state_; }
  const std::string& error() const noexcept { return error_; }
  void set_max_payload(uint64_t bytes) noexcept { max_payload_ = bytes; }

  // Reads what has arrived and appends the frames that are whole; at most a few MiB at once, so that one busy link does not starve the
  // others. True when anything arrived.
  bool receive(std::vector<Frame>* out);

  // Queues a frame. The payload may be shared between links; descriptors are kept open until they are sent.
  void send(FrameType type, std::shared_ptr<const std::string> payload, std::vector<std::shared_ptr<const Fd>> fds = {});
  void send(FrameType type, std::string payload) { send(type, std::make_shared<const std::string>(std::move(payload))); }
  // Writes as much as the socket takes.
  void flush();
  bool idle() const noexcept { return out_.empty(); }
  // Over TCP: all of it has reached the other side's machine, where it can be read whatever becomes of this process.
  bool has_arrived() const noexcept;
  // Nothing more will be sent; the other side reads an end of file.
  void shut_down_sending() noexcept;
  // True when the kernel holds too many descriptors in flight: flush() is to be tried again after a moment, the socket will not tell.
  bool waits_for_descriptors() const noexcept { return waits_for_descriptors_; }

 private:
  struct Outgoing {
    FrameHeader header;
    std::shared_ptr<const std::string> payload;
    std::vector<std::shared_ptr<const Fd>> fds;
    size_t sent = 0;      // bytes of header and payload
    size_t fds_sent = 0;  // in batches, each with at least one byte
  };
  bool send_some(Outgoing& frame);
  void parse(std::vector<Frame>* out);
  bool finish(const FrameHeader& header, std::string payload, std::vector<Frame>* out);
  long read_some(size_t* total);
  long read_into(std::string* to, size_t count);
  void spoil(std::string why, State state = State::corrupt);

  Fd socket_;
  uint64_t max_payload_;
  State state_ = State::open;
  std::string error_;
  std::string in_;  // bytes that are no whole frame yet
  // A large frame under way; its payload is read to where it will stay. Then in_ is empty.
  std::optional<FrameHeader> large_;
  std::string large_payload_;
  std::deque<Fd> in_fds_;
  std::deque<Outgoing> out_;
  bool waits_for_descriptors_ = false;
  // As long as a child has the connection open too, nobody at its other end learns that the parent has died.
  const InChild in_child_{[](void* of) noexcept { static_cast<Link*>(of)->socket_ = Fd(); }, this};
};

}  // namespace megadp
