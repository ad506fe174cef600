// SPDX-License-Identifier: Apache-2.0
// The enumerations of megadp.h that callers choose from. Their values are written in terms of the header's names, and the wrappers take
// them from the compiler, so that no number is repeated anywhere.
#pragma once

#include <megadp.h>

namespace megadp {

enum class Backend {
  AUTO = MDP_BACKEND_AUTO,
  HOST = MDP_BACKEND_HOST,
  CUDA = MDP_BACKEND_CUDA
};

/// DEFAULT: F32. SAME, for gradients: the parameter's. F64, I64 and U8 are for collectives only.
enum class DType {
  DEFAULT = MDP_DTYPE_DEFAULT,
  SAME = MDP_DTYPE_SAME,
  F32 = MDP_DTYPE_F32,
  BF16 = MDP_DTYPE_BF16,
  F16 = MDP_DTYPE_F16,
  F64 = MDP_DTYPE_F64,
  I64 = MDP_DTYPE_I64,
  U8 = MDP_DTYPE_U8
};

enum class Op {
  SUM = MDP_OP_SUM,
  AVG = MDP_OP_AVG,
  MAX = MDP_OP_MAX,
  MIN = MDP_OP_MIN
};

/// To be added up. On the dense grid unless EXPERT_GRID is among them.
enum class Axis {
  TP = MDP_AXIS_TP,
  CP = MDP_AXIS_CP,
  EP = MDP_AXIS_EP,
  DP = MDP_AXIS_DP,
  PP = MDP_AXIS_PP,
  EXPERT_GRID = MDP_AXIS_EXPERT_GRID
};

enum class ParamClass {
  DENSE = MDP_PARAM_CLASS_DENSE,
  EXPERT = MDP_PARAM_CLASS_EXPERT
};

/// Of a parameter over the tensor-parallel ranks; must be said with more than one of them, or with expert parallelism. PARTIAL_SUM, _MEAN:
/// replicated, but each has a part of the gradient, summed or averaged.
enum class Placement {
  UNSET = MDP_PLACEMENT_UNSET,
  REPLICATED = MDP_PLACEMENT_REPLICATED,
  SHARDED = MDP_PLACEMENT_SHARDED,
  PARTIAL_SUM = MDP_PLACEMENT_PARTIAL_SUM,
  PARTIAL_MEAN = MDP_PLACEMENT_PARTIAL_MEAN
};

/// DEFAULT: ZERO_1, optimizer state sharded over the data-parallel ranks. ZERO_2: gradients too, which pass through a small pool.
enum class Sharding {
  DEFAULT = MDP_SHARDING_DEFAULT,
  ZERO_0 = MDP_SHARDING_ZERO_0,
  ZERO_1 = MDP_SHARDING_ZERO_1,
  ZERO_2 = MDP_SHARDING_ZERO_2,
  WHOLE = MDP_SHARDING_WHOLE
};

/// What sync does about a parameter that never became ready.
enum class Missing {
  REFUSE = MDP_MISSING_ERROR,
  ZERO = MDP_MISSING_ZERO,
  SKIP = MDP_MISSING_SKIP
};

/// What the sum of gradients is divided by: the number of data-parallel ranks, nothing, or the step's tokens (Buffer::tokens).
enum class Scaling {
  MEAN = MDP_SCALING_MEAN,
  SUM = MDP_SCALING_SUM,
  TOKENS = MDP_SCALING_TOKENS
};

/// What a step does. ADAM and those of SGD have weight_decay as L2 regularization, ADAMW and LION have it decoupled. CALLER: what you do
/// with the pieces of Optimizer.begin_step.
enum class Rule {
  ADAMW = MDP_RULE_ADAMW,
  ADAM = MDP_RULE_ADAM,
  SGD = MDP_RULE_SGD,
  SGD_MOMENTUM = MDP_RULE_SGD_MOMENTUM,
  SGD_NESTEROV = MDP_RULE_SGD_NESTEROV,
  LION = MDP_RULE_LION,
  CALLER = MDP_RULE_CALLER
};

/// A norm of all gradients together: the root of the sum of squares, or the largest magnitude.
enum class Norm {
  L2 = MDP_NORM_L2,
  INF = MDP_NORM_INF
};

/// An operator on an array that is replicated, or cut along a dimension, over the ranks of a communicator.
enum class TpRegion {
  UNSET = MDP_TP_REGION_UNSET,
  COPY = MDP_TP_COPY,
  REDUCE = MDP_TP_REDUCE,
  SCATTER = MDP_TP_SCATTER,
  GATHER = MDP_TP_GATHER,
  REDUCE_SCATTER = MDP_TP_REDUCE_SCATTER,
  EXCHANGE = MDP_TP_EXCHANGE
};

/// The gradient that comes back of what is replicated: each rank's is a part, or it is the same on all.
enum class TpGrad {
  UNSET = MDP_TP_GRAD_UNSET,
  PARTIAL = MDP_TP_GRAD_PARTIAL,
  REPLICATED = MDP_TP_GRAD_REPLICATED
};

/// Of a linear layer: by features of its output, or of its input.
enum class TpSplit {
  UNSET = MDP_TP_SPLIT_UNSET,
  COLUMN = MDP_TP_COLUMN,
  ROW = MDP_TP_ROW
};

/// What is beyond an end of an array that is cut over ranks: what the caller puts there, zero, the other end, or the mirror image at the
/// outermost element, which is not repeated.
enum class Edge {
  KEEP = MDP_EDGE_KEEP,
  ZERO = MDP_EDGE_ZERO,
  PERIODIC = MDP_EDGE_PERIODIC,
  REFLECT = MDP_EDGE_REFLECT
};

/// Which ranks draw the same random numbers: all (of what is replicated over tensor-parallel ranks); TENSOR: those of a tensor-parallel
/// group draw different ones; EXPERT: those of an expert-parallel group, too.
enum class Random {
  UNSET = MDP_RANDOM_UNSET,
  REPLICATED = MDP_RANDOM_REPLICATED,
  TENSOR = MDP_RANDOM_TENSOR,
  EXPERT = MDP_RANDOM_EXPERT
};

enum class BucketState {
  FILLING = MDP_BUCKET_FILLING,
  READY = MDP_BUCKET_READY,
  IN_FLIGHT = MDP_BUCKET_IN_FLIGHT,
  REDUCED = MDP_BUCKET_REDUCED,
  GATHERING = MDP_BUCKET_GATHERING,
  WHOLE = MDP_BUCKET_WHOLE
};

/// Numbers that count as given once they are set, also to 0. In C++ a member set_... beside says so.
typedef double Given;
typedef int GivenDevice;
typedef long long GivenClass;
typedef long long GivenGroup;  // of 64 bits, since several languages cut what does not fit

}  // namespace megadp
