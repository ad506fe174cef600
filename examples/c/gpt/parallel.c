/* SPDX-License-Identifier: Apache-2.0
 * All that this program does with megadp. */
#include "parallel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

static const double FIRST_LOSS_SCALE = 1024, LEAST_LOSS_SCALE = 1, MOST_LOSS_SCALE = 16777216;
enum {
  CLEAN_STEPS_TO_GROW = 200,
  DEVICE_CPU = 1 /* as DLPack numbers it */
};

int parallel_check(const parallel* p, mdp_status status, const char* call) {
  if (status >= 0) return 0;
  fprintf(stderr, "gpt: rank %d: %s: %s: %s\n", p->rank, call, mdp_status_name(status), mdp_last_error());
  return -1;
}

static int no_memory(const parallel* p) {
  fprintf(stderr, "gpt: rank %d: out of memory\n", p->rank);
  return -1;
}

static mdp_grid_config grid_of(const options* opts) {
  const mdp_grid_config grid = {
      .struct_size = sizeof grid, .tp = (int32_t)opts->tp, .cp = (int32_t)opts->cp, .instances = (int32_t)opts->instances};
  return grid;
}

int parallel_join(parallel* out, const options* opts) {
  static const mdp_backend BACKENDS[] = {MDP_BACKEND_AUTO, MDP_BACKEND_HOST, MDP_BACKEND_CUDA};
  /* The layers that are cut take their parameters where they are, as attention its arrays, and the model's activations are on the host. */
  const mdp_comm_config config = {.struct_size = sizeof config,
                                  .backend = opts->tp > 1 || opts->cp > 1 ? MDP_BACKEND_HOST : BACKENDS[opts->backend],
                                  .timeout_ns = (uint64_t)(opts->timeout * 1e9)};
  memset(out, 0, sizeof *out);
  const mdp_status status = mdp_comm_create(&config, NULL, &out->comm);
  if (status < 0) { /* no rank to name yet */
    fprintf(stderr, "gpt: mdp_comm_create: %s: %s\n", mdp_status_name(status), mdp_last_error());
    return -1;
  }
  out->rank = mdp_comm_rank(out->comm);
  out->ranks = mdp_comm_size(out->comm);
  return 0;
}

int parallel_cut(parallel* p, const options* opts) {
  const mdp_grid_config grid = grid_of(opts);
  if (parallel_check(p, mdp_grid_create(p->comm, &grid, &p->grid), "mdp_grid_create") ||
      parallel_check(p, mdp_grid_coords(p->grid, MDP_AXIS_TP, &p->part, &p->parts), "mdp_grid_coords") ||
      parallel_check(p, mdp_grid_coords(p->grid, MDP_AXIS_CP, &p->segment, &p->segments), "mdp_grid_coords")) {
    return -1;
  }
  return parallel_check(p, mdp_grid_coords(p->grid, MDP_AXIS_DP, &p->replica, &p->replicas), "mdp_grid_coords");
}

void parallel_leave(parallel* p) {
  tensor_parallel_close(&p->tp);
  context_parallel_close(&p->cp);
  mdp_optimizer_destroy(p->optimizer);
  mdp_buffer_destroy(p->buffer);
  mdp_grid_destroy(p->grid);
  mdp_comm_destroy(p->comm);
  free(p->working);
  free(p->stored);
  free(p->fresh);
  mdp_request_free(p->step);
  memset(p, 0, sizeof *p);
}

static int register_buffer(parallel* p, const options* opts) {
  const size_t count = p->model->nparams;
  const mdp_grid_config grid = grid_of(opts);
  const mdp_buffer_config config = {.struct_size = sizeof config,
                                    .grad_dtype = opts->dtype == DTYPE_F16 ? MDP_DTYPE_SAME : MDP_DTYPE_F32,
                                    .sharding = opts->no_shard ? MDP_SHARDING_ZERO_0
                                                : opts->zero_2 ? MDP_SHARDING_ZERO_2
                                                : opts->whole  ? MDP_SHARDING_WHOLE
                                                               : MDP_SHARDING_ZERO_1,
                                    .bucket_elements = opts->bucket_size,
                                    .wire_dtype = opts->bf16_wire ? MDP_DTYPE_BF16 : MDP_DTYPE_F32,
                                    .flags = (opts->no_overlap ? MDP_BUFFER_NO_OVERLAP : 0) |
                                             (opts->error_feedback ? MDP_BUFFER_ERROR_FEEDBACK : 0) |
                                             (opts->check_finite ? MDP_BUFFER_CHECK_FINITE : 0)};
  mdp_param* params = calloc(count, sizeof *params);
  if (!params) return no_memory(p);
  for (size_t i = 0; i < count; i++) {
    const gpt_param* from = &p->model->params[i];
    params[i].struct_size = sizeof params[i];
    params[i].dtype = p->dtype;
    params[i].name = from->name;
    params[i].shape = from->shape;
    params[i].ndim = from->ndim;
    params[i].param_group = from->decays ? 0 : 1;
    if (p->parts > 1) tensor_parallel_place(&params[i], p->model, i);
  }
  p->plan.struct_size = sizeof p->plan;
  int failed = parallel_check(p, mdp_plan(&grid, p->ranks, p->rank, &config, params, count, NULL, &p->plan), "mdp_plan") ||
               parallel_check(p, mdp_buffer_register(NULL, p->grid, &config, params, count, &p->buffer), "mdp_buffer_register");
  free(params);
  if (opts->bf16_state) p->plan.state_bytes /= 2; /* mdp_plan reckons with f32 */
  if (opts->no_master) p->plan.master_bytes = 0;
  return failed ? -1 : 0;
}

static size_t largest_param(const gpt_model* model) {
  size_t largest = 0;
  for (size_t i = 0; i < model->nparams; i++) largest = model->params[i].size > largest ? model->params[i].size : largest;
  return largest;
}

/* Gives every parameter of the model a place for its value and its gradient. */
static int place_params(parallel* p, int zero_2) {
  gpt_model* model = p->model;
  size_t total = 0;
  mdp_tensor first = {.struct_size = sizeof first};
  if (parallel_check(p, mdp_buffer_param_view(p->buffer, 0, &first), "mdp_buffer_param_view")) return -1;
  p->copies = p->dtype != MDP_DTYPE_F32 || first.device_type != DEVICE_CPU;
  p->puts = p->copies || zero_2;
  p->fresh = calloc(model->nparams, 1);
  if (!p->fresh) return no_memory(p);
  if (p->puts) {
    for (size_t i = 0; i < model->nparams; i++) total += model->params[i].size;
    p->working = calloc(2 * total, sizeof *p->working);
    p->stored = malloc(largest_param(model) * sizeof *p->stored);
    if (!p->working || !p->stored) return no_memory(p);
  }
  real *value_at = p->working, *grad_at = p->copies ? p->working + total : p->working;
  for (size_t i = 0; i < model->nparams; i++) {
    gpt_param* param = &model->params[i];
    mdp_tensor value = {.struct_size = sizeof value, .data = value_at}, grad = {.struct_size = sizeof grad, .data = grad_at};
    if ((!p->copies && parallel_check(p, mdp_buffer_param_view(p->buffer, i, &value), "mdp_buffer_param_view")) ||
        (!p->puts && parallel_check(p, mdp_buffer_grad_view(p->buffer, i, &grad), "mdp_buffer_grad_view"))) {
      return -1;
    }
    param->value = value.data;
    param->grad = grad.data;
    if (p->copies) value_at += param->size;
    if (p->puts) grad_at += param->size;
  }
  return 0;
}

static int start_params(parallel* p, uint64_t seed) {
  gpt_model* model = p->model;
  real* values = malloc(largest_param(model) * sizeof *values);
  if (!values) return no_memory(p);
  int failed = 0;
  const int first = p->replica == 0 && p->segment == 0;
  for (size_t i = 0; first && i < model->nparams && !failed; i++) {
    gpt_param_start(model, i, seed, values);
    const mdp_tensor from = tensor_of(MDP_DTYPE_F32, values, model->params[i].ndim, model->params[i].shape);
    failed = parallel_check(p, mdp_param_write(p->buffer, i, &from, NULL), "mdp_param_write");
  }
  free(values);
  if (failed) return -1;
  return parallel_check(p, mdp_buffer_broadcast(p->buffer, 0, NULL), "mdp_buffer_broadcast");
}

int parallel_register(parallel* p, gpt_model* model, const options* opts) {
  static const mdp_dtype DTYPES[] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_F16};
  const mdp_param_group groups[] = {{.struct_size = sizeof groups[0], .weight_decay = 0.1}, {.struct_size = sizeof groups[0]}};
  const mdp_optimizer_config config = {
      .struct_size = sizeof config,
      .lr = opts->lr,
      .beta1 = 0.9,
      .beta2 = 0.98,
      .max_grad_norm = opts->clip,
      .param_groups = groups,
      .param_group_count = 2,
      .state_dtype = opts->bf16_state ? MDP_DTYPE_BF16 : MDP_DTYPE_F32,
      .flags = (opts->stochastic_state ? MDP_OPTIMIZER_STOCHASTIC_STATE : 0) | (opts->no_master ? MDP_OPTIMIZER_NO_MASTER : 0),
      .seed = opts->stochastic_state || opts->no_master ? opts->seed : 0};
  p->model = model;
  p->dtype = DTYPES[opts->dtype];
  p->loss_scale = opts->dtype == DTYPE_F16 ? FIRST_LOSS_SCALE : 0;
  if (register_buffer(p, opts) || place_params(p, opts->zero_2) || start_params(p, opts->seed)) return -1;
  if (p->parts > 1 && tensor_parallel_open(&p->tp, p->grid, p->buffer, model, p->dtype)) return -1;
  if (p->segments > 1 && context_parallel_open(&p->cp, p->grid, model, (mdp_cp_form)opts->cp_form)) return -1;
  return parallel_check(p, mdp_optimizer_create(p->buffer, &config, &p->optimizer), "mdp_optimizer_create");
}

/* ── The hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int need_param(void* user, size_t param) {
  parallel* p = user;
  if (p->fresh[param] || tensor_parallel_has(p->model, param)) return 0;
  p->fresh[param] = 1;
  /* The last step's gathers go on behind the layers that have theirs already. */
  if (parallel_check(p, mdp_param_wait(p->buffer, param, NULL), "mdp_param_wait")) return -1;
  const gpt_param* to = &p->model->params[param];
  if (!p->copies) { /* backward adds into the view, which the step has done with */
    if (!p->puts) memset(to->grad, 0, to->size * sizeof(real));
    return 0;
  }
  const mdp_tensor copy = tensor_of(MDP_DTYPE_F32, to->value, to->ndim, to->shape);
  return parallel_check(p, mdp_param_read(p->buffer, param, &copy, NULL), "mdp_param_read");
}

static int final_grad(void* user, size_t param) {
  parallel* p = user;
  if (tensor_parallel_has(p->model, param)) return 0;
  if (!p->puts) return parallel_check(p, mdp_grad_ready(p->buffer, param, NULL), "mdp_grad_ready");
  const gpt_param* from = &p->model->params[param];
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, from->grad, from->ndim, from->shape);
  return parallel_check(p, mdp_grad_put(p->buffer, param, &grad, 0, NULL), "mdp_grad_put");
}

gpt_hooks parallel_hooks(parallel* p) {
  const gpt_hooks hooks = {need_param, final_grad, p, p->parts > 1 ? &p->tp.functions : NULL, p->segments > 1 ? &p->cp.functions : NULL};
  return hooks;
}

/* ── A step ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

int parallel_microbatch_begin(parallel* p, int is_last) {
  /* The views add up over microbatches; arrays that are handed in are added by the library, so each starts from zero. */
  for (size_t i = 0; p->puts && i < p->model->nparams; i++) {
    memset(p->model->params[i].grad, 0, p->model->params[i].size * sizeof(real));
  }
  return parallel_check(p, mdp_microbatch_begin(p->buffer, is_last), "mdp_microbatch_begin");
}

double parallel_loss_scale(const parallel* p) {
  return p->loss_scale > 0 ? p->loss_scale : 1;
}

static void move_loss_scale(parallel* p, const mdp_step_report* report) {
  if (report->flags & MDP_STEPPED_SKIPPED) {
    p->loss_scale = p->loss_scale / 2 > LEAST_LOSS_SCALE ? p->loss_scale / 2 : LEAST_LOSS_SCALE;
    p->clean_steps = 0;
  } else if (++p->clean_steps == CLEAN_STEPS_TO_GROW) {
    p->loss_scale = p->loss_scale * 2 < MOST_LOSS_SCALE ? p->loss_scale * 2 : MOST_LOSS_SCALE;
    p->clean_steps = 0;
  }
}

int parallel_reduce(parallel* p) {
  return parallel_check(p, mdp_grad_sync(p->buffer, NULL, NULL), "mdp_grad_sync");
}

int parallel_step(parallel* p, double lr, mdp_step_report* report) {
  const mdp_step_config config = {.struct_size = sizeof config, .lr = lr, .loss_scale = p->loss_scale};
  memset(report, 0, sizeof *report);
  report->struct_size = sizeof *report;
  /* Every parameter of the last step has been waited for by now; its request says so too. With a request, this one returns when the
   * report is there, and the parameters follow. */
  if (parallel_finish(p) || parallel_check(p, mdp_optimizer_step(p->optimizer, &config, report, &p->step), "mdp_optimizer_step")) return -1;
  if (p->loss_scale > 0) move_loss_scale(p, report);
  memset(p->fresh, 0, p->model->nparams);
  return 0;
}

int parallel_finish(parallel* p) {
  const int failed = p->step ? parallel_check(p, mdp_request_wait(p->step, UINT64_MAX), "mdp_request_wait") : 0;
  mdp_request_free(p->step);
  p->step = NULL;
  return failed;
}

/* ── Between the ranks ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

int parallel_sum(parallel* p, double* values, size_t count) {
  const int64_t shape = (int64_t)count;
  const mdp_tensor tensor = tensor_of(MDP_DTYPE_F64, values, 1, &shape);
  return parallel_check(p, mdp_all_reduce(p->comm, &tensor, &tensor, MDP_OP_SUM, NULL, NULL), "mdp_all_reduce");
}

int parallel_gather(parallel* p, const int64_t* values, size_t count, int64_t* out) {
  const int64_t shape = (int64_t)count, gathered = shape * p->ranks;
  const mdp_tensor from = tensor_of(MDP_DTYPE_I64, values, 1, &shape);
  const mdp_tensor to = tensor_of(MDP_DTYPE_I64, out, 1, &gathered);
  return parallel_check(p, mdp_all_gather(p->comm, &from, &to, NULL, NULL), "mdp_all_gather");
}

int parallel_from_first(parallel* p, int64_t* values, size_t count) {
  const int64_t shape = (int64_t)count;
  const mdp_tensor tensor = tensor_of(MDP_DTYPE_I64, values, 1, &shape);
  return parallel_check(p, mdp_broadcast(p->comm, &tensor, 0, NULL, NULL), "mdp_broadcast");
}

int parallel_same(parallel* p, uint64_t value, const char* what) {
  const int64_t mine = (int64_t)value;
  int64_t* all = malloc((size_t)p->ranks * sizeof *all);
  if (!all) return no_memory(p);
  int failed = parallel_gather(p, &mine, 1, all);
  for (int r = 1; r < p->ranks && !failed; r++) {
    if (all[r] == all[0]) continue;
    failed = -1;
    if (p->rank == 0) {
      fprintf(stderr, "gpt: %s of rank %d (hash %016" PRIx64 ") differs from that of rank 0 (%016" PRIx64 ")\n", what, r, (uint64_t)all[r],
              (uint64_t)all[0]);
    }
  }
  free(all);
  return failed;
}

/* Of what this rank has. */
static int own_hash(parallel* p, uint64_t* out) {
  uint64_t hash = HASH_START;
  for (size_t i = 0; i < p->model->nparams; i++) {
    const gpt_param* param = &p->model->params[i];
    mdp_tensor stored = {.struct_size = sizeof stored};
    if (parallel_check(p, mdp_param_wait(p->buffer, i, NULL), "mdp_param_wait")) return -1;
    if (p->copies) {
      stored = tensor_of(p->dtype, p->stored, param->ndim, param->shape);
      if (parallel_check(p, mdp_param_read(p->buffer, i, &stored, NULL), "mdp_param_read")) return -1;
    } else if (parallel_check(p, mdp_buffer_param_view(p->buffer, i, &stored), "mdp_buffer_param_view")) {
      return -1;
    }
    hash = hash_bytes(hash, stored.data, param->size * (p->dtype == MDP_DTYPE_F32 ? sizeof(float) : 2));
  }
  *out = hash;
  return 0;
}

int parallel_param_hash(parallel* p, uint64_t* out) {
  uint64_t mine = 0;
  if (own_hash(p, &mine)) return -1;
  *out = mine;
  if (p->parts == 1) return parallel_same(p, mine, "the parameters");
  /* Replicas, and what the parts of one have alike. */
  if (parallel_check(p, mdp_buffer_verify(p->buffer), "mdp_buffer_verify")) return -1;
  int64_t* all = malloc((size_t)p->ranks * sizeof *all);
  if (!all) return no_memory(p);
  const int failed = parallel_gather(p, (const int64_t*)&mine, 1, all);
  if (!failed) *out = hash_bytes(HASH_START, all, (size_t)p->parts * sizeof *all); /* the first ranks are the parts of the first replica */
  free(all);
  return failed;
}

int parallel_stats(parallel* p, mdp_stats_report* out) {
  memset(out, 0, sizeof *out);
  out->struct_size = sizeof *out;
  return parallel_check(p, mdp_buffer_stats(p->buffer, out), "mdp_buffer_stats");
}
