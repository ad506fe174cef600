// SPDX-License-Identifier: Apache-2.0
// Collectives: which type, which operation, and how a sum is divided.
//
// NCCL divides before it sums, by a factor of the elements' own type: 1/3 as a bf16 is off by 0.2 %. So sums of half-width types are
// multiplied by a power of two before, which keeps f16 from overflowing, and what is left of the divisor divides afterwards. The first is
// exact but for what becomes subnormal by it: an f16 that is then below 2^-14 loses its last bits.
#include <algorithm>
#include <cmath>
#include <new>
#include <type_traits>

#include "cuda/plugin/nccl_comm.h"

namespace megadp::cuda {
namespace {

bool find_type(DType type, ncclDataType_t* out) {
  switch (type) {
    case DType::f32:
      *out = ncclFloat32;
      return true;
    case DType::bf16:
      *out = ncclBfloat16;
      return true;
    case DType::f16:
      *out = ncclFloat16;
      return true;
    case DType::f64:
      *out = ncclFloat64;
      return true;
    case DType::i64:
      *out = ncclInt64;
      return true;
    case DType::u8:
      *out = ncclUint8;
      return true;
  }
  return false;
}

// A factor as the element type that NCCL wants it in.
union Factor {
  float f32;
  double f64;
  Bf16 bf16;
  F16 f16;
};

Factor factor_of(DType type, double factor) {
  Factor out{};
  if (type == DType::f32) from_f64(&out.f32, factor);
  if (type == DType::f64) from_f64(&out.f64, factor);
  if (type == DType::bf16) from_f64(&out.bf16, factor);
  if (type == DType::f16) from_f64(&out.f16, factor);
  return out;
}

template <class T>
int32_t make_room(std::vector<T>* list) {
  try {
    list->reserve(list->size() + 1);
    return 0;
  } catch (const std::bad_alloc&) {
    return kNoHostMemory;
  }
}

// Those used longest ago go. NCCL may be asked to as soon as the calls that were given them have returned; those of a group, when it ends.
void drop_sums(NcclComm* comm, size_t kept) {
  if (comm->grouped || comm->sums.size() <= kept) return;
  const auto end = comm->sums.end() - static_cast<std::ptrdiff_t>(kept);
  for (auto sum = comm->sums.begin(); sum != end; ++sum) static_cast<void>(comm->nccl->red_op_destroy(sum->op, comm->handle));
  comm->sums.erase(comm->sums.begin(), end);
}

int32_t scaled_sum(NcclComm* comm, DType type, ncclDataType_t nccl_type, double factor, ncclRedOp_t* out) {
  std::vector<ScaledSum>& sums = comm->sums;
  const auto known = std::find_if(sums.begin(), sums.end(), [&](const ScaledSum& sum) { return sum.type == type && sum.factor == factor; });
  if (known != sums.end()) {
    std::rotate(known, known + 1, sums.end());
    *out = sums.back().op;
    return 0;
  }
  // Room first: an operation that was made is not lost then.
  if (const int32_t full = make_room(&sums); full != 0) return full;
  drop_sums(comm, kKeptSums - 1);
  Factor scalar = factor_of(type, factor);
  ncclRedOp_t op = ncclSum;
  const int32_t made = result_of(comm->nccl->red_op_create_pre_mul_sum(&op, &scalar, nccl_type, ncclScalarHostImmediate, comm->handle));
  if (made != 0) return made;
  sums.push_back({type, factor, op});
  *out = op;
  return 0;
}

// How a reduction is done: NCCL's operation, and what divides its result.
struct Plan {
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  double rest = 1;
};

int32_t plan_reduction(NcclComm* comm, DType type, Op op, double divisor, Plan* plan) {
  if (!find_type(type, &plan->type)) return kBadArgument;
  if (op == Op::max || op == Op::min) {
    plan->op = op == Op::max ? ncclMax : ncclMin;
    return divisor == 1 ? 0 : kBadArgument;
  }
  if (op != Op::sum && op != Op::avg) return kBadArgument;
  if (type == DType::i64 || type == DType::u8) {
    plan->op = op == Op::avg ? ncclAvg : ncclSum;
    return divisor == 1 ? 0 : kBadArgument;
  }
  if (!(divisor > 0) || !std::isfinite(divisor)) return kBadArgument;
  if (op == Op::avg) divisor *= comm->size;
  if (divisor == 1) return 0;
  if (type == DType::f32 || type == DType::f64) return scaled_sum(comm, type, plan->type, 1 / divisor, &plan->op);
  int exponent = 0;
  const double mantissa = std::frexp(divisor, &exponent);  // in [0.5, 1)
  plan->rest = 2 * mantissa;
  if (const int32_t full = make_room(&comm->divisions); full != 0) return full;
  return exponent == 1 ? 0 : scaled_sum(comm, type, plan->type, std::ldexp(1.0, 1 - exponent), &plan->op);
}

// Divides now if the sum is in its stream, or when comm_state() or the end of the group sees that it is. Room was made before.
int32_t divide_after(NcclComm* comm, int32_t result, const Division& division) {
  if ((result != 0 && result != kPending) || division.divisor == 1) return result;
  comm->divisions.push_back(division);
  return result == kPending || comm->grouped ? result : start_divisions(comm);
}

// Whether a collective may come, and its type.
int32_t begin(const Current& current, DType type, ncclDataType_t* out) {
  if (current.result() != 0) return current.result();
  return find_type(type, out) ? 0 : kBadArgument;
}

// A group that was begun is ended, whatever happened in it.
int32_t exchange_all(NcclComm* comm, cudaStream_t stream, const Transfer* all, size_t count, ncclDataType_t type) {
  const Nccl& nccl = *comm->nccl;
  int32_t result = result_of(nccl.group_start());
  if (result != 0) return result;
  for (const Transfer* each = all; each != all + count && (result == 0 || result == kPending); each++) {
    if (each->count == 0) continue;
    result = result_of(each->sends != 0 ? nccl.send(each->data, each->count, type, each->rank, comm->handle, stream)
                                        : nccl.recv(each->data, each->count, type, each->rank, comm->handle, stream));
  }
  const int32_t ended = result_of(nccl.group_end());
  return result != 0 && result != kPending ? result : ended;  // which says again what is pending
}

}  // namespace

int32_t start_divisions(NcclComm* comm) {
  int32_t result = 0;
  for (const Division& each : comm->divisions) {
    if (result != 0) break;
    result = reduce(comm->device, each.stream, each.data, each.data, each.count, 1, each.count, each.type, Op::sum, each.divisor);
  }
  comm->divisions.clear();
  return result;
}

int32_t comm_group_begin(NcclComm* comm) {
  if (const int32_t refused = usable(comm); refused != 0) return refused;
  const int32_t result = result_of(comm->nccl->group_start());
  comm->grouped = result == 0;
  return result;
}

// Also where the communicator was aborted meanwhile: NCCL's group is the thread's, and later calls would be part of it.
int32_t comm_group_end(NcclComm* comm) {
  const Current current(comm->device);
  const int32_t result = result_of(comm->nccl->group_end());
  comm->grouped = false;
  if (!comm->aborted) drop_sums(comm, kKeptSums);
  if (result == kPending) return result;
  if (result != 0) comm->divisions.clear();
  if (current.result() != 0) return current.result();
  return result != 0 ? result : start_divisions(comm);
}

int32_t comm_all_reduce(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor) {
  if (const int32_t refused = usable(comm); refused != 0) return refused;
  const Current current(comm->device);
  if (current.result() != 0) return current.result();
  Plan plan;
  if (const int32_t failed = plan_reduction(comm, type, op, divisor, &plan); failed != 0 || count == 0) return failed;
  const int32_t result = result_of(comm->nccl->all_reduce(from, to, count, plan.type, plan.op, comm->handle, stream_of(stream)));
  return divide_after(comm, result, {stream, to, count, type, plan.rest});
}

int32_t comm_reduce_scatter(NcclComm* comm, void* stream, const void* from, void* to, size_t count_per_rank, DType type, Op op,
                            double divisor) {
  if (const int32_t refused = usable(comm); refused != 0) return refused;
  const Current current(comm->device);
  if (current.result() != 0) return current.result();
  Plan plan;
  if (const int32_t failed = plan_reduction(comm, type, op, divisor, &plan); failed != 0 || count_per_rank == 0) return failed;
  const int32_t result =
      result_of(comm->nccl->reduce_scatter(from, to, count_per_rank, plan.type, plan.op, comm->handle, stream_of(stream)));
  return divide_after(comm, result, {stream, to, count_per_rank, type, plan.rest});
}

int32_t comm_reduce(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor,
                    int32_t root) {
  if (const int32_t refused = usable(comm); refused != 0) return refused;
  if (root < 0 || root >= comm->size) return kBadArgument;
  const Current current(comm->device);
  if (current.result() != 0) return current.result();
  Plan plan;
  if (const int32_t failed = plan_reduction(comm, type, op, divisor, &plan); failed != 0 || count == 0) return failed;
  const int32_t result = result_of(comm->nccl->reduce(from, to, count, plan.type, plan.op, root, comm->handle, stream_of(stream)));
  return to == nullptr ? result : divide_after(comm, result, {stream, to, count, type, plan.rest});
}

int32_t comm_all_gather(NcclComm* comm, void* stream, const void* from, void* to, size_t count_per_rank, DType type) {
  if (const int32_t refused = usable(comm); refused != 0) return refused;
  const Current current(comm->device);
  ncclDataType_t nccl_type = ncclFloat32;
  if (const int32_t failed = begin(current, type, &nccl_type); failed != 0 || count_per_rank == 0) return failed;
  return result_of(comm->nccl->all_gather(from, to, count_per_rank, nccl_type, comm->handle, stream_of(stream)));
}

int32_t comm_broadcast(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, int32_t root) {
  if (const int32_t refused = usable(comm); refused != 0) return refused;
  if (root < 0 || root >= comm->size) return kBadArgument;
  const Current current(comm->device);
  ncclDataType_t nccl_type = ncclFloat32;
  if (const int32_t failed = begin(current, type, &nccl_type); failed != 0 || count == 0) return failed;
  return result_of(comm->nccl->broadcast(from, to, count, nccl_type, root, comm->handle, stream_of(stream)));
}

int32_t comm_exchange(NcclComm* comm, void* stream, const Transfer* all, size_t count, DType type) {
  if (const int32_t refused = usable(comm); refused != 0) return refused;
  const Transfer* const end = all + count;
  if (std::any_of(all, end, [comm](const Transfer& each) { return each.rank < 0 || each.rank >= comm->size; })) return kBadArgument;
  const Current current(comm->device);
  ncclDataType_t nccl_type = ncclFloat32;
  if (const int32_t failed = begin(current, type, &nccl_type); failed != 0) return failed;
  if (std::all_of(all, end, [](const Transfer& each) { return each.count == 0; })) return 0;
  return exchange_all(comm, stream_of(stream), all, count, nccl_type);
}

}  // namespace megadp::cuda
