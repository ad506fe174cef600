// SPDX-License-Identifier: Apache-2.0
// Listener: the door of a rendezvous. It accepts connections, turns strangers away, and yields those that have proved that they know the
// key (handshake.h) and said hello. Strangers may send anything, or nothing, in any number: of each at most 56 bytes are read and
// compared, it has a few seconds, and only so many may stand at the door at once.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/join/job_key.h"
#include "control/join/process.h"
#include "control/net/link.h"
#include "control/net/socket.h"

namespace megadp {

// The payload of the hello frame.
struct Hello {
  uint32_t version = 0;
  int32_t rank = -1;
  int32_t nranks = 0;
  Process process;
};
constexpr uint32_t kProtocolVersion = 1;
constexpr uint64_t kMaxHello = 4096;
std::string write_hello(const Hello& hello);

struct Accepted {
  Hello hello;
  std::unique_ptr<Link> link;
  std::vector<Frame> early;  // what came together with the hello: a rank whose deadline passes just then gives up at once
};

class Listener {
 public:
  Listener(std::vector<Fd> listeners, const AuthKey& key, size_t max_pending, std::string where);

  // Adds what is to be polled.
  void add_to(std::vector<pollfd>* polled) const;
  // Serves whatever is ready (asked of the sockets themselves). New arrivals are appended.
  void serve(std::vector<Accepted>* out);

 private:
  struct Pending {
    std::unique_ptr<Link> link;  // once the proof was right
    Fd socket;                   // until then
    std::string said;            // of the handshake so far
    std::string expected;        // the proof, once the client's nonce is known
    uint64_t since_ns = 0;
  };
  enum class Outcome {
    wait,
    arrived,
    refuse
  };
  void accept_all();
  Outcome advance(Pending* pending, Accepted* arrival, std::string* why);
  Outcome advance_handshake(Pending* pending, std::string* why);
  Outcome read_opening(Pending* pending, std::string* why);
  void turn_away(const Pending& pending, const std::string& why) const;

  std::vector<Fd> listeners_;
  AuthKey key_;
  size_t max_pending_;
  std::string where_;
  std::vector<Pending> pending_;  // oldest first
  uint64_t pause_until_ns_ = 0;   // after running out of descriptors: polling the listener would spin
};

}  // namespace megadp
