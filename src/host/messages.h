// SPDX-License-Identifier: Apache-2.0
// Messages: what goes between two ranks of a group alone. On a node it goes in pieces through the staging memory of its sender (pipe.cc),
// between nodes from memory to memory by the transport (messages.cc).
//
//   sender's page      out: what it sends, and to whom      filled: pieces that lie in its staging memory      taken: by the receiver
//   receiver's page    in: what it expects, and from whom
//   everyone's page    bell: rung by whoever has changed something that the owner may wait for
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "host/operation.h"

namespace megadp::host {

struct MessagePage {
  // Written by its owner before `posted`, and left alone while that is not 0.
  struct alignas(64) Notice {
    std::atomic<uint64_t> posted;  // message_key(); 0: none
    std::atomic<uint64_t> count;
    std::atomic<uint32_t> type;
    std::atomic<int32_t> root;
  };
  Notice out, in;
  alignas(64) std::atomic<uint64_t> filled;
  alignas(64) std::atomic<uint64_t> taken;
  struct alignas(64) Bell {
    std::atomic<uint32_t> rung;
    std::atomic<uint32_t> asleep;  // 1: the owner
  } bell;
};

// One half of an exchange while it is under way.
struct MessageHalf {
  Operation message;
  int peer;         // among the ranks of the node, or in the world if it is on another one
  std::byte* data;  // the caller's
  size_t bytes;
  std::byte* staging;    // on a node, of the sender
  uint64_t moved = 0;    // pieces
  bool matched = false;  // the peer has come for the same
  bool ended = false;
};

// The same message at its other end.
inline bool same_message(const Operation& sent, const Operation& expected) noexcept {
  return sent.count == expected.count && sent.type == expected.type;
}
// ranks in the world
Status messages_differ(int sender, const Operation& sent, int receiver, const Operation& expected);

}  // namespace megadp::host
