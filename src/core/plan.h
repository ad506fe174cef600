// SPDX-License-Identifier: Apache-2.0
// Plan: from a grid, a configuration and a list of parameters to arenas, buckets, owned ranges and bytes. Pure: what mdp_plan answers and
// what mdp_buffer_register then allocates are the same object.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "core/grid.h"
#include "core/layout.h"
#include "core/param.h"

namespace megadp {

// What the sum of gradients is divided by; the values of mdp_scaling.
enum class Scaling : uint32_t {
  mean = 0,    // dp x cp, for experts too
  sum = 1,     // nothing
  tokens = 2,  // of all batches of the step
};
enum class MissingPolicy : uint32_t {
  error = 0,
  zero = 1,
  skip = 2
};

struct BufferConfig {
  bool grad_same_as_param = false;  // else f32
  Sharding sharding = Sharding::zero_1;
  MissingPolicy missing = MissingPolicy::error;
  Scaling scaling = Scaling::mean;
  uint64_t bucket_elements = 0;  // 0: the library decides, see default_bucket_elements
  uint64_t bucket_count = 0;
  uint64_t pool_buckets = 0;  // with zero_2; 0: kPoolBuckets
  uint64_t spill_limit = 0;   // with zero_2, in bytes; 0: none
  bool no_overlap = false;
  bool high_bandwidth_padding = false;
  bool reference_buckets = false;
  bool wire_bf16 = false;       // f32 gradients are sent as bf16
  bool error_feedback = false;  // with wire_bf16
  bool check_finite = false, check_large = false;
  bool ignore_memory = false;  // of the machine and the control group: need not be the same on all ranks
};

// Of the optimizer that memory() counts.
struct PlannedOptimizer {
  uint32_t rule = 0;
  bool bf16_state = false;                               // what the rule keeps
  bool no_master = false;                                // of bf16 parameters
  bool average = false;                                  // is kept
  size_t states = 0;                                     // of the caller's rule: how many arrays of f32 it keeps
  std::vector<std::vector<uint64_t>> param_states = {};  // likewise: the bytes that it keeps of each parameter, for every name
};

constexpr uint64_t kParamStateAlignment = 64;  // bytes; where those of one parameter begin

// With zero_2: one bucket is filled while the one before is reduced.
constexpr uint64_t kPoolBuckets = 2;

// The longest window through which gradients are sent as bf16: 32 MiB.
constexpr uint64_t kWireElements = uint64_t{16} << 20;

// One arena: all parameters of one (parameter type, gradient type, class, sharding).
struct ArenaPlan {
  DType param_type = DType::f32, grad_type = DType::f32;
  bool expert = false;
  Sharding sharding = Sharding::zero_1;
  int group_size = 1;                     // ranks that hold replicas of these parameters
  int instances = 1;                      // of the optimizer, each with all of the state; 1 with zero_0
  int shards = 1;                         // group_size / instances, 1 with zero_0
  uint64_t elements = 0;                  // of its parameters, without padding
  uint64_t bucket_elements = UINT64_MAX;  // what the configuration came to: a bucket closes at this length
  // With zero_2 a bucket's gradients lie in one of a few slots, which buckets take in turn; else, with 0 slots, each has a place of its
  // own.
  uint64_t pool_slots = 0, slot_elements = 0;
  std::vector<size_t> params;  // registration indices, in registration order; Slot::param and OwnedRange::param index the registration list
  Layout layout;

  // With instances and half-width gradients: sums of pieces in f32, until they have been added up across the instances; the next bucket's
  // meanwhile beside it.
  uint64_t wide_slots = 0, wide_elements = 0;

  // f32 gradients that are sent as bf16 pass through a window of so many elements; 0: they are sent as they are.
  uint64_t wire_elements = 0;

  // Of the window of gradients: its length, and where a bucket's begin.
  uint64_t grad_elements() const { return pool_slots > 0 ? pool_slots * slot_elements : layout.numel; }
  uint64_t grad_begin(uint32_t bucket) const { return pool_slots > 0 ? bucket % pool_slots * slot_elements : layout.buckets[bucket].begin; }
  bool is_whole() const { return sharding == Sharding::whole; }
};

// Of one rank, bytes; each allocation is rounded up to a page on top of this. grad_shard: of reduced gradients that are kept apart; 0
// where they are reduced in place. spill: the most of a microbatch that may come to lie outside the
// pool, if nothing is reduced before all has come; of each microbatch that this rank is ahead of the slowest. feedback: what rounding for
// the wire lost.
// communicators: of a device, if that is the backend; an estimate, which is judged by nobody.
struct MemoryPlan {
  uint64_t param = 0, grad = 0, grad_shard = 0, spill = 0, master = 0, state = 0, scratch = 0, communicators = 0, feedback = 0;
  uint64_t average = 0;  // of an optimizer that averages, and what a swap keeps aside
  // The most that a checkpoint copies which is written while training goes on; not before the first one. Tensors of the caller's come on
  // top.
  uint64_t snapshot = 0;
};

// What a device's library takes for a communicator whose ranks form a ring: 16 channels, each with the buffers of one connection, for each
// of three protocols of the size that the library has from the start. Where they come from: docs/design.md. Trees, exchanges of all with
// all and memory that the ranks of a node share come on top; what is smaller, or reaches memory directly, takes less.
constexpr uint64_t kCommunicatorBytes = 16 * ((uint64_t{4} << 20) + uint64_t{8} * 8 * 120 * 640 + uint64_t{8} * 16 * 8 * 512);

struct BucketRef {
  uint32_t arena, bucket;
};

// An exchange at the end of backward: over the ranks that hold replicas of these parameters.
struct AgreementPlan {
  Axes axes;  // 0: the whole world
  std::vector<size_t> params;
};

struct Plan {
  Grid grid;
  BufferConfig config;
  PlannedOptimizer optimizer;
  std::vector<ParamSpec> params;
  std::vector<ArenaPlan> arenas;  // in order of first registration of their key, so that arena numbers follow registration
  // The one order in which all ranks launch buckets: the later its earliest-used parameter is used, the sooner (the gradient of that one
  // comes last in backward); without overlap the dense ones before the experts' ones. The position in it is the bucket's
  // number in errors and reports.
  std::vector<BucketRef> launch_order;
  struct Name {
    uint64_t digest;
    size_t param;
  };
  std::vector<Name> names;  // by digest, then by name
  // Of the tensor-parallel ranks that hold a parameter, which may register what they like, which this one is. Told by registration.
  struct Holder {
    int index = 0, count = 1;
  };
  std::vector<Holder> holders;   // by parameter
  bool tp_ranks_differ = false;  // in the parameters that they hold, or in the order of these

  std::optional<size_t> find(std::string_view name) const;  // the index of a parameter
  // Whether the forward pass uses parameter a before b: nothing but where gradients lie, and when they go, follows from it.
  bool used_before(size_t a, size_t b) const {
    return params[a].use_order != params[b].use_order ? params[a].use_order < params[b].use_order : a < b;
  }
  int instances() const;  // of the optimizer; 1 with zero_0
  // This rank's shard of an arena (0 with zero_0).
  int shard(const ArenaPlan& arena, int rank) const;
  // Whether a parameter of the part is to be summed over tensor-parallel ranks.
  bool has_partial(bool expert) const;
  // Whether other pipeline stages may hold the parameter too.
  bool is_tied(size_t param) const { return grid.size(kPp) > 1 && !params[param].tie.empty(); }
  bool has_ties() const;
  // Whether the tokens of a step must be known before its first reduction here; if so on one rank, then on all.
  bool divides_by_tokens_at_once() const;
  uint64_t packed_elements() const;  // the most that one rank owns of what is partial or tied
  std::vector<AgreementPlan> agreements() const;
  // Whether no rank with a lower number in the group of replicas holds the same shard.
  bool is_first_replica(const ArenaPlan& arena, int rank) const;
  // Of a rank; but for whole parameters every rank's is the same.
  MemoryPlan memory(int rank) const;
  uint64_t padding_elements() const;
  uint64_t owned_elements(int rank) const;
  // Of one element: its average, and what the parameter was before a swap.
  static uint64_t average_bytes(const ArenaPlan& arena) { return sizeof(float) + size_of(arena.param_type); }
  // f32 parameters are their own master copy.
  static bool has_master(const ArenaPlan& arena) { return arena.param_type != DType::f32; }
};

// The most elements that all arenas together may come to, padding included: every sum of bytes then stays far below 2^63.
constexpr uint64_t kMaxElements = uint64_t{1} << 56;

// The sharding of a parameter, and for each parameter its owner: a shard, with Sharding::whole. Costs are spread over all arenas: the
// costliest first, each to the shard that has least (the longest-processing-time rule), so that no shard has more than 4/3 of the least
// that is possible. What is tied has the same owner on all stages. In plan_owners.cc.
Sharding sharding_of(const BufferConfig& config, const ParamSpec& param);
std::vector<uint32_t> assign_owners(const Plan& plan);

// Fills in every numel from the shape. Names the parameter that is wrong. Checks: names unique, non-empty and at most 255 bytes; shapes;
// sizes that overflow; placements when tp > 1 or ep > 1; something to train; bucket_elements and bucket_count and reference_buckets exclude
// each other.
Result<Plan> make_plan(const Grid& grid, const BufferConfig& config, std::vector<ParamSpec> params);

// The reference's threshold, max(40,000,000, 1,000,000 x dp).
uint64_t reference_bucket_elements(int group_size);
// The library's own choice: small models get several buckets too, so that they overlap; never above the reference's.
uint64_t default_bucket_elements(uint64_t arena_elements, int group_size);

// Of an optimizer: a step count for every parameter that may come to have its own.
uint64_t step_count_bytes(const Plan& plan);

// Bytes of fixed allocations besides the arrays above: wide sums, packed partial gradients, the scalars of a norm, a step's with its
// counts, and for each agreement one header and one bit per parameter, to send and to receive.
uint64_t scratch_bytes(const Plan& plan);
constexpr uint64_t kSyncHeaderBytes = 304;
// Where ranks tell each other how many tokens they have, each before its first gradient.
uint64_t token_bytes(const Plan& plan);
uint64_t square_bytes(const Plan& plan);  // see grad_squares.cc
constexpr uint64_t agreement_bytes(uint64_t params) {
  return kSyncHeaderBytes + (params + 63) / 64 * 8;
}

// Everything that ranks of one group must agree on (dense or expert part), as lines "what: value" fit to be hashed and compared; and the
// text of the first difference between two of them: "parameter 3: 'w' f32[4,8] here, 'w' f32[4,9] on rank 2" (empty: none). Dense
// parameters are counted among themselves, so that ranks may hold different numbers of experts; experts by their registration index,
// because ranks that share them must interleave them equally with the others.
std::string describe_registration(const Plan& plan, bool expert);
std::array<uint64_t, 2> digest_registration(const Plan& plan);  // of these texts, dense and expert, without making them
// What tensor-parallel ranks must agree on: their partial parameters, and how these are cut.
std::string describe_partial(const Plan& plan, bool expert);
std::string first_difference(const std::string& mine, const std::string& theirs, int their_rank);

}  // namespace megadp
