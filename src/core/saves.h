// SPDX-License-Identifier: Apache-2.0
// Saves: the checkpoint of a context that is written in the background, one at a time. It runs on a stream of its own, whose thread tells
// the other ranks' on a line of its own; so neither waits for the training, nor the training for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "base/status.h"

namespace megadp {

class CheckpointWrite;
class Request;
struct Context;

// Its methods are called from calls that have the context alone (OneCall), so that no two of them run at once.
class Saves {
 public:
  Saves() = default;
  ~Saves();  // what is being written is given up
  Saves(const Saves&) = delete;
  Saves& operator=(const Saves&) = delete;

  // Until the one that is being written has ended.
  Status wait();
  // How the last one failed, if nobody has asked its request; once.
  Status unseen_failure();
  // Memory of the host for a copy, which the device reaches fast. Kept for the next one.
  Result<std::byte*> room(Backend& backend, uint64_t bytes);
  // How much more of the host's memory that would take.
  uint64_t more_for(uint64_t bytes) const { return room_ && room_->bytes() >= bytes ? 0 : bytes - (room_ ? room_->bytes() : 0); }
  // mine: what CheckpointWrite::run is given. Its request; or why this rank cannot have one, which the others learn then. None may be under
  // way.
  Result<std::shared_ptr<Request>> submit(const std::shared_ptr<Context>& context, const std::shared_ptr<CheckpointWrite>& write,
                                          const Status& mine);

 private:
  struct Start {  // what is awaited before the write begins: that there is a request for it
    std::atomic<bool> is_known{false};
    Status mine;
  };
  struct Outcome {
    Status status{Code::aborted, "the communicator was destroyed before the checkpoint was written"};
    std::string directory;
    bool is_told = false;              // by the thread, in the log
    std::atomic<bool> is_over{false};  // written after these, as the thread of the saves does
    std::atomic<bool> is_seen{false};
  };

  Status put(Backend& control, const std::shared_ptr<CheckpointWrite>& write, const std::shared_ptr<Start>& start);
  Status make_request(const std::shared_ptr<Context>& context, std::shared_ptr<Request>* request);

  std::unique_ptr<Memory> room_;
  std::shared_ptr<Outcome> outcome_;  // of the last one
  const std::shared_ptr<std::atomic<bool>> is_leaving_ = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<Stream> stream_;  // last: its thread reads what is above
};

}  // namespace megadp
