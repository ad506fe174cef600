/* SPDX-License-Identifier: Apache-2.0 */
#include "layers.h"

#include <string.h>

const int64_t lengths[LAYERS] = {130, 64, 300, 1, 77, 128};
const char* const names[LAYERS] = {"layer0", "layer1", "layer2", "layer3", "layer4", "layer5"};

mdp_status model_try(mdp_comm* comm, const kind* k, model* m) {
  memset(m, 0, sizeof *m);
  m->of = k;
  m->rank = mdp_comm_rank(comm);
  m->size = mdp_comm_size(comm);
  SIZED(mdp_grid_config, grid);
  grid.tp = k->tp;
  grid.ep = k->ep;
  grid.instances = k->instances;
  OK(mdp_grid_create(comm, &grid, &m->grid));
  mdp_param params[LAYERS];
  memset(params, 0, sizeof params);
  for (int p = 0; p < LAYERS; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = k->dtype;
    params[p].ndim = 1;
    params[p].shape = &lengths[p];
    params[p].uses_per_step = k->uses;
    params[p].placement = k->placement != 0 ? k->placement : MDP_PLACEMENT_SHARDED;
    if (k->use_order != NULL) params[p].use_order = k->use_order[p];
    if (k->ep > 1 && p % 2 == 1) params[p].param_class = MDP_PARAM_CLASS_EXPERT;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = k->sharding;
  config.grad_dtype = k->grads;
  config.wire_dtype = k->wire;
  config.missing = k->missing;
  config.bucket_elements = k->bucket_elements != 0 ? k->bucket_elements : 1;
  config.pool_buckets = k->pool_buckets;
  config.spill_limit = k->spill_limit;
  config.flags = k->flags;
  return mdp_buffer_register(NULL, m->grid, &config, params, LAYERS, &m->buffer);
}

model model_on(mdp_comm* comm, const kind* k) {
  model m;
  OK(model_try(comm, k, &m));
  SIZED(mdp_optimizer_config, adamw);
  adamw.lr = 0.0625;
  adamw.max_grad_norm = k->max_grad_norm == 0 ? 1 : k->max_grad_norm < 0 ? 0 : k->max_grad_norm;
  OK(mdp_optimizer_create(m.buffer, &adamw, &m.optimizer));
  return m;
}

void model_drop(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
}

float gradient(int32_t rank, int p, int64_t i, int step, int microbatch) {
  const uint32_t mixed = ((uint32_t)rank * 2654435761U) ^
                         ((uint32_t)i * 40503U + (uint32_t)p * 7919U + (uint32_t)step * 104729U + (uint32_t)microbatch * 1299709U);
  return (float)((int32_t)(mixed % 20011U) - 10005) / 3001.0F;
}

mdp_tensor values_of(const model* m, int p, int step, int microbatch, float* values) {
  for (int64_t i = 0; i < lengths[p]; ++i) values[i] = gradient(m->rank, p, i, step, microbatch);
  return tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
}

mdp_status try_put(const model* m, int p, int step, int microbatch) {
  float values[LONGEST];
  const mdp_tensor t = values_of(m, p, step, microbatch, values);
  return mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL);
}

void put(const model* m, int p, int step, int microbatch) {
  OK(try_put(m, p, step, microbatch));
}

void put_all_in(const model* m, int order, int step, int microbatch) {
  for (int n = 0; n < LAYERS; ++n) {
    const int p = order == BACKWARD ? LAYERS - 1 - n : order == FORWARD ? n : (n * 5 + m->rank + step) % LAYERS;
    put(m, p, step, microbatch);
  }
}

uint64_t spill_peak(const model* m) {
  SIZED(mdp_stats_report, stats);
  OK(mdp_buffer_stats(m->buffer, &stats));
  return stats.spill_peak_bytes;
}

int same_params(const model* a, const model* b) {
  int same = 1;
  for (int p = 0; p < LAYERS; ++p) {
    float left[LONGEST], right[LONGEST];
    const mdp_tensor l = tensor_of(MDP_DTYPE_F32, left, &lengths[p]), r = tensor_of(MDP_DTYPE_F32, right, &lengths[p]);
    OK(mdp_param_read(a->buffer, (size_t)p, &l, NULL));
    OK(mdp_param_read(b->buffer, (size_t)p, &r, NULL));
    same = same && memcmp(left, right, (size_t)lengths[p] * sizeof left[0]) == 0;
  }
  return same;
}

typedef struct {
  comm_body body;
  const void* argument;
} comm_job;

static void on_comm(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const comm_job* const one = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(20000000000));
  one->body(comm, one->argument);
  mdp_comm_destroy(comm);
}

void run_on_comms(int32_t nranks, comm_body body, const void* argument) {
  comm_job one = {body, argument};
  run_ranks(nranks, on_comm, &one);
}
