/* SPDX-License-Identifier: Apache-2.0
 * Matrix products, by way of CBLAS; GPT_PLAIN_LOOPS: without one. */
#include "gemm.h"

#ifdef GPT_PLAIN_LOOPS

void gemm_set_threads(int threads) {
  (void)threads;
}

/* One row at a time, in the order in which B lies in memory. */
void gemm(size_t m, size_t n, size_t k, real alpha, gemm_operand a, gemm_operand b, real beta, real* c, size_t c_stride) {
  const size_t a_row = a.form == GEMM_TRANSPOSED ? 1 : a.stride, a_column = a.form == GEMM_TRANSPOSED ? a.stride : 1;
  for (size_t i = 0; i < m; i++) {
    real* row = c + i * c_stride;
    for (size_t j = 0; j < n; j++) row[j] = beta == 0 ? 0 : beta * row[j]; /* what is there may be anything */
    if (b.form == GEMM_TRANSPOSED) {
      for (size_t j = 0; j < n; j++) {
        real sum = 0;
        for (size_t p = 0; p < k; p++) sum += a.data[i * a_row + p * a_column] * b.data[j * b.stride + p];
        row[j] += alpha * sum;
      }
    } else {
      for (size_t p = 0; p < k; p++) {
        const real factor = alpha * a.data[i * a_row + p * a_column];
        for (size_t j = 0; j < n; j++) row[j] += factor * b.data[p * b.stride + j];
      }
    }
  }
}

#else

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

#endif
