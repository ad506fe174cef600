// SPDX-License-Identifier: Apache-2.0
// Checkpoints: buffers, their optimizers' state and tensors of the caller's, saved by all ranks and loaded by as many as there are then.
//
//   save   describe what each rank holds ─► one list of arrays and who writes which range of them ─► rank files ─► manifest, rename
//   load   manifest ─► the same list of what is here ─► which ranges of which files ─► check all ─► copy ─► gather parameters
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/optimizer.h"
#include "files/manifest_json.h"

namespace megadp {

struct CheckpointPart {
  std::shared_ptr<Buffer> buffer;        // several parts may have one, if each has an optimizer of some of its groups
  std::shared_ptr<Optimizer> optimizer;  // of the buffer; null: none
};

// An array of the caller's, in the host's memory or the backend's.
struct CheckpointTensor {
  std::string name;
  Placement placement = Placement::unset;
  int shard_dim = 0, shard_stride = 1;
  StridedArray array;
  DeviceType where = DeviceType::cpu;
};

struct CheckpointConfig {
  std::string directory;
  std::vector<CheckpointPart> parts;  // at least one, all on the same ranks
  std::vector<CheckpointTensor> tensors;
  std::span<const std::byte> shared_data, rank_data;  // to save
  uint64_t keep = 0;                                  // 0: all
  std::vector<std::string> optional;                  // patterns of names that only one side may have
  bool params_only = false, load_hyper = false;       // to load

  const std::shared_ptr<ProcessGrid>& grid() const { return parts.front().buffer->arenas().grid(); }
  // Which part has a parameter of a buffer: of several parts of the buffer the one whose optimizer covers it, else the first.
  const CheckpointPart& part_of(const Buffer& buffer, size_t param) const;
  // Whether no part before has its buffer too.
  bool is_first_of_buffer(const CheckpointPart& part) const;
  Context& context() const { return parts.front().buffer->context(); }
  const std::vector<int>& members() const { return grid()->world()->group().members(); }
};

// All of a tensor, as the other side of a file: dense, in the host's memory.
enum class Copy {
  to_dense,
  from_dense
};
Status copy_tensor(const CheckpointConfig& config, const CheckpointTensor& tensor, std::span<std::byte> dense, Copy direction);

// Collective over the world of the parts, blocking.
Status save_checkpoint(const CheckpointConfig& config);
// Returns when all of it is copied; it is written in the background.
Result<std::shared_ptr<Request>> start_saving_checkpoint(const CheckpointConfig& config);
Status load_checkpoint(const CheckpointConfig& config);

// Of both: what ranks must give alike.
Status compare_checkpoint_configs(const CheckpointConfig& config, const char* call);

}  // namespace megadp
