// SPDX-License-Identifier: Apache-2.0
// What a buffer is registered from: descriptions of parameters, and how their gradients are bucketed and sharded.
#pragma once

#include "grid.h"

namespace megadp {

/// One parameter. Zero, false and unset are the defaults.
class Param {
 public:
  explicit Param(const std::string& name) : name_(name) {}

  const std::string& name() const { return name_; }
  /// One more dimension, the slowest varying first. A parameter without one is a single number.
  void add_dimension(long long size) { shape_.push_back(size); }

  DType dtype = DType::DEFAULT;  ///< F32, BF16 or F16
  int uses_per_step = 0;         ///< how many puts make its gradient ready in a microbatch; 0: 1
  ParamClass param_class = ParamClass::DENSE;
  Placement placement = Placement::UNSET;
  int shard_dim = 0;        ///< with SHARDED: the dimension cut over the tensor-parallel ranks
  int shard_stride = 0;     ///< with SHARDED: how many pieces a rank has; 0: 1
  int param_group = 0;      ///< index of a ParamGroup of the optimizer
  int use_order = 0;        ///< parameters are used in ascending order of this, equal ones as added; Buffer::use_order tells it
  bool frozen = false;      ///< not trained: the library keeps neither it nor a gradient
  bool own_bucket = false;  ///< gets a bucket to itself
  std::string tie;          ///< a name that its copies on other pipeline stages have too: their gradients are added up; empty: none

  Sharding sharding = Sharding::DEFAULT;  ///< the buffer's; WHOLE in one of ZERO_1 or ZERO_2, ZERO_1 in one of WHOLE
  double cost = 0;                        ///< with WHOLE: of its update, by which owners are balanced; 0: its elements

#ifndef SWIG
  const std::vector<int64_t>& shape() const {
    return shape_;
  }
  mdp_param describe() const {
    mdp_param param{};
    param.struct_size = sizeof param;
    param.dtype = static_cast<mdp_dtype>(dtype);
    param.name = name_.c_str();
    param.shape = shape_.data();
    param.ndim = static_cast<int32_t>(shape_.size());
    param.uses_per_step = uses_per_step;
    param.param_class = static_cast<mdp_param_class>(param_class);
    param.placement = static_cast<mdp_placement>(placement);
    param.shard_dim = shard_dim;
    param.shard_stride = shard_stride;
    param.param_group = param_group;
    param.use_order = use_order;
    param.flags = (frozen ? MDP_PARAM_FROZEN : 0) | (own_bucket ? MDP_PARAM_OWN_BUCKET : 0);
    param.tie = tie.empty() ? nullptr : tie.c_str();
    param.sharding = static_cast<mdp_sharding>(sharding);
    param.cost = cost;
    return param;
  }
#endif

 private:
  std::string name_;
  std::vector<int64_t> shape_;
};

/// Parameters in the order of the forward pass.
class Params {
 public:
  /// A copy of the description as it is now.
  void add(const Param& param) { params_.push_back(param); }
  long long size() const { return static_cast<long long>(params_.size()); }

#ifndef SWIG
  const std::vector<Param>& list() const {
    return params_;
  }
  bool have_names(Failure& failure) const {
    for (const Param& param : params_) {
      if (!without_nul("a parameter's name", param.name(), failure) || !without_nul("a parameter's tie", param.tie, failure)) return false;
    }
    return true;
  }
  std::vector<mdp_param> describe() const {
    std::vector<mdp_param> described;
    for (const Param& param : params_) described.push_back(param.describe());
    return described;
  }
#endif

 private:
  std::vector<Param> params_;
};

struct BufferOptions {
  DType grad_dtype = DType::DEFAULT;  ///< F32 or SAME
  DType wire_dtype = DType::DEFAULT;  ///< of F32 gradients: F32, or BF16: each rank's is rounded once, sums are F32
  Sharding sharding = Sharding::DEFAULT;
  Missing missing = Missing::REFUSE;
  Scaling scaling = Scaling::MEAN;
  long long bucket_elements = 0;  ///< a bucket closes once it is this long; 0: the library decides
  long long bucket_count = 0;     ///< instead: all elements / this
  long long pool_buckets = 0;     ///< with ZERO_2: for how many buckets the pool has room; 0: 2
  long long spill_limit = 0;      ///< with ZERO_2: most bytes of gradients outside the pool; 0: no limit. Each rank's own
  bool no_overlap = false;        ///< launch everything at sync
  bool high_bandwidth_padding = false;
  bool reference_buckets = false;
  bool ignore_memory = false;   ///< take memory also if the system says that there is too little; of any rank
  bool error_feedback = false;  ///< with wire_dtype: add to the next step's gradient what rounding lost
  bool check_finite = false;    ///< look for gradients that are not finite before they are reduced: sync fails, E_NUMERIC
  bool check_large = false;     ///< warn of a gradient with 10 times the largest norm of its first 100

#ifndef SWIG
  bool describe(mdp_buffer_config* config, Failure& failure) const {
    if (!not_negative("bucket_elements", bucket_elements, failure) || !not_negative("bucket_count", bucket_count, failure)) return false;
    if (!not_negative("pool_buckets", pool_buckets, failure) || !not_negative("spill_limit", spill_limit, failure)) return false;
    *config = mdp_buffer_config{};
    config->struct_size = sizeof *config;
    config->grad_dtype = static_cast<mdp_dtype>(grad_dtype);
    config->sharding = static_cast<mdp_sharding>(sharding);
    config->wire_dtype = static_cast<mdp_dtype>(wire_dtype);
    config->missing = static_cast<mdp_missing>(missing);
    config->scaling = static_cast<mdp_scaling>(scaling);
    config->bucket_elements = static_cast<uint64_t>(bucket_elements);
    config->bucket_count = static_cast<uint64_t>(bucket_count);
    config->pool_buckets = static_cast<uint64_t>(pool_buckets);
    config->spill_limit = static_cast<uint64_t>(spill_limit);
    config->flags = (no_overlap ? MDP_BUFFER_NO_OVERLAP : 0) | (high_bandwidth_padding ? MDP_BUFFER_HIGH_BANDWIDTH_PADDING : 0) |
                    (reference_buckets ? MDP_BUFFER_REFERENCE_BUCKETS : 0) | (ignore_memory ? MDP_BUFFER_IGNORE_MEMORY : 0) |
                    (error_feedback ? MDP_BUFFER_ERROR_FEEDBACK : 0) | (check_finite ? MDP_BUFFER_CHECK_FINITE : 0) |
                    (check_large ? MDP_BUFFER_CHECK_LARGE : 0);
    return true;
  }
#endif
};

}  // namespace megadp
