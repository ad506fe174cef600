// SPDX-License-Identifier: Apache-2.0
// LoadArrays: what of a checkpoint goes where on this rank, and its copying. Planned and checked without reading data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/checkpoint_arrays.h"
#include "core/checkpoint_source.h"

namespace megadp {

inline constexpr const char* kLoad = "mdp_checkpoint_load";

struct LoadedParam {
  const CheckpointPart* part;
  size_t index;  // in its buffer
  const StoredArray* source;
};

class LoadArrays {
 public:
  LoadArrays(const CheckpointConfig& config, const CheckpointArrays& here, CheckpointSource& source)
      : config_(config), here_(here), source_(source) {}

  // Whether both sides have the same arrays, and what this rank takes of them.
  Status plan();
  const std::vector<LoadedParam>& params() const noexcept { return params_; }
  // Whether the files have it.
  Status check();
  Status copy();
  // What goes with the owned ranges: versions and averages.
  void adopt();

 private:
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
  bool is_optional(const std::string& name) const;
  bool is_wanted(const StoredArray& source) const;
  const StoredArray* source_of(const StoredArray& target) const;
  Status compare() const;
  Status check_rule(const StoredArray& source, const StoredOptimizer& mine) const;
  Status plan(const StoredArray& target);
  Status plan_as(const std::string& name, const StoredArray& source, const StoredArray& target);
  Status plan_param(const StoredArray& source, const StoredArray& target, const LocalArray& local);
  void plan_param_state(const StoredArray& source, const StoredArray& target, const LocalArray& local);
  void plan_tensor(const StoredArray& source, const StoredArray& target, const LocalArray& local);
  void count_cast(const std::string& what, DType from, DType to);
  void order_jobs();
  CheckpointSource::Range range_of(const Job& job) const;
  Status copy(const Job& job);

  const CheckpointConfig& config_;
  const CheckpointArrays& here_;
  CheckpointSource& source_;
  std::vector<Job> jobs_;
  std::unordered_map<const StoredArray*, Cutting> cuttings_;
  std::vector<LoadedParam> params_;
  std::vector<std::pair<const CheckpointTensor*, std::vector<std::byte>>> tensors_;
  std::vector<std::pair<Optimizer*, size_t>> new_averages_;  // that begin with the loaded parameter
  size_t casts_ = 0;
  std::string first_cast_;
};

}  // namespace megadp
