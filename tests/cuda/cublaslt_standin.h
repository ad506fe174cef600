/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in for cuBLASLt: what it is told, what it is asked, and the functions of cuBLASLt's that it has, as its ABI has them. */
#ifndef CUBLASLT_STANDIN_H
#define CUBLASLT_STANDIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cublasLtContext;
struct standin_layout {
  int type;
  uint64_t rows, columns;
  int64_t leading;
};
struct standin_desc {
  int compute, scale;
  int transposed[2]; /* of a and b: cublasOperation_t */
};
struct standin_preference {
  uint64_t workspace;
  uint32_t reduction, alignment[4]; /* of a, b, c, d */
};
struct standin_algorithm {
  uint64_t data[8];
};
struct standin_heuristic {
  struct standin_algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
/* The last product. */
struct standin_product {
  struct standin_desc desc;
  const void *a, *b, *c;
  void *d, *workspace, *stream;
  size_t workspace_bytes;
  float alpha, beta;
};

void standin_reset(void);
void standin_claim_version(int major, int minor, int patch);
void standin_fail(const char* function, int status);
void standin_find_none(void);              /* no algorithm will do */
void standin_find_state(int status);       /* one is found, and cannot be used */
void standin_want_workspace(size_t bytes); /* of the algorithms found from now on */
int standin_count(const char* function);
int standin_living(void); /* handles and descriptors */
struct standin_product standin_last_product(void);
struct standin_preference standin_last_preference(void);

int cublasLtGetProperty(int which, int* value);
int cublasLtCreate(struct cublasLtContext** out);
int cublasLtDestroy(struct cublasLtContext* handle);
int cublasLtMatmulDescCreate(struct standin_desc** out, int compute, int scale);
int cublasLtMatmulDescDestroy(struct standin_desc* desc);
int cublasLtMatmulDescSetAttribute(struct standin_desc* desc, int attribute, const void* value, size_t bytes);
int cublasLtMatrixLayoutCreate(struct standin_layout** out, int type, uint64_t rows, uint64_t columns, int64_t leading);
int cublasLtMatrixLayoutDestroy(struct standin_layout* layout);
int cublasLtMatmulPreferenceCreate(struct standin_preference** out);
int cublasLtMatmulPreferenceDestroy(struct standin_preference* preference);
int cublasLtMatmulPreferenceSetAttribute(struct standin_preference* preference, int attribute, const void* value, size_t bytes);
int cublasLtMatmulAlgoGetHeuristic(struct cublasLtContext* handle, struct standin_desc* desc, struct standin_layout* a,
                                   struct standin_layout* b, struct standin_layout* c, struct standin_layout* d,
                                   struct standin_preference* preference, int wanted, struct standin_heuristic* out, int* found);
int cublasLtMatmul(struct cublasLtContext* handle, struct standin_desc* desc, const void* alpha, const void* a,
                   struct standin_layout* a_layout, const void* b, struct standin_layout* b_layout, const void* beta, const void* c,
                   struct standin_layout* c_layout, void* d, struct standin_layout* d_layout, const struct standin_algorithm* algorithm,
                   void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif
#endif
