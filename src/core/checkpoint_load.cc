// SPDX-License-Identifier: Apache-2.0
// Loading. Everything that can be known without reading data is checked on all ranks before anything changes.
#include <memory>
#include <optional>
#include <utility>

#include "control/agreement.h"
#include "control/interrupt.h"
#include "core/checkpoint_load_arrays.h"
#include "core/checkpoint_load_progress.h"

namespace megadp {
namespace {

class Load {
 public:
  explicit Load(const CheckpointConfig& config) : config_(config), world_(*config.context().world) {
    for (const CheckpointPart& part : config.parts) leave_loaded_.push_back(part.buffer->arenas().check_loaded().ok());
  }
  // However it ends, also for want of memory.
  ~Load() {
    for (size_t i = 0; i < config_.parts.size(); ++i) config_.parts[i].buffer->arenas().set_loaded(leave_loaded_[i]);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  Status run() {
    const Status waited = attempt([this] { return config_.context().saves.wait(); });
    if (Status same = compare_checkpoint_configs(config_, kLoad); !same) return same;
    // So that one that failed can be made good.
    for (const CheckpointPart& part : config_.parts) part.buffer->arenas().set_loaded(true);
    if (Status ready = prepare(waited); !ready) return ready;
    leave_loaded_.assign(config_.parts.size(), false);
    if (Status copied = agree_on(attempt([this] { return copy(); })); !copied) return copied;
    if (Status gathered = agree_on(gather()); !gathered) return gathered;
    if (Status same = verify(); !same) return same;
    leave_loaded_.assign(config_.parts.size(), true);
    return {};
  }

 private:
  Status agree_on(const Status& mine) { return agree(world_, config_.members(), {kLoad}, mine, World::kFilesLine); }

  // All ranks come through every collective of it, or none comes to the next.
  Status prepare(const Status& waited) {
    Status ready = waited;
    for (const CheckpointPart& part : config_.parts) {
      if (!config_.is_first_of_buffer(part)) continue;
      Gradients& gradients = part.buffer->gradients();
      const auto launched =
          exchange_as<Gradients::Launched>(world_, config_.members(), kLoad, gradients.launched_of_step(), World::kFilesLine);
      if (!launched) return launched.status();
      if (ready.ok()) ready = gradients.check_none_accumulated(kLoad);
      if (ready.ok()) ready = gradients.check_launched_alike(kLoad, *launched);
    }
    if (Status all = agree_on(ready); !all) return all;
    auto here = gather_arrays(config_, kLoad);
    if (Status all = agree_on(here.status()); !all) return all;
    here_ = *std::move(here);
    if (Status opened = open_source(); !opened) return opened;
    arrays_.emplace(config_, here_, *source_);
    progress_.emplace(config_, *source_);
    const Status planned = attempt([this]() -> Status {
      if (Status arrays = arrays_->plan(); !arrays) return arrays;
      return progress_->find(arrays_->params());
    });
    if (Status all = agree_on(planned); !all) return all;
    if (Status joined = progress_->join(); !joined) return joined;
    return agree_on(attempt([this]() -> Status {
      if (Status optimizers = progress_->plan(); !optimizers) return optimizers;
      return arrays_->check();
    }));
  }

  // Rank 0 finds the checkpoint, so that all read the same while another job may save.
  Status open_source() {
    const bool first = config_.grid()->world()->rank() == 0;
    std::string mine;
    Status found;
    if (first) {
      found = attempt([&]() -> Status {
        if (Status opened = open_source(config_.directory); !opened) return opened;
        auto name = name_of_source();
        if (name) mine = *std::move(name);
        return name.status();
      });
    }
    auto told = world_.broadcast(config_.members(), kLoad, mine, World::kFilesLine);
    if (!told) return told.status();
    if (!first && !told->empty()) {
      found = attempt([&]() -> Status {
        const std::string path = told->substr(0, told->rfind('\n'));  // a path may have one itself
        const std::string of = text("of ", path, ", which rank 0 has found", relative_to(path));
        if (Status opened = open_source(path); !opened) return opened.with_context(of);
        const auto name = name_of_source();
        if (!name) return name.status().with_context(of);
        if (*name == *told) return {};
        return Status(Code::corrupt, text(path, " holds another ", source_->manifest().is_model ? "model" : "checkpoint",
                                          " here than on rank 0: it must be the same on all hosts", relative_to(path)));
      });
    }
    return agree_on(found);
  }

  Status open_source(const std::string& directory) {
    auto source = CheckpointSource::open(directory);
    if (!source) return source.status();
    source_ = std::make_unique<CheckpointSource>(*std::move(source));
    source_->ask_between_pieces([this] {
      (void)interrupted();  // which ends the world
      return config_.context().usable();
    });
    return {};
  }
  Result<std::string> name_of_source() {
    const auto digest = source_->digest();
    if (!digest) return digest.status();
    return text(source_->path(), "\n", *digest);
  }

  Status copy() {
    for (const CheckpointPart& part : config_.parts) {
      if (Status forgotten = part.buffer->gradients().forget_residuals(); !forgotten) return forgotten;
    }
    if (Status copied = arrays_->copy(); !copied) return copied;
    if (Status adopted = progress_->adopt(); !adopted) return adopted;
    arrays_->adopt();
    return {};
  }

  // The other ranks' ranges.
  Status gather() {
    for (const CheckpointPart& part : config_.parts) {
      if (!config_.is_first_of_buffer(part)) continue;
      if (Status gathered = part.buffer->gather_params(); !gathered) return gathered;
    }
    return {};
  }

  Status verify() {
    for (const CheckpointPart& part : config_.parts) {
      if (config_.is_first_of_buffer(part)) {
        if (Status same = part.buffer->verify(); !same) return same.with_context(kLoad);
      }
      if (!part.optimizer) continue;
      if (Status same = part.optimizer->verify(kLoad); !same) return same;
    }
    return {};
  }

  const CheckpointConfig& config_;
  World& world_;
  std::vector<bool> leave_loaded_;  // at the end, by part
  CheckpointArrays here_;
  std::unique_ptr<CheckpointSource> source_;
  std::optional<LoadArrays> arrays_;
  std::optional<LoadProgress> progress_;
};

}  // namespace

Status load_checkpoint(const CheckpointConfig& config) {
  return Load(config).run();
}

}  // namespace megadp
