// SPDX-License-Identifier: Apache-2.0
// Checkpoints.
#pragma once

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

/// Parameters, optimizer state and steps, saved by all ranks, loaded on any number of ranks with any sharding and buckets. To be called
/// between steps. `directory` is one of checkpoints, on a file system that all hosts share.
class Checkpoint {
 public:
  /// Saves one more, which is there as a whole or not at all. Collective over the buffer's world; waits for files longer than the timeout.
  static void save(const std::string& directory, const Buffer& buffer, const Optimizer& optimizer, const CheckpointOptions& options,
                   Failure& failure) {
    save(directory, buffer, one(optimizer), options, nullptr, failure);
  }

  /// The same with all optimizers of a buffer, which have different parameter groups. Collective.
  static void save_many(const std::string& directory, const Buffer& buffer, const Optimizers& optimizers, const CheckpointOptions& options,
                        Failure& failure) {
    save(directory, buffer, optimizers, options, nullptr, failure);
  }

  /// The same while training goes on: returns when what this rank writes is copied; the request ends when the checkpoint is there, or says
  /// why it is not. One is written at a time. Wait before the program ends. Collective.
  static Request* start_save(const std::string& directory, const Buffer& buffer, const Optimizer& optimizer,
                             const CheckpointOptions& options, Failure& failure) {
    return start_save_many(directory, buffer, one(optimizer), options, failure);
  }
  static Request* start_save_many(const std::string& directory, const Buffer& buffer, const Optimizers& optimizers,
                                  const CheckpointOptions& options, Failure& failure) {
    return guarded(failure, [&]() -> Request* {
      mdp_request* request = nullptr;
      save(directory, buffer, optimizers, options, &request, failure);
      return failure.failed() ? nullptr : new Request(request);
    });
  }

  /// Loads the directory's newest one, or the one that is `directory`. Collective over the buffer's world; waits for files longer than the
  /// timeout. If it fails, nothing has changed; but if data turns out CORRUPT, parameters and state are not to be used until one was
  /// loaded.
  static void load(const std::string& directory, const Buffer& buffer, const Optimizer& optimizer, const CheckpointOptions& options,
                   Failure& failure) {
    load_many(directory, buffer, one(optimizer), options, failure);
  }
  static void load_many(const std::string& directory, const Buffer& buffer, const Optimizers& optimizers, const CheckpointOptions& options,
                        Failure& failure) {
    mdp_checkpoint_config config{};
    config.optional = options.optional.c_str();
    config.flags = (options.params_only ? MDP_CHECKPOINT_PARAMS_ONLY : 0) | (options.load_hyper ? MDP_CHECKPOINT_LOAD_HYPER : 0);
    call(mdp_checkpoint_load, directory, buffer, optimizers, config, failure);
  }

  /// The manifest of the directory's newest checkpoint, and its path, as JSON. Local.
  static std::string info(const std::string& directory, Failure& failure) {
    if (!is_path(directory, failure)) return std::string();
    return Library::text(failure, [&](char* json, size_t capacity, size_t* needed) {
      return mdp_checkpoint_info(directory.c_str(), json, capacity, needed);
    });
  }

  /// The rank_data of rank `rank` in the directory's newest checkpoint; -1: the shared_data. Local.
  static std::string data(const std::string& directory, int rank, Failure& failure) {
    return guarded(failure, [&] {
      std::string bytes;
      while (is_path(directory, failure)) {  // a newer checkpoint may come between two calls
        size_t needed = 0;
        const mdp_status status = mdp_checkpoint_data(directory.c_str(), rank, &bytes[0], bytes.size(), &needed);
        const bool is_short = needed > bytes.size();
        if (!is_short && !failure.take(status)) return std::string();
        bytes.resize(needed);
        if (!is_short) break;
      }
      return bytes;
    });
  }

  /// Reads all of the directory's newest checkpoint; `megadp checkpoint verify` tells every damage. Local.
  static void verify(const std::string& directory, Failure& failure) {
    if (is_path(directory, failure)) failure.take(mdp_checkpoint_verify(directory.c_str(), nullptr, 0, nullptr));
  }

  /// Writes the newest checkpoint's parameters and tensors, whole and under their names, as an ordinary safetensors file; with more than
  /// most_bytes of data (0: any) as several with an index. Nothing is written over. load takes it with params_only. Local.
  static void export_model(const std::string& directory, const std::string& path, long long most_bytes, Failure& failure) {
    if (!is_path(directory, failure) || !is_path(path, failure) || !not_negative("most_bytes", most_bytes, failure)) return;
    failure.take(mdp_checkpoint_export(directory.c_str(), path.c_str(), static_cast<uint64_t>(most_bytes)));
  }

 private:
  // request: null, or it is written while training goes on.
  static void save(const std::string& directory, const Buffer& buffer, const Optimizers& optimizers, const CheckpointOptions& options,
                   mdp_request** request, Failure& failure) {
    if (!not_negative("keep", options.keep, failure)) return;
    mdp_checkpoint_config config{};
    config.shared_data = options.shared_data.data();
    config.shared_bytes = options.shared_data.size();
    config.rank_data = options.rank_data.data();
    config.rank_bytes = options.rank_data.size();
    config.keep = static_cast<uint64_t>(options.keep);
    call([request](const mdp_checkpoint_config* saved) { return mdp_checkpoint_save(saved, request); }, directory, buffer, optimizers,
         config, failure);
  }

  static Optimizers one(const Optimizer& optimizer) {
    Optimizers optimizers;
    optimizers.add(optimizer);
    return optimizers;
  }

  static bool is_path(const std::string& directory, Failure& failure) {
    const bool good = directory.find('\0') == std::string::npos;
    if (!good) failure.refuse(MDP_E_INVALID, "directory has a NUL in it, after %s", directory.c_str());
    return good;
  }

  template <class Function>
  static void call(Function function, const std::string& directory, const Buffer& buffer, const Optimizers& optimizers,
                   mdp_checkpoint_config& config, Failure& failure) {
    if (!is_path(directory, failure)) return;
    const auto registered = buffer.handle().use(failure);
    if (!registered) return;
    guarded(failure, [&] {
      const auto used = optimizers.use(failure);
      if (failure.failed()) return;
      std::vector<mdp_checkpoint_part> parts;
      for (const auto& optimizer : used) {
        mdp_checkpoint_part part{};
        part.struct_size = sizeof part;
        part.buffer = registered.get();
        part.optimizer = optimizer.get();
        parts.push_back(part);
      }
      config.struct_size = sizeof config;
      config.directory = directory.c_str();
      config.parts = parts.data();
      config.part_count = parts.size();
      failure.take(function(&config));
    });
  }
};

}  // namespace megadp
