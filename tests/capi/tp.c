/* SPDX-License-Identifier: Apache-2.0 */
#include "tp.h"

#include <stdlib.h>
#include <string.h>

tp_rank tp_on(mdp_comm* comm, size_t room) {
  tp_rank r = {.comm = comm, .rank = mdp_comm_rank(comm), .size = mdp_comm_size(comm), .room = room};
  const int64_t floats = (int64_t)(room / sizeof(float));
  const mdp_param all = {.struct_size = sizeof all, .name = "room", .shape = &floats, .ndim = 1};
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_ZERO_0;
  OK(mdp_buffer_register(r.comm, NULL, &config, &all, 1, &r.memory));
  r.view.struct_size = sizeof r.view;
  OK(mdp_buffer_param_view(r.memory, 0, &r.view));
  return r;
}

tp_rank tp_open(const mdp_unique_id* id, int32_t rank, int32_t size, size_t room) {
  return tp_on(comm_open(id, rank, size, UINT64_C(60000000000)), room);
}

void tp_close(tp_rank* r) {
  mdp_buffer_destroy(r->memory);
  mdp_comm_destroy(r->comm);
}

void tp_reset(tp_rank* r) {
  r->used = 0;
}

static size_t bytes_of(mdp_dtype dtype) {
  return dtype == MDP_DTYPE_I64 ? 8 : dtype == MDP_DTYPE_BF16 ? 2 : 4;
}

void tp_take(tp_rank* r, tp_array* out, mdp_dtype dtype, tp_layout layout, int32_t ndim, const int64_t* shape) {
  int64_t reach = 1;
  for (int32_t i = 0; i < ndim; ++i) {
    const int32_t d = layout == REVERSED ? i : ndim - 1 - i;
    out->shape[d] = shape[d];
    out->strides[d] = reach;
    reach *= shape[d] > 0 ? shape[d] : 1;
    if (layout == PADDED && i == 0) reach += 3;
  }
  const size_t bytes = ((size_t)reach * bytes_of(dtype) + 63) / 64 * 64;
  if (r->used + bytes > r->room) {
    fprintf(stderr, "tp_take: no room for %zu bytes\n", bytes);
    exit(1);
  }
  void* const data = (char*)r->view.data + r->used;
  r->used += bytes;
  memset(data, 0x4d, bytes); /* 2e8 as f32, 2e8 as bf16 */
  out->tensor = (mdp_tensor){.struct_size = sizeof out->tensor,
                             .dtype = dtype,
                             .device_type = r->view.device_type,
                             .device_id = r->view.device_id,
                             .ndim = ndim,
                             .data = data,
                             .shape = out->shape,
                             .strides = out->strides};
}

static char* place_of_element(const tp_array* a, const int64_t* index) {
  int64_t at = 0;
  for (int32_t d = 0; d < a->tensor.ndim; ++d) at += index[d] * a->strides[d];
  return (char*)a->tensor.data + at * (int64_t)bytes_of(a->tensor.dtype);
}

void tp_set(const tp_array* a, const int64_t* index, float value) {
  char* const to = place_of_element(a, index);
  if (a->tensor.dtype == MDP_DTYPE_BF16) {
    const float rounded = to_bf16(value);
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    const uint16_t half = (uint16_t)(bits >> 16);
    memcpy(to, &half, sizeof half);
  } else if (a->tensor.dtype == MDP_DTYPE_I64) {
    const int64_t whole = (int64_t)value;
    memcpy(to, &whole, sizeof whole);
  } else {
    memcpy(to, &value, sizeof value);
  }
}

float tp_get(const tp_array* a, const int64_t* index) {
  const char* const from = place_of_element(a, index);
  float value;
  if (a->tensor.dtype == MDP_DTYPE_BF16) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
  } else {
    memcpy(&value, from, sizeof value);
  }
  return value;
}

void tp_settle(tp_rank* r) {
  if (on_cuda) OK(mdp_barrier(r->comm, NULL));
}
