// SPDX-License-Identifier: Apache-2.0
// What goes into one checkpoint, and what is said about it.
#pragma once

#include <cstdlib>

#include "optimizers.h"

namespace megadp {

/// To save: shared_data is any text, rank 0's counts, rank_data that of this rank, and so many of the newest checkpoints stay as keep says
/// (0: all). To load: optional has patterns (as of fnmatch), one a line, of names that only the checkpoint or only this program may have;
/// with params_only moments are zero and no step was taken; with load_hyper learning rates, groups and what else the optimizer was told are
/// loaded too.
struct CheckpointOptions {
  std::string shared_data;
  std::string rank_data;
  long long keep = 0;
  std::string optional;
  bool params_only = false;
  bool load_hyper = false;
};

#ifndef SWIG

inline bool is_path(const std::string& directory, Failure& failure) {
  const bool good = directory.find('\0') == std::string::npos;
  if (!good) failure.refuse(MDP_E_INVALID, "directory has a NUL in it, after %s", directory.c_str());
  return good;
}

#endif

/// What one checkpoint is of: buffers of the same ranks, with their optimizers, and arrays of the program's own. To be filled alike on all
/// ranks, once; it serves any number of saves and loads. Names are unique in all of it.
class CheckpointParts {
 public:
  /// A buffer and an optimizer of it; of several optimizers each in a call of its own.
  void add(const Buffer& buffer, const Optimizer& optimizer) { parts_.push_back({buffer.handle(), optimizer.handle()}); }
  /// A buffer's parameters without the state of an optimizer.
  void add_buffer(const Buffer& buffer) { parts_.push_back({buffer.handle(), nullptr}); }

  /// An array of the program's own, such as a frozen parameter or a module's buffer, by name, dtype (F64, I64 and U8 too), shape and
  /// placement; the other fields are not looked at. Its memory, zero at first, is what the view has: what is saved, and where is loaded to.
  /// Local.
  View* add_tensor(const Param& param, Failure& failure) {
    return guarded(failure, [&]() -> View* {
      if (param.name().find('\0') != std::string::npos) {
        failure.refuse(MDP_E_INVALID, "the name of a tensor has a NUL in it, after %s", param.name().c_str());
        return nullptr;
      }
      Array array{param, nullptr};
      const long long bytes = byte_count(&array.param, failure);
      if (failure.failed()) return nullptr;
      array.memory = zeros(static_cast<size_t>(bytes));
      arrays_.push_back(array);
      return std::make_unique<View>(arrays_.back().tensor(), array.memory).release();
    });
  }

  /// As Checkpoint.save, start_save and load. Collective over the world of the first buffer.
  void save(const std::string& directory, const CheckpointOptions& options, Failure& failure) const {
    save_with(directory, options, nullptr, failure);
  }
  Request* start_save(const std::string& directory, const CheckpointOptions& options, Failure& failure) const {
    return guarded(failure, [&]() -> Request* {
      mdp_request* request = nullptr;
      save_with(directory, options, &request, failure);
      return failure.failed() ? nullptr : new Request(request);
    });
  }
  void load(const std::string& directory, const CheckpointOptions& options, Failure& failure) const {
    mdp_checkpoint_config config{};
    config.optional = options.optional.c_str();
    config.flags = (options.params_only ? MDP_CHECKPOINT_PARAMS_ONLY : 0) | (options.load_hyper ? MDP_CHECKPOINT_LOAD_HYPER : 0);
    call(mdp_checkpoint_load, directory, config, failure);
  }

#ifndef SWIG
  static CheckpointParts of(const Buffer& buffer, const Optimizer& optimizer) {
    CheckpointParts parts;
    parts.add(buffer, optimizer);
    return parts;
  }
  static CheckpointParts of(const Buffer& buffer, const Optimizers& optimizers) {
    CheckpointParts parts;
    for (const auto& optimizer : optimizers.handles()) parts.parts_.push_back({buffer.handle(), optimizer});
    return parts;
  }
#endif

 private:
  struct Part {
    std::shared_ptr<Handle<mdp_buffer>> buffer;
    std::shared_ptr<OptimizerHandle> optimizer;  // may be null
  };
  struct Array {
    Param param;
    std::shared_ptr<void> memory;

    mdp_tensor tensor() const {
      mdp_tensor tensor{};
      tensor.struct_size = sizeof tensor;
      tensor.dtype = static_cast<mdp_dtype>(param.dtype);
      tensor.ndim = static_cast<int32_t>(param.shape().size());
      tensor.data = memory.get();
      tensor.shape = param.shape().data();
      return tensor;
    }
  };

  // Memory that the system gives when it is written: to write zeros would take all, and the system ends a process that takes too much.
  static std::shared_ptr<void> zeros(size_t bytes) {
    void* const memory = std::calloc(bytes > 0 ? bytes : 1, 1);
    if (memory == nullptr) throw std::bad_alloc();
    return {memory, std::free};
  }

  // Of the array that is described, whose type it then says in full.
  static long long byte_count(Param* param, Failure& failure) {
    if (param->dtype == DType::DEFAULT) param->dtype = DType::F32;
    long long bytes = element_size(param->dtype);
    if (bytes == 0) {
      failure.refuse(MDP_E_INVALID, "dtype of tensor '%s' must be F32, BF16, F16, F64, I64 or U8, not %d", param->name().c_str(),
                     static_cast<int>(param->dtype));
    }
    for (const int64_t size : param->shape()) {
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<long long>(size), &bytes)) {
        failure.refuse(MDP_E_INVALID, "the shape of tensor '%s' has a size of %lld, which is too large or negative", param->name().c_str(),
                       static_cast<long long>(size));
        break;
      }
    }
    return bytes;
  }

  // request: null, or it is written while training goes on.
  void save_with(const std::string& directory, const CheckpointOptions& options, mdp_request** request, Failure& failure) const {
    if (!not_negative("keep", options.keep, failure)) return;
    mdp_checkpoint_config config{};
    config.shared_data = options.shared_data.data();
    config.shared_bytes = options.shared_data.size();
    config.rank_data = options.rank_data.data();
    config.rank_bytes = options.rank_data.size();
    config.keep = static_cast<uint64_t>(options.keep);
    call([request](const mdp_checkpoint_config* saved) { return mdp_checkpoint_save(saved, request); }, directory, config, failure);
  }

  template <class Function>
  void call(Function function, const std::string& directory, mdp_checkpoint_config& config, Failure& failure) const {
    if (!is_path(directory, failure)) return;
    guarded(failure, [&] {
      std::vector<std::shared_ptr<void>> used;  // until the call has returned
      const std::vector<mdp_checkpoint_part> parts = use(&used, failure);
      if (failure.failed()) return;
      std::vector<mdp_tensor> memory;
      for (const Array& array : arrays_) memory.push_back(array.tensor());
      const std::vector<mdp_checkpoint_tensor> tensors = describe(memory);
      config.struct_size = sizeof config;
      config.directory = directory.c_str();
      config.parts = parts.data();
      config.part_count = parts.size();
      config.tensors = tensors.data();
      config.tensor_count = tensors.size();
      failure.take(function(&config));
    });
  }

  std::vector<mdp_checkpoint_part> use(std::vector<std::shared_ptr<void>>* used, Failure& failure) const {
    std::vector<mdp_checkpoint_part> parts;
    for (const Part& each : parts_) {
      const auto buffer = each.buffer->use_collectively(failure);
      const auto optimizer = buffer && each.optimizer ? each.optimizer->use_collectively(failure) : nullptr;
      if (failure.failed()) break;
      mdp_checkpoint_part part{};
      part.struct_size = sizeof part;
      part.buffer = buffer.get();
      part.optimizer = optimizer.get();
      parts.push_back(part);
      used->push_back(buffer);
      used->push_back(optimizer);
    }
    return parts;
  }

  std::vector<mdp_checkpoint_tensor> describe(const std::vector<mdp_tensor>& memory) const {
    std::vector<mdp_checkpoint_tensor> tensors;
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const Param& param = arrays_[i].param;
      mdp_checkpoint_tensor tensor{};
      tensor.struct_size = sizeof tensor;
      tensor.placement = static_cast<mdp_placement>(param.placement);
      tensor.name = param.name().c_str();
      tensor.tensor = &memory[i];
      tensor.shard_dim = param.shard_dim;
      tensor.shard_stride = param.shard_stride;
      tensors.push_back(tensor);
    }
    return tensors;
  }

  std::vector<Part> parts_;
  std::vector<Array> arrays_;
};

}  // namespace megadp
