// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint_load_arrays.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace megadp {

Status LoadArrays::plan() {
  if (Status same = compare(); !same) return same;
  for (const StoredArray& target : here_.arrays) {
    if (Status planned = plan(target); !planned) return planned;
  }
  return {};
}

bool LoadArrays::is_optional(const std::string& name) const {
  return std::any_of(config_.optional.begin(), config_.optional.end(),
                     [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

// Under any of its names: a model has what is tied under one of them.
const StoredArray* LoadArrays::source_of(const StoredArray& target) const {
  const StoredArray* found = source_.find(target.name);
  for (size_t i = 0; found == nullptr && i < target.aliases.size(); ++i) found = source_.find(target.aliases[i]);
  return found;
}

// What one side has and the other has not, and what is not the same array. All ranks know both lists.
Status LoadArrays::compare() const {
  const auto wrong = [](const auto&... words) { return invalid("this is another model: ", words...); };
  std::vector<std::string_view> known;
  for (const StoredArray& target : here_.arrays) {
    if (target.is_state() && config_.params_only) continue;
    const StoredArray* const source = source_of(target);
    if (source == nullptr) {
      if (is_optional(target.name)) continue;
      return wrong(in_quotes(target.name), " is here, ", name_of(target.type), shape_text(target.shape), ", and not in ", source_.path());
    }
    known.push_back(source->name);
    if (!source->foreign.empty()) {
      return unsupported(in_quotes(target.name), " is ", source->foreign, " in ", source_.path(),
                         ", which the library does not have; give it as ", name_of(target.type));
    }
    if (target.is_state() && source->cut.sizes != target.cut.sizes) {
      return invalid(in_quotes(target.name), " was kept by ", source->cut.parts(), " tensor-parallel ranks in ", source_.path(),
                     " and is by ", target.cut.parts(), " here; only its owners know what it means: load on as many, or with ",
                     "MDP_CHECKPOINT_PARAMS_ONLY (1), and it begins with zeros");
    }
    if (source->shape == target.shape) continue;
    return wrong(in_quotes(target.name), " is ", name_of(target.type), shape_text(target.shape), " here, and ", source->type_name(),
                 shape_text(source->shape), " in ", source_.path());
  }
  std::sort(known.begin(), known.end());
  for (const StoredArray& source : source_.manifest().arrays) {
    if (std::binary_search(known.begin(), known.end(), std::string_view(source.name))) continue;
    if (here_.frozen.count(source.name) > 0 || is_optional(source.name) || !is_wanted(source)) continue;
    for (const StoredArray& target : here_.arrays) {
      if (std::find(target.aliases.begin(), target.aliases.end(), source.name) == target.aliases.end()) continue;
      return wrong(in_quotes(source.name), " is in ", source_.path(), " beside ", in_quotes(target.name), ", with which it is tied here");
    }
    return wrong(in_quotes(source.name), " is in ", source_.path(), ", ", source.type_name(), shape_text(source.shape), ", and not here");
  }
  return {};
}

// What an owner has kept counts only if the parameter has an optimizer here, whose state is loaded.
bool LoadArrays::is_wanted(const StoredArray& source) const {
  if (!source.is_state()) return true;
  return !config_.params_only && std::any_of(here_.arrays.begin(), here_.arrays.end(), [&](const StoredArray& target) {
    return target.name == source.state_of && target.optimizer >= 0;
  });
}

void LoadArrays::count_cast(const std::string& what, DType from, DType to) {
  if (casts_++ == 0) first_cast_ = text(what, " from ", name_of(from), " to ", name_of(to));
}

// What this rank holds of one array, under any of its names.
Status LoadArrays::plan(const StoredArray& target) {
  const StoredArray* const source = target.is_state() && config_.params_only ? &target : source_of(target);
  if (source == nullptr) return {};
  if (source->type != target.type) {
    if (size_of(source->type) > 4 || size_of(target.type) > 4 || source->type == DType::u8 || target.type == DType::u8) {
      return invalid(in_quotes(target.name), " is ", name_of(target.type), " here and ", name_of(source->type), " in ", source_.path(),
                     "; only f32, bf16 and f16 are cast");
    }
    count_cast(in_quotes(target.name), source->type, target.type);
  }
  if (target.optimizer >= 0 && !config_.params_only) {
    for (const StoredState& state : here_.optimizers[static_cast<size_t>(target.optimizer)].state) {
      const DType* const stored = state.name != kMasterState ? source_.type_of(*source, state.name) : nullptr;
      if (stored != nullptr && *stored != state.type) count_cast(text(state.name, " of ", in_quotes(target.name)), *stored, state.type);
    }
  }
  Status planned = plan_as(target.name, *source, target);
  for (const std::string& alias : target.aliases) {
    if (planned.ok()) planned = plan_as(alias, *source, target);
  }
  return planned;
}

Status LoadArrays::plan_as(const std::string& name, const StoredArray& source, const StoredArray& target) {
  const auto local = find_local(config_, name, target.cut);
  if (!local) return {};
  if (local->part != nullptr && !local->state) return plan_param(source, target, *local);
  if (local->part == nullptr) {
    plan_tensor(source, target, *local);
  } else {
    plan_param_state(source, target, *local);
  }
  return {};
}

Status LoadArrays::plan_param(const StoredArray& source, const StoredArray& target, const LocalArray& local) {
  const Arenas& arenas = local.part->buffer->arenas();
  const OwnedRange* const owned = arenas.owned(local.index);
  params_.push_back({local.part, local.index, &source});
  const StoredOptimizer* const optimizer = target.optimizer >= 0 ? &here_.optimizers[static_cast<size_t>(target.optimizer)] : nullptr;
  if (optimizer != nullptr) {
    if (Status fits = check_rule(source, *optimizer); !fits) return fits;
  }
  const bool averages = optimizer != nullptr && local.part->optimizer->averages();
  const bool average_is_new = averages && (config_.params_only || source_.type_of(source, kAverageState) == nullptr);
  if (average_is_new) new_averages_.emplace_back(local.part->optimizer.get(), local.index);
  if (owned == nullptr) return {};
  const bool on_device = arenas.backend().place().type != DeviceType::cpu;
  const uint64_t begin = owned->param_begin, end = begin + (owned->end - owned->begin);
  const Arena& arena = arenas.arena_of(local.index);
  const auto add = [&](const std::string& state, DType stored, DType type, void* data, size_t number) {
    jobs_.push_back({&source, &target, local, state, stored, type, data, begin, end, number, on_device});
  };
  // What a master knows the rounded parameter does not.
  const DType* const master = source_.type_of(source, kMasterState);
  const bool from_master = master != nullptr && source.type != target.type;
  add(from_master ? kMasterState : kParamState, from_master ? *master : source.type, target.type, arena.param_at(owned->begin), 0);
  if (optimizer == nullptr) return {};
  size_t number = 0;
  for (const StoredState& state : optimizer->state) {
    ++number;
    const bool is_master = state.name == kMasterState;
    if (is_master && !Plan::has_master(*arena.plan)) continue;
    if (average_is_new && state.name == kAverageState) continue;
    auto slice = local.part->optimizer->state(local.index, state.name);
    if (!slice) return slice.status();
    const DType* stored = source_.type_of(source, state.name);
    if (is_master) {
      add(stored != nullptr ? kMasterState : kParamState, stored != nullptr ? *stored : source.type, slice->type, slice->data, number);
    } else {
      add(config_.params_only ? "" : state.name, config_.params_only ? slice->type : *stored, slice->type, slice->data, number);
    }
  }
  return {};
}

void LoadArrays::plan_param_state(const StoredArray& source, const StoredArray& target, const LocalArray& local) {
  const Slice slice = local.part->optimizer->param_state(*local.state, local.index);
  const auto bytes = static_cast<uint64_t>(slice.shape->front());
  if (bytes == 0) return;
  const bool on_device = config_.context().on_device();
  jobs_.push_back(
      {&source, &target, local, config_.params_only ? "" : kParamState, DType::u8, DType::u8, slice.data, 0, bytes, 0, on_device});
}

void LoadArrays::plan_tensor(const StoredArray& source, const StoredArray& target, const LocalArray& local) {
  const CheckpointTensor& tensor = config_.tensors[local.index];
  const uint64_t elements = elements_of(tensor.array.shape);
  tensors_.push_back({&tensor, std::vector<std::byte>(elements * size_of(tensor.array.type))});
  jobs_.push_back({&source, &target, local, kParamState, source.type, target.type, tensors_.back().second.data(), 0, elements, 0, false});
}

// Whether the optimizer can take over what the checkpoint has of the parameter.
Status LoadArrays::check_rule(const StoredArray& source, const StoredOptimizer& mine) const {
  if (config_.params_only) return {};
  if (source.optimizer < 0) {
    return invalid(source_.path(), " has no optimizer state of ", in_quotes(source.name),
                   "; with MDP_CHECKPOINT_PARAMS_ONLY (1) it begins with zeros");
  }
  const StoredOptimizer& stored = source_.manifest().optimizers[static_cast<size_t>(source.optimizer)];
  if (stored.rule != mine.rule) {
    return invalid(source_.path(), " has ", in_quotes(source.name), " with the state of ", in_quotes(stored.rule),
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
    return invalid(source_.path(), " has of ", in_quotes(source.name), " what another rule keeps: ", there, ", and here it is ", here,
                   "; with MDP_CHECKPOINT_PARAMS_ONLY (1) its state begins with zeros");
  }
  for (const StoredState& state : mine.state) {
    if (state.name == kMasterState || state.name == kAverageState || source_.type_of(source, state.name) != nullptr) continue;
    return Status(Code::corrupt, text(source_.path(), " has no ", state.name, " of ", in_quotes(source.name)));
  }
  return {};
}

// As they lie in the files: state after state.
void LoadArrays::order_jobs() {
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

CheckpointSource::Range LoadArrays::range_of(const Job& job) const {
  return {job.source, &cuttings_.at(job.source), &cuttings_.at(job.target), job.local.tp_part, job.begin, job.end};
}

Status LoadArrays::check() {
  order_jobs();
  for (const Job& job : jobs_) {
    if (job.state.empty()) continue;
    if (Status stored = source_.check(range_of(job), job.state, job.stored_type); !stored) return stored;
  }
  return {};
}

Status LoadArrays::copy() {
  for (const Job& job : jobs_) {
    if (Status copied = copy(job); !copied) return copied;
  }
  for (auto& [tensor, values] : tensors_) {
    if (Status copied = copy_tensor(config_, *tensor, values, Copy::from_dense); !copied) return copied;
  }
  return {};
}

// On a device all of it at once, from the host's memory.
Status LoadArrays::copy(const Job& job) {
  Backend& backend = *config_.context().backend;
  const size_t size = size_of(job.type);
  std::vector<std::byte> staging(job.on_device ? (job.end - job.begin) * size : 0);
  auto* const to = job.on_device ? staging.data() : static_cast<std::byte*>(job.data);
  if (job.state.empty()) {
    if (job.end > job.begin) std::memset(to, 0, (job.end - job.begin) * size);
  } else {
    const auto give = [&](uint64_t at, const char* data, uint64_t count) -> Status {
      const std::vector<int64_t> shape{static_cast<int64_t>(count)}, strides{1};
      return backend.control().copy({to + at * size, job.type, shape, strides}, {const_cast<char*>(data), job.stored_type, shape, strides},
                                    false, nullptr);
    };
    const CheckpointSource::Range range = range_of(job);
    const Status read = job.stored_type == job.type ? source_.read_into(range, job.state, job.type, to)
                                                    : source_.read(range, job.state, job.stored_type, give);
    if (!read) return read;
  }
  return staging.empty() ? Status() : backend.write(job.data, staging.data(), staging.size());
}

void LoadArrays::adopt() {
  for (const LoadedParam& loaded : params_) {
    if (loaded.part->optimizer) {
      loaded.part->optimizer->adopt(loaded.index);
    } else {
      (void)loaded.part->buffer->params().count_replacement(loaded.index);
    }
  }
  for (const auto& [optimizer, param] : new_averages_) optimizer->restart_average(param);
  if (config_.grid()->world()->rank() != 0) return;
  if (!new_averages_.empty() && !config_.params_only) {
    log(LogLevel::warning, text(kLoad, ": ", source_.path(), " has no averages of ", new_averages_.size(),
                                " parameters; they begin anew, as the parameters are"));
  }
  if (casts_ > 0) {
    log(LogLevel::warning, text(kLoad, ": ", casts_, casts_ == 1 ? " array is" : " arrays are", " cast, the first ", first_cast_));
  }
}

}  // namespace megadp
