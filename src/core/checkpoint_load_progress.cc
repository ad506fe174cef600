// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint_load_progress.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace megadp {

void LoadProgress::Origin::join(const Origin& other) {
  optimizer = std::min(optimizer, other.optimizer);
  scaler = std::min(scaler, other.scaler);
  taken = std::max(taken, other.taken);
}

Result<LoadProgress::Origin> LoadProgress::origin_of(const LoadedParam& loaded) const {
  Origin origin;
  origin.optimizer = static_cast<uint64_t>(loaded.source->optimizer);
  const StoredOptimizer& stored = source_.manifest().optimizers[origin.optimizer];
  origin.taken = stored.steps;
  if (loaded.source->steps > stored.steps) {
    return Status(Code::corrupt,
                  text(source_.path(), " has a parameter that has taken ", loaded.source->steps, " steps of ", stored.steps));
  }
  const auto scale = loaded.part->optimizer->loss_scale_from(stored);
  if (!scale) return scale.status().with_context(source_.path());
  if (*scale) origin.scaler = origin.optimizer;
  return origin;
}

// What the checkpoint lacks stays as it is, its steps too.
Status LoadProgress::find(const std::vector<LoadedParam>& loaded) {
  for (const CheckpointPart& part : config_.parts) {
    Origin origin;
    std::vector<uint64_t> steps(part.buffer->plan().params.size());
    std::vector<bool> is_loaded(steps.size());
    for (const LoadedParam& each : loaded) {
      if (each.part != &part || !part.optimizer || !part.optimizer->covers(each.index)) continue;
      is_loaded[each.index] = true;
      if (config_.params_only) continue;
      const auto found = origin_of(each);
      if (!found) return found.status();
      origin.join(*found);
      steps[each.index] = each.source->steps;
    }
    for (size_t param = 0; part.optimizer && param < steps.size(); ++param) {
      if (is_loaded[param] || !part.optimizer->covers(param)) continue;
      const auto kept = part.optimizer->steps(param);
      if (!kept) return kept.status();
      steps[param] = *kept;
      origin.taken = std::max(origin.taken, *kept);
    }
    origins_.push_back(origin);
    parts_.push_back({std::move(steps), {}, {}});
  }
  return {};
}

Status LoadProgress::join() {
  const std::string mine(reinterpret_cast<const char*>(origins_.data()), origins_.size() * sizeof(Origin));
  const auto told = config_.context().world->exchange(config_.members(), kLoad, mine, World::kFilesLine);
  if (!told) return told.status();
  for (const std::string& each : *told) {
    for (size_t i = 0; i < origins_.size() && (i + 1) * sizeof(Origin) <= each.size(); ++i) {
      Origin other;
      std::memcpy(&other, each.data() + i * sizeof(Origin), sizeof(Origin));
      origins_[i].join(other);
    }
  }
  return {};
}

// The optimizer of the checkpoint that this one was, where no rank has loaded a parameter of it.
const StoredOptimizer* LoadProgress::stored_as(const CheckpointPart& part) const {
  for (const StoredOptimizer& each : source_.manifest().optimizers) {
    if (part.optimizer->is_stored_as(each)) return &each;
  }
  return nullptr;
}

Status LoadProgress::plan() {
  if (config_.params_only) return {};
  const std::vector<StoredOptimizer>& stored = source_.manifest().optimizers;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const CheckpointPart& part = config_.parts[i];
    if (!part.optimizer) continue;
    Origin& origin = origins_[i];
    const StoredOptimizer* const from = origin.optimizer != kNone ? &stored[origin.optimizer] : stored_as(part);
    if (from == nullptr) continue;
    if (origin.optimizer == kNone) origin.taken = std::max(origin.taken, from->steps);
    if (config_.load_hyper) {
      auto hyper = part.optimizer->config_from(*from);
      if (!hyper) return hyper.status();
      parts_[i].config = *std::move(hyper);
    }
    auto scale = part.optimizer->loss_scale_from(origin.scaler != kNone ? stored[origin.scaler] : *from);
    if (!scale) return scale.status().with_context(source_.path());
    parts_[i].loss_scale = *scale;
  }
  return {};
}

Status LoadProgress::adopt() const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!config_.parts[i].optimizer) continue;
    Optimizer& optimizer = *config_.parts[i].optimizer;
    const OfPart& loaded = parts_[i];
    if (Status set = optimizer.set_steps(origins_[i].taken, loaded.steps); !set) return set;
    if (loaded.config) optimizer.set_config(*loaded.config);
    if (loaded.loss_scale) {
      if (Status set = optimizer.set_loss_scale(*loaded.loss_scale); !set) return set;
    }
  }
  return {};
}

}  // namespace megadp
