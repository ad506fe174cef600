/* SPDX-License-Identifier: Apache-2.0
 * Matrix products, by way of CBLAS. */
#include "gemm.h"

#include <cblas.h>

/* OpenBLAS starts as many threads as there are cores, in every rank: on a shared host they only get in each other's way. Another BLAS
 * does not have this function, so it is looked up weakly. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));

void gemm_set_threads(int threads) {
  if (openblas_set_num_threads) openblas_set_num_threads(threads);
}

void gemm(size_t m, size_t n, size_t k, real alpha, gemm_operand a, gemm_operand b, real beta, real* c, size_t c_stride) {
  const int mi = (int)m, ni = (int)n, ki = (int)k;
  const CBLAS_TRANSPOSE ta = a.form == GEMM_TRANSPOSED ? CblasTrans : CblasNoTrans;
  const CBLAS_TRANSPOSE tb = b.form == GEMM_TRANSPOSED ? CblasTrans : CblasNoTrans;
#ifdef GPT_REAL_DOUBLE
  cblas_dgemm(CblasRowMajor, ta, tb, mi, ni, ki, alpha, a.data, (int)a.stride, b.data, (int)b.stride, beta, c, (int)c_stride);
#else
  cblas_sgemm(CblasRowMajor, ta, tb, mi, ni, ki, alpha, a.data, (int)a.stride, b.data, (int)b.stride, beta, c, (int)c_stride);
#endif
}
