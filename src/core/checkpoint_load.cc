// SPDX-License-Identifier: Apache-2.0
// Loading. Everything that can be known without reading data is checked on all ranks before anything changes.
#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "control/agreement.h"
#include "control/interrupt.h"
#include "core/checkpoint_arrays.h"
#include "core/checkpoint_source.h"

namespace megadp {
namespace {

constexpr const char* kLoad = "mdp_checkpoint_load";

// One state of what this rank holds of an array: where it goes, and what it comes from.
struct Job {
  const StoredArray *source, *target;
  LocalArray local;
  std::string state;  // of the source; empty: zeros
  DType stored_type;
  DType type;  // here
  void* data;
  uint64_t begin, end;  // elements of the local part
  size_t number;        // of the state: each lies together in the files
  bool on_device;
};

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
  struct Loaded {
    const CheckpointPart* part;
    size_t param;
    const StoredArray* source;
  };
  struct Progress {
    const CheckpointPart* part;
    uint64_t taken;
    std::vector<uint64_t> steps;
    std::optional<OptimizerConfig> config;
    std::optional<LossScale> loss_scale;
  };

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
    std::vector<Origin> origins;
    const Status planned = attempt([&]() -> Status {
      if (Status arrays = plan_arrays(); !arrays) return arrays;
      auto found = find_origins();
      if (found) origins = *std::move(found);
      return found.status();
    });
    if (Status all = agree_on(planned); !all) return all;
    const auto joined = exchange_origins(origins);
    if (!joined) return joined.status();
    return agree_on(attempt([&]() -> Status {
      if (Status optimizers = plan_optimizers(*joined); !optimizers) return optimizers;
      return check_jobs();
    }));
  }

  Status plan_arrays() {
    if (Status same = compare_arrays(); !same) return same;
    for (const StoredArray& target : here_.arrays) {
      if (Status planned = plan(target); !planned) return planned;
    }
    return {};
  }

  Status check_jobs() {
    order_jobs();
    for (const Job& job : jobs_) {
      if (job.state.empty()) continue;
      if (Status stored = source_->check(range_of(job), job.state, job.stored_type); !stored) return stored;
    }
    return {};
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
        const std::string path = told->substr(0, told->find('\n'));
        if (Status opened = open_source(path); !opened) return opened.with_context(text("of ", path, ", which rank 0 has found"));
        const auto name = name_of_source();
        if (!name) return name.status().with_context(text("of ", path, ", which rank 0 has found"));
        if (*name == *told) return {};
        return Status(Code::corrupt, text(path, " holds another ", source_->manifest().is_model ? "model" : "checkpoint",
                                          " here than on rank 0: it must be the same on all hosts"));
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

  bool is_optional(const std::string& name) const {
    return std::any_of(config_.optional.begin(), config_.optional.end(),
                       [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
  }

  // Under any of its names: a model has what is tied under one of them.
  const StoredArray* source_of(const StoredArray& target) const {
    const StoredArray* found = source_->find(target.name);
    for (size_t i = 0; found == nullptr && i < target.aliases.size(); ++i) found = source_->find(target.aliases[i]);
    return found;
  }

  // What one side has and the other has not, and what is not the same array. All ranks know both lists.
  Status compare_arrays() const {
    const auto wrong = [](const auto&... words) { return invalid("this is another model: ", words...); };
    std::vector<std::string_view> known;
    for (const StoredArray& target : here_.arrays) {
      if (target.is_state() && config_.params_only) continue;
      const StoredArray* const source = source_of(target);
      if (source == nullptr) {
        if (is_optional(target.name)) continue;
        return wrong(in_quotes(target.name), " is here, ", name_of(target.type), shape_text(target.shape), ", and not in ",
                     source_->path());
      }
      known.push_back(source->name);
      if (!source->foreign.empty()) {
        return unsupported(in_quotes(target.name), " is ", source->foreign, " in ", source_->path(),
                           ", which the library does not have; give it as ", name_of(target.type));
      }
      if (target.is_state() && source->cut.sizes != target.cut.sizes) {
        return invalid(in_quotes(target.name), " was kept by ", source->cut.parts(), " tensor-parallel ranks in ", source_->path(),
                       " and is by ", target.cut.parts(), " here; only its owners know what it means: load on as many, or with ",
                       "MDP_CHECKPOINT_PARAMS_ONLY (1), and it begins with zeros");
      }
      if (source->shape == target.shape) continue;
      return wrong(in_quotes(target.name), " is ", name_of(target.type), shape_text(target.shape), " here, and ", source->type_name(),
                   shape_text(source->shape), " in ", source_->path());
    }
    std::sort(known.begin(), known.end());
    for (const StoredArray& source : source_->manifest().arrays) {
      if (std::binary_search(known.begin(), known.end(), std::string_view(source.name))) continue;
      if (here_.frozen.count(source.name) > 0 || is_optional(source.name) || !is_wanted(source)) continue;
      for (const StoredArray& target : here_.arrays) {
        if (std::find(target.aliases.begin(), target.aliases.end(), source.name) == target.aliases.end()) continue;
        return wrong(in_quotes(source.name), " is in ", source_->path(), " beside ", in_quotes(target.name),
                     ", with which it is tied here");
      }
      return wrong(in_quotes(source.name), " is in ", source_->path(), ", ", source.type_name(), shape_text(source.shape),
                   ", and not here");
    }
    return {};
  }

  // What an owner has kept counts only if the parameter has an optimizer here, whose state is loaded.
  bool is_wanted(const StoredArray& source) const {
    if (!source.is_state()) return true;
    return !config_.params_only && std::any_of(here_.arrays.begin(), here_.arrays.end(), [&](const StoredArray& target) {
      return target.name == source.state_of && target.optimizer >= 0;
    });
  }

  void count_cast(const std::string& what, DType from, DType to) {
    if (casts_++ == 0) first_cast_ = text(what, " from ", name_of(from), " to ", name_of(to));
  }

  // What this rank holds of one array, under any of its names.
  Status plan(const StoredArray& target) {
    const StoredArray* const source = target.is_state() && config_.params_only ? &target : source_of(target);
    if (source == nullptr) return {};
    if (source->type != target.type) {
      if (size_of(source->type) > 4 || size_of(target.type) > 4 || source->type == DType::u8 || target.type == DType::u8) {
        return invalid(in_quotes(target.name), " is ", name_of(target.type), " here and ", name_of(source->type), " in ", source_->path(),
                       "; only f32, bf16 and f16 are cast");
      }
      count_cast(in_quotes(target.name), source->type, target.type);
    }
    if (target.optimizer >= 0 && !config_.params_only) {
      for (const StoredState& state : here_.optimizers[static_cast<size_t>(target.optimizer)].state) {
        const DType* const stored = state.name != kMasterState ? source_->type_of(*source, state.name) : nullptr;
        if (stored != nullptr && *stored != state.type) count_cast(text(state.name, " of ", in_quotes(target.name)), *stored, state.type);
      }
    }
    Status planned = plan_as(target.name, *source, target);
    for (const std::string& alias : target.aliases) {
      if (planned.ok()) planned = plan_as(alias, *source, target);
    }
    return planned;
  }

  Status plan_as(const std::string& name, const StoredArray& source, const StoredArray& target) {
    const auto local = find_local(config_, name, target.cut);
    if (!local) return {};
    if (local->part == nullptr) return plan_tensor(source, target, *local);
    if (local->state) {
      plan_param_state(source, target, *local);
      return {};
    }
    const Arenas& arenas = local->part->buffer->arenas();
    const OwnedRange* const owned = arenas.owned(local->index);
    loaded_.push_back({local->part, local->index, &source});
    const StoredOptimizer* const optimizer = target.optimizer >= 0 ? &here_.optimizers[static_cast<size_t>(target.optimizer)] : nullptr;
    if (optimizer != nullptr) {
      if (Status fits = check_rule(source, *optimizer); !fits) return fits;
    }
    const bool averages = optimizer != nullptr && local->part->optimizer->averages();
    const bool average_is_new = averages && (config_.params_only || source_->type_of(source, kAverageState) == nullptr);
    if (average_is_new) new_averages_.emplace_back(local->part->optimizer.get(), local->index);
    if (owned == nullptr) return {};
    const bool on_device = arenas.backend().place().type != DeviceType::cpu;
    const uint64_t begin = owned->param_begin, end = begin + (owned->end - owned->begin);
    const Arena& arena = arenas.arena_of(local->index);
    const auto add = [&](const std::string& state, DType stored, DType type, void* data, size_t number) {
      jobs_.push_back({&source, &target, *local, state, stored, type, data, begin, end, number, on_device});
    };
    // What a master knows the rounded parameter does not.
    const DType* const master = source_->type_of(source, kMasterState);
    const bool from_master = master != nullptr && source.type != target.type;
    add(from_master ? kMasterState : kParamState, from_master ? *master : source.type, target.type, arena.param_at(owned->begin), 0);
    if (optimizer == nullptr) return {};
    size_t number = 0;
    for (const StoredState& state : optimizer->state) {
      ++number;
      const bool is_master = state.name == kMasterState;
      if (is_master && !Plan::has_master(*arena.plan)) continue;
      if (average_is_new && state.name == kAverageState) continue;
      auto slice = local->part->optimizer->state(local->index, state.name);
      if (!slice) return slice.status();
      const DType* stored = source_->type_of(source, state.name);
      if (is_master) {
        add(stored != nullptr ? kMasterState : kParamState, stored != nullptr ? *stored : source.type, slice->type, slice->data, number);
      } else {
        add(config_.params_only ? "" : state.name, config_.params_only ? slice->type : *stored, slice->type, slice->data, number);
      }
    }
    return {};
  }

  void plan_param_state(const StoredArray& source, const StoredArray& target, const LocalArray& local) {
    const Slice slice = local.part->optimizer->param_state(*local.state, local.index);
    const auto bytes = static_cast<uint64_t>(slice.shape->front());
    if (bytes == 0) return;
    const bool on_device = config_.context().on_device();
    jobs_.push_back(
        {&source, &target, local, config_.params_only ? "" : kParamState, DType::u8, DType::u8, slice.data, 0, bytes, 0, on_device});
  }

  Status plan_tensor(const StoredArray& source, const StoredArray& target, const LocalArray& local) {
    const CheckpointTensor& tensor = config_.tensors[local.index];
    const uint64_t elements = elements_of(tensor.array.shape);
    tensors_.push_back({&tensor, std::vector<std::byte>(elements * size_of(tensor.array.type))});
    jobs_.push_back({&source, &target, local, kParamState, source.type, target.type, tensors_.back().second.data(), 0, elements, 0, false});
    return {};
  }

  // Whether the optimizer can take over what the checkpoint has of the parameter.
  Status check_rule(const StoredArray& source, const StoredOptimizer& mine) const {
    if (config_.params_only) return {};
    if (source.optimizer < 0) {
      return invalid(source_->path(), " has no optimizer state of ", in_quotes(source.name),
                     "; with MDP_CHECKPOINT_PARAMS_ONLY (1) it begins with zeros");
    }
    const StoredOptimizer& stored = source_->manifest().optimizers[static_cast<size_t>(source.optimizer)];
    if (stored.rule != mine.rule) {
      return invalid(source_->path(), " has ", in_quotes(source.name), " with the state of ", in_quotes(stored.rule),
                     ", and the optimizer here is ", mine.rule, "; with MDP_CHECKPOINT_PARAMS_ONLY (1) its state begins with zeros");
    }
    const auto names = [](const StoredOptimizer& one) {
      std::set<std::string> found;
      for (const StoredState& state : one.state) {
        if (state.name != kMasterState && state.name != kAverageState) found.insert(in_quotes(state.name));
      }
      std::string all;
      for (const std::string& name : found) all += text(all.empty() ? "" : ", ", name);
      return all.empty() ? std::string("nothing") : all;
    };
    // Rules of the caller's have no other names.
    if (const std::string there = names(stored), here = names(mine); there != here) {
      return invalid(source_->path(), " has of ", in_quotes(source.name), " what another rule keeps: ", there, ", and here it is ", here,
                     "; with MDP_CHECKPOINT_PARAMS_ONLY (1) its state begins with zeros");
    }
    for (const StoredState& state : mine.state) {
      if (state.name == kMasterState || state.name == kAverageState || source_->type_of(source, state.name) != nullptr) continue;
      return Status(Code::corrupt, text(source_->path(), " has no ", state.name, " of ", in_quotes(source.name)));
    }
    return {};
  }

  // The optimizer of the checkpoint that this one was, where no rank has loaded a parameter of it.
  const StoredOptimizer* stored_as(const CheckpointPart& part) const {
    for (const StoredOptimizer& each : source_->manifest().optimizers) {
      if (part.optimizer->is_stored_as(each)) return &each;
    }
    return nullptr;
  }

  // Where a rank's parameters of an optimizer come from: the first of the checkpoint's optimizers, and the first of these that has a
  // scaler, since of the optimizers of a step one has it. All ranks take the same of both, though stages have other parameters.
  struct Origin {
    uint64_t optimizer = kNone, scaler = kNone, taken = 0;
    void join(const Origin& other) {
      optimizer = std::min(optimizer, other.optimizer);
      scaler = std::min(scaler, other.scaler);
      taken = std::max(taken, other.taken);
    }
  };
  static constexpr uint64_t kNone = UINT64_MAX;

  Result<Origin> origin_of(const Loaded& loaded) const {
    Origin origin;
    origin.optimizer = static_cast<uint64_t>(loaded.source->optimizer);
    const StoredOptimizer& stored = source_->manifest().optimizers[origin.optimizer];
    origin.taken = stored.steps;
    if (loaded.source->steps > stored.steps) {
      return Status(Code::corrupt,
                    text(source_->path(), " has a parameter that has taken ", loaded.source->steps, " steps of ", stored.steps));
    }
    const auto scale = loaded.part->optimizer->loss_scale_from(stored);
    if (!scale) return scale.status().with_context(source_->path());
    if (*scale) origin.scaler = origin.optimizer;
    return origin;
  }

  // Of each part; and its step counts. What the checkpoint lacks stays as it is, its steps too.
  Result<std::vector<Origin>> find_origins() {
    std::vector<Origin> origins;
    for (const CheckpointPart& part : config_.parts) {
      Origin origin;
      Progress progress{&part, 0, std::vector<uint64_t>(part.buffer->plan().params.size()), {}, {}};
      std::vector<bool> is_loaded(progress.steps.size());
      for (const Loaded& loaded : loaded_) {
        if (loaded.part != &part || !part.optimizer || !part.optimizer->covers(loaded.param)) continue;
        is_loaded[loaded.param] = true;
        if (config_.params_only) continue;
        const auto found = origin_of(loaded);
        if (!found) return found.status();
        origin.join(*found);
        progress.steps[loaded.param] = loaded.source->steps;
      }
      for (size_t param = 0; part.optimizer && param < is_loaded.size(); ++param) {
        if (is_loaded[param] || !part.optimizer->covers(param)) continue;
        const auto kept = part.optimizer->steps(param);
        if (!kept) return kept.status();
        progress.steps[param] = *kept;
        origin.taken = std::max(origin.taken, *kept);
      }
      if (part.optimizer) progress_.push_back(std::move(progress));
      origins.push_back(origin);
    }
    return origins;
  }

  Result<std::vector<Origin>> exchange_origins(const std::vector<Origin>& mine) {
    const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Origin));
    const auto told = world_.exchange(config_.members(), kLoad, bytes, World::kFilesLine);
    if (!told) return told.status();
    std::vector<Origin> origins(mine.size());
    for (const std::string& each : *told) {
      for (size_t i = 0; i < origins.size() && (i + 1) * sizeof(Origin) <= each.size(); ++i) {
        Origin other;
        std::memcpy(&other, each.data() + i * sizeof(Origin), sizeof(Origin));
        origins[i].join(other);
      }
    }
    return origins;
  }

  // Step counts, and what the optimizers were told there, if that is asked for.
  Status plan_optimizers(const std::vector<Origin>& origins) {
    const std::vector<StoredOptimizer>& stored = source_->manifest().optimizers;
    for (Progress& progress : progress_) {
      const CheckpointPart& part = *progress.part;
      const Origin& origin = origins[static_cast<size_t>(&part - config_.parts.data())];
      progress.taken = origin.taken;
      if (config_.params_only) continue;
      const StoredOptimizer* const from = origin.optimizer != kNone ? &stored[origin.optimizer] : stored_as(part);
      if (from == nullptr) continue;
      if (origin.optimizer == kNone) progress.taken = std::max(progress.taken, from->steps);
      if (config_.load_hyper) {
        auto hyper = part.optimizer->config_from(*from);
        if (!hyper) return hyper.status();
        progress.config = *std::move(hyper);
      }
      auto scale = part.optimizer->loss_scale_from(origin.scaler != kNone ? stored[origin.scaler] : *from);
      if (!scale) return scale.status().with_context(source_->path());
      progress.loss_scale = *scale;
    }
    return {};
  }

  // As they lie in the files: state after state.
  void order_jobs() {
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      const size_t a_size = size_of(a.stored_type), b_size = size_of(b.stored_type);
      if (a_size != b_size) return a_size > b_size;
      return a.number != b.number ? a.number < b.number : a.source < b.source;
    });
    for (const Job& job : jobs_) {
      cuttings_.try_emplace(job.source, *job.source);
      cuttings_.try_emplace(job.target, *job.target);
    }
  }

  CheckpointSource::Range range_of(const Job& job) const {
    return {job.source, &cuttings_.at(job.source), &cuttings_.at(job.target), job.local.tp_part, job.begin, job.end};
  }

  Status copy() {
    for (const CheckpointPart& part : config_.parts) {
      if (Status forgotten = part.buffer->gradients().forget_residuals(); !forgotten) return forgotten;
    }
    for (const Job& job : jobs_) {
      if (Status copied = copy(job); !copied) return copied;
    }
    for (auto& [tensor, values] : tensors_) {
      if (Status copied = copy_tensor(config_, *tensor, values, Copy::from_dense); !copied) return copied;
    }
    return adopt();
  }

  // On a device all of it at once, from the host's memory.
  Status copy(const Job& job) {
    Backend& backend = *config_.context().backend;
    const size_t size = size_of(job.type);
    std::vector<std::byte> staging(job.on_device ? (job.end - job.begin) * size : 0);
    auto* const to = job.on_device ? staging.data() : static_cast<std::byte*>(job.data);
    if (job.state.empty()) {
      if (job.end > job.begin) std::memset(to, 0, (job.end - job.begin) * size);
    } else {
      const auto give = [&](uint64_t at, const char* data, uint64_t count) -> Status {
        const std::vector<int64_t> shape{static_cast<int64_t>(count)}, strides{1};
        return backend.control().copy({to + at * size, job.type, shape, strides},
                                      {const_cast<char*>(data), job.stored_type, shape, strides}, false, nullptr);
      };
      const CheckpointSource::Range range = range_of(job);
      const Status read = job.stored_type == job.type ? source_->read_into(range, job.state, job.type, to)
                                                      : source_->read(range, job.state, job.stored_type, give);
      if (!read) return read;
    }
    return staging.empty() ? Status() : backend.write(job.data, staging.data(), staging.size());
  }

  // What goes with the owned ranges: step counts and versions.
  Status adopt() {
    for (const Progress& progress : progress_) {
      Optimizer& optimizer = *progress.part->optimizer;
      if (Status set = optimizer.set_steps(progress.taken, progress.steps); !set) return set;
      if (progress.config) optimizer.set_config(*progress.config);
      if (progress.loss_scale) {
        if (Status set = optimizer.set_loss_scale(*progress.loss_scale); !set) return set;
      }
    }
    for (const Loaded& loaded : loaded_) {
      if (loaded.part->optimizer) {
        loaded.part->optimizer->adopt(loaded.param);
      } else {
        (void)loaded.part->buffer->params().count_replacement(loaded.param);
      }
    }
    for (const auto& [optimizer, param] : new_averages_) optimizer->restart_average(param);
    if (!new_averages_.empty() && !config_.params_only && config_.grid()->world()->rank() == 0) {
      log(LogLevel::warning, text(kLoad, ": ", source_->path(), " has no averages of ", new_averages_.size(),
                                  " parameters; they begin anew, as the parameters are"));
    }
    if (casts_ > 0 && config_.grid()->world()->rank() == 0) {
      log(LogLevel::warning, text(kLoad, ": ", casts_, casts_ == 1 ? " array is" : " arrays are", " cast, the first ", first_cast_));
    }
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
  std::vector<Job> jobs_;
  std::unordered_map<const StoredArray*, Cutting> cuttings_;
  std::vector<Loaded> loaded_;
  std::vector<Progress> progress_;
  std::vector<std::pair<const CheckpointTensor*, std::vector<std::byte>>> tensors_;
  std::vector<std::pair<Optimizer*, size_t>> new_averages_;  // that begin with the loaded parameter
  size_t casts_ = 0;
  std::string first_cast_;
};

}  // namespace

Status load_checkpoint(const CheckpointConfig& config) {
  return Load(config).run();
}

}  // namespace megadp
