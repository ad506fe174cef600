/* SPDX-License-Identifier: Apache-2.0
 * A model of layers, small buckets, and gradients whose sums are not exact, for suites of the ways to shard it. */
#ifndef MEGADP_TESTS_CAPI_LAYERS_H
#define MEGADP_TESTS_CAPI_LAYERS_H

#include "fixture.h"

enum {
  LAYERS = 6,
  LONGEST = 300
};
extern const int64_t lengths[LAYERS];
extern const char* const names[LAYERS];

typedef struct {
  mdp_sharding sharding;
  mdp_dtype dtype, grads, wire;
  uint64_t pool_buckets, spill_limit, bucket_elements, flags;
  int32_t uses, tp, ep, instances;
  mdp_missing missing;
  mdp_placement placement;  /* 0: SHARDED */
  double max_grad_norm;     /* 0: 1; below 0: no clipping */
  const int32_t* use_order; /* of each layer; NULL: 0 */
} kind;

typedef struct {
  const kind* of;
  int32_t rank, size;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} model;

/* With ep above 1 every other layer is an expert's. model_try: no optimizer, which may fail. */
mdp_status model_try(mdp_comm* comm, const kind* k, model* m);
model model_on(mdp_comm* comm, const kind* k);
void model_drop(model* m);

/* No sum of these is exact, so that every other order of adding has other bits. */
float gradient(int32_t rank, int p, int64_t i, int step, int microbatch);
/* Its gradient of layer p, in `values`. */
mdp_tensor values_of(const model* m, int p, int step, int microbatch, float* values);
mdp_status try_put(const model* m, int p, int step, int microbatch);
void put(const model* m, int p, int step, int microbatch);
enum {
  BACKWARD,
  FORWARD,
  MIXED, /* another order on each rank */
  ORDERS
};
void put_all_in(const model* m, int order, int step, int microbatch);

uint64_t spill_peak(const model* m);
/* Whether the parameters of two models have the same bits on this rank. */
int same_params(const model* a, const model* b);
/* Runs `body` as n ranks, each with a communicator of them. */
typedef void (*comm_body)(mdp_comm* comm, const void* argument);
void run_on_comms(int32_t nranks, comm_body body, const void* argument);

#endif
