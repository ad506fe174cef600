/* SPDX-License-Identifier: Apache-2.0
 * Matrix products, by way of CBLAS if there is one; no other file of this program sees it. */
#ifndef GPT_GEMM_H
#define GPT_GEMM_H

#include <stddef.h>

#include "real.h"

typedef enum {
  GEMM_PLAIN,
  GEMM_TRANSPOSED
} gemm_form;

typedef struct { /* a row-major matrix inside a larger array: element (i, j) is data[i * stride + j] */
  const real* data;
  size_t stride;
  gemm_form form;
} gemm_operand;

/* C[m x n] = alpha * A[m x k] * B[k x n] + beta * C, where A and B are the operands as `form` turns them. */
void gemm(size_t m, size_t n, size_t k, real alpha, gemm_operand a, gemm_operand b, real beta, real* c, size_t c_stride);

/* How many threads the BLAS may use. More than one only pays when the rank has cores to itself. */
void gemm_set_threads(int threads);

#endif
