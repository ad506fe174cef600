// SPDX-License-Identifier: Apache-2.0
// The life of a communicator: made, asked, aborted, destroyed; and the memory it knows.
#include "cuda/plugin/nccl_comm.h"

#include <cstring>
#include <memory>
#include <new>
#include <utility>

namespace megadp::cuda {
namespace {

ncclConfig_t configuration() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kMaxCtas;
  return config;
}

NcclComm* make_comm(Nccl* nccl, Device* device) {
  auto* const comm = new (std::nothrow) NcclComm;
  if (comm == nullptr) return nullptr;
  comm->nccl = nccl;
  comm->device = device;
  return comm;
}

int32_t async_error(const NcclComm* comm) {
  ncclResult_t state = ncclSuccess;
  const int32_t asked = result_of(comm->nccl->comm_get_async_error(comm->handle, &state));
  return asked != 0 ? asked : result_of(state);
}

}  // namespace

int32_t usable(const NcclComm* comm) {
  return comm->aborted ? kAborted : 0;
}

int32_t comm_create(Nccl* nccl, Device* device, const uint8_t id[128], int32_t rank, int32_t size, NcclComm** out) {
  if (size < 1 || rank < 0 || rank >= size) return kBadArgument;
  const Current current(device);
  if (current.result() != 0) return current.result();
  NcclComm* const comm = make_comm(nccl, device);
  if (comm == nullptr) return kNoHostMemory;
  comm->size = size;
  ncclUniqueId unique;
  std::memcpy(&unique, id, sizeof unique);
  ncclConfig_t config = configuration();
  const int32_t result = result_of(nccl->comm_init_rank_config(&comm->handle, size, unique, rank, &config));
  if (result != 0 && result != kPending) {
    if (comm->handle != nullptr) static_cast<void>(nccl->comm_abort(comm->handle));
    delete comm;
    return result;
  }
  *out = comm;
  return result;
}

int32_t comm_state(NcclComm* comm) {
  if (comm->aborted) return kAborted;
  const Current current(comm->device);
  if (current.result() != 0) return current.result();
  if (const int32_t result = async_error(comm); result != 0) return result;
  return comm->grouped ? 0 : start_divisions(comm);
}

int32_t comm_abort(NcclComm* comm) {
  if (comm->aborted) return kAborted;
  comm->aborted = true;
  const ncclComm_t handle = std::exchange(comm->handle, nullptr);
  const Current current(comm->device);
  if (current.result() != 0) return current.result();
  const int32_t result = result_of(comm->nccl->comm_abort(handle));
  return result == kPending ? 0 : result;  // NCCL goes on by itself
}

int32_t comm_destroy(NcclComm* comm) {
  if (comm == nullptr) return 0;
  int32_t result = 0;
  if (!comm->aborted) {
    const Current current(comm->device);
    result = current.result();
    if (result == 0) result = result_of(comm->nccl->comm_abort(comm->handle));
    if (result == kPending) result = 0;
  }
  delete comm;
  return result;
}

// ── memory ──

namespace {

enum class Known {
  locally,   // ncclCommRegister
  to_window  // ncclCommWindowRegister
};

// The place of NCCL's handle must stay where it is: a window's is filled in when all ranks have come.
struct Registration {
  Known kind;
  void* handle;
};

constexpr size_t kWindowAlignment = 4096;
constexpr int kSymmetricWindow = 1;  // NCCL_WIN_COLL_SYMMETRIC

int32_t make_known(NcclComm* comm, void* memory, size_t bytes, Registration* registration) {
  const Nccl& nccl = *comm->nccl;
  if (nccl.window_register != nullptr) {
    registration->kind = Known::to_window;
    return result_of(nccl.window_register(comm->handle, memory, bytes, &registration->handle, kSymmetricWindow));
  }
  registration->kind = Known::locally;
  return result_of(nccl.comm_register(comm->handle, memory, bytes, &registration->handle));
}

size_t whole_bytes(size_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

}  // namespace

int32_t nccl_allocate(Nccl* nccl, Device* device, size_t bytes, void** out) {
  if (bytes == 0 || bytes > SIZE_MAX - kWindowAlignment) return kOutOfMemory;
  const Current current(device);
  if (current.result() != 0) return current.result();
  void* memory = nullptr;
  count_sync(device);
  if (const int32_t failed = result_of(nccl->mem_alloc(&memory, whole_bytes(bytes))); failed != 0) {
    // NCCL has one word for everything that CUDA refuses.
    size_t free_bytes = 0, all_bytes = 0;
    const bool too_much = cudaMemGetInfo(&free_bytes, &all_bytes) == cudaSuccess && free_bytes < whole_bytes(bytes);
    return too_much ? kOutOfMemory : failed;
  }
  const int32_t zeroed = zero_now(device, memory, whole_bytes(bytes));
  if (zeroed != 0) {
    static_cast<void>(nccl->mem_free(memory));
    return zeroed;
  }
  *out = memory;
  return 0;
}

int32_t nccl_release(Nccl* nccl, Device* device, void* memory) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  count_sync(device);
  return result_of(nccl->mem_free(memory));
}

int32_t comm_register(NcclComm* comm, void* memory, size_t bytes, void** registration) {
  if (const int32_t refused = usable(comm); refused != 0) return refused;
  const Current current(comm->device);
  if (current.result() != 0) return current.result();
  auto* const known = new (std::nothrow) Registration{Known::locally, nullptr};
  if (known == nullptr) return kNoHostMemory;
  int32_t result = make_known(comm, memory, whole_bytes(bytes), known);
  if (result == 0) result = async_error(comm);  // NCCL 2.28 says success of a window while all ranks still are at it
  if (result != 0 && result != kPending) {
    delete known;
    return result;
  }
  *registration = known;
  return result;
}

int32_t comm_deregister(NcclComm* comm, void* registration) {
  const std::unique_ptr<Registration> known(static_cast<Registration*>(registration));
  const Current current(comm->device);
  if (current.result() != 0) return current.result();
  // With the communicator its registrations are gone too.
  if (known->handle == nullptr || comm->handle == nullptr) return 0;
  const int32_t result = result_of(known->kind == Known::to_window ? comm->nccl->window_deregister(comm->handle, known->handle)
                                                                   : comm->nccl->comm_deregister(comm->handle, known->handle));
  return result == kPending ? 0 : result;
}

}  // namespace megadp::cuda
