/* SPDX-License-Identifier: Apache-2.0
 *
 * What the suites of the C API share: checks that work on any thread, a small job (communicator, grid, buffer, optimizer) on one rank or
 * on several thread-ranks, and structs with their size filled in.
 *
 * cmocka's own assertions jump out of the function, which only its own thread may do. So a check that fails is counted and printed, and a
 * teardown behind every test (TEST) fails it when the count is not zero. */
#ifndef MEGADP_TESTS_CAPI_FIXTURE_H
#define MEGADP_TESTS_CAPI_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h> /* after the four it needs */

#include "megadp.h"

/* Any thread. Return whether they held. */
int check_that(int held, const char* what, const char* file, int line);
/* `status` is `wanted`; a failure's sentence contains `part` (NULL: any), and mdp_last_error_info agrees with it. */
int check_status(mdp_status status, mdp_status wanted, const char* part, const char* what, const char* file, int line);
#define CHECK(condition) check_that((condition) != 0, #condition, __FILE__, __LINE__)
#define OK(call) check_status((call), MDP_OK, NULL, #call, __FILE__, __LINE__)
#define FAILS(code, part, call) check_status((call), (code), (part), #call, __FILE__, __LINE__)

int all_checks_held(void** state);
#define TEST(function) cmocka_unit_test_teardown(function, all_checks_held)
/* Ends the test here, and says why where scripts/test_summary.py finds it. */
#define SKIP(why) (printf("skipped %s: %s\n", __func__, why), fflush(stdout), skip())

/* Sanitizers keep freed memory for a while and report a read of it themselves; ThreadSanitizer starts no threads in a forked child, and
 * makes everything many times slower. */
#if defined(__SANITIZE_THREAD__)
enum {
  UNDER_SANITIZER = 1,
  UNDER_THREAD_SANITIZER = 1
};
#elif defined(__SANITIZE_ADDRESS__)
enum {
  UNDER_SANITIZER = 1,
  UNDER_THREAD_SANITIZER = 0
};
#else
enum {
  UNDER_SANITIZER = 0,
  UNDER_THREAD_SANITIZER = 0
};
#endif

/* Whether the tests run on the CUDA backend, with a stand-in for its plugin: see tests/cuda/CMakeLists.txt. */
extern int on_cuda;

/* Waits for what the library has put on the default stream of the device: what an update function finds there. On the host nothing. */
void await_default_stream(void);
/* Work for the default stream, which is done in its turn; on the host now. */
void on_default_stream(void (*work)(void* user), void* user);

/* Removes what launchers leave in the environment: mdp_comm_create without an id is a single rank then. */
void be_alone(void);

/* A struct of type T, zero but for its size. */
#define SIZED(T, name) T name = {.struct_size = sizeof(T)}

/* A dense tensor of ndim 1 on the host, whose shape is *count. */
mdp_tensor tensor_of(mdp_dtype dtype, void* data, const int64_t* count);

/* A description of a parameter of ndim 1, whose shape is *count; the rest of it zero. */
mdp_param vector_param(const char* name, mdp_dtype dtype, const int64_t* count);

/* Rounded to the nearest bf16, to even. */
float to_bf16(float x);
/* Likewise of f16; for magnitudes below 65520. */
float to_f16(float x);

/* Four parameters: "first" f32 [2,3], "second" bf16 [5], "empty" f16 [0,4], "frozen" f32 [2]. */
enum {
  FIRST = 0,
  SECOND = 1,
  EMPTY = 2,
  FROZEN = 3,
  PARAMS = 4
};
extern const mdp_param job_params[PARAMS];

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} job;
/* id NULL: a single rank. Ends the program when it fails: nothing can be tested then. */
job job_open(const mdp_unique_id* id, int32_t rank, int32_t nranks);
/* The same with a communicator of the caller's, which the job then owns. */
job job_on(mdp_comm* comm);
void job_close(job* j);
/* Ends backward and waits until all gradients are reduced, also on a device, which a sync without a request does not wait for. */
void sync_and_wait(mdp_buffer* buffer);
/* Takes a step and waits until all of it is done, also on a device, which a step without a request does not wait for. */
void step_and_wait(mdp_optimizer* optimizer);
/* Every gradient of the step is put or skipped. */
void put_all(mdp_buffer* buffer);

/* The ranges that this rank owns; at most `room`. */
size_t owned_ranges(mdp_buffer* buffer, mdp_range* ranges, size_t room);

/* Of this rank, on the backend that is tested. */
mdp_comm_config comm_config_of(int32_t rank, int32_t nranks, uint64_t timeout_ns);
mdp_comm* comm_open(const mdp_unique_id* id, int32_t rank, int32_t nranks, uint64_t timeout_ns);

/* A new folder, and its end with all that is in it. 0: done. */
int make_folder(char* path, size_t room);
int remove_folder(const char* path);
/* One for all tests of a program, which is alone: its cmocka group's setup and teardown. */
extern char folder[256];
int open_folder(void** state);
int close_folder(void** state);

/* Runs `body` as n ranks, each a thread with the same id. */
typedef void (*rank_body)(const mdp_unique_id* id, int32_t rank, int32_t nranks, void* argument);
void run_ranks(int32_t nranks, rank_body body, void* argument);

#endif
