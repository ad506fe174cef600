// SPDX-License-Identifier: Apache-2.0
// The inside of an Optimizer, shared by the files that implement it (optimizer.cc, optimizer_step.cc).
//
//   masters          | bucket 0's piece | bucket 1's piece | ...    this rank's pieces, end to end, padding and gaps included; not for f32
//   state arrays     | laid out like masters |    of the rule. Each is an allocation of its own: arrays that are walked through side by
//                    | laid out like masters |    side are the faster for the backend's choice of their places.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/rules.h"
#include "core/buffer.h"
#include "core/keep_alive.h"
#include "core/optimizer.h"
#include "core/step_classes.h"

namespace megadp {

struct Optimizer::Impl {
  struct Owned : OwnedRange {
    int group;
  };
  struct Shard {                                          // of one arena
    Memory *master = nullptr, *states[kMostStates] = {};  // in `kept`
    std::vector<std::vector<Owned>> buckets;
    uint64_t elements = 0;
  };
  OptimizerConfig config;
  std::shared_ptr<KeepAlive> kept = std::make_shared<KeepAlive>();
  std::vector<Shard> shards;
  Memory* scalars = nullptr;  // StepScalars, and behind them one step count a class
  StepClasses classes;
  std::vector<uint64_t> versions;  // by parameter: the version that its master stands for

  StepScalars* device_scalars() { return static_cast<StepScalars*>(scalars->data()); }
  uint64_t* device_steps(uint32_t step_class) { return reinterpret_cast<uint64_t*>(device_scalars() + 1) + step_class; }
  const UpdateRule& rule() const { return megadp::rule(config.rule); }
  Hyper hyper(int group, double lr) const;
  // If the parameter's version is not `version`. The caller then takes that over.
  Status submit_master(const Arenas& arenas, size_t arena, const OwnedRange& owned, uint64_t version) const;
  // Before a master is shown: what is read is the parameter, and what is written stays.
  Status refresh_master(Buffer& buffer, size_t arena, const OwnedRange& owned);
  float* master_at(const Arena& arena, const Shard& shard, const OwnedRange& owned) const;
  void* state_at(const Shard& shard, const OwnedRange& owned, size_t which) const {
    return static_cast<std::byte*>(shard.states[which]->data()) + owned.at * size_of(rule().state[which].type);
  }
  Update update(const Arena& arena, const Shard& shard, const Owned& owned, double lr);
};

}  // namespace megadp
