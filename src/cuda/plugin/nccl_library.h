// SPDX-License-Identifier: Apache-2.0
// Nccl: the functions of NCCL that are used, found by name in a library that is loaded when it is first needed. Never linked, so that a
// process has one NCCL: its framework's own where that has mapped one. The one header, with the nccl_*.cc, that sees nccl.h, and for types
// alone: what 2.19 does not have is declared here, so that any nccl.h will do.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "base/symbol.h"
#include "cuda/plugin.h"

namespace megadp::cuda {

constexpr int kOldestNccl = 21900;  // ncclMemAlloc, ncclCommRegister
constexpr int kNcclWindows = 22700;

struct Nccl {
  Symbols find;
  int version;  // 22809: 2.28.9

  decltype(&::ncclGetUniqueId) get_unique_id = find("ncclGetUniqueId");
  decltype(&::ncclGetErrorString) get_error_string = find("ncclGetErrorString");
  decltype(&::ncclGetLastError) get_last_error = find("ncclGetLastError");
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = find("ncclCommInitRankConfig");
  decltype(&::ncclCommAbort) comm_abort = find("ncclCommAbort");
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = find("ncclCommGetAsyncError");
  decltype(&::ncclCommRegister) comm_register = find("ncclCommRegister");
  decltype(&::ncclCommDeregister) comm_deregister = find("ncclCommDeregister");
  decltype(&::ncclMemAlloc) mem_alloc = find("ncclMemAlloc");
  decltype(&::ncclMemFree) mem_free = find("ncclMemFree");
  decltype(&::ncclRedOpCreatePreMulSum) red_op_create_pre_mul_sum = find("ncclRedOpCreatePreMulSum");
  decltype(&::ncclRedOpDestroy) red_op_destroy = find("ncclRedOpDestroy");
  decltype(&::ncclGroupStart) group_start = find("ncclGroupStart");
  decltype(&::ncclGroupEnd) group_end = find("ncclGroupEnd");
  decltype(&::ncclSend) send = find("ncclSend");
  decltype(&::ncclRecv) recv = find("ncclRecv");
  decltype(&::ncclAllReduce) all_reduce = find("ncclAllReduce");
  decltype(&::ncclReduceScatter) reduce_scatter = find("ncclReduceScatter");
  decltype(&::ncclAllGather) all_gather = find("ncclAllGather");
  decltype(&::ncclBroadcast) broadcast = find("ncclBroadcast");
  decltype(&::ncclReduce) reduce = find("ncclReduce");

  // Of newer versions; NULL if the version lacks them.
  ncclResult_t (*window_register)(ncclComm_t comm, void* buffer, size_t bytes, void** window,
                                  int flags) = find.optional(version >= kNcclWindows, "ncclCommWindowRegister");
  ncclResult_t (*window_deregister)(ncclComm_t comm, void* window) = find.optional(version >= kNcclWindows, "ncclCommWindowDeregister");
};

inline int32_t result_of(ncclResult_t result) {
  if (result == ncclSuccess) return 0;
  return result == ncclInProgress ? kPending : kNcclFailure + static_cast<int32_t>(result);
}

// The name of a result; NULL if it is none that is known.
const char* name_of(ncclResult_t result);

// ── the entries of PluginTable, by their names ──

int32_t nccl_open(const char* path, Nccl** out, char* why, size_t size);
void nccl_close(Nccl* nccl);
int32_t nccl_version(const Nccl* nccl);
int32_t nccl_unique_id(Nccl* nccl, uint8_t out[128]);
int32_t nccl_allocate(Nccl* nccl, Device* device, size_t bytes, void** out);
int32_t nccl_release(Nccl* nccl, Device* device, void* memory);

int32_t comm_create(Nccl* nccl, Device* device, const uint8_t id[128], int32_t rank, int32_t size, NcclComm** out);
int32_t comm_state(NcclComm* comm);
int32_t comm_abort(NcclComm* comm);
int32_t comm_destroy(NcclComm* comm);
int32_t comm_register(NcclComm* comm, void* memory, size_t bytes, void** registration);
int32_t comm_deregister(NcclComm* comm, void* registration);
int32_t comm_all_reduce(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor);
int32_t comm_reduce_scatter(NcclComm* comm, void* stream, const void* from, void* to, size_t count_per_rank, DType type, Op op,
                            double divisor);
int32_t comm_all_gather(NcclComm* comm, void* stream, const void* from, void* to, size_t count_per_rank, DType type);
int32_t comm_reduce(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor,
                    int32_t root);
int32_t comm_broadcast(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, int32_t root);
int32_t comm_exchange(NcclComm* comm, void* stream, const Transfer* all, size_t count, DType type);
int32_t comm_group_begin(NcclComm* comm);
int32_t comm_group_end(NcclComm* comm);

}  // namespace megadp::cuda
