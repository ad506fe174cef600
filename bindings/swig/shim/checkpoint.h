// SPDX-License-Identifier: Apache-2.0
// Checkpoints.
#pragma once

#include "checkpoint_parts.h"

namespace megadp {

/// Parameters, optimizer state and steps, saved by all ranks, loaded on any number of ranks with any sharding and buckets. To be called
/// between steps. `directory` is one of checkpoints, on a file system that all hosts share. CheckpointParts is for more than one buffer and
/// its optimizers.
class Checkpoint {
 public:
  /// Saves one more, which is there as a whole or not at all. Collective over the buffer's world; waits for files longer than the timeout.
  static void save(const std::string& directory, const Buffer& buffer, const Optimizer& optimizer, const CheckpointOptions& options,
                   Failure& failure) {
    CheckpointParts::of(buffer, optimizer).save(directory, options, failure);
  }

  /// The same with all optimizers of a buffer, which have different parameter groups. Collective.
  static void save_many(const std::string& directory, const Buffer& buffer, const Optimizers& optimizers, const CheckpointOptions& options,
                        Failure& failure) {
    CheckpointParts::of(buffer, optimizers).save(directory, options, failure);
  }

  /// The same while training goes on: returns when what this rank writes is copied; the request ends when the checkpoint is there, or says
  /// why it is not. One is written at a time. Wait before the program ends. Collective.
  static Request* start_save(const std::string& directory, const Buffer& buffer, const Optimizer& optimizer,
                             const CheckpointOptions& options, Failure& failure) {
    return CheckpointParts::of(buffer, optimizer).start_save(directory, options, failure);
  }
  static Request* start_save_many(const std::string& directory, const Buffer& buffer, const Optimizers& optimizers,
                                  const CheckpointOptions& options, Failure& failure) {
    return CheckpointParts::of(buffer, optimizers).start_save(directory, options, failure);
  }

  /// Loads the directory's newest one, or the one that is `directory`. Collective over the buffer's world; waits for files longer than the
  /// timeout. If it fails, nothing has changed; but if data turns out CORRUPT, parameters and state are not to be used until one was
  /// loaded.
  static void load(const std::string& directory, const Buffer& buffer, const Optimizer& optimizer, const CheckpointOptions& options,
                   Failure& failure) {
    CheckpointParts::of(buffer, optimizer).load(directory, options, failure);
  }
  static void load_many(const std::string& directory, const Buffer& buffer, const Optimizers& optimizers, const CheckpointOptions& options,
                        Failure& failure) {
    CheckpointParts::of(buffer, optimizers).load(directory, options, failure);
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
};

}  // namespace megadp
