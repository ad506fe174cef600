/* SPDX-License-Identifier: Apache-2.0
 * See channels.h. */
#include "channels.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* ── Communicators ── */

static atomic_int any_lost;

mdp_comm* comm_in_time(const mdp_unique_id* id, int32_t rank, int32_t nranks) {
  return comm_open(id, rank, nranks, UNDER_THREAD_SANITIZER ? UINT64_C(30000000000) : UINT64_C(5000000000));
}

int lost(mdp_comm* comm) {
  SIZED(mdp_error_info, info);
  OK(mdp_comm_error_info(comm, &info));
  if (info.status != MDP_OK) atomic_store(&any_lost, 1);
  return info.status != MDP_OK;
}

int go_on(void) {
  return !atomic_load(&any_lost);
}

void begin_test(void) {
  atomic_store(&any_lost, 0);
}

static _Thread_local int said; /* ranks are threads, new ones for every run */

int did(mdp_status status, const char* what, const char* file, int line) {
  if (status == MDP_OK || said) return status == MDP_OK;
  said = 1;
  return check_status(status, MDP_OK, NULL, what, file, line);
}

/* ── Orders and delays ── */

dice dice_of(int32_t rank, int repetition) {
  dice d = {UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(1 + rank + 64 * repetition)};
  for (int i = 0; i < 8; ++i) (void)roll(&d, 2);
  return d;
}

int roll(dice* d, int sides) {
  d->state ^= d->state << 13;
  d->state ^= d->state >> 7;
  d->state ^= d->state << 17;
  return (int)((d->state >> 33) % (uint64_t)sides);
}

void a_moment(dice* d) {
  if (roll(d, 2) == 0) return;
  const struct timespec moment = {0, 1000 * (long)roll(d, 1000)};
  nanosleep(&moment, NULL);
}

void shuffle(dice* d, const int* lengths, int lists, int* order) {
  int left[8], total = 0;
  for (int i = 0; i < lists; ++i) total += left[i] = lengths[i];
  for (int at = 0; at < total; ++at) {
    int which = roll(d, total - at), list = 0;
    while (which >= left[list]) which -= left[list++];
    --left[list];
    order[at] = list;
  }
}

/* ── A model ── */

static const int64_t part_length = PART_LENGTH;
static const float rate = 0.5F;

model model_open(mdp_grid* grid, int number) {
  static const char* const names[PARTS] = {"first", "middle", "last"};
  model m = {.number = number};
  mdp_param params[PARTS];
  int32_t columns;
  for (int part = 0; part < PARTS; ++part) {
    params[part] = (mdp_param){.struct_size = sizeof(mdp_param),
                               .dtype = MDP_DTYPE_F32,
                               .name = names[part],
                               .shape = &part_length,
                               .ndim = 1,
                               .placement = MDP_PLACEMENT_SHARDED};
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = number % 2 == 0 ? MDP_SHARDING_ZERO_1 : MDP_SHARDING_ZERO_0;
  config.bucket_elements = 1;
  SIZED(mdp_optimizer_config, adamw); /* without memory of earlier steps: every step is by the rate, along the sign */
  adamw.lr = rate;
  adamw.flags = MDP_OPTIMIZER_SET_BETA1 | MDP_OPTIMIZER_SET_BETA2;
  SIZED(mdp_bucket_report, last);
  OK(mdp_grid_coords(grid, MDP_AXIS_DP, &m.dp_index, &m.dp));
  OK(mdp_grid_coords(grid, MDP_AXIS_TP, &m.column, &columns));
  OK(mdp_buffer_register(NULL, grid, &config, params, PARTS, &m.buffer));
  if (on_cuda) OK(mdp_buffer_register(NULL, grid, &config, params, PARTS, &m.source));
  OK(mdp_optimizer_create(m.buffer, &adamw, &m.optimizer));
  OK(mdp_buffer_bucket(m.buffer, PARTS - 1, &last));
  return m;
}

void model_close(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_buffer_destroy(m->source);
  m->optimizer = NULL;
  m->buffer = m->source = NULL;
}

/* What rank `index` adds to the mean, a small whole number: the mean is exact however it is added up. */
static int share(const model* m, int index, int part, int element) {
  return (7 * element + 5 * part + 3 * m->step + 11 * index + 13 * m->number + 17 * m->column) % 19 - 9;
}

static float mean(const model* m, int part, int element) {
  int sum = 0;
  for (int index = 0; index < m->dp; ++index) sum += share(m, index, part, element);
  return (float)sum;
}

static void fill(const model* m, int part, float* own) {
  for (int i = 0; i < PART_LENGTH; ++i) own[i] = (float)(m->dp * share(m, m->dp_index, part, i));
}

/* The stand-in's memory is the host's: it is filled as an array of the host is. */
void put_part(model* m, int part, int by_ready) {
  SIZED(mdp_tensor, view);
  if (by_ready) {
    if (!DID(mdp_buffer_grad_view(m->buffer, (size_t)part, &view))) return;
    fill(m, part, view.data);
    DID(mdp_grad_ready(m->buffer, (size_t)part, NULL));
  } else if (m->source != NULL) {
    if (!DID(mdp_buffer_param_view(m->source, (size_t)part, &view))) return;
    fill(m, part, view.data);
    DID(mdp_grad_put(m->buffer, (size_t)part, &view, 0, NULL));
  } else {
    put_part_from_host(m, part);
  }
}

void put_part_from_host(model* m, int part) {
  float own[PART_LENGTH];
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, own, &part_length);
  fill(m, part, own);
  DID(mdp_grad_put(m->buffer, (size_t)part, &grad, 0, NULL));
}

void put_parts(model* m, int by_ready, dice* d) {
  for (int part = PARTS; part-- > 0;) {
    a_moment(d);
    put_part(m, part, by_ready);
  }
}

void check_gradients(model* m) {
  if (said) return;
  enum {
    PIECES = 16
  };
  mdp_range owned[PIECES];
  const size_t count = owned_ranges(m->buffer, owned, PIECES);
  int wrong = 0, seen = 0;
  for (size_t piece = 0; piece < count; ++piece) {
    SIZED(mdp_tensor, view);
    const int part = (int)owned[piece].param, begin = (int)owned[piece].param_begin;
    const int length = (int)(owned[piece].end - owned[piece].begin);
    OK(mdp_buffer_grad_view(m->buffer, (size_t)part, &view));
    for (int i = begin; i < begin + length; ++i) wrong += ((const float*)view.data)[i] != mean(m, part, i);
    seen += length;
  }
  CHECK(wrong == 0);
  CHECK(m->number % 2 == 0 ? seen > 0 : seen == PARTS * PART_LENGTH);
}

void check_parameters(model* m) {
  for (int part = 0; part < PARTS; ++part) {
    float values[PART_LENGTH];
    int wrong = 0;
    const mdp_tensor array = tensor_of(MDP_DTYPE_F32, values, &part_length);
    if (!DID(mdp_param_read(m->buffer, (size_t)part, &array, NULL))) continue;
    for (int i = 0; i < PART_LENGTH; ++i) {
      const float gradient = mean(m, part, i);
      m->expected[part][i] -= gradient > 0 ? rate : gradient < 0 ? -rate : 0;
      wrong += values[i] != m->expected[part][i];
    }
    CHECK(wrong == 0);
  }
  ++m->step;
}

void finish_request(mdp_request* request) {
  if (request != NULL) DID(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
}

void sync_and_check(model* m) {
  mdp_request* synced = NULL; /* on a device it takes one to know that it is over */
  if (!DID(mdp_grad_sync(m->buffer, NULL, &synced))) return;
  finish_request(synced);
  check_gradients(m);
}

void step_and_check(model* m) {
  mdp_request* stepped = NULL;
  if (!DID(mdp_optimizer_step(m->optimizer, NULL, NULL, &stepped))) return;
  finish_request(stepped);
  check_parameters(m);
}

/* ── Collectives of the caller's ── */

enum {
  SLOT_LENGTH = 2 * MOST_RANKS * CALL_LENGTH
};
static float host_arrays[MOST_RANKS][SLOTS * SLOT_LENGTH];

room room_open(mdp_comm* world) {
  room r = {.rank = mdp_comm_rank(world), .device = {.struct_size = sizeof(mdp_tensor)}};
  if (!on_cuda) return r;
  static const int64_t length = (int64_t)SLOTS * SLOT_LENGTH;
  SIZED(mdp_param, param);
  param.dtype = MDP_DTYPE_F32;
  param.name = "room";
  param.shape = &length;
  param.ndim = 1;
  OK(mdp_grid_create(world, NULL, &r.grid));
  OK(mdp_buffer_register(NULL, r.grid, NULL, &param, 1, &r.buffer));
  OK(mdp_buffer_param_view(r.buffer, 0, &r.device));
  return r;
}

void room_close(room* r) {
  mdp_buffer_destroy(r->buffer);
  mdp_grid_destroy(r->grid);
}

static const char* name_of(kind what) {
  static const char* const names[KINDS] = {"mdp_all_reduce", "mdp_all_gather", "mdp_broadcast", "mdp_all_to_all", "mdp_barrier"};
  return names[what];
}

/* What rank `rank` of the call's ranks gives. */
static float given(const call* c, int32_t rank, int element) {
  return (float)(rank * 1000 + c->number * 10 + element);
}

call call_begin(mdp_comm* comm, kind what, int number, room* r, int slot, int with_request) {
  const int on_device = r->device.data != NULL && slot % 2 == 0;
  const int32_t n = mdp_comm_size(comm), me = mdp_comm_rank(comm);
  const int64_t piece = CALL_LENGTH, all = piece * n;
  float* const arrays = (on_device ? (float*)r->device.data : host_arrays[r->rank]) + (size_t)slot * SLOT_LENGTH;
  call c = {.what = what, .number = number, .rank = me, .ranks = n, .from = arrays, .to = arrays + SLOT_LENGTH / 2};
  mdp_tensor from = tensor_of(MDP_DTYPE_F32, c.from, &piece), to = tensor_of(MDP_DTYPE_F32, c.to, what == ALL_GATHER ? &all : &piece);
  if (on_device) {
    from.device_type = to.device_type = r->device.device_type;
    from.device_id = to.device_id = r->device.device_id;
  }
  for (int i = 0; i < CALL_LENGTH; ++i) c.from[i] = given(&c, me, i);
  memset(c.to, 0, sizeof(float) * SLOT_LENGTH / 2);
  if (what == BROADCAST && number % n == me) memcpy(c.to, c.from, sizeof(float) * CALL_LENGTH);
  /* Of a device's array only a request says that it is done. */
  mdp_request** const out = with_request || on_device ? &c.request : NULL;
  mdp_status status = MDP_OK;
  if (what == ALL_REDUCE) status = mdp_all_reduce(comm, &from, &to, MDP_OP_SUM, NULL, out);
  if (what == ALL_GATHER) status = mdp_all_gather(comm, &from, &to, NULL, out);
  if (what == BROADCAST) status = mdp_broadcast(comm, &to, number % n, NULL, out);
  if (what == ALL_TO_ALL) status = mdp_all_to_all(comm, &from, &to, NULL, out);
  if (what == BARRIER) status = mdp_barrier(comm, NULL);
  c.failed = !did(status, name_of(what), __FILE__, __LINE__);
  if (!with_request && c.request != NULL) c.failed = !DID(mdp_request_wait(c.request, UINT64_MAX));
  return c;
}

static float result(const call* c, int element) {
  const int piece = CALL_LENGTH / c->ranks;
  float sum = 0;
  switch (c->what) {
    case ALL_REDUCE:
      for (int32_t r = 0; r < c->ranks; ++r) sum += given(c, r, element);
      return sum;
    case ALL_GATHER:
      return given(c, element / CALL_LENGTH, element % CALL_LENGTH);
    case BROADCAST:
      return given(c, c->number % c->ranks, element);
    default:
      return given(c, element / piece, c->rank * piece + element % piece);
  }
}

void call_end(call* c) {
  if (c->request != NULL && !c->failed) c->failed = !DID(mdp_request_wait(c->request, UINT64_MAX));
  mdp_request_free(c->request);
  c->request = NULL;
  if (c->failed || c->what == BARRIER) return;
  int wrong = 0;
  const int length = c->what == ALL_GATHER ? CALL_LENGTH * c->ranks : CALL_LENGTH;
  for (int i = 0; i < length; ++i) wrong += c->to[i] != result(c, i);
  check_that(wrong == 0, name_of(c->what), __FILE__, __LINE__);
}

void call_now(mdp_comm* comm, kind what, int number, room* r, int slot) {
  call c = call_begin(comm, what, number, r, slot, 0);
  call_end(&c);
}
