/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints that are written while training goes on: what is in them is what was there when the call returned; failures reach whoever
 * asks; what is destroyed before it is written is given up. */
#include <dirent.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

enum {
  COUNT = 3,
  SMALL = 3001,
  LARGE = 2000003 /* elements: writing them takes longer than a call */
};
static const char* const names[COUNT] = {"a", "b", "c"};
static const mdp_dtype dtypes[COUNT] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_F32};

static void path_of(char* path, size_t room, const char* name) {
  snprintf(path, room, "%s/%s", folder, name);
}

static job job_of(const mdp_unique_id* id, int32_t rank, int32_t n, int64_t elements) {
  job j = {.comm = comm_open(id, rank, n, UINT64_C(60000000000))};
  mdp_param params[COUNT];
  memset(params, 0, sizeof params);
  for (int p = 0; p < COUNT; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = dtypes[p];
    params[p].ndim = 1;
    params[p].shape = &elements;
  }
  OK(mdp_buffer_register(j.comm, NULL, NULL, params, COUNT, &j.buffer));
  OK(mdp_optimizer_create(j.buffer, NULL, &j.optimizer));
  return j;
}

/* Exact sums: the same on every number of ranks. */
static void step(const job* j, int64_t elements, int number) {
  float* const values = malloc((size_t)elements * sizeof *values);
  for (int p = COUNT; p-- > 0;) {
    for (int64_t i = 0; i < elements; ++i) values[i] = (float)((i * (3 + p) + number * 7) % 17 - 8);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &elements);
    OK(mdp_grad_put(j->buffer, (size_t)p, &t, 0, NULL));
  }
  free(values);
  OK(mdp_optimizer_step(j->optimizer, NULL, NULL, NULL));
}

static mdp_checkpoint_part part_of(const job* j) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
  return part;
}

static mdp_status save(const job* j, const char* directory, mdp_request** out) {
  const mdp_checkpoint_part part = part_of(j);
  const char data[] = "of all", mine[] = {(char)mdp_comm_rank(j->comm)};
  const mdp_checkpoint_config config = {.struct_size = sizeof config,
                                        .directory = directory,
                                        .parts = &part,
                                        .part_count = 1,
                                        .shared_data = data,
                                        .shared_bytes = sizeof data,
                                        .rank_data = mine,
                                        .rank_bytes = sizeof mine};
  return mdp_checkpoint_save(&config, out);
}

static mdp_status load(const job* j, const char* directory) {
  const mdp_checkpoint_part part = part_of(j);
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1};
  return mdp_checkpoint_load(&config);
}

static int is_there(const char* directory, const char* name) {
  char at[800];
  snprintf(at, sizeof at, "%s/%s", directory, name);
  return access(at, F_OK) == 0;
}

/* All that is in it, also what is hidden. */
static int entries(const char* directory) {
  DIR* const open = opendir(directory);
  if (open == NULL) return 0;
  int count = -2;
  while (readdir(open) != NULL) ++count;
  closedir(open);
  return count;
}

/* The same steps as `like` has taken. */
static void expect_steps(const job* j, int64_t elements, int steps) {
  job like = job_of(NULL, 0, 1, elements);
  for (int number = 0; number < steps; ++number) step(&like, elements, number);
  float *const got = malloc((size_t)elements * sizeof *got), *const expected = malloc((size_t)elements * sizeof *expected);
  for (size_t p = 0; p < COUNT; ++p) {
    const mdp_tensor a = tensor_of(MDP_DTYPE_F32, got, &elements), b = tensor_of(MDP_DTYPE_F32, expected, &elements);
    OK(mdp_param_read(j->buffer, p, &a, NULL));
    OK(mdp_param_read(like.buffer, p, &b, NULL));
    CHECK(memcmp(got, expected, (size_t)elements * sizeof *got) == 0);
    uint64_t taken = 0;
    OK(mdp_optimizer_steps(j->optimizer, p, &taken));
    CHECK(taken == (uint64_t)steps);
  }
  free(got);
  free(expected);
  job_close(&like);
}

static void train_while_saving(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const char* const directory = argument;
  job j = job_of(id, rank, n, LARGE);
  step(&j, LARGE, 0);
  step(&j, LARGE, 1);
  mdp_request* request = NULL;
  OK(save(&j, directory, &request));
  step(&j, LARGE, 2);
  step(&j, LARGE, 3);
  OK(mdp_request_wait(request, UINT64_MAX));
  OK(mdp_request_test(request));
  mdp_request_free(request);
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void what_was_there_is_saved(void** state) {
  (void)state;
  char directory[300];
  path_of(directory, sizeof directory, "train");
  run_ranks(2, train_while_saving, directory);
  job j = job_of(NULL, 0, 1, LARGE);
  OK(load(&j, directory));
  expect_steps(&j, LARGE, 2);
  step(&j, LARGE, 2);
  expect_steps(&j, LARGE, 3);
  char data[8];
  size_t bytes = 0;
  OK(mdp_checkpoint_data(directory, -1, data, sizeof data, &bytes));
  CHECK(bytes == 7 && memcmp(data, "of all", 7) == 0);
  OK(mdp_checkpoint_data(directory, 1, data, sizeof data, &bytes));
  CHECK(bytes == 1 && data[0] == 1);
  job_close(&j);
}

static void save_again_and_again(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const char* const directory = argument;
  job j = job_of(id, rank, n, SMALL);
  mdp_request* requests[3];
  for (int k = 0; k < 3; ++k) {
    step(&j, SMALL, k);
    OK(save(&j, directory, &requests[k]));
  }
  OK(save(&j, directory, NULL)); /* waits for them */
  for (int k = 0; k < 3; ++k) {
    OK(mdp_request_test(requests[k]));
    mdp_request_free(requests[k]);
  }
  mdp_request* last = NULL;
  step(&j, SMALL, 3);
  OK(save(&j, directory, &last));
  mdp_request_free(last);
  step(&j, SMALL, 4);
  OK(load(&j, directory)); /* so does a load */
  expect_steps(&j, SMALL, 4);
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void one_after_another(void** state) {
  (void)state;
  char directory[300];
  path_of(directory, sizeof directory, "again");
  run_ranks(3, save_again_and_again, directory);
  CHECK(entries(directory) == 5 && is_there(directory, "checkpoint-000005"));
}

static void fail_and_go_on(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const char* const directory = argument;
  job j = job_of(id, rank, n, SMALL);
  mdp_request* request = NULL;
  OK(save(&j, "/dev/null", &request));
  step(&j, SMALL, 0);
  FAILS(MDP_E_SYSTEM, "Not a directory", mdp_request_wait(request, UINT64_MAX));
  FAILS(MDP_E_SYSTEM, "Not a directory", mdp_request_test(request));
  mdp_request_free(request);
  OK(save(&j, directory, NULL)); /* it is known already */

  /* One rank has asked, the other has not: both learn of it with the next save, once. */
  OK(save(&j, "/dev/null", &request));
  if (rank == 0) FAILS(MDP_E_SYSTEM, "Not a directory", mdp_request_wait(request, UINT64_MAX));
  while (mdp_request_peek(request) == MDP_PENDING) usleep(1000);
  OK(mdp_request_peek(request)); /* it is not asked by that */
  mdp_request_free(request);
  FAILS(MDP_E_SYSTEM, "the save before this one", save(&j, directory, NULL));
  OK(mdp_barrier(j.comm, NULL));
  if (rank == 0) CHECK(entries(directory) == 1);
  OK(mdp_barrier(j.comm, NULL));
  OK(save(&j, directory, &request));
  OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void failures_reach_the_next_call(void** state) {
  (void)state;
  char directory[300];
  path_of(directory, sizeof directory, "fails");
  run_ranks(2, fail_and_go_on, directory);
  CHECK(entries(directory) == 2);
}

typedef struct {
  const char* directory;
  int given_up, whole;
} ending;

static void destroy_while_saving(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  ending* const of_rank_0 = argument;
  job j = job_of(id, rank, n, LARGE);
  mdp_request* request = NULL;
  OK(save(&j, of_rank_0->directory, &request));
  if (rank == 0) {
    mdp_optimizer_destroy(j.optimizer);
    j.optimizer = NULL;
  }
  const mdp_status ended = mdp_request_wait(request, UINT64_MAX);
  CHECK(ended == MDP_OK || (ended == MDP_E_ABORTED && strstr(mdp_last_error(), "was destroyed before its checkpoint was written") != NULL));
  if (rank == 0) *(ended == MDP_OK ? &of_rank_0->whole : &of_rank_0->given_up) += 1;
  mdp_request_free(request);
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void leave_while_saving(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  job j = job_of(id, rank, n, LARGE);
  mdp_request* request = NULL;
  OK(save(&j, argument, &request));
  mdp_request_free(request);
  job_close(&j);
}

static void what_is_destroyed_is_given_up(void** state) {
  (void)state;
  char directory[300];
  path_of(directory, sizeof directory, "destroyed");
  ending found = {.directory = directory};
  for (int k = 0; k < 5; ++k) run_ranks(2, destroy_while_saving, &found);
  CHECK(found.given_up > 0);
  CHECK(entries(directory) == found.whole);
  run_ranks(2, leave_while_saving, directory);
  job j = job_of(NULL, 0, 1, SMALL);
  for (int k = 0; k < 2; ++k) OK(save(&j, directory, NULL)); /* takes away what may be left */
  DIR* const open = opendir(directory);
  for (const struct dirent* each; (each = readdir(open)) != NULL;) CHECK(strncmp(each->d_name, ".saving", 7) != 0);
  closedir(open);
  job_close(&j);
}

static void collect(void* user, mdp_log_level level, const char* text, size_t length) {
  if (level == MDP_LOG_WARNING) snprintf(user, 600, "%.*s", (int)length, text);
}

/* A save, and everything goes. What was logged of it. */
static const char* log_of(const char* directory, mdp_status (*ask)(mdp_request*)) {
  static char logged[600];
  logged[0] = '\0';
  OK(mdp_log_set(collect, logged));
  job j = job_of(NULL, 0, 1, LARGE);
  mdp_request* request = NULL;
  OK(save(&j, directory, &request));
  while (ask != NULL && ask(request) == MDP_PENDING) usleep(1000);
  mdp_request_free(request);
  job_close(&j);
  OK(mdp_log_set(collect, logged)); /* what was logged is delivered at the end of a call */
  OK(mdp_log_set(NULL, NULL));
  return logged;
}

static void what_nobody_asked_is_logged(void** state) {
  (void)state;
  char directory[300];
  path_of(directory, sizeof directory, "unasked");
  CHECK(strstr(log_of("/dev/null", mdp_request_peek), "that was saved into /dev/null is not there: ") != NULL);
  CHECK(log_of("/dev/null", mdp_request_test)[0] == '\0');
  CHECK(log_of(directory, mdp_request_peek)[0] == '\0');
  int given_up = 0;
  for (int k = 0; k < 10 && !given_up; ++k) given_up = strstr(log_of(directory, NULL), "given up: ") != NULL;
  CHECK(given_up);
}

static void its_end_is_an_event(void** state) {
  (void)state;
  char directory[300];
  path_of(directory, sizeof directory, "event");
  job j = job_of(NULL, 0, 1, SMALL);
  int fd = -1;
  OK(mdp_comm_event_fd(j.comm, &fd));
  mdp_request* request = NULL;
  OK(save(&j, directory, &request));
  struct pollfd polled = {.fd = fd, .events = POLLIN};
  CHECK(poll(&polled, 1, 60000) == 1);
  OK(mdp_request_test(request));
  CHECK(poll(&polled, 1, 0) == 0);
  mdp_request_free(request);
  job_close(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(what_was_there_is_saved),       TEST(one_after_another),           TEST(failures_reach_the_next_call),
      TEST(what_is_destroyed_is_given_up), TEST(what_nobody_asked_is_logged), TEST(its_end_is_an_event),
  };
  return cmocka_run_group_tests(tests, open_folder, close_folder);
}
