/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of orders between collectives share: a model whose gradients and parameters are known to the bit, collectives of the
 * caller's whose results are known, and orders and delays that differ from rank to rank and are the same on every run. Checks as in
 * fixture.h, on any thread. */
#ifndef MEGADP_TESTS_CAPI_CHANNELS_H
#define MEGADP_TESTS_CAPI_CHANNELS_H

#include "fixture.h"

enum {
  PARTS = 3,          /* parameters of a model, each a bucket of its own */
  PART_LENGTH = 1000, /* elements of each: of every bucket there is a piece for each rank */
  CALL_LENGTH = 24,   /* elements that a rank gives to a collective: of any number of ranks up to four */
  MOST_RANKS = 4,
  SLOTS = 24 /* collectives that one rank may have in flight */
};

/* A communicator that fails quickly where ranks wait for each other; ThreadSanitizer is no reason for it. */
mdp_comm* comm_in_time(const mdp_unique_id* id, int32_t rank, int32_t nranks);
/* Whether its context is unusable. Once one was, go_on() is false: the next ranks would only wait in vain once more. */
int lost(mdp_comm* comm);
int go_on(void);
/* To be called where a test begins: go_on() is true again. */
void begin_test(void);

/* As OK, but of what fails on a thread only the first is said: the rest follows from it. */
int did(mdp_status status, const char* what, const char* file, int line);
#define DID(call) did((call), #call, __FILE__, __LINE__)

/* ── Orders and delays ── */

typedef struct {
  uint64_t state;
} dice;
dice dice_of(int32_t rank, int repetition);
int roll(dice* d, int sides);
/* Nothing in half of all cases, up to a millisecond in the others. */
void a_moment(dice* d);
/* One of the orders in which `lists` series may be gone through together: which of them is next, as often as their lengths say. */
void shuffle(dice* d, const int* lengths, int lists, int* order);

/* ── A model ── */

typedef struct {
  mdp_buffer *buffer, *source; /* source: on a device, an array of the device's that gradients are put from */
  mdp_optimizer* optimizer;
  int32_t dp, dp_index, column; /* data-parallel ranks, this one's number, and that of its tensor-parallel column */
  int number, step;
  float expected[PARTS][PART_LENGTH];
} model;
/* Models of other numbers have other gradients; even ones are ZERO_1, odd ones ZERO_0. Collective over the grid's world. */
model model_open(mdp_grid* grid, int number);
void model_close(model* m);
/* This rank's gradient of a part. A backward pass goes from the last part to the first. */
void put_part(model* m, int part, int by_ready);
/* The same, from an array of the host also on a device. */
void put_part_from_host(model* m, int part);
void put_parts(model* m, int by_ready, dice* d);
/* After the sync: this rank's pieces of the reduced gradients are right to the bit. */
void check_gradients(model* m);
/* After the step: all parameters are. The next step begins. */
void check_parameters(model* m);
/* Waits for the request and frees it. */
void finish_request(mdp_request* request);
void sync_and_check(model* m);
void step_and_check(model* m);

/* ── Collectives of the caller's ── */

typedef enum {
  ALL_REDUCE,
  ALL_GATHER,
  BROADCAST,
  ALL_TO_ALL,
  BARRIER, /* never with a request */
  KINDS
} kind;

/* A rank's arrays for them: of the host, which outlive the rank; on a device every other slot is the device's own. */
typedef struct {
  int32_t rank;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_tensor device;
} room;
room room_open(mdp_comm* world);
void room_close(room* r);

typedef struct {
  kind what;
  int number, failed;
  int32_t rank, ranks; /* of the communicator, which may be gone before the call is over */
  float *from, *to;
  mdp_request* request;
} call;
/* Number `number` of the calls on `comm`, with the arrays of slot `slot`. Without a request it is over when this returns. */
call call_begin(mdp_comm* comm, kind what, int number, room* r, int slot, int with_request);
/* Waits for it, and checks what it gave. */
void call_end(call* c);
void call_now(mdp_comm* comm, kind what, int number, room* r, int slot);

#endif
