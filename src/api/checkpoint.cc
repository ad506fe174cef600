// SPDX-License-Identifier: Apache-2.0
// Checkpoints.
#include "core/checkpoint.h"

#include <climits>
#include <cstring>
#include <string_view>

#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"
#include "control/agreement.h"
#include "core/checkpoint_export.h"
#include "core/checkpoint_source.h"
#include "files/json_value.h"

using namespace megadp;

namespace {

Result<std::string> take_directory(const char* given, const char* argument) {
  if (given == nullptr) return invalid(argument, " is NULL; give a path");
  const size_t length = strnlen(given, PATH_MAX);
  if (length == 0) return invalid(argument, " is empty; give a path, such as \".\"");
  if (length == PATH_MAX) return invalid(argument, " is longer than ", PATH_MAX - 1, " bytes");
  std::string path(given, length);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Result<std::span<const std::byte>> take_bytes(const void* data, uint64_t bytes, const char* argument) {
  if (data == nullptr && bytes > 0) return invalid(argument, " is NULL, and ", bytes, " bytes of it are given");
  if (bytes > INT64_MAX) return invalid(argument, " would have ", bytes, " bytes");
  return std::span(static_cast<const std::byte*>(data), bytes);
}

Status take_parts(const mdp_checkpoint_config& given, CheckpointConfig* config) {
  if (given.part_count == 0) return invalid("config.part_count is 0; a checkpoint has at least one buffer");
  auto array = Array<mdp_checkpoint_part>::open(given.parts, given.part_count, "config.parts");
  if (!array) return array.status();
  for (size_t i = 0; i < array->count(); ++i) {
    auto part = array->take_at(i);
    if (!part) return part.status();
    if (Status status = check_reserved(part->reserved, {array->name(i), ".reserved"}); !status) return status;
    if (Status status = check_handle(part->buffer, {array->name(i), ".buffer"}, Need::alone_in_context); !status) return status;
    CheckpointPart ours{part->buffer->object, nullptr};
    if (part->optimizer != nullptr) {
      if (Status status = check_handle(part->optimizer, {array->name(i), ".optimizer"}, Need::alone_in_context); !status) return status;
      if (part->optimizer->buffer != ours.buffer) return invalid(array->name(i), ".optimizer is not one of the buffer beside it");
      ours.optimizer = part->optimizer->object;
    }
    for (size_t before = 0; before < config->parts.size(); ++before) {
      if (config->parts[before].buffer != ours.buffer) continue;
      if (!ours.optimizer || !config->parts[before].optimizer) {
        return invalid(array->name(i), ".buffer is that of ", array->name(before),
                       " already; parts of one buffer have optimizers of different parameter groups");
      }
      for (size_t param = 0; param < ours.buffer->plan().params.size(); ++param) {
        if (!ours.optimizer->covers(param) || !config->parts[before].optimizer->covers(param)) continue;
        return invalid(array->name(i), ".optimizer has ", param_label(param, ours.buffer->plan().params[param].name),
                       ", and so has that of ", array->name(before));
      }
    }
    config->parts.push_back(std::move(ours));
    const Arenas& arenas = config->parts.back().buffer->arenas();
    if (&arenas.context() != &config->context() || arenas.grid()->world()->group().members() != config->members()) {
      return invalid(array->name(i), ".buffer is of other ranks than that of ", array->name(0));
    }
  }
  return {};
}

Result<CheckpointTensor> take_checkpoint_tensor(const mdp_checkpoint_tensor& given, const Argument& argument, Access access,
                                                const CheckpointConfig& config) {
  if (given.name == nullptr) return invalid(argument, ".name is NULL");
  auto tensor = take_tensor(given.tensor, {argument, ".tensor"}, access, config.context().backend->place());
  if (!tensor) return tensor.status();
  if (given.placement > MDP_PLACEMENT_SHARDED) {
    return invalid(argument, ".placement is ", given.placement, "; it must be MDP_PLACEMENT_REPLICATED (1) or MDP_PLACEMENT_SHARDED (2), ",
                   "or 0 without tensor parallelism");
  }
  ParamSpec like;  // what is said of both is checked alike
  constexpr size_t longest = 256;
  like.name.assign(given.name, strnlen(given.name, longest));
  like.shape = tensor->shape;
  like.placement = static_cast<Placement>(given.placement);
  like.shard_dim = given.shard_dim;
  like.shard_stride = given.shard_stride == 0 ? 1 : given.shard_stride;
  if (Status status = check_param(0, config.grid()->grid().size(kTp) > 1, &like); !status) return status.with_context(text(argument));
  return CheckpointTensor{like.name, like.placement, like.shard_dim, like.shard_stride, *tensor, tensor->place.type};
}

std::vector<std::string> take_lines(const char* given) {
  std::vector<std::string> lines;
  std::string_view rest = given == nullptr ? "" : given;
  while (!rest.empty()) {
    const std::string_view line = take_line(&rest);
    if (!line.empty()) lines.emplace_back(line);
  }
  return lines;
}

Result<CheckpointConfig> take_checkpoint_config(const mdp_checkpoint_config* given, Access access) {
  auto ours = take(given, "config");
  if (!ours) return ours.status();
  CheckpointConfig config;
  if (Status status = check_reserved(ours->reserved, "config.reserved"); !status) return status;
  constexpr uint64_t known = MDP_CHECKPOINT_PARAMS_ONLY | MDP_CHECKPOINT_LOAD_HYPER;
  if (Status status = check_flags(ours->flags, access == Access::write ? known : 0, "config.flags",
                                  access == Access::write ? "MDP_CHECKPOINT_PARAMS_ONLY (1) and MDP_CHECKPOINT_LOAD_HYPER (2)" : "none");
      !status) {
    return status;
  }
  auto directory = take_directory(ours->directory, "config.directory");
  if (!directory) return directory.status();
  config.directory = *std::move(directory);
  if (Status status = take_parts(*ours, &config); !status) return status;
  if (ours->tensor_count > 0) {
    auto array = Array<mdp_checkpoint_tensor>::open(ours->tensors, ours->tensor_count, "config.tensors");
    if (!array) return array.status();
    for (size_t i = 0; i < array->count(); ++i) {
      auto one = array->take_at(i);
      if (!one) return one.status();
      auto tensor = take_checkpoint_tensor(*one, array->name(i), access, config);
      if (!tensor) return tensor.status();
      config.tensors.push_back(*std::move(tensor));
    }
  }
  auto shared = take_bytes(ours->shared_data, ours->shared_bytes, "config.shared_data");
  if (!shared) return shared.status();
  auto of_rank = take_bytes(ours->rank_data, ours->rank_bytes, "config.rank_data");
  if (!of_rank) return of_rank.status();
  config.shared_data = *shared;
  config.rank_data = *of_rank;
  config.keep = ours->keep;
  config.optional = take_lines(ours->optional);
  config.params_only = (ours->flags & MDP_CHECKPOINT_PARAMS_ONLY) != 0;
  config.load_hyper = (ours->flags & MDP_CHECKPOINT_LOAD_HYPER) != 0;
  return config;
}

// Of the ranks that make a call with this; null if it is no good. What is good takes no memory to look at.
World* world_of(const mdp_checkpoint_config* given) {
  const auto config = take(given, "config");
  if (!config || config->part_count == 0) return nullptr;
  const auto parts = Array<mdp_checkpoint_part>::open(config->parts, config->part_count, "config.parts");
  if (!parts) return nullptr;
  const auto part = parts->take_at(0);
  if (!part || !has_mark(part->buffer, kBufferHandle)) return nullptr;
  World* const world = part->buffer->context->world.get();
  return world->in_forked_child() ? nullptr : world;
}

// The others wait for this rank: also where it has no memory to read its arguments.
template <class Body>
Status call_with_others(const mdp_checkpoint_config* given, const Body& body) {
  World* const world = world_of(given);
  return world == nullptr ? body() : with_others(*world, body);
}

}  // namespace

mdp_status mdp_checkpoint_save(const mdp_checkpoint_config* config, mdp_request** out) {
  return guard([&]() -> Status {
    if (Status status = check_request_out(out); !status) return status;
    return call_with_others(config, [&]() -> Status {
      auto ours = take_checkpoint_config(config, Access::read);
      if (!ours) return ours.status();
      if (out == nullptr) return save_checkpoint(*ours);
      auto request = prepare_request(out, ours->grid()->world()->shared_context(), std::shared_ptr<void>());
      auto pending = start_saving_checkpoint(*ours);
      if (!pending) return pending.status();
      return give_request(std::move(request), *std::move(pending), out);
    });
  });
}

mdp_status mdp_checkpoint_load(const mdp_checkpoint_config* config) {
  return guard([&]() -> Status {
    return call_with_others(config, [&]() -> Status {
      auto ours = take_checkpoint_config(config, Access::write);
      return ours ? load_checkpoint(*ours) : ours.status();
    });
  });
}

mdp_status mdp_checkpoint_info(const char* directory, char* json, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (Status status = check_text_output(json, capacity, needed); !status) return status;
    auto path = take_directory(directory, "directory");
    if (!path) return path.status();
    auto source = CheckpointSource::open(*path);
    if (!source) return source.status();
    return give_text(text("{\"path\":", json_string(source->path()), ",", source->manifest().json().substr(1)), json, capacity, needed);
  });
}

mdp_status mdp_checkpoint_verify(const char* directory, char* damage, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (damage == nullptr && capacity > 0) return invalid("damage is NULL, and capacity is ", capacity);
    if (needed != nullptr) {
      if (Status status = check_pointer(needed, "needed", alignof(size_t)); !status) return status;
    }
    auto path = take_directory(directory, "directory");
    if (!path) return path.status();
    const std::vector<Status> found = verify_checkpoint(*path);
    std::string lines;
    for (const Status& each : found) lines += each.text() + "\n";
    // Also where all of it does not fit: nobody reads everything twice for the rest.
    if (capacity > 0) damage[lines.copy(damage, capacity - 1)] = '\0';
    if (needed != nullptr) *needed = lines.size() + 1;
    if (found.size() < 2) return found.empty() ? Status() : found.front();
    return found.front().with_context(text(*path, " is damaged in ", found.size(), " places, the first"));
  });
}

mdp_status mdp_checkpoint_export(const char* directory, const char* path, uint64_t most_bytes) {
  return guard([&]() -> Status {
    auto from = take_directory(directory, "directory");
    if (!from) return from.status();
    auto to = take_directory(path, "path");
    if (!to) return to.status();
    if (!std::string_view(split_path(*to).name).ends_with(kModelSuffix)) {
      return invalid("path is '", *to, "'; it must be a file that is called ....safetensors");
    }
    return export_checkpoint(*from, *to, most_bytes);
  });
}

mdp_status mdp_checkpoint_data(const char* directory, int32_t rank, void* data, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (Status status = check_out(needed, "needed"); !status) return status;
    if (data == nullptr && capacity > 0) return invalid("data is NULL, and capacity is ", capacity);
    auto path = take_directory(directory, "directory");
    if (!path) return path.status();
    auto source = CheckpointSource::open(*path);
    if (!source) return source.status();
    const std::vector<StoredFile>& files = source->manifest().files;
    if (rank < -1 || (rank >= 0 && static_cast<size_t>(rank) >= files.size())) {
      return invalid("rank is ", rank, "; the checkpoint was saved by ranks 0 to ", files.size() - 1,
                     ", and -1 asks for what was given for all");
    }
    const uint64_t bytes = rank < 0 ? source->manifest().shared_bytes : files[static_cast<size_t>(rank)].user_bytes;
    *needed = bytes;
    if (bytes == 0) return {};
    if (capacity < bytes) return invalid("capacity is ", capacity, "; ", bytes, " bytes were given");
    return source->read_bytes(rank < 0 ? 0 : static_cast<uint32_t>(rank), rank < 0 ? kSharedData : kUserData, bytes, data);
  });
}
