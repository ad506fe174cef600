// SPDX-License-Identifier: Apache-2.0
// The table, and the sentences of its failures.
#include "cuda/plugin.h"

#include <cstdio>

#include "cuda/build.h"
#include "cuda/plugin/device.h"
#include "cuda/plugin/gemm_library.h"
#include "cuda/plugin/nccl_library.h"

namespace megadp::cuda {
namespace {

const char* own_sentence(int32_t result) {
  switch (result) {
    case kBadArgument:
      return "an element type, operation, shape or divisor that this call of the CUDA plugin does not know";
    case kUnsupported:
      return "not offered by this version of NCCL or cuBLASLt";
    case kNoHostMemory:
      return "out of memory on the host";
    case kAborted:
      return "the communicator of NCCL was aborted";
    default:
      return "a result that the CUDA plugin does not know";
  }
}

void explain_nccl(ncclResult_t result, const Nccl* nccl, char* text, size_t size) {
  const char* const name = name_of(result);
  const char* const meaning = nccl != nullptr ? nccl->get_error_string(result) : nullptr;
  const char* const last = nccl != nullptr ? nccl->get_last_error(nullptr) : nullptr;
  std::snprintf(text, size, "%s (%d)%s%s%s%s", name != nullptr ? name : "a result of NCCL", static_cast<int>(result),
                meaning != nullptr ? ": " : "", meaning != nullptr ? meaning : "", last != nullptr && last[0] != '\0' ? "; it says: " : "",
                last != nullptr ? last : "");
}

void explain(int32_t result, const Nccl* nccl, char* text, size_t size) {
  const int number = result - kind_of(result);
  if (result == 0 || result == kPending) {
    std::snprintf(text, size, "%s", result == 0 ? "done" : "not done yet");
  } else if (kind_of(result) == kCudaFailure) {
    const auto error = static_cast<cudaError_t>(number);
    std::snprintf(text, size, "%s (%d): %s", cudaGetErrorName(error), number, cudaGetErrorString(error));
  } else if (kind_of(result) == kNcclFailure) {
    explain_nccl(static_cast<ncclResult_t>(number), nccl, text, size);
  } else if (kind_of(result) == kCublasFailure) {
    const char* const name = name_of_cublas(number);
    std::snprintf(text, size, "%s (%d)", name != nullptr ? name : "a status of cuBLAS", number);
  } else {
    std::snprintf(text, size, "%s (%d)", own_sentence(result), number);
  }
}

void add_kernels(PluginTable* table) {
  table->zero = zero;
  table->cast = cast;
  table->copy_strided = copy_strided;
  table->square_sum = square_sum;
  table->round_with_feedback = round_with_feedback;
  table->refresh_masters = refresh_masters;
  table->extremes = extremes;
  table->find_nonfinite = find_nonfinite;
  table->scale = scale;
  table->begin_step = begin_step;
  table->count_steps = count_steps;
  table->update = update;
  table->reduce = reduce;
  table->look_up = look_up;
  table->cross_entropy = cross_entropy;
  table->merge_attention = merge_attention;
}

PluginTable make_table() {
  PluginTable table{};
  table.version = kPluginVersion;
  table.bytes = sizeof table;
  static_assert(sizeof kBuild <= sizeof table.build);
  std::snprintf(table.build, sizeof table.build, "%s", kBuild);
  table.explain = explain;
  table.device_count = device_count;
  table.device_info = device_info;
  table.device_open = device_open;
  table.device_close = device_close;
  table.host_syncs = host_syncs;
  table.poison = poison;
  table.allocate = allocate;
  table.release = release;
  table.allocate_pinned = allocate_pinned;
  table.release_pinned = release_pinned;
  table.access = access;
  table.copy = copy;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_synchronize = stream_synchronize;
  table.stream_wait = stream_wait;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_elapsed = event_elapsed;
  add_kernels(&table);
  table.nccl_open = nccl_open;
  table.nccl_close = nccl_close;
  table.nccl_version = nccl_version;
  table.nccl_unique_id = nccl_unique_id;
  table.nccl_allocate = nccl_allocate;
  table.nccl_release = nccl_release;
  table.comm_create = comm_create;
  table.comm_state = comm_state;
  table.comm_abort = comm_abort;
  table.comm_destroy = comm_destroy;
  table.comm_register = comm_register;
  table.comm_deregister = comm_deregister;
  table.comm_all_reduce = comm_all_reduce;
  table.comm_reduce_scatter = comm_reduce_scatter;
  table.comm_all_gather = comm_all_gather;
  table.comm_broadcast = comm_broadcast;
  table.comm_reduce = comm_reduce;
  table.comm_exchange = comm_exchange;
  table.comm_group_begin = comm_group_begin;
  table.comm_group_end = comm_group_end;
  table.gemm_open = gemm_open;
  table.gemm_close = gemm_close;
  table.gemm_version = gemm_version;
  table.gemm = gemm;
  return table;
}

}  // namespace
}  // namespace megadp::cuda

extern "C" __attribute__((visibility("default"))) const megadp::cuda::PluginTable* megadp_cuda_plugin() {
  static const megadp::cuda::PluginTable table = megadp::cuda::make_table();
  return &table;
}
