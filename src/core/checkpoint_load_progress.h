// SPDX-License-Identifier: Apache-2.0
// LoadProgress: how far the optimizers of a checkpoint were. Step counts, loss scales and, where that is asked for, what they were told.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/checkpoint_load_arrays.h"

namespace megadp {

class LoadProgress {
 public:
  LoadProgress(const CheckpointConfig& config, const CheckpointSource& source) : config_(config), source_(source) {}

  // Of the parameters that this rank loads.
  Status find(const std::vector<LoadedParam>& loaded);
  // All ranks then take the same, though pipeline stages have other parameters. Collective.
  Status join();
  Status plan();
  // Changes the optimizers.
  Status adopt() const;

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  // Where the parameters of an optimizer come from: the first of the checkpoint's optimizers, and the first of these that has a scaler,
  // since of the optimizers of a step one has it.
  struct Origin {
    uint64_t optimizer = kNone, scaler = kNone, taken = 0;
    void join(const Origin& other);
  };
  struct OfPart {
    std::vector<uint64_t> steps;  // of each parameter
    std::optional<OptimizerConfig> config;
    std::optional<LossScale> loss_scale;
  };
  Result<Origin> origin_of(const LoadedParam& loaded) const;
  const StoredOptimizer* stored_as(const CheckpointPart& part) const;

  const CheckpointConfig& config_;
  const CheckpointSource& source_;
  // One of each part; of a part without an optimizer nothing is asked.
  std::vector<Origin> origins_;
  std::vector<OfPart> parts_;
};

}  // namespace megadp
