// SPDX-License-Identifier: Apache-2.0
// The C table through which libmegadp uses libmegadp_cuda.so, the one piece that is built with the CUDA toolkit. What crosses is plain
// data: numbers, pointers, POD structs; no exception, no C++ object, no memory to be freed by the other side. So libmegadp itself knows no
// CUDA, no NCCL and no cuBLAS, runs if none of them is installed, and its backend (the other files of this folder) can be tried against a
// table that works on host memory.
//
//   libmegadp.so                          libmegadp_cuda.so
//   Backend, Stream, Event, Group   ──►   CUDA runtime (linked in), kernels, NCCL and cuBLASLt (loaded by name)
//   order, deadlines, failures            one call each, every result checked
//
// Every function that can fail returns 0 when done, kPending when not yet (queries and non-blocking NCCL calls), otherwise a number that
// explain() turns into a sentence; by kind_of() the caller may tell kinds apart. A failed call has changed nothing that its caller would
// have to undo. Functions on a device may be called from any thread, several at a time; each makes the device current for its own duration
// and puts back what was current before. A Device of NULL means the one that is current, uncounted: for tests without a device. Calls on
// one NCCL communicator come one at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/attention.h"
#include "base/dtype.h"
#include "base/matrix.h"
#include "base/update.h"
#include "base/vocabulary.h"

namespace megadp::cuda {

constexpr uint32_t kPluginVersion = 8;
constexpr int32_t kPending = 1;

// Where a failure comes from: these plus a cudaError_t, an ncclResult_t, what is the plugin's own, a cublasStatus_t.
constexpr int32_t kCudaFailure = 0x10000;
constexpr int32_t kNcclFailure = 0x20000;
constexpr int32_t kOwnFailure = 0x30000;
constexpr int32_t kCublasFailure = 0x40000;

constexpr int32_t kOutOfMemory = kCudaFailure + 2;        // cudaErrorMemoryAllocation: of the device or of pinned host memory
constexpr int32_t kNcclRemoteFailure = kNcclFailure + 6;  // ncclRemoteError: another rank is gone
constexpr int32_t kCublasNoMemory = kCublasFailure + 3;   // CUBLAS_STATUS_ALLOC_FAILED
constexpr int32_t kBadArgument = kOwnFailure + 1;         // a type, operation or shape that this call does not know
constexpr int32_t kUnsupported = kOwnFailure + 2;         // known, but not offered by this NCCL or cuBLASLt
constexpr int32_t kNoHostMemory = kOwnFailure + 3;
constexpr int32_t kAborted = kOwnFailure + 4;  // the communicator was aborted before

constexpr int32_t kind_of(int32_t result) {
  return result & ~0xffff;  // 0: done or pending; kCudaFailure, kNcclFailure, kOwnFailure, kCublasFailure
}

struct Device;    // one GPU as used by one context: its scratch memory and its counters
struct Nccl;      // a loaded NCCL library
struct NcclComm;  // one communicator of NCCL, with the Nccl and the Device it belongs to
struct Gemm;      // a loaded cuBLASLt as it multiplies on one Device: its handle, its workspace, the algorithms that it has chosen

struct DeviceInfo {
  char name[128];
  char uuid[64];         // "GPU-..." as nvidia-smi prints it
  int32_t major, minor;  // compute capability
  uint64_t memory_bytes;
  int32_t driver, runtime;  // 13000 for 13.0
  int32_t collectives;      // of how many communicators it surely holds one's kernel each at once
};

// Elements that go to a rank of a communicator, or come from it.
struct Transfer {
  void* data;  // of what is sent only read
  uint64_t count;
  int32_t rank;
  int32_t sends;  // 0: it comes
};

// What one rank reads of another: `count` dimensions, outermost first. Strides in elements, any sign.
constexpr int kMaxDimensions = 16;
struct Strided {
  void* data;
  uint32_t type;  // DType
  int32_t dimensions;
  int64_t shape[kMaxDimensions], strides[kMaxDimensions];
};

enum class Access : uint32_t {  // where an address is reachable
  unknown = 0,                  // ordinary memory of the host
  host = 1,                     // pinned
  device = 2,
  managed = 3
};

struct PluginTable {
  uint32_t version;  // kPluginVersion; first two fields never move
  uint32_t bytes;    // sizeof(PluginTable) as the plugin was built
  char build[96];    // kBuild of cuda/build.h; a plugin of another build is refused

  // "cudaErrorMemoryAllocation (2): out of memory", "ncclSystemError (2): ...". NUL-terminated. With an Nccl also its own last words.
  void (*explain)(int32_t result, const Nccl* nccl, char* text, size_t size);

  // ── devices ──
  // How many devices the driver offers. Fails without a driver.
  int32_t (*device_count)(int32_t* count);
  int32_t (*device_info)(int32_t index, DeviceInfo* out);
  int32_t (*device_open)(int32_t index, Device** out);
  void (*device_close)(Device* device);  // frees its scratch memory; all streams and memory made from it are gone already
  // How often a call of this table made the host wait for the device so far.
  uint64_t (*host_syncs)(const Device* device);

  // From now on begin_step() makes every step a skipped one, also those launched already: after a collective was aborted, what is queued
  // behind it must not change parameters. Does not wait.
  void (*poison)(Device* device);

  // ── memory ──
  int32_t (*allocate)(Device* device, size_t bytes, void** out);         // zeroed, 256-byte aligned; waits for the device
  int32_t (*release)(Device* device, void* memory);                      // may wait for the device
  int32_t (*allocate_pinned)(Device* device, size_t bytes, void** out);  // host memory that copies can use without waiting, zeroed
  int32_t (*release_pinned)(Device* device, void* memory);
  int32_t (*access)(Device* device, const void* memory, Access* out);
  // Ordered on the stream, in any direction. Does not wait, unless one side is ordinary host memory, which CUDA stages.
  int32_t (*copy)(Device* device, void* stream, void* to, const void* from, size_t bytes);

  // ── streams and events. A stream is a cudaStream_t of ours or of the caller; NULL is CUDA's default stream ──
  int32_t (*stream_create)(Device* device, bool high_priority, void** out);  // not synchronized with the default stream
  int32_t (*stream_destroy)(Device* device, void* stream);                   // work under way goes on
  int32_t (*stream_synchronize)(Device* device, void* stream);               // waits
  int32_t (*stream_wait)(Device* device, void* stream, void* event);         // later work of the stream comes after the event
  int32_t (*event_create)(Device* device, void** out);                       // with timing
  int32_t (*event_destroy)(Device* device, void* event);
  int32_t (*event_record)(Device* device, void* event, void* stream);
  int32_t (*event_query)(Device* device, void* event);                                    // 0, kPending or a failure. Never waits
  int32_t (*event_elapsed)(Device* device, void* begin, void* end, float* milliseconds);  // both have happened

  // ── kernels, ordered on the stream; they return when launched ──
  int32_t (*zero)(Device* device, void* stream, void* data, size_t bytes);
  int32_t (*cast)(Device* device, void* stream, void* to, DType to_type, const void* from, DType from_type, size_t count);
  // to = from, or to += from: casts, any strides; shapes are equal; the types are f32, bf16, f16, f64, or both the same.
  int32_t (*copy_strided)(Device* device, void* stream, const Strided* to, const Strided* from, bool add);
  // As Backend's of the same names. What they write to, and steps, lie in device memory.
  int32_t (*round_with_feedback)(Device* device, void* stream, void* to, const float* from, float* residual, size_t count);
  int32_t (*refresh_masters)(Device* device, void* stream, float* masters, const void* params, DType type, size_t count);
  int32_t (*square_sum)(Device* device, void* stream, const void* data, DType type, size_t count, double* sums);
  int32_t (*extremes)(Device* device, void* stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest);
  int32_t (*find_nonfinite)(Device* device, void* stream, const void* data, DType type, size_t count, uint64_t first, uint64_t* found);
  int32_t (*scale)(Device* device, void* stream, void* data, DType type, size_t count, float factor);
  int32_t (*begin_step)(Device* device, void* stream, StepScalars* scalars, const StepSettings* settings);
  int32_t (*count_steps)(Device* device, void* stream, const StepScalars* scalars, uint64_t* steps, size_t count);
  int32_t (*update)(Device* device, void* stream, const Update* update);
  // to[i] = op over k < parts of from[k * stride + i], in this order, as the host's reduce(): accumulated in fp32 (f64; i64 wraps around,
  // u8 is 255 at most), divided by divisor (Op::avg: by parts * divisor), rounded once. divisor is 1 for Op::max and min and for i64 and
  // u8. `to` may lie within `from`, exactly on one of its parts.
  int32_t (*reduce)(Device* device, void* stream, void* to, const void* from, size_t stride, int32_t parts, size_t count, DType type, Op op,
                    double divisor);

  // As Backend's; all that the work points to is device memory.
  int32_t (*look_up)(Device* device, void* stream, const Lookup* work, bool gradient);
  int32_t (*cross_entropy)(Device* device, void* stream, const CrossEntropy* work, CrossEntropyPass pass);

  // ── NCCL. Communicators are non-blocking: a call may return kPending, and comm_state() is then to be asked until it says 0. Until then
  //    no other call of the communicator may come but comm_abort(), and a collective may not be in its stream yet: nothing that is to come
  //    after it may be put there ──
  // path NULL: the copy this process has mapped already, otherwise "libnccl.so.2" by name. Fails with a sentence in `why`.
  int32_t (*nccl_open)(const char* path, Nccl** out, char* why, size_t size);
  void (*nccl_close)(Nccl* nccl);             // the library stays mapped
  int32_t (*nccl_version)(const Nccl* nccl);  // 22809 for 2.28.9
  int32_t (*nccl_unique_id)(Nccl* nccl, uint8_t out[128]);
  // Memory that NCCL can use without staging, zeroed; ordinary device memory where NCCL offers none. Both wait for the device.
  int32_t (*nccl_allocate)(Nccl* nccl, Device* device, size_t bytes, void** out);
  int32_t (*nccl_release)(Nccl* nccl, Device* device, void* memory);
  int32_t (*comm_create)(Nccl* nccl, Device* device, const uint8_t id[128], int32_t rank, int32_t size, NcclComm** out);
  int32_t (*comm_state)(NcclComm* comm);  // 0, kPending, or the failure of the communicator
  // Ends its kernels, also while it is pending; may take a while. All later calls but deregister and destroy answer kAborted.
  int32_t (*comm_abort)(NcclComm* comm);
  // Local: waits for no other rank. Its work has finished, on the other ranks too, or was aborted: what NCCL has yet to send is not sent
  // any more. The handle is gone, also on failure.
  int32_t (*comm_destroy)(NcclComm* comm);
  // Makes memory of nccl_allocate() known to NCCL. Collective over the communicator, with the same bytes on every rank: newer versions make
  // the memory of all ranks known to all. After kPending the registration is valid once comm_state() is 0.
  int32_t (*comm_register)(NcclComm* comm, void* memory, size_t bytes, void** registration);
  // Local; also after an abort. The registration is gone, also on failure.
  int32_t (*comm_deregister)(NcclComm* comm, void* registration);
  // Sums are divided by `divisor` (Op::avg: by the size times divisor; i64: 1 only). No order of summation is promised. NCCL's rules for
  // maxima with NaN and for sums of u8 are not the host's: comm_exchange and reduce() keep to those. kPending as above.
  int32_t (*comm_all_reduce)(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor);
  int32_t (*comm_reduce_scatter)(NcclComm* comm, void* stream, const void* from, void* to, size_t count_per_rank, DType type, Op op,
                                 double divisor);
  // Only on `root` is there a result, and `to`.
  int32_t (*comm_reduce)(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor,
                         int32_t root);
  int32_t (*comm_all_gather)(NcclComm* comm, void* stream, const void* from, void* to, size_t count_per_rank, DType type);
  int32_t (*comm_broadcast)(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, int32_t root);
  // All at once, those between two ranks in their order; with itself a rank exchanges by both halves. What is sent is apart from what
  // comes. Those of no elements are left out, at both ends.
  int32_t (*comm_exchange)(NcclComm* comm, void* stream, const Transfer* all, size_t count, DType type);
  // Collectives of this communicator between the two, by the thread that began it, are started as one by the end, the same ones on all
  // ranks; until then none is in its stream, and a kPending means nothing. Every group that was begun must be ended, whatever failed in it;
  // the end may be kPending as above.
  int32_t (*comm_group_begin)(NcclComm* comm);
  int32_t (*comm_group_end)(NcclComm* comm);

  // ── matrix products, by cuBLASLt ──
  // path NULL: the copy this process has mapped already, otherwise "libcublasLt.so.13" or an older one by name. Asks nothing of the device.
  // Fails with a sentence in `why`.
  int32_t (*gemm_open)(Device* device, const char* path, Gemm** out, char* why, size_t size);
  void (*gemm_close)(Gemm* gemm);             // may wait for the device; the library stays mapped
  int32_t (*gemm_version)(const Gemm* gemm);  // 130100 for 13.1.0
  // As Backend's, on matrices in device memory. Any thread. The first one that needs a workspace allocates it, kGemmWorkspaceBytes, which
  // may wait for the device.
  int32_t (*gemm)(Gemm* gemm, void* stream, const Matrix* c, const Matrix* a, const Matrix* b, bool add);

  // As Backend's, on device memory.
  int32_t (*merge_attention)(Device* device, void* stream, const AttentionMerge* work);
};

}  // namespace megadp::cuda

// The one symbol of the plugin. The table lives as long as the process.
extern "C" const megadp::cuda::PluginTable* megadp_cuda_plugin();
