// SPDX-License-Identifier: Apache-2.0
// What is used of cuBLASLt's ABI: types, numbers and functions. Declared here because its headers come in packages of hundreds of
// megabytes, which nobody should need in order to build. The facts are those of cublasLt.h and cublas_api.h of cuBLAS 11 (2021) and 13.1,
// which agree on them; where a cublasLt.h is found, tests/cuda/cublaslt_types_check.cc compares. Descriptors are made by the library, never
// here: their sizes differ from version to version.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace megadp::cuda::cublaslt {

struct Context;
struct OpaqueDesc;
struct OpaqueLayout;
struct OpaquePreference;
using Handle = Context*;               // cublasLtHandle_t
using Desc = OpaqueDesc*;              // cublasLtMatmulDesc_t
using Layout = OpaqueLayout*;          // cublasLtMatrixLayout_t
using Preference = OpaquePreference*;  // cublasLtMatmulPreference_t
using Status = int;                    // cublasStatus_t
struct Algorithm {                     // cublasLtMatmulAlgo_t
  uint64_t data[8];
};
struct Heuristic {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

constexpr Status kNotSupported = 15;  // CUBLAS_STATUS_NOT_SUPPORTED

constexpr int kCompute32F = 68;     // CUBLAS_COMPUTE_32F: no TF32, unlike CUBLAS_COMPUTE_32F_FAST_TF32
constexpr int32_t kTransposed = 1;  // CUBLAS_OP_T

constexpr int kDescTransA = 3;  // cublasLtMatmulDescAttributes_t: int32_t
constexpr int kDescTransB = 4;

constexpr int kPreferenceWorkspace = 1;   // cublasLtMatmulPreferenceAttributes_t: uint64_t
constexpr int kPreferenceReduction = 3;   // uint32_t, of the masks below
constexpr int kPreferenceAlignmentA = 5;  // uint32_t
constexpr int kPreferenceAlignmentB = 6;
constexpr int kPreferenceAlignmentC = 7;
constexpr int kPreferenceAlignmentD = 8;

constexpr uint32_t kReduceInComputeType = 2;  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE

using GetProperty = Status(libraryPropertyType which, int* value);
using Create = Status(Handle* out);
using Destroy = Status(Handle handle);
using DescCreate = Status(Desc* out, int compute, cudaDataType_t scale);
using DescDestroy = Status(Desc desc);
using DescSet = Status(Desc desc, int attribute, const void* value, size_t bytes);
using LayoutCreate = Status(Layout* out, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t leading);
using LayoutDestroy = Status(Layout layout);
using PreferenceCreate = Status(Preference* out);
using PreferenceDestroy = Status(Preference preference);
using PreferenceSet = Status(Preference preference, int attribute, const void* value, size_t bytes);
using GetHeuristic = Status(Handle handle, Desc desc, Layout a, Layout b, Layout c, Layout d, Preference preference, int wanted,
                            Heuristic* out, int* found);
// d = alpha a b + beta c
using Matmul = Status(Handle handle, Desc desc, const void* alpha, const void* a, Layout a_layout, const void* b, Layout b_layout,
                      const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout, const Algorithm* algorithm,
                      void* workspace, size_t workspace_bytes, cudaStream_t stream);

}  // namespace megadp::cuda::cublaslt
