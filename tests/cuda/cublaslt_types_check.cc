// SPDX-License-Identifier: Apache-2.0
// What src/cuda/plugin/cublaslt_types.h says of cuBLASLt, beside the header itself, where one is found: compiled, never run.
#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

#include "cuda/plugin/cublaslt_types.h"

namespace megadp::cuda::cublaslt {
namespace {

// The same bits in the same registers: pointers, and whole numbers of one size. Enumerations are whole numbers.
template <class One, class Other>
constexpr bool kAlike =
    sizeof(One) == sizeof(Other) && std::is_pointer_v<One> == std::is_pointer_v<Other>&& std::is_floating_point_v<One> ==
                                        std::is_floating_point_v<Other>;

template <class One, class Other>
struct SameFunction : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameFunction<R(A...), S(B...)> : std::bool_constant<kAlike<R, S> && (kAlike<A, B> && ...)> {
};

template <class Ours, class Theirs>
constexpr bool same(Theirs*) {
  return SameFunction<Ours, Theirs>::value;
}
static_assert(same<GetProperty>(&cublasLtGetProperty));
static_assert(same<Create>(&cublasLtCreate));
static_assert(same<Destroy>(&cublasLtDestroy));
static_assert(same<DescCreate>(&cublasLtMatmulDescCreate));
static_assert(same<DescDestroy>(&cublasLtMatmulDescDestroy));
static_assert(same<DescSet>(&cublasLtMatmulDescSetAttribute));
static_assert(same<LayoutCreate>(&cublasLtMatrixLayoutCreate));
static_assert(same<LayoutDestroy>(&cublasLtMatrixLayoutDestroy));
static_assert(same<PreferenceCreate>(&cublasLtMatmulPreferenceCreate));
static_assert(same<PreferenceDestroy>(&cublasLtMatmulPreferenceDestroy));
static_assert(same<PreferenceSet>(&cublasLtMatmulPreferenceSetAttribute));
static_assert(same<GetHeuristic>(&cublasLtMatmulAlgoGetHeuristic));
static_assert(same<Matmul>(&cublasLtMatmul));

static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(Heuristic, algorithm) == offsetof(cublasLtMatmulHeuristicResult_t, algo));
static_assert(offsetof(Heuristic, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(Heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));

static_assert(kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(kCompute32F == CUBLAS_COMPUTE_32F);
static_assert(kTransposed == CUBLAS_OP_T);
static_assert(kDescTransA == CUBLASLT_MATMUL_DESC_TRANSA && kDescTransB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(kPreferenceWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kPreferenceReduction == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(kPreferenceAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kPreferenceAlignmentB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(kPreferenceAlignmentC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(kPreferenceAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(kReduceInComputeType == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);

// The numbers that name_of_cublas() has names for.
static_assert(CUBLAS_STATUS_NOT_INITIALIZED == 1 && CUBLAS_STATUS_ALLOC_FAILED == 3 && CUBLAS_STATUS_INVALID_VALUE == 7 &&
              CUBLAS_STATUS_ARCH_MISMATCH == 8 && CUBLAS_STATUS_MAPPING_ERROR == 11 && CUBLAS_STATUS_EXECUTION_FAILED == 13 &&
              CUBLAS_STATUS_INTERNAL_ERROR == 14 && CUBLAS_STATUS_LICENSE_ERROR == 16);

}  // namespace
}  // namespace megadp::cuda::cublaslt
