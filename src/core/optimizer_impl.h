// SPDX-License-Identifier: Apache-2.0
// The inside of an Optimizer, shared by the files that implement it (optimizer*.cc).
//
//   masters          | bucket 0's piece | bucket 1's piece | ...    this rank's pieces, end to end, padding and gaps included; not for f32
//   state arrays     | laid out like masters |    of the rule. Each is an allocation of its own: arrays that are walked through side by
//                    | laid out like masters |    side are the faster for the backend's choice of their places.
//   average, aside   | laid out like masters |    if the optimizer averages.
//
// With MDP_OPTIMIZER_SOME_GROUPS only the pieces of its own parameters.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rules.h"
#include "core/buffer.h"
#include "core/keep_alive.h"
#include "core/optimizer.h"
#include "core/step_classes.h"
#include "core/update_check.h"

namespace megadp {

struct Optimizer::Impl {
  struct Owned : OwnedRange {
    size_t group;
    uint64_t place;  // in the optimizer's arrays
    bool joined;     // nothing of another optimizer's lies between it and the one before
  };
  struct Shard {                                          // of one arena
    Memory *master = nullptr, *states[kMostStates] = {};  // in `kept`
    Memory* average = nullptr;                            // likewise, where it averages; laid out like masters, f32
    Memory* aside = nullptr;                              // likewise, of the parameters' type: what they were before the swap
    std::vector<std::vector<Owned>> buckets;
    uint64_t elements = 0;
  };
  OptimizerConfig config;
  LossScaler scaler{};
  std::shared_ptr<KeepAlive> kept = std::make_shared<KeepAlive>();
  std::vector<Shard> shards;
  Memory* scalars = nullptr;  // StepScalars, and behind them one step count a class
  StepClasses classes;
  std::vector<uint64_t> versions;  // by parameter: the version that its master stands for
  // By parameter, if anything is drawn: where what this rank has lies in the whole; its key is the name's, without the seed.
  std::vector<RandomSource> sources;

  StepScalars* device_scalars() { return static_cast<StepScalars*>(scalars->data()); }
  // What the rule keeps; of the caller's what the configuration says, f32.
  std::vector<StateArray> states;
  std::vector<std::string> state_names;  // of the caller's
  bool is_callers() const { return config.rule == kCallerRule; }
  Memory* gradient = nullptr;  // of one bucket's pieces, for the caller's rule; in `kept`
  bool broken = false;         // an update of the caller's has failed
  // The values of groups in such a step, while one is under way: what is set meanwhile is for the next.
  std::weak_ptr<const std::vector<ParamGroup>> stepping;
  // Those of what this rank owns, end to end, by state of the configuration.
  struct ParamStateMemory {
    Memory* memory = nullptr;                    // in `kept`; null: this rank owns none
    std::vector<uint64_t> at;                    // by parameter: the first byte
    std::vector<std::array<int64_t, 2>> shapes;  // by parameter, as Slice wants them
    uint64_t bytes = 0;
  };
  std::vector<ParamStateMemory> param_states;
  Slice param_state(size_t state, size_t param) const;
  bool averages() const { return config.average_decay > 0; }
  std::vector<bool> average_begun;  // by parameter: its average has a value
  bool swapped = false;             // averages are in the place of parameters
  uint64_t* device_steps(uint32_t step_class) { return reinterpret_cast<uint64_t*>(device_scalars() + 1) + step_class; }
  const UpdateRule& rule() const { return megadp::rule(config.rule); }
  bool has_master(const ArenaPlan& arena) const { return Plan::has_master(arena) && !config.no_master; }
  bool draws(const ArenaPlan& arena) const { return config.stochastic_state || (config.no_master && arena.param_type == DType::bf16); }
  Hyper hyper(size_t group, std::optional<double> lr) const;  // lr: in place of the optimizer's
  // What this rank owns of the parameter; nullptr if nothing, or it is another optimizer's.
  const Owned* owned(const Arenas& arenas, size_t param) const;
  // If the parameter's version is not `version`. The caller then takes that over.
  Status submit_master(Buffer& buffer, Stream& stream, size_t arena, const Owned& owned, uint64_t version) const;
  // Before a master is shown: what is read is the parameter, and what is written stays.
  Status refresh_master(Buffer& buffer, size_t arena, const Owned& owned);
  float* master_at(const Arena& arena, const Shard& shard, const Owned& owned) const;  // null: it has none
  void* state_at(const Shard& shard, const Owned& owned, size_t which) const {
    return static_cast<std::byte*>(shard.states[which]->data()) + owned.place * size_of(states[which].type);
  }
  float* average_at(const Shard& shard, const Owned& owned) const { return static_cast<float*>(shard.average->data()) + owned.place; }
  Status submit_first_average(const Arenas& arenas, Stream& stream, size_t arena, const Owned& owned);
  // Before an average is shown, likewise; its master has been refreshed.
  Status begin_average(Buffer& buffer, size_t arena, const Owned& owned);
  RandomSource source(const Owned& owned) const;
  Update update(const Arena& arena, const Shard& shard, const Owned& owned, std::optional<double> lr);
  // Of the pieces of the fullest bucket, each beginning as it does in its arena.
  uint64_t gradient_elements() const;
};

struct Optimizer::Step {
  StepOptions options;
  Scaled scaled;
  std::shared_ptr<Event> normed{};
  std::shared_ptr<Memory> outcome{};
  Status nonfinite{};  // found by the sync
  // If buckets that the sync has kept were reduced for this step: the end of that, which a refused step leaves behind.
  std::shared_ptr<Event> reduced{};
  Status refused(const Status& why) const {
    if (reduced) (void)reduced->await();
    return why;
  }
};

// Of a step whose updates are the caller's: what is still to be handed out.
struct Optimizer::Pieces {
  Step step;
  std::vector<std::shared_ptr<Optimizer>> others;                      // that step with the one that leads
  std::vector<std::shared_ptr<const std::vector<ParamGroup>>> groups;  // Impl::stepping of all
  bool skipped;
  size_t optimizer = 0;                  // whose pieces are handed out
  size_t buckets_left;                   // of its; from the last launched to the first, the order in which parameters are needed
  std::vector<UpdatePiece> ready{};      // of one bucket
  size_t next = 0;                       // of `ready`
  std::vector<uint64_t> steps{};         // of its parameters
  std::unique_ptr<UpdateCheck> check{};  // of the piece that was handed out last, until its halves have come to the same
};

}  // namespace megadp
