/* SPDX-License-Identifier: Apache-2.0
 * All that this program does with megadp: ranks, parameters, gradients, steps.
 *
 *                 f32 parameters in the host's memory      bf16 and f16 parameters; any on a device
 *   value         the library's view                       a float copy, filled by mdp_param_read before its first use in a step
 *   grad          the library's view, then                 a float array, handed in by mdp_grad_put
 *                 mdp_grad_ready; with --zero-2 as
 *                 on the right
 *
 * Forward and backward compute on the host. With parameters on a device, its copies are what stages them.
 *
 * With --tp neighbours share a model (tensor_parallel.h), with --cp such groups share its sequences (context_parallel.h), and replicas of
 * all that are data-parallel: rank = part + parts * (segment + segments * replica).
 *
 * Every function that returns int returns 0, or -1 after it has said on stderr what is wrong and on which rank. */
#ifndef GPT_PARALLEL_H
#define GPT_PARALLEL_H

#include <megadp.h>

#include "context_parallel.h"
#include "model.h"
#include "options.h"
#include "tensor_parallel.h"

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
  int rank, ranks;
  int part, parts;       /* of the model that this rank has; tensor-parallel ranks */
  int segment, segments; /* of each sequence; context-parallel ranks */
  int replica, replicas; /* data-parallel ones */
  tensor_parallel tp;    /* with parts */
  context_parallel cp;   /* with segments */
  gpt_model* model;
  mdp_plan_report plan;
  mdp_dtype dtype;      /* of the parameters */
  int copies;           /* they are not f32, or not in the host's memory */
  int puts;             /* gradients are arrays of ours: with copies, and with ZeRO-2, which has no views of them */
  real* working;        /* with copies the values of all parameters, with puts their gradients */
  real* stored;         /* with copies: room for one parameter in its own type */
  unsigned char* fresh; /* the value is this step's, and its gradient is ready to be added to */
  mdp_request* step;    /* the last one, whose parameters may still be on their way */
  double loss_scale;    /* f16: moves; otherwise 0, which is none */
  unsigned clean_steps; /* since the scale moved */
} parallel;

int parallel_join(parallel* out, const options* opts);
/* Cuts the ranks, which --tp times --cp divides, into a grid. */
int parallel_cut(parallel* p, const options* opts);
/* Registers the model's parameters, starts them from the seed on the first ranks that have them, and hands them to all. */
int parallel_register(parallel* p, gpt_model* model, const options* opts);
void parallel_leave(parallel* p);

/* For gpt_forward and gpt_backward. */
gpt_hooks parallel_hooks(parallel* p);

int parallel_microbatch_begin(parallel* p, int is_last);
/* What the gradient of the loss has to be multiplied with. */
double parallel_loss_scale(const parallel* p);
/* The end of backward: returns when all gradients are reduced. */
int parallel_reduce(parallel* p);
/* One step of AdamW. The new parameters may arrive later: the hooks wait for each, and collectives wait for all. */
int parallel_step(parallel* p, double lr, mdp_step_report* report);
/* Waits for the last step. */
int parallel_finish(parallel* p);

/* Sum over the ranks, in float64. */
int parallel_sum(parallel* p, double* values, size_t count);
/* out[ranks][count], in order of rank */
int parallel_gather(parallel* p, const int64_t* values, size_t count, int64_t* out);
/* They become those of rank 0. */
int parallel_from_first(parallel* p, int64_t* values, size_t count);
/* Fails, naming two ranks, unless `value` is the same on all. */
int parallel_same(parallel* p, uint64_t value, const char* what);
/* Hash over this rank's parameters in forward order; of a model in parts, over the hashes of its parts. Fails, naming two ranks, unless all
 * replicas have the same. */
int parallel_param_hash(parallel* p, uint64_t* out);
int parallel_stats(parallel* p, mdp_stats_report* out);
/* For calls of megadp's. */
int parallel_check(const parallel* p, mdp_status status, const char* call);

#endif
