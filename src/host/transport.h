// SPDX-License-Identifier: Apache-2.0
// Transport: bytes between ranks on different hosts, over UCX. One per World; ranks of one host never use it, their windows are faster.
//
// Messages between two ranks are matched by their order: the k-th send to a rank meets the k-th receive from this one. All ranks run the
// same operations in the same order on one queue, so this needs no tags of the caller's.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "backend/world.h"
#include "base/status.h"
#include "host/stream.h"

namespace megadp::host {

class Transport {
 public:
  // Collective over the world. Connects this rank with every rank of another host, and says hello to each, so that a network that lets
  // the rendezvous pass but not the data is found out here and not in the middle of training.
  static Result<std::shared_ptr<Transport>> open(const std::shared_ptr<World>& world);
  virtual ~Transport() = default;  // local; forgets what is in flight

  // Held while an operation runs. Messages have one order: of two streams of this rank only one may be in it at a time.
  std::mutex& in_use() noexcept { return in_use_; }

  // Post a message. The memory is the transport's until the next wait() has returned. One thread at a time, which holds in_use().
  virtual Status send(int to, const void* data, size_t bytes) = 0;
  virtual Status receive(int from, void* data, size_t bytes) = 0;
  // Until everything posted has finished. A peer that died or left, a failed World, `stop` or the World's timeout end it early; then
  // nothing is in flight any more and the transport is unusable. `during` describes the operation for the sentence of a failure.
  virtual Status wait(const Stop& stop, const std::string& during) = 0;

 private:
  std::mutex in_use_;
};

// Whether ranks on different hosts can be joined here: "UCX 1.13.1", or why not. Loads the library to find out.
struct TransportInfo {
  bool available;
  std::string detail;
};
TransportInfo transport_info();

}  // namespace megadp::host
