/* SPDX-License-Identifier: Apache-2.0
 * Right arguments at the wrong moment, on one rank: each call is a legal move or MDP_E_STATE with a sentence that names the parameter, the
 * bucket and its state; and after it the step can go on. */
#include <math.h>
#include <string.h>

#include "fixture.h"

static job alone;

static int open_job(void** state) {
  (void)state;
  be_alone();
  alone = job_open(NULL, 0, 1);
  return 0;
}

static int close_job(void** state) {
  (void)state;
  job_close(&alone);
  return 0;
}

static float values[6] = {1, 2, 3, 4, 5, 6};

static mdp_tensor gradient_of(size_t param) {
  SIZED(mdp_tensor, t);
  t.dtype = MDP_DTYPE_F32;
  t.data = values;
  t.ndim = job_params[param].ndim;
  t.shape = job_params[param].shape;
  return t;
}

static mdp_status put(size_t param, uint64_t flags) {
  const mdp_tensor t = gradient_of(param);
  return mdp_grad_put(alone.buffer, param, &t, flags, NULL);
}

static void finish_step(void) {
  OK(mdp_grad_sync(alone.buffer, NULL, NULL));
  OK(mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
}

static mdp_error_info last(void) {
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  return info;
}

static void ready_twice(void** state) {
  (void)state;
  OK(put(FIRST, 0));
  FAILS(MDP_E_STATE, "parameter 0 'first' is ready already", put(FIRST, 0));
  const mdp_error_info info = last();
  CHECK(info.param == FIRST && info.bucket >= 0 && info.rank == -1 && info.operation == 0);
  FAILS(MDP_E_STATE, "'first' is ready already", mdp_grad_ready(alone.buffer, FIRST, NULL));
  FAILS(MDP_E_STATE, "'first'", mdp_grad_skip(alone.buffer, FIRST));
  OK(mdp_grad_skip(alone.buffer, SECOND));
  FAILS(MDP_E_STATE, "'second' was skipped in this step", mdp_grad_ready(alone.buffer, SECOND, NULL));
  OK(mdp_grad_ready(alone.buffer, EMPTY, NULL));
  finish_step();
}

/* More of the same gradient may come until one says that it is all. */
static void more_to_come(void** state) {
  (void)state;
  OK(put(FIRST, MDP_GRAD_MORE));
  OK(put(FIRST, MDP_GRAD_MORE));
  OK(put(FIRST, MDP_GRAD_ADD));
  FAILS(MDP_E_STATE, "ready already", put(FIRST, MDP_GRAD_MORE));
  SIZED(mdp_tensor, view);
  OK(mdp_buffer_grad_view(alone.buffer, FIRST, &view));
  OK(mdp_grad_skip(alone.buffer, SECOND));
  OK(mdp_grad_skip(alone.buffer, EMPTY));
  sync_and_wait(alone.buffer);
  for (size_t i = 0; i < 6; ++i) CHECK(((const float*)view.data)[i] == 3 * values[i]);
  OK(mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
}

static void after_sync(void** state) {
  (void)state;
  put_all(alone.buffer);
  OK(mdp_grad_sync(alone.buffer, NULL, NULL));
  OK(mdp_grad_sync(alone.buffer, NULL, NULL)); /* a finished move repeated is a no-op */
  FAILS(MDP_E_STATE, "'first' comes after mdp_grad_sync", put(FIRST, 0));
  FAILS(MDP_E_STATE, "'first' comes after mdp_grad_sync", mdp_grad_ready(alone.buffer, FIRST, NULL));
  FAILS(MDP_E_STATE, "'first' comes after mdp_grad_sync", mdp_grad_skip(alone.buffer, FIRST));
  OK(mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
}

/* A step syncs if the caller has not, and says what a sync says. */
static void step_without_sync(void** state) {
  (void)state;
  FAILS(MDP_E_STATE, "'empty' never became ready", mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
  FAILS(MDP_E_STATE, "the gradients are not whole", mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
  OK(mdp_microbatch_begin(alone.buffer, 0));
  put_all(alone.buffer);
  FAILS(MDP_E_STATE, "not the last", mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
  OK(mdp_microbatch_begin(alone.buffer, 1));
  put_all(alone.buffer);
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(alone.optimizer, NULL, &report, NULL));
  CHECK(report.grad_norm > 0);
  FAILS(MDP_E_STATE, "'empty' never became ready", mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
  OK(mdp_buffer_zero_grad(alone.buffer, NULL));
  put_all(alone.buffer);
  mdp_request* request = NULL;
  OK(mdp_optimizer_step(alone.optimizer, NULL, NULL, &request));
  OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
}

static void missing_parameter(void** state) {
  (void)state;
  OK(put(FIRST, 0));
  OK(put(EMPTY, 0));
  FAILS(MDP_E_STATE, "'second' never became ready", mdp_grad_sync(alone.buffer, NULL, NULL));
  const mdp_error_info info = last();
  CHECK(info.param == SECOND && info.rank == 0 && info.bucket >= 0);
  FAILS(MDP_E_STATE, "the gradients are not whole", mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
  FAILS(MDP_E_STATE, "'second' never became ready", mdp_grad_sync(alone.buffer, NULL, NULL));
  /* Not a failure of the communicator; beginning anew is all it takes. */
  SIZED(mdp_error_info, sticky);
  OK(mdp_comm_error_info(alone.comm, &sticky));
  CHECK(sticky.status == MDP_OK && sticky.rank == -1 && sticky.text[0] == '\0');
  OK(mdp_buffer_zero_grad(alone.buffer, NULL));
  put_all(alone.buffer);
  finish_step();
}

static void zero_grad_in_the_middle(void** state) {
  (void)state;
  OK(put(FIRST, MDP_GRAD_MORE));
  OK(mdp_buffer_zero_grad(alone.buffer, NULL));
  put_all(alone.buffer); /* every bucket is launched */
  FAILS(MDP_E_STATE, "are launched already", mdp_buffer_zero_grad(alone.buffer, NULL));
  finish_step();
}

static void microbatches(void** state) {
  (void)state;
  OK(mdp_microbatch_begin(alone.buffer, 0));
  put_all(alone.buffer);
  FAILS(MDP_E_STATE, "not the last", mdp_grad_sync(alone.buffer, NULL, NULL));
  OK(mdp_microbatch_begin(alone.buffer, 0)); /* begins a step anew */
  put_all(alone.buffer);
  FAILS(MDP_E_STATE, "ready already", put(FIRST, 0));
  OK(mdp_microbatch_begin(alone.buffer, 1));
  put_all(alone.buffer);
  FAILS(MDP_E_STATE, "last microbatch have come already", mdp_microbatch_begin(alone.buffer, 1));
  SIZED(mdp_tensor, view);
  OK(mdp_buffer_grad_view(alone.buffer, FIRST, &view));
  sync_and_wait(alone.buffer);
  for (size_t i = 0; i < 6; ++i) CHECK(((const float*)view.data)[i] == 2 * values[i]);
  OK(mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
}

/* The usual order in PyTorch: what was said of the microbatch still holds. */
static void zero_grad_in_the_first_microbatch(void** state) {
  (void)state;
  OK(mdp_microbatch_begin(alone.buffer, 0));
  OK(mdp_buffer_zero_grad(alone.buffer, NULL));
  put_all(alone.buffer);
  SIZED(mdp_bucket_report, bucket);
  OK(mdp_buffer_bucket(alone.buffer, 0, &bucket));
  CHECK(bucket.state != MDP_BUCKET_IN_FLIGHT && bucket.state != MDP_BUCKET_REDUCED);
  OK(mdp_microbatch_begin(alone.buffer, 1));
  put_all(alone.buffer);
  finish_step();
}

/* A part of a gradient, too, belongs to the microbatch it came in. */
static void a_microbatch_after_part_of_a_gradient(void** state) {
  (void)state;
  OK(put(FIRST, MDP_GRAD_MORE));
  FAILS(MDP_E_STATE, "last microbatch have come already", mdp_microbatch_begin(alone.buffer, 1));
  OK(mdp_buffer_zero_grad(alone.buffer, NULL));
  put_all(alone.buffer);
  finish_step();
}

/* The times of one step can be read together, when it is over. */
static void times_of_a_bucket(void** state) {
  (void)state;
  put_all(alone.buffer);
  OK(mdp_grad_sync(alone.buffer, NULL, NULL));
  step_and_wait(alone.optimizer);
  SIZED(mdp_bucket_report, bucket);
  OK(mdp_buffer_bucket(alone.buffer, 0, &bucket));
  CHECK(bucket.ready_ns > 0 && bucket.ready_ns <= bucket.reduce_begin_ns && bucket.reduce_begin_ns <= bucket.reduce_end_ns);
  CHECK(bucket.sync_ns >= bucket.ready_ns && bucket.gather_begin_ns >= bucket.reduce_end_ns &&
        bucket.gather_end_ns >= bucket.gather_begin_ns);
}

static void frozen_parameter(void** state) {
  (void)state;
  SIZED(mdp_tensor, view);
  mdp_tensor t = gradient_of(FROZEN);
  const char* part = "'frozen' is frozen";
  FAILS(MDP_E_STATE, part, mdp_buffer_param_view(alone.buffer, FROZEN, &view));
  CHECK(last().param == FROZEN);
  FAILS(MDP_E_STATE, part, mdp_buffer_grad_view(alone.buffer, FROZEN, &view));
  FAILS(MDP_E_STATE, part, mdp_param_read(alone.buffer, FROZEN, &t, NULL));
  FAILS(MDP_E_STATE, part, mdp_param_write(alone.buffer, FROZEN, &t, NULL));
  FAILS(MDP_E_STATE, part, put(FROZEN, 0));
  FAILS(MDP_E_STATE, part, mdp_grad_ready(alone.buffer, FROZEN, NULL));
  FAILS(MDP_E_STATE, part, mdp_grad_skip(alone.buffer, FROZEN));
  FAILS(MDP_E_STATE, part, mdp_optimizer_state(alone.optimizer, FROZEN, "master", &view));
  OK(mdp_param_wait(alone.buffer, FROZEN, NULL)); /* nothing to wait for */
  CHECK(view.data == NULL);
}

static void not_a_number(void** state) {
  (void)state;
  float before[6], after[6];
  mdp_tensor copy = gradient_of(FIRST);
  copy.data = before;
  OK(mdp_param_read(alone.buffer, FIRST, &copy, NULL));
  for (int scaled = 0; scaled < 2; ++scaled) {
    OK(mdp_buffer_zero_grad(alone.buffer, NULL));
    values[3] = NAN;
    OK(put(FIRST, 0));
    values[3] = 4;
    OK(put(SECOND, 0));
    OK(put(EMPTY, 0));
    OK(mdp_grad_sync(alone.buffer, NULL, NULL));
    SIZED(mdp_step_config, config);
    SIZED(mdp_step_report, report);
    config.loss_scale = scaled ? 8 : 0;
    if (scaled) {
      OK(mdp_optimizer_step(alone.optimizer, &config, &report, NULL));
      CHECK(report.flags == MDP_STEPPED_SKIPPED && report.loss_scale == 8);
    } else {
      FAILS(MDP_E_NUMERIC, "not finite", mdp_optimizer_step(alone.optimizer, &config, &report, NULL));
    }
    copy.data = after;
    OK(mdp_param_read(alone.buffer, FIRST, &copy, NULL));
    CHECK(memcmp(before, after, sizeof before) == 0);
  }
  put_all(alone.buffer);
  finish_step();
}

/* ── Masters ── */

/* bf16, five times `value`. */
static void write_second(mdp_buffer* buffer, float value) {
  float five[5] = {value, value, value, value, value};
  mdp_tensor t = gradient_of(SECOND);
  t.data = five;
  OK(mdp_param_write(buffer, SECOND, &t, NULL));
}

static float read_second(mdp_buffer* buffer) {
  float five[5];
  mdp_tensor t = gradient_of(SECOND);
  t.data = five;
  OK(mdp_param_read(buffer, SECOND, &t, NULL));
  return five[2];
}

static mdp_optimizer* optimizer_of(double lr) {
  SIZED(mdp_optimizer_config, config);
  config.lr = lr;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(alone.buffer, &config, &optimizer));
  return optimizer;
}

static void step_by(mdp_optimizer* optimizer) {
  put_all(alone.buffer);
  OK(mdp_grad_sync(alone.buffer, NULL, NULL));
  OK(mdp_optimizer_step(optimizer, NULL, NULL, NULL));
}

/* Updates too small for bf16 add up in the master, also while another parameter is written before every step. */
static void writing_one_parameter_keeps_the_others_masters(void** state) {
  (void)state;
  write_second(alone.buffer, 1);
  mdp_optimizer* optimizer = optimizer_of(1e-3); /* 1 and the next smaller bf16 are 0.0039 apart */
  for (int step = 0; step < 10; ++step) {
    const mdp_tensor t = gradient_of(FIRST);
    OK(mdp_param_write(alone.buffer, FIRST, &t, NULL));
    step_by(optimizer);
  }
  const float now = read_second(alone.buffer);
  CHECK(now < 0.9925F && now > 0.987F);
  mdp_optimizer_destroy(optimizer);
}

static void an_optimizer_takes_over_what_another_did(void** state) {
  (void)state;
  write_second(alone.buffer, 1);
  mdp_optimizer *small = optimizer_of(1e-3), *large = optimizer_of(0.5);
  step_by(small);
  step_by(large);
  CHECK(fabsf(read_second(alone.buffer) - 0.5F) < 0.01F);
  step_by(small);
  CHECK(fabsf(read_second(alone.buffer) - 0.5F) < 0.02F);
  mdp_optimizer_destroy(small);
  mdp_optimizer_destroy(large);
}

/* ── Requests of steps, and steps that are refused ── */

/* What a step's request says does not depend on the steps taken since. */
static void a_step_that_failed_before_another(void** state) {
  (void)state;
  mdp_request *failed = NULL, *fine = NULL;
  values[3] = NAN;
  OK(put(FIRST, 0));
  values[3] = 4;
  OK(mdp_grad_skip(alone.buffer, SECOND));
  OK(mdp_grad_skip(alone.buffer, EMPTY));
  OK(mdp_grad_sync(alone.buffer, NULL, NULL));
  OK(mdp_optimizer_step(alone.optimizer, NULL, NULL, &failed));
  put_all(alone.buffer);
  OK(mdp_grad_sync(alone.buffer, NULL, NULL));
  OK(mdp_optimizer_step(alone.optimizer, NULL, NULL, &fine));
  OK(mdp_request_wait(fine, UINT64_MAX));
  FAILS(MDP_E_NUMERIC, "not finite", mdp_request_wait(failed, UINT64_MAX));
  mdp_request_free(failed);
  mdp_request_free(fine);
}

/* The learning rate that came with a refused step is not taken over. */
static void a_refused_step_changes_nothing(void** state) {
  (void)state;
  mdp_optimizer* optimizer = optimizer_of(1e-3);
  SIZED(mdp_step_config, config);
  config.lr = 1;
  write_second(alone.buffer, 1);
  FAILS(MDP_E_STATE, "never became ready", mdp_optimizer_step(optimizer, &config, NULL, NULL));
  OK(mdp_microbatch_begin(alone.buffer, 1));
  step_by(optimizer);
  CHECK(fabsf(read_second(alone.buffer) - 1) < 0.01F);
  mdp_optimizer_destroy(optimizer);
}

static void unknown_group(void** state) {
  (void)state;
  mdp_param params[1] = {job_params[FIRST]};
  params[0].param_group = 1;
  mdp_buffer* buffer = NULL;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_buffer_register(NULL, alone.grid, NULL, params, 1, &buffer));
  FAILS(MDP_E_INVALID, "'first' is in parameter group 1; the optimizer has 1 group", mdp_optimizer_create(buffer, NULL, &optimizer));
  CHECK(optimizer == NULL && last().param == 0);
  mdp_param_group groups[2] = {{.struct_size = sizeof(mdp_param_group)}, {.struct_size = sizeof(mdp_param_group), .weight_decay = 0.1}};
  SIZED(mdp_optimizer_config, config);
  config.param_groups = groups;
  config.param_group_count = 2;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  OK(mdp_optimizer_set_param_group(optimizer, 1, &groups[0]));
  FAILS(MDP_E_INVALID, "group is 2", mdp_optimizer_set_param_group(optimizer, 2, &groups[0]));
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
}

/* After an abort every call that would move the step on fails with it; looking still works, and so does destroying. */
static void after_abort(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  SIZED(mdp_error_info, info);
  OK(mdp_comm_error_info(j.comm, &info));
  CHECK(info.status == MDP_OK);
  OK(mdp_comm_abort(j.comm));
  OK(mdp_comm_abort(j.comm));
  const char* part = "rank 0 called mdp_comm_abort";
  const mdp_tensor t = gradient_of(FIRST);
  mdp_comm* part_comm = NULL;
  FAILS(MDP_E_ABORTED, part, mdp_barrier(j.comm, NULL));
  CHECK(last().rank == 0);
  FAILS(MDP_E_ABORTED, part, mdp_comm_split(j.comm, 0, 0, &part_comm));
  FAILS(MDP_E_ABORTED, part, mdp_all_reduce(j.comm, &t, &t, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_ABORTED, part, mdp_grad_put(j.buffer, FIRST, &t, 0, NULL));
  FAILS(MDP_E_ABORTED, part, mdp_grad_ready(j.buffer, FIRST, NULL));
  FAILS(MDP_E_ABORTED, part, mdp_grad_skip(j.buffer, FIRST));
  FAILS(MDP_E_ABORTED, part, mdp_grad_sync(j.buffer, NULL, NULL));
  FAILS(MDP_E_ABORTED, part, mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  FAILS(MDP_E_ABORTED, part, mdp_param_wait(j.buffer, SIZE_MAX, NULL));
  OK(mdp_comm_error_info(j.comm, &info));
  CHECK(info.status == MDP_E_ABORTED && info.rank == 0 && strstr(info.text, part) != NULL);
  SIZED(mdp_tensor, view);
  OK(mdp_buffer_param_view(j.buffer, FIRST, &view));
  CHECK(mdp_comm_rank(j.comm) == 0);
  size_t needed;
  OK(mdp_buffer_owned(j.buffer, NULL, 0, &needed));
  job_close(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(ready_twice),
      TEST(more_to_come),
      TEST(after_sync),
      TEST(step_without_sync),
      TEST(missing_parameter),
      TEST(zero_grad_in_the_middle),
      TEST(microbatches),
      TEST(frozen_parameter),
      TEST(not_a_number),
      TEST(writing_one_parameter_keeps_the_others_masters),
      TEST(an_optimizer_takes_over_what_another_did),
      TEST(a_step_that_failed_before_another),
      TEST(a_refused_step_changes_nothing),
      TEST(zero_grad_in_the_first_microbatch),
      TEST(a_microbatch_after_part_of_a_gradient),
      TEST(times_of_a_bucket),
      TEST(unknown_group),
      TEST(after_abort),
  };
  return cmocka_run_group_tests(tests, open_job, close_job);
}
