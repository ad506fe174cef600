// SPDX-License-Identifier: Apache-2.0
// CublasLt: the functions of cuBLASLt that are used, found by name in a library that is loaded when the first product is asked for. Never
// linked, so that a process has one: its framework's own where that has mapped one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/symbol.h"
#include "cuda/plugin.h"
#include "cuda/plugin/cublaslt_types.h"

namespace megadp::cuda {

struct CublasLt {
  Symbols find;
  int32_t version;  // 130100: 13.1.0

  cublaslt::Create* create = find("cublasLtCreate");
  cublaslt::Destroy* destroy = find("cublasLtDestroy");
  cublaslt::DescCreate* desc_create = find("cublasLtMatmulDescCreate");
  cublaslt::DescDestroy* desc_destroy = find("cublasLtMatmulDescDestroy");
  cublaslt::DescSet* desc_set = find("cublasLtMatmulDescSetAttribute");
  cublaslt::LayoutCreate* layout_create = find("cublasLtMatrixLayoutCreate");
  cublaslt::LayoutDestroy* layout_destroy = find("cublasLtMatrixLayoutDestroy");
  cublaslt::PreferenceCreate* preference_create = find("cublasLtMatmulPreferenceCreate");
  cublaslt::PreferenceDestroy* preference_destroy = find("cublasLtMatmulPreferenceDestroy");
  cublaslt::PreferenceSet* preference_set = find("cublasLtMatmulPreferenceSetAttribute");
  cublaslt::GetHeuristic* get_heuristic = find("cublasLtMatmulAlgoGetHeuristic");
  cublaslt::Matmul* matmul = find("cublasLtMatmul");
};

inline int32_t result_of_cublas(cublaslt::Status status) {
  return status == 0 ? 0 : kCublasFailure + status;
}

// The name of a status; NULL if it is none that is known.
const char* name_of_cublas(cublaslt::Status status);

// Which copy: see PluginTable::gemm_open. The library is the caller's to close.
int32_t load_cublaslt(const char* path, void** library, int32_t* version, char* why, size_t size);

// ── the entries of PluginTable, by their names ──

int32_t gemm_open(Device* device, const char* path, Gemm** out, char* why, size_t size);
void gemm_close(Gemm* gemm);
int32_t gemm_version(const Gemm* gemm);
int32_t gemm(Gemm* gemm, void* stream, const Matrix* c, const Matrix* a, const Matrix* b, bool add);

}  // namespace megadp::cuda
