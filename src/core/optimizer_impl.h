// SPDX-License-Identifier: Apache-2.0
// The inside of an Optimizer, shared by the files that implement it (optimizer.cc, optimizer_step.cc).
//
//   masters          | bucket 0's piece | bucket 1's piece | ...    this rank's pieces, end to end, padding and gaps included; not for f32
//   first moments    | laid out like masters |    Each is an allocation of its own: arrays that are walked through side by side are the
//   second moments   | laid out like masters |    faster for the backend's choice of their places.
#pragma once

#include <memory>
#include <vector>

#include "base/math.h"
#include "core/buffer.h"
#include "core/keep_alive.h"
#include "core/optimizer.h"
#include "core/step_classes.h"

namespace megadp {

struct Optimizer::Impl {
  struct Owned : OwnedRange {  // ready for the kernels
    uint64_t at;               // element of masters and moments
    int group;
  };
  struct Shard {                                 // of one arena
    Memory *master = nullptr, *moments[2] = {};  // in `kept`
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
  AdamW hyper(int group, double lr) const;
  // Where the parameter's version is not `version`. The caller then takes that over.
  Status submit_master(const Arenas& arenas, size_t arena, const Owned& owned, uint64_t version) const;
  // Before a master is shown: what is read is the parameter, and what is written stays.
  Status refresh_master(Buffer& buffer, size_t arena, const Owned& owned);
  float* master_at(const Arena& arena, const Shard& shard, const Owned& owned) const;
  float* moment_at(const Shard& shard, const Owned& owned, int which) const {
    return static_cast<float*>(shard.moments[which]->data()) + owned.at;
  }
};

}  // namespace megadp
