/* SPDX-License-Identifier: Apache-2.0
 * Messages between two ranks, and collectives of pieces of different sizes: every argument that is refused, with its sentence, and what
 * ranks get from them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channels.h"

static const uint64_t timeout_ns = UINT64_C(60000000000);
static mdp_comm* alone;
static double numbers[8], others[8];
static const int64_t three = 3, two = 2, eight = 8;

static int open_alone(void** state) {
  (void)state;
  be_alone();
  return mdp_comm_create(NULL, NULL, &alone) == MDP_OK ? 0 : 1;
}

static int close_alone(void** state) {
  (void)state;
  mdp_comm_destroy(alone);
  return 0;
}

static mdp_tensor array(double* data, const int64_t* count) {
  return tensor_of(MDP_DTYPE_F64, data, count);
}

static void counts(void** state) {
  (void)state;
  const mdp_tensor from = array(numbers, &three), to = array(others, &three), less = array(others, &two),
                   shifted = array(numbers + 1, &three);
  const uint64_t right[] = {3}, wrong[] = {4};
  const uint64_t* crooked = (const uint64_t*)(const void*)((const char*)right + 1);
  FAILS(MDP_E_INVALID, "counts is NULL", mdp_reduce_scatter_v(alone, &from, &to, NULL, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "counts is NULL", mdp_all_gather_v(alone, &from, &to, NULL, NULL, NULL));
  FAILS(MDP_E_INVALID, "from_counts is NULL", mdp_all_to_all_v(alone, &from, NULL, &to, right, NULL, NULL));
  FAILS(MDP_E_INVALID, "to_counts is NULL", mdp_all_to_all_v(alone, &from, right, &to, NULL, NULL, NULL));
  FAILS(MDP_E_INVALID, "misaligned", mdp_reduce_scatter_v(alone, &from, &to, crooked, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "misaligned", mdp_all_gather_v(alone, &from, &to, crooked, NULL, NULL));
  FAILS(MDP_E_INVALID, "from_counts", mdp_all_to_all_v(alone, &from, crooked, &to, right, NULL, NULL));
  FAILS(MDP_E_INVALID, "to_counts", mdp_all_to_all_v(alone, &from, right, &to, crooked, NULL, NULL));
  FAILS(MDP_E_INVALID, "from has 3 elements; it must have 4, the sum of counts",
        mdp_reduce_scatter_v(alone, &from, &to, wrong, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "to has 2 elements; it must have 3, which is counts[0]",
        mdp_reduce_scatter_v(alone, &from, &less, right, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "from has 3 elements; it must have 4, which is counts[0]", mdp_all_gather_v(alone, &from, &to, wrong, NULL, NULL));
  FAILS(MDP_E_INVALID, "to has 2 elements; it must have 3, the sum of counts", mdp_all_gather_v(alone, &from, &less, right, NULL, NULL));
  FAILS(MDP_E_INVALID, "from has 3 elements; it must have 4, the sum of from_counts",
        mdp_all_to_all_v(alone, &from, wrong, &to, right, NULL, NULL));
  FAILS(MDP_E_INVALID, "to has 3 elements; it must have 4, the sum of to_counts",
        mdp_all_to_all_v(alone, &from, right, &to, wrong, NULL, NULL));
  FAILS(MDP_E_INVALID, "op is 4", mdp_reduce_scatter_v(alone, &from, &to, right, 4, NULL, NULL));
  FAILS(MDP_E_INVALID, "overlap", mdp_reduce_scatter_v(alone, &from, &shifted, right, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "overlap", mdp_all_gather_v(alone, &from, &shifted, right, NULL, NULL));
  FAILS(MDP_E_INVALID, "from.data and to.data overlap; they must be apart",
        mdp_all_to_all_v(alone, &from, right, &from, right, NULL, NULL));
  const uint64_t less_expected[] = {2};
  FAILS(MDP_E_INVALID, "from_counts[0] is 3 and to_counts[0] is 2",
        mdp_all_to_all_v(alone, &from, right, &less, less_expected, NULL, NULL));
  mdp_tensor other_type = to;
  other_type.dtype = MDP_DTYPE_I64;
  FAILS(MDP_E_INVALID, "from.dtype is f64 and to.dtype is i64", mdp_all_gather_v(alone, &from, &other_type, right, NULL, NULL));
  FAILS(MDP_E_INVALID, "from.dtype is f64 and to.dtype is i64", mdp_all_to_all_v(alone, &from, right, &other_type, right, NULL, NULL));
  FAILS(MDP_E_INVALID, "from.dtype is f64 and to.dtype is i64",
        mdp_reduce_scatter_v(alone, &from, &other_type, right, MDP_OP_SUM, NULL, NULL));
}

static void ranks(void** state) {
  (void)state;
  const mdp_tensor from = array(numbers, &three), to = array(others, &three), less = array(others, &two),
                   shifted = array(numbers + 1, &three);
  FAILS(MDP_E_INVALID, "rank is 1; it must be 0 to 0", mdp_send(alone, &from, 1, NULL, NULL));
  FAILS(MDP_E_INVALID, "rank is -1; it must be 0 to 0", mdp_recv(alone, &to, -1, NULL, NULL));
  FAILS(MDP_E_INVALID, "rank is 0, which is this rank itself; mdp_send", mdp_send(alone, &from, 0, NULL, NULL));
  FAILS(MDP_E_INVALID, "rank is 0, which is this rank itself; mdp_recv", mdp_recv(alone, &to, 0, NULL, NULL));
  FAILS(MDP_E_INVALID, "to_rank is 1; it must be 0 to 0, or -1", mdp_send_recv(alone, &from, 1, &to, 0, NULL, NULL));
  FAILS(MDP_E_INVALID, "from_rank is -2; it must be 0 to 0, or -1", mdp_send_recv(alone, &from, 0, &to, -2, NULL, NULL));
  FAILS(MDP_E_INVALID, "to_rank is 0 and from_rank is -1, and this is rank 0", mdp_send_recv(alone, &from, 0, &to, -1, NULL, NULL));
  FAILS(MDP_E_INVALID, "to_rank is -1 and from_rank is 0, and this is rank 0", mdp_send_recv(alone, NULL, -1, &to, 0, NULL, NULL));
  FAILS(MDP_E_INVALID, "from has 3 f64 and to has 2 f64", mdp_send_recv(alone, &from, 0, &less, 0, NULL, NULL));
  FAILS(MDP_E_INVALID, "overlap", mdp_send_recv(alone, &from, 0, &shifted, 0, NULL, NULL));
  FAILS(MDP_E_INVALID, "from is NULL", mdp_send_recv(alone, NULL, 0, &to, 0, NULL, NULL));
  FAILS(MDP_E_INVALID, "to is NULL", mdp_send_recv(alone, &from, 0, NULL, 0, NULL, NULL));
  OK(mdp_send_recv(alone, NULL, -1, NULL, -1, NULL, NULL));
  mdp_request* request = NULL;
  OK(mdp_send_recv(alone, NULL, -1, NULL, -1, NULL, &request));
  OK(mdp_request_wait(request, timeout_ns));
  mdp_request_free(request);
}

/* A rank alone: all of it is a copy. */
static void copies(void** state) {
  (void)state;
  const uint64_t all[] = {3};
  const mdp_tensor from = array(numbers, &three), to = array(others, &three);
  for (int call = 0; call < 4; ++call) {
    for (int i = 0; i < 3; ++i) numbers[i] = 10 * call + i;
    memset(others, 0, sizeof others);
    if (call == 0) OK(mdp_send_recv(alone, &from, 0, &to, 0, NULL, NULL));
    if (call == 1) OK(mdp_all_to_all_v(alone, &from, all, &to, all, NULL, NULL));
    if (call == 2) OK(mdp_all_gather_v(alone, &from, &to, all, NULL, NULL));
    if (call == 3) OK(mdp_reduce_scatter_v(alone, &from, &to, all, MDP_OP_SUM, NULL, NULL));
    for (int i = 0; i < 3; ++i) CHECK(others[i] == 10 * call + i);
  }
}

/* Piece r has r + 1 elements; a ring; a pipeline. */
static void exchange_everything(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  double mine[10], got[16];
  uint64_t sizes[4], same[4];
  int64_t total = 0, own = rank + 1;
  for (int r = 0; r < n; ++r) {
    sizes[r] = (uint64_t)r + 1;
    same[r] = (uint64_t)rank + 1;
    total += r + 1;
  }
  const int64_t before = (int64_t)rank * (rank + 1) / 2, square = own * n;
  for (int i = 0; i < 10; ++i) mine[i] = 100 * rank + i;
  const mdp_tensor whole = array(mine, &total), piece = array(mine, &own), all = array(got, &total), part = array(got, &own),
                   column = array(got, &square);
  OK(mdp_all_gather_v(comm, &piece, &all, sizes, NULL, NULL));
  for (int r = 0, at = 0; r < n; ++r) {
    for (int i = 0; i <= r; ++i) CHECK(got[at++] == 100 * r + i);
  }
  OK(mdp_reduce_scatter_v(comm, &whole, &part, sizes, MDP_OP_SUM, NULL, NULL));
  for (int i = 0; i <= rank; ++i) CHECK(got[i] == 100.0 * n * (n - 1) / 2 + (double)n * (double)(before + i));
  OK(mdp_all_to_all_v(comm, &whole, sizes, &column, same, NULL, NULL));
  for (int s = 0; s < n; ++s) {
    for (int i = 0; i <= rank; ++i) CHECK(got[s * (rank + 1) + i] == 100 * s + (double)(before + i));
  }

  const mdp_tensor sent = array(mine, &three), received = array(got, &three);
  mdp_request* request = NULL;
  OK(mdp_send_recv(comm, &sent, (rank + 1) % n, &received, (rank + n - 1) % n, NULL, &request));
  OK(mdp_request_wait(request, timeout_ns));
  mdp_request_free(request);
  CHECK(got[2] == 100 * ((rank + n - 1) % n) + 2);
  if (rank > 0) OK(mdp_recv(comm, &received, rank - 1, NULL, NULL));
  if (rank > 0) CHECK(got[0] == 100 * (rank - 1));
  if (rank + 1 < n) OK(mdp_send(comm, &sent, rank + 1, NULL, NULL));
  OK(mdp_send_recv(comm, rank + 1 < n ? &sent : NULL, rank + 1 < n ? rank + 1 : -1, &received, rank - 1, NULL, NULL));
  OK(mdp_barrier(comm, NULL));
  mdp_comm_destroy(comm);
}

static void exchanges(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 4; ++n) run_ranks(n, exchange_everything, NULL);
}

/* The same on a device: element i of rank r is 100 r + i. */
static void exchange_on_device(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  enum {
    LENGTH = 10
  };
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  room r = room_open(comm);
  float *mine = r.device.data, *got = mine + 2 * LENGTH;
  uint64_t sizes[4], same[4];
  int64_t total = 0, own = rank + 1;
  for (int p = 0; p < n; ++p) {
    sizes[p] = (uint64_t)p + 1;
    same[p] = (uint64_t)rank + 1;
    total += p + 1;
  }
  const int before = rank * (rank + 1) / 2;
  const int64_t square = own * n;
  for (int i = 0; i < LENGTH; ++i) mine[i] = (float)(100 * rank + i);
  mdp_tensor whole = tensor_of(MDP_DTYPE_F32, mine, &total), piece = tensor_of(MDP_DTYPE_F32, mine, &own),
             all = tensor_of(MDP_DTYPE_F32, got, &total), part = tensor_of(MDP_DTYPE_F32, got, &own),
             column = tensor_of(MDP_DTYPE_F32, got, &square), sent = tensor_of(MDP_DTYPE_F32, mine, &three),
             received = tensor_of(MDP_DTYPE_F32, got, &three);
  mdp_tensor* const tensors[] = {&whole, &piece, &all, &part, &column, &sent, &received};
  for (int i = 0; i < 7; ++i) {
    tensors[i]->device_type = r.device.device_type;
    tensors[i]->device_id = r.device.device_id;
  }
  mdp_request* request = NULL;
  OK(mdp_all_gather_v(comm, &piece, &all, sizes, NULL, &request));
  finish_request(request);
  for (int p = 0, at = 0; p < n; ++p) {
    for (int i = 0; i <= p; ++i) CHECK(got[at++] == (float)(100 * p + i));
  }
  OK(mdp_reduce_scatter_v(comm, &whole, &part, sizes, MDP_OP_SUM, NULL, &request));
  finish_request(request);
  for (int i = 0; i <= rank; ++i) CHECK(got[i] == (float)(50 * n * (n - 1) + n * (before + i)));
  OK(mdp_all_to_all_v(comm, &whole, sizes, &column, same, NULL, &request));
  finish_request(request);
  for (int s = 0; s < n; ++s) {
    for (int i = 0; i <= rank; ++i) CHECK(got[s * (rank + 1) + i] == (float)(100 * s + before + i));
  }
  const int32_t next = (rank + 1) % n, last = (rank + n - 1) % n;
  OK(mdp_send_recv(comm, &sent, next, &received, last, NULL, &request));
  finish_request(request);
  CHECK(got[2] == (float)(100 * last + 2));
  for (int i = 0; i < 3; ++i) got[i] = -1;
  if (rank > 0) OK(mdp_recv(comm, &received, rank - 1, NULL, NULL));
  if (rank + 1 < n) OK(mdp_send(comm, rank > 0 ? &received : &sent, rank + 1, NULL, &request)); /* after what came */
  if (rank + 1 < n) finish_request(request);
  OK(mdp_send_recv(comm, NULL, -1, NULL, -1, NULL, &request));
  finish_request(request);
  if (rank > 0) CHECK(got[1] == 1);
  OK(mdp_barrier(comm, NULL));
  room_close(&r);
  mdp_comm_destroy(comm);
}

static void exchanges_on_device(void** state) {
  (void)state;
  if (!on_cuda) SKIP("a host has no other memory");
  for (int32_t n = 1; n <= 4; ++n) run_ranks(n, exchange_on_device, NULL);
}

/* Both ends learn what the two said; the communicator is lost. */
static void disagree(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  double data[8] = {0};
  const mdp_tensor t = array(data, rank == 0 ? &three : &eight);
  FAILS(MDP_E_DESYNC, "send of 3 f64 to rank 1 and recv of 8 f64 from rank 0",
        rank == 0 ? mdp_send(comm, &t, 1, NULL, NULL) : mdp_recv(comm, &t, 0, NULL, NULL));
  SIZED(mdp_error_info, info);
  OK(mdp_comm_error_info(comm, &info));
  CHECK(info.status == MDP_E_DESYNC && info.rank == 1);
  FAILS(MDP_E_DESYNC, NULL, mdp_barrier(comm, NULL));
  mdp_comm_destroy(comm);
}

static void different(void** state) {
  (void)state;
  run_ranks(2, disagree, NULL);
}

/* Of two peers that do not come the one that was to be sent to is blamed. And a rank that has gone on is not said to wait in a message that
 * is over. */
static void late(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(1500000000));
  double data[3] = {0}, got[3] = {0};
  const mdp_tensor t = array(data, &three), u = array(got, &three);
  if (rank == 1) OK(mdp_send(comm, &t, 0, NULL, NULL));
  if (rank == 0) OK(mdp_recv(comm, &u, 1, NULL, NULL));
  if (rank == 0) {
    const mdp_status status = mdp_send_recv(comm, &t, 1, &u, 2, NULL, NULL);
    const char* const sentence = mdp_last_error();
    CHECK(status == MDP_E_TIMEOUT);
    if (!CHECK(strstr(sentence, "waits in send") == NULL)) fprintf(stderr, "  %s\n", sentence);
    SIZED(mdp_error_info, info);
    OK(mdp_comm_error_info(comm, &info));
    CHECK(info.status == MDP_E_TIMEOUT && info.rank == 1);
  }
  for (int wait = 0; rank != 0 && wait < 600; ++wait) { /* that rank 0 has given up says the communicator */
    SIZED(mdp_error_info, info);
    OK(mdp_comm_error_info(comm, &info));
    if (info.status != MDP_OK) break;
    usleep(100000);
  }
  mdp_comm_destroy(comm);
}

static void late_peers(void** state) {
  (void)state;
  if (on_cuda) SKIP("lanes have messages of their own");
  run_ranks(3, late, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(counts),    TEST(ranks),     TEST(copies), TEST(exchanges), TEST(exchanges_on_device),
                                     TEST(different), TEST(late_peers)};
  return cmocka_run_group_tests(tests, open_alone, close_alone);
}
