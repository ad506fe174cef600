/* SPDX-License-Identifier: Apache-2.0
 *
 * The halo of a field of N x N f32 cut over ROWS x COLUMNS ranks, exchanged again and again, each time after the part's rim was written:
 * microseconds each, beside a bare copy of as many bytes from memory that the neighbours share and have just written, after their rims, so
 * that the caches hold no less; a five-point stencil of the inside alone; and exchange and stencil at once. Prints a line of JSON. Started
 * by compare_halos.sh, on one node.
 *
 * usage: megadp run -n RANKS bench_halo N ROWS COLUMNS WIDTH [ROUNDS [EXCHANGES]]      (20 rounds of 50 exchanges)
 * With BENCH_HALO_OWN in the environment fields are memory of the program's own, not the library's. */
#define _GNU_SOURCE /* memfd_create */
#include <fcntl.h>
#include <megadp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rim.h"
#include "times.h"

static void must(mdp_status status, const char* call) {
  if (status >= 0) return;
  fprintf(stderr, "bench_halo: %s: %s: %s\n", call, mdp_status_name(status), mdp_last_error());
  exit(1);
}
#define MUST(call) must((call), #call)

typedef struct {
  mdp_comm* comm;
  mdp_halo* halo;
  mdp_tensor field;
  int64_t part[2], width, sent; /* sent: bytes */
  float *data, *out;
  /* Of the bare copy: every rank has a place for each side in memory that all share; this rank's, its neighbours', and where it copies to.
   */
  char *mine, *theirs[4], *to;
  size_t side;
} bench;

static size_t bytes_of_side(const bench* b, int side) {
  return sizeof(float) * (size_t)(b->width * b->part[1 - side / 2]);
}

static void stencil(const bench* b) {
  const int64_t row = b->part[1] + 2 * b->width;
  for (int64_t i = b->width + 1; i < b->width + b->part[0] - 1; ++i) {
    const float* const at = b->data + i * row;
    float* const out = b->out + i * row;
    for (int64_t j = b->width + 1; j < b->width + b->part[1] - 1; ++j) {
      out[j] = 0.5F * at[j] + 0.125F * (at[j - 1] + at[j + 1] + at[j - row] + at[j + row]);
    }
  }
}

typedef enum {
  EXCHANGE,
  COPY,
  STENCIL,
  BOTH,
  MEASURED
} what;

static void once(const bench* b, what kind) {
  if (kind == EXCHANGE || kind == BOTH) MUST(mdp_halo_start(b->halo, &b->field, 1, 0, NULL));
  if (kind == STENCIL || kind == BOTH) stencil(b);
  if (kind == COPY) {
    for (int s = 0; s < 4; ++s) {
      if (b->theirs[s] != NULL) memcpy(b->to + (size_t)s * b->side, b->theirs[s], bytes_of_side(b, s));
    }
  }
  if (kind == EXCHANGE || kind == BOTH) MUST(mdp_halo_finish(b->halo, NULL));
}

/* Microseconds each on the slowest rank. */
static double round_of(const bench* b, what kind, int exchanges) {
  double each = 0;
  MUST(mdp_barrier(b->comm, NULL));
  for (int i = 0; i < exchanges; ++i) {
    if (kind != STENCIL) write_rim(b->data, b->part[0], b->part[1], b->width, (float)i);
    for (int s = 0; s < 4 && kind == COPY; ++s) {
      if (b->theirs[s] != NULL) memset(b->mine + (size_t)s * b->side, i, bytes_of_side(b, s));
    }
    MUST(mdp_barrier(b->comm, NULL)); /* else the slower one's writing would be in the other's time */
    const double begin = now_us();
    once(b, kind);
    each += (now_us() - begin) / exchanges;
  }
  const int64_t one = 1;
  const mdp_tensor slowest = {.struct_size = sizeof slowest, .dtype = MDP_DTYPE_F64, .ndim = 1, .shape = &one, .data = &each};
  MUST(mdp_all_reduce(b->comm, &slowest, &slowest, MDP_OP_MAX, NULL, NULL));
  return each;
}

/* Memory of rank 0's, which the others open by its process. */
static char* shared_by_all(mdp_comm* comm, size_t bytes) {
  const int64_t two = 2;
  int64_t where[2] = {getpid(), -1};
  const int first = mdp_comm_rank(comm) == 0;
  if (first) where[1] = memfd_create("bench_halo", 0);
  if (first && ftruncate((int)where[1], (off_t)bytes) != 0) exit(1);
  const mdp_tensor told = {.struct_size = sizeof told, .dtype = MDP_DTYPE_I64, .ndim = 1, .shape = &two, .data = where};
  MUST(mdp_broadcast(comm, &told, 0, NULL, NULL));
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)where[0], (long long)where[1]);
  const int fd = open(path, O_RDWR);
  char* const memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || memory == MAP_FAILED) exit(1);
  MUST(mdp_barrier(comm, NULL));
  return memory;
}

static void share(bench* b, const int64_t* grid, const int64_t* place) {
  b->side = bytes_of_side(b, b->part[0] > b->part[1] ? 2 : 0) + 4096;
  char* const all = shared_by_all(b->comm, 4 * b->side * (size_t)(grid[0] * grid[1]));
  b->mine = all + 4 * b->side * (size_t)(place[0] * grid[1] + place[1]);
  b->to = calloc(4, b->side);
  if (b->to == NULL) exit(1);
  for (int s = 0; s < 4; ++s) {
    int64_t at[2] = {place[0], place[1]};
    at[s / 2] += s % 2 == 0 ? -1 : 1;
    if (at[s / 2] < 0 || at[s / 2] >= grid[s / 2]) continue;
    b->theirs[s] = all + 4 * b->side * (size_t)(at[0] * grid[1] + at[1]) + (size_t)(s ^ 1) * b->side;
    b->sent += (int64_t)bytes_of_side(b, s);
  }
}

static void measure(const bench* b, int rounds, int exchanges, double* medians) {
  double* const times = calloc((size_t)rounds * MEASURED, sizeof *times);
  if (times == NULL) exit(1);
  for (int round = -2; round < rounds; ++round) {
    for (int kind = 0; kind < MEASURED; ++kind) {
      const int few = kind == STENCIL || kind == BOTH ? 3 : exchanges;
      const double time = round_of(b, (what)kind, few);
      if (round >= 0) times[kind * rounds + round] = time;
    }
  }
  for (int kind = 0; kind < MEASURED; ++kind) {
    qsort(times + kind * rounds, (size_t)rounds, sizeof *times, ascending);
    medians[kind] = times[kind * rounds + rounds / 2];
  }
  free(times);
}

int main(int argc, char** argv) {
  if (argc < 5) return fprintf(stderr, "usage: bench_halo N ROWS COLUMNS WIDTH [ROUNDS [EXCHANGES]]\n"), 2;
  const int64_t n = atoll(argv[1]), grid[] = {atoll(argv[2]), atoll(argv[3])};
  bench b = {.width = atoll(argv[4]), .part = {n / grid[0], n / grid[1]}};
  MUST(mdp_comm_create(NULL, NULL, &b.comm));
  const int64_t widths[] = {b.width, b.width}, padded[] = {b.part[0] + 2 * b.width, b.part[1] + 2 * b.width};
  const mdp_halo_config config = {
      .struct_size = sizeof config, .ndim = 2, .grid = grid, .shape = b.part, .low = widths, .high = widths, .arrays = 2};
  MUST(mdp_halo_create(b.comm, &config, &b.halo));
  int64_t place[2];
  MUST(mdp_halo_place(b.halo, place, NULL, NULL));
  share(&b, grid, place);
  const size_t bytes = (size_t)(padded[0] * padded[1]) * sizeof(float);
  mdp_tensor lent[2] = {{.struct_size = sizeof lent[0]}, {.struct_size = sizeof lent[1]}};
  for (uint64_t i = 0; i < 2; ++i) MUST(mdp_halo_array(b.halo, i, &lent[i]));
  const int own = getenv("BENCH_HALO_OWN") != NULL;
  b.data = own ? calloc(1, bytes) : lent[0].data;
  b.out = own ? calloc(1, bytes) : lent[1].data;
  if (b.data == NULL || b.out == NULL) return 1;
  for (int64_t i = 0; i < padded[0] * padded[1]; ++i) b.data[i] = 1; /* or it is all one page of zeros */
  b.field = (mdp_tensor){.struct_size = sizeof b.field, .dtype = MDP_DTYPE_F32, .ndim = 2, .shape = padded, .data = b.data};
  double medians[MEASURED];
  measure(&b, argc > 5 ? atoi(argv[5]) : 20, argc > 6 ? atoi(argv[6]) : 50, medians);
  if (mdp_comm_rank(b.comm) == 0) {
    printf(
        "{\"library\": \"megadp\", \"width\": %lld, \"sent\": %lld, \"exchange_us\": %.2f, \"copy_us\": %.2f, \"stencil_us\": %.2f, "
        "\"both_us\": %.2f, "
        "\"hidden\": %.3f}\n",
        (long long)b.width, (long long)b.sent, medians[EXCHANGE], medians[COPY], medians[STENCIL], medians[BOTH],
        1 - (medians[BOTH] - medians[STENCIL]) / medians[EXCHANGE]);
  }
  mdp_halo_destroy(b.halo);
  mdp_comm_destroy(b.comm);
  return 0;
}
