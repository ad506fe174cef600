// SPDX-License-Identifier: Apache-2.0
// StepChanges: what steps have changed, for the other optimizers of a buffer, whose masters then follow. Whether a step changes anything is
// known when its norm is, for which a device's caller does not wait. So a change is counted later, when another optimizer asks. Everything
// under the gradients' lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace megadp {

class Params;

class StepChanges {
 public:
  // Of each parameter the version that an optimizer's masters stand for. It stands for the optimizer here.
  using Versions = std::vector<uint64_t>;

  explicit StepChanges(Params& params) noexcept : params_(params) {}
  void join(Versions* optimizer) { optimizers_.push_back(optimizer); }
  void leave(const Versions* optimizer) noexcept;

  // A step of the optimizer changes these, unless the scalars in `outcome` say that it is skipped; `known`: when they are there.
  struct Change {
    Versions* optimizer = nullptr;  // null: it is gone
    std::vector<size_t> params;
    std::shared_ptr<Event> known;
    std::shared_ptr<Memory> outcome;
  };
  bool are_wanted() const noexcept { return optimizers_.size() > 1; }
  bool has_optimizer() const noexcept { return !optimizers_.empty(); }
  void add(Change change);
  // Counts what others than these have changed; waits until that is known.
  void settle(std::span<const Versions* const> but);

 private:
  void count(const Change& change);

  Params& params_;
  std::vector<Versions*> optimizers_;
  std::vector<Change> open_;
};

}  // namespace megadp
