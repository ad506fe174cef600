/* SPDX-License-Identifier: Apache-2.0
 *
 * A STAND-IN for cuBLASLt, for tests alone: it has its functions, reads its descriptors as cuBLASLt documents them, and multiplies what it
 * is given in the host's memory. As strict as cuBLASLt is, or stricter: what does not fit is refused. The test says through standin_*()
 * which function fails and how, and asks what was called. Never installed. */
#include "cublaslt_standin.h"

#include <stdlib.h>
#include <string.h>

enum {
  not_initialized = 1,
  alloc_failed = 3,
  invalid_value = 7,
  type_f32 = 0,   /* CUDA_R_32F */
  type_bf16 = 14, /* CUDA_R_16BF */
  compute_f32 = 68,
  most_calls = 1 << 16
};

struct cublasLtContext {
  int alive;
};

static int version[3] = {13, 1, 2};
static const char* failing;
static int failure, state, finds_none;
static size_t wanted_workspace;
static const char* calls[most_calls];
static int call_count;
static int living;
static struct standin_product last_product;
static struct standin_preference last_preference;

void standin_reset(void) {
  standin_claim_version(13, 1, 2);
  failure = state = finds_none = call_count = 0;
  failing = NULL;
  wanted_workspace = 0;
}
void standin_claim_version(int major, int minor, int patch) {
  version[0] = major;
  version[1] = minor;
  version[2] = patch;
}
void standin_fail(const char* function, int status) {
  failing = function;
  failure = status;
}
void standin_find_none(void) {
  finds_none = 1;
}
void standin_find_state(int status) {
  state = status;
}
void standin_want_workspace(size_t bytes) {
  wanted_workspace = bytes;
}
int standin_count(const char* function) {
  int count = 0;
  for (int i = 0; i < call_count; i++) count += strcmp(calls[i], function) == 0;
  return count;
}
int standin_living(void) {
  return living;
}
struct standin_product standin_last_product(void) {
  return last_product;
}
struct standin_preference standin_last_preference(void) {
  return last_preference;
}

static int outcome(const char* function) {
  if (call_count < most_calls) calls[call_count++] = function;
  return failing != NULL && strcmp(failing, function) == 0 ? failure : 0;
}

static int make(const char* function, void** out, size_t bytes) {
  const int result = outcome(function);
  if (result != 0) return result;
  *out = calloc(1, bytes);
  if (*out == NULL) return alloc_failed;
  living++;
  return 0;
}
static int end(const char* function, void* object) {
  const int result = outcome(function);
  if (object == NULL) return invalid_value;
  free(object);
  living--;
  return result;
}

int cublasLtGetProperty(int which, int* value) {
  if (which < 0 || which > 2) return invalid_value;
  *value = version[which];
  return outcome("cublasLtGetProperty");
}
int cublasLtCreate(struct cublasLtContext** out) {
  void* made = NULL;
  const int result = make("cublasLtCreate", &made, sizeof **out);
  if (result != 0) return result;
  *out = made;
  (*out)->alive = 1;
  return 0;
}
int cublasLtDestroy(struct cublasLtContext* handle) {
  return end("cublasLtDestroy", handle);
}

int cublasLtMatmulDescCreate(struct standin_desc** out, int compute, int scale) {
  void* made = NULL;
  const int result = make("cublasLtMatmulDescCreate", &made, sizeof **out);
  if (result != 0) return result;
  *out = made;
  (*out)->compute = compute;
  (*out)->scale = scale;
  return 0;
}
int cublasLtMatmulDescDestroy(struct standin_desc* desc) {
  return end("cublasLtMatmulDescDestroy", desc);
}
int cublasLtMatmulDescSetAttribute(struct standin_desc* desc, int attribute, const void* value, size_t bytes) {
  const int result = outcome("cublasLtMatmulDescSetAttribute");
  if (result != 0) return result;
  int32_t operation;
  if ((attribute != 3 && attribute != 4) || bytes != sizeof operation) return invalid_value; /* TRANSA, TRANSB */
  memcpy(&operation, value, sizeof operation);
  if (operation != 0 && operation != 1) return invalid_value;
  desc->transposed[attribute - 3] = operation;
  return 0;
}

int cublasLtMatrixLayoutCreate(struct standin_layout** out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  if (rows == 0 || columns == 0 || leading < 0 || (uint64_t)leading < rows) return invalid_value;
  void* made = NULL;
  const int result = make("cublasLtMatrixLayoutCreate", &made, sizeof **out);
  if (result != 0) return result;
  *out = made;
  **out = (struct standin_layout){type, rows, columns, leading};
  return 0;
}
int cublasLtMatrixLayoutDestroy(struct standin_layout* layout) {
  return end("cublasLtMatrixLayoutDestroy", layout);
}

int cublasLtMatmulPreferenceCreate(struct standin_preference** out) {
  void* made = NULL;
  const int result = make("cublasLtMatmulPreferenceCreate", &made, sizeof **out);
  if (result != 0) return result;
  *out = made;
  **out = (struct standin_preference){0, 7, {256, 256, 256, 256}}; /* the defaults of cuBLASLt */
  return 0;
}
int cublasLtMatmulPreferenceDestroy(struct standin_preference* preference) {
  return end("cublasLtMatmulPreferenceDestroy", preference);
}
int cublasLtMatmulPreferenceSetAttribute(struct standin_preference* preference, int attribute, const void* value, size_t bytes) {
  const int result = outcome("cublasLtMatmulPreferenceSetAttribute");
  if (result != 0) return result;
  void* place = NULL;
  if (attribute == 1) place = &preference->workspace;
  if (attribute == 3) place = &preference->reduction;
  if (attribute >= 5 && attribute <= 8) place = &preference->alignment[attribute - 5];
  if (place == NULL || bytes != (attribute == 1 ? sizeof(uint64_t) : sizeof(uint32_t))) return invalid_value;
  memcpy(place, value, bytes);
  return 0;
}

/* As the descriptors say it: op(a) is m x k, op(b) is k x n, c and d are m x n. */
static int fit(const struct standin_desc* desc, const struct standin_layout* a, const struct standin_layout* b,
               const struct standin_layout* c, const struct standin_layout* d) {
  const uint64_t m = desc->transposed[0] ? a->columns : a->rows, inner = desc->transposed[0] ? a->rows : a->columns;
  const uint64_t n = desc->transposed[1] ? b->rows : b->columns, other = desc->transposed[1] ? b->columns : b->rows;
  const int types = (a->type == type_f32 && b->type == type_f32 && c->type == type_f32) ||
                    (a->type == type_bf16 && b->type == type_bf16 && (c->type == type_bf16 || c->type == type_f32));
  return types && desc->compute == compute_f32 && desc->scale == type_f32 && inner == other && m == c->rows && n == c->columns &&
         memcmp(c, d, sizeof *c) == 0;
}

int cublasLtMatmulAlgoGetHeuristic(struct cublasLtContext* handle, struct standin_desc* desc, struct standin_layout* a,
                                   struct standin_layout* b, struct standin_layout* c, struct standin_layout* d,
                                   struct standin_preference* preference, int wanted, struct standin_heuristic* out, int* found) {
  const int result = outcome("cublasLtMatmulAlgoGetHeuristic");
  if (result != 0) return result;
  if (handle == NULL || !handle->alive) return not_initialized;
  if (wanted < 1 || !fit(desc, a, b, c, d)) return invalid_value;
  last_preference = *preference;
  *found = !finds_none;
  if (finds_none) return 0;
  memset(out, 0, sizeof *out);
  out->workspace = wanted_workspace < preference->workspace ? wanted_workspace : preference->workspace;
  out->state = state;
  out->algorithm.data[0] = 77; /* cublasLtMatmul() wants to see the algorithm that it was asked for */
  out->algorithm.data[7] = out->workspace;
  return 0;
}

#ifndef STANDIN_LACKS_PRODUCTS
static float read_element(const void* data, int type, uint64_t at) {
  if (type == type_f32) return ((const float*)data)[at];
  const uint32_t bits = (uint32_t)((const uint16_t*)data)[at] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static void write_element(void* data, int type, uint64_t at, float value) {
  if (type == type_f32) {
    ((float*)data)[at] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  ((uint16_t*)data)[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint64_t place(const struct standin_layout* layout, int transposed, uint64_t row, uint64_t column) {
  return transposed ? row * (uint64_t)layout->leading + column : column * (uint64_t)layout->leading + row;
}

int cublasLtMatmul(struct cublasLtContext* handle, struct standin_desc* desc, const void* alpha, const void* a,
                   struct standin_layout* a_layout, const void* b, struct standin_layout* b_layout, const void* beta, const void* c,
                   struct standin_layout* c_layout, void* d, struct standin_layout* d_layout, const struct standin_algorithm* algorithm,
                   void* workspace, size_t workspace_bytes, void* stream) {
  const int result = outcome("cublasLtMatmul");
  if (result != 0) return result;
  if (handle == NULL || !handle->alive) return not_initialized;
  if (!fit(desc, a_layout, b_layout, c_layout, d_layout) || c != d) return invalid_value;
  if (algorithm->data[0] != 77 || algorithm->data[7] > workspace_bytes || (workspace_bytes > 0 && workspace == NULL)) return invalid_value;
  last_product = (struct standin_product){*desc, a, b, c, d, workspace, stream, workspace_bytes, *(const float*)alpha, *(const float*)beta};
  const uint64_t inner = desc->transposed[0] ? a_layout->rows : a_layout->columns;
  for (uint64_t column = 0; column < c_layout->columns; column++) {
    for (uint64_t row = 0; row < c_layout->rows; row++) {
      float sum = 0;
      for (uint64_t k = 0; k < inner; k++) {
        sum += read_element(a, a_layout->type, place(a_layout, desc->transposed[0], row, k)) *
               read_element(b, b_layout->type, place(b_layout, desc->transposed[1], k, column));
      }
      const uint64_t at = place(c_layout, 0, row, column);
      sum *= last_product.alpha;
      if (last_product.beta != 0) sum += last_product.beta * read_element(c, c_layout->type, at);
      write_element(d, d_layout->type, at, sum);
    }
  }
  return 0;
}
#endif
