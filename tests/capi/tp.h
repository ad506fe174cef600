/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of tensor parallelism share: memory of a rank's backend, and arrays of up to three dimensions in it, of several layouts,
 * whose elements are set and read as floats; integers are only set. */
#ifndef MEGADP_TESTS_CAPI_TP_H
#define MEGADP_TESTS_CAPI_TP_H

#include "fixture.h"

typedef struct { /* a rank's */
  mdp_comm* comm;
  mdp_buffer* memory; /* whose one parameter is the room */
  mdp_tensor view;
  size_t room, used; /* bytes */
  int32_t rank, size;
} tp_rank;

typedef enum {
  DENSE,    /* row-major */
  PADDED,   /* rows further apart than they are long */
  REVERSED, /* column-major, as in Julia */
  TP_LAYOUTS
} tp_layout;

typedef struct {
  mdp_tensor tensor;
  int64_t shape[3], strides[3];
} tp_array;

/* With a communicator of the caller's, which it then owns. */
tp_rank tp_on(mdp_comm* comm, size_t room);
tp_rank tp_open(const mdp_unique_id* id, int32_t rank, int32_t size, size_t room);
void tp_close(tp_rank* r);
/* All that was taken is free again. */
void tp_reset(tp_rank* r);
/* The array must stay where it is: its tensor points into it. Full of a number that no test expects. */
void tp_take(tp_rank* r, tp_array* out, mdp_dtype dtype, tp_layout layout, int32_t ndim, const int64_t* shape);
void tp_set(const tp_array* a, const int64_t* index, float value);
float tp_get(const tp_array* a, const int64_t* index);
/* On a device: all that was called has happened. */
void tp_settle(tp_rank* r);

#endif
