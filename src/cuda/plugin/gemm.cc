// SPDX-License-Identifier: Apache-2.0
// Matrix products: what cuBLASLt is told of one, the algorithms that it has chosen, and the workspace.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>

#include "cuda/plugin/device.h"
#include "cuda/plugin/gemm_library.h"

namespace megadp::cuda {
namespace {

// A matrix as cuBLASLt is told of it: by columns, which it takes from everybody. One that lies by rows is, by columns, its own transpose.
struct Operand {
  DType type;
  bool turned;
  int64_t rows, columns, leading;  // as it lies by columns
  uint32_t alignment;
  bool operator==(const Operand&) const = default;
};

// What an algorithm is chosen by: two products that agree in it get the same one.
struct Request {
  Operand c, a, b;
  uint64_t workspace;  // the most that it may use
  bool operator==(const Request&) const = default;
};

struct Plan {
  Request request{};
  cublaslt::Desc desc = nullptr;
  cublaslt::Layout a = nullptr, b = nullptr, c = nullptr;
  cublaslt::Heuristic chosen{};
};

// More shapes than a model has. Where a program has even more, the oldest ones are asked for again.
constexpr uint64_t kPlans = 256;

}  // namespace

struct Gemm {
  CublasLt functions;
  Device* device;
  std::mutex mutex{};  // of all that follows
  cublaslt::Handle handle = nullptr;
  // One for all streams, handed on by an event: so its size is known beforehand, however many streams a caller has. That costs little: most
  // products want none of it, and those that do fill the device.
  void* workspace = nullptr;
  cudaEvent_t workspace_free = nullptr;
  Plan plans[kPlans] = {};
  uint64_t plans_made = 0;
};

namespace {

// cuBLASLt takes 256 bytes for granted unless it is told.
uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

Operand operand_of(const Matrix& matrix) {
  const bool turned = matrix.is_row_major();
  const Matrix lying = turned ? transposed(matrix) : matrix;
  // A stride over the only column may be anything.
  const int64_t leading = lying.columns > 1 ? lying.column_stride : std::max(lying.column_stride, lying.rows);
  return {matrix.type, turned, lying.rows, lying.columns, leading, alignment_of(matrix.data)};
}

bool is_known(const Matrix& matrix) {
  const int64_t inner = matrix.is_row_major() ? matrix.columns : matrix.rows;
  const int64_t outer = matrix.is_row_major() ? matrix.rows : matrix.columns;
  const bool one_is_dense = matrix.row_stride == 1 || matrix.column_stride == 1;
  return matrix.rows >= 0 && matrix.columns >= 0 && one_is_dense && (outer <= 1 || matrix.leading() >= inner);
}

bool is_known(const Matrix& c, const Matrix& a, const Matrix& b) {
  const bool single = c.type == DType::f32 && a.type == DType::f32;
  const bool half = (c.type == DType::f32 || c.type == DType::bf16) && a.type == DType::bf16;
  return is_known(c) && is_known(a) && is_known(b) && (single || half) && a.type == b.type && a.rows == c.rows && b.columns == c.columns &&
         a.columns == b.rows;
}

cudaDataType_t type_of(DType type) {
  return type == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

void forget(const CublasLt& library, Plan* plan) {
  if (plan->desc != nullptr) library.desc_destroy(plan->desc);
  for (const cublaslt::Layout layout : {plan->a, plan->b, plan->c}) {
    if (layout != nullptr) library.layout_destroy(layout);
  }
  *plan = Plan();
}

cublaslt::Status describe(const CublasLt& library, const Operand& operand, cublaslt::Layout* out) {
  return library.layout_create(out, type_of(operand.type), static_cast<uint64_t>(operand.rows), static_cast<uint64_t>(operand.columns),
                               operand.leading);
}

cublaslt::Status describe(const CublasLt& library, Plan* plan) {
  const Request& request = plan->request;
  cublaslt::Status status = library.desc_create(&plan->desc, cublaslt::kCompute32F, CUDA_R_32F);
  const auto turn = [&](int which, bool turned) {
    if (status == 0 && turned) status = library.desc_set(plan->desc, which, &cublaslt::kTransposed, sizeof cublaslt::kTransposed);
  };
  turn(cublaslt::kDescTransA, request.a.turned);
  turn(cublaslt::kDescTransB, request.b.turned);
  if (status == 0) status = describe(library, request.a, &plan->a);
  if (status == 0) status = describe(library, request.b, &plan->b);
  if (status == 0) status = describe(library, request.c, &plan->c);
  return status;
}

// Sums that several blocks have a part of meet in f32: the other ways round them to c's type in between.
cublaslt::Status set_preference(const CublasLt& library, const Request& request, cublaslt::Preference preference) {
  cublaslt::Status status =
      library.preference_set(preference, cublaslt::kPreferenceWorkspace, &request.workspace, sizeof request.workspace);
  const auto set = [&](int which, const uint32_t& value) {
    if (status == 0) status = library.preference_set(preference, which, &value, sizeof value);
  };
  set(cublaslt::kPreferenceReduction, cublaslt::kReduceInComputeType);
  set(cublaslt::kPreferenceAlignmentA, request.a.alignment);
  set(cublaslt::kPreferenceAlignmentB, request.b.alignment);
  set(cublaslt::kPreferenceAlignmentC, request.c.alignment);
  set(cublaslt::kPreferenceAlignmentD, request.c.alignment);
  return status;
}

cublaslt::Status choose(Gemm& gemm, Plan* plan, cublaslt::Preference preference) {
  const CublasLt& library = gemm.functions;
  cublaslt::Status status = set_preference(library, plan->request, preference);
  if (status == 0 && gemm.handle == nullptr) status = library.create(&gemm.handle);
  if (status != 0) return status;
  int found = 0;
  status = library.get_heuristic(gemm.handle, plan->desc, plan->a, plan->b, plan->c, plan->c, preference, 1, &plan->chosen, &found);
  if (status == 0 && found == 0) status = cublaslt::kNotSupported;
  return status == 0 ? plan->chosen.state : status;
}

cublaslt::Status make_plan(Gemm& gemm, Plan* plan) {
  const CublasLt& library = gemm.functions;
  cublaslt::Status status = describe(library, plan);
  cublaslt::Preference preference = nullptr;
  if (status == 0) status = library.preference_create(&preference);
  if (status != 0) return status;
  status = choose(gemm, plan, preference);
  library.preference_destroy(preference);
  return status;
}

int32_t find_plan(Gemm& gemm, const Request& request, const Plan** out) {
  Plan* const end = gemm.plans + std::min(gemm.plans_made, kPlans);
  Plan* plan = std::find_if(gemm.plans, end, [&](const Plan& one) { return one.request == request; });
  if (plan == end) {
    plan = &gemm.plans[gemm.plans_made % kPlans];
    forget(gemm.functions, plan);
    plan->request = request;
    if (const cublaslt::Status status = make_plan(gemm, plan); status != 0) {
      forget(gemm.functions, plan);  // what is there has no rows: nobody asks for it
      return result_of_cublas(status);
    }
    ++gemm.plans_made;
  }
  *out = plan;
  return 0;
}

// A product that is captured gets no workspace: its graph may run at any time, beside others, and no event of theirs would order it.
bool is_captured(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return stream != nullptr && cudaStreamIsCapturing(stream_of(stream), &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

cudaError_t await_workspace(Gemm& gemm, void* stream) {
  cudaError_t error = cudaSuccess;
  if (gemm.workspace_free == nullptr) error = cudaEventCreateWithFlags(&gemm.workspace_free, cudaEventDisableTiming);
  if (error == cudaSuccess && gemm.workspace == nullptr) {
    count_sync(gemm.device);
    error = cudaMalloc(&gemm.workspace, kGemmWorkspaceBytes);
  }
  return error == cudaSuccess ? cudaStreamWaitEvent(stream_of(stream), gemm.workspace_free, 0) : error;
}

int32_t run(Gemm& gemm, const Plan& plan, void* stream, void* c, const void* a, const void* b, bool add) {
  const bool shares = plan.chosen.workspace > 0;
  if (shares) {
    if (const int32_t failed = result_of(await_workspace(gemm, stream)); failed != 0) return failed;
  }
  const float alpha = 1, beta = add ? 1 : 0;
  const cublaslt::Status status =
      gemm.functions.matmul(gemm.handle, plan.desc, &alpha, a, plan.a, b, plan.b, &beta, c, plan.c, c, plan.c, &plan.chosen.algorithm,
                            shares ? gemm.workspace : nullptr, plan.chosen.workspace, stream_of(stream));
  const cudaError_t freed = shares ? cudaEventRecord(gemm.workspace_free, stream_of(stream)) : cudaSuccess;
  return status != 0 ? result_of_cublas(status) : result_of(freed);
}

int32_t clear(const Matrix& matrix, void* stream) {
  const Operand lying = operand_of(matrix);
  const size_t element = size_of(matrix.type);
  return result_of(cudaMemset2DAsync(matrix.data, static_cast<size_t>(lying.leading) * element, 0,
                                     static_cast<size_t>(lying.rows) * element, static_cast<size_t>(lying.columns), stream_of(stream)));
}

}  // namespace

int32_t gemm_open(Device* device, const char* path, Gemm** out, char* why, size_t size) {
  void* library = nullptr;
  int32_t version = 0;
  int32_t result = load_cublaslt(path, &library, &version, why, size);
  if (result != 0) return result;
  std::unique_ptr<Gemm> gemm(new (std::nothrow) Gemm{{Symbols(library), version}, device});
  if (gemm == nullptr) {
    std::snprintf(why, size, "out of memory while loading cuBLASLt");
    result = kNoHostMemory;
  } else if (const char* const missing = gemm->functions.find.missing(); missing != nullptr) {
    std::snprintf(why, size, "cuBLASLt %d.%d.%d lacks %s", version / 10000, version / 100 % 100, version % 100, missing);
    result = kUnsupported;
  }
  if (result != 0) {
    dlclose(library);
    return result;
  }
  *out = gemm.release();
  return 0;
}

// Failures are of no interest, as in device_close(). The library stays mapped, as NCCL does.
void gemm_close(Gemm* gemm) {
  if (gemm == nullptr) return;
  {
    const Current current(gemm->device);
    for (Plan& plan : gemm->plans) forget(gemm->functions, &plan);
    if (gemm->workspace != nullptr) static_cast<void>(cudaFree(gemm->workspace));
    if (gemm->workspace_free != nullptr) static_cast<void>(cudaEventDestroy(gemm->workspace_free));
    if (gemm->handle != nullptr) gemm->functions.destroy(gemm->handle);
  }
  delete gemm;
}

int32_t gemm_version(const Gemm* gemm) {
  return gemm->functions.version;
}

// By columns c = a b; if c lies by rows, what lies there by columns is its transpose, which is b's times a's.
int32_t gemm(Gemm* gemm, void* stream, const Matrix* c, const Matrix* a, const Matrix* b, bool add) {
  if (!is_known(*c, *a, *b)) return kBadArgument;
  if (c->is_empty() || (a->columns == 0 && add)) return 0;
  const Current current(gemm->device);
  if (current.result() != 0) return current.result();
  if (a->columns == 0) return clear(*c, stream);
  const bool turned = c->is_row_major();
  const Matrix first = turned ? transposed(*b) : *a, second = turned ? transposed(*a) : *b;
  const std::lock_guard lock(gemm->mutex);
  const Request request{operand_of(*c), operand_of(first), operand_of(second), is_captured(stream) ? 0 : kGemmWorkspaceBytes};
  const Plan* plan = nullptr;
  if (const int32_t failed = find_plan(*gemm, request, &plan); failed != 0) return failed;
  return run(*gemm, *plan, stream, c->data, first.data, second.data, add);
}

}  // namespace megadp::cuda
