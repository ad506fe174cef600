/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives that `megadp bench collectives` times, by MPI: the same sizes, the same way of counting (a round is its slowest rank).
 * Started by openmpi.sh. Usage: openmpi_collectives OP BYTES ROUNDS; BYTES is the full buffer of each rank, in f32. With `sweep` in place
 * of ROUNDS all sizes from 8 bytes to BYTES, as `megadp bench collectives --sweep` times them: the mean of calls one after another. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  WARM_UPS = 3,
  FEWEST_CALLS = 3, /* of a sweep, and the rest of it: as the library's */
  MOST_CALLS = 5000,
  LEAST_BYTES = 8
};
static const double kSizeUs = 200000;

typedef struct {
  const char* op;
  int rank, ranks;
  int piece; /* elements of one rank's piece */
  float* full;
  float* part;
  int* counts;
} Bench;

static void collective(const Bench* b) {
  if (strcmp(b->op, "reduce_scatter") == 0)
    MPI_Reduce_scatter(b->full, b->part, b->counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (strcmp(b->op, "all_reduce") == 0)
    MPI_Allreduce(MPI_IN_PLACE, b->full, b->piece * b->ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b->full, b->piece, MPI_FLOAT, MPI_COMM_WORLD);
}

/* Rank r's elements become r + 1, and after one collective they must be what follows from that. */
static int right(const Bench* b) {
  const float sum = (float)(b->ranks * (b->ranks + 1) / 2);
  int wrong = 0, anywhere = 0, i;
  for (i = 0; i < b->piece * b->ranks; ++i) b->full[i] = (float)(b->rank + 1);
  collective(b);
  if (strcmp(b->op, "reduce_scatter") == 0) {
    for (i = 0; i < b->piece; ++i) wrong |= b->part[i] != sum;
  } else {
    for (i = 0; i < b->piece * b->ranks; ++i) wrong |= b->full[i] != (strcmp(b->op, "all_reduce") == 0 ? sum : (float)(i / b->piece + 1));
  }
  MPI_Allreduce(&wrong, &anywhere, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
  memset(b->full, 0, sizeof(float) * (size_t)b->piece * (size_t)b->ranks); /* sums of zeros never overflow */
  return !anywhere;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static int measure(const Bench* b, int rounds) {
  double* times = calloc((size_t)rounds, sizeof *times);
  int round;
  if (times == NULL) return 1;
  for (round = -WARM_UPS; round < rounds; ++round) {
    double begin, mine, slowest;
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    collective(b);
    mine = (MPI_Wtime() - begin) * 1e3;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (round >= 0) times[round] = slowest;
  }
  qsort(times, (size_t)rounds, sizeof *times, ascending);
  if (b->rank == 0)
    printf("{\"op\":\"%s\",\"ranks\":%d,\"bytes\":%lld,\"dtype\":\"f32\",\"min_ms\":%.4f,\"median_ms\":%.4f,\"peer\":\"openmpi\"}\n", b->op,
           b->ranks, (long long)sizeof(float) * b->piece * b->ranks, times[0], (times[(rounds - 1) / 2] + times[rounds / 2]) / 2);
  free(times);
  return 0;
}

/* Microseconds of a call, of the slowest rank. */
static double time_calls(const Bench* b, int calls) {
  double begin, mine, slowest;
  int i;
  MPI_Barrier(MPI_COMM_WORLD);
  begin = MPI_Wtime();
  for (i = 0; i < calls; ++i) collective(b);
  mine = (MPI_Wtime() - begin) * 1e6 / calls;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

/* Of memory that is there for BYTES already. */
static int sweep(Bench* b, long long most) {
  long long bytes;
  int i, all_right = 1;
  for (bytes = LEAST_BYTES; bytes <= most; bytes *= 2) {
    const long long piece = bytes / (long long)sizeof(float) / b->ranks;
    double first, fit, us;
    int is_right;
    b->piece = piece < 1 ? 1 : (int)piece;
    for (i = 0; i < b->ranks; ++i) b->counts[i] = b->piece;
    is_right = right(b);
    all_right &= is_right;
    first = time_calls(b, WARM_UPS);
    fit = kSizeUs / (first > 1e-3 ? first : 1e-3);
    us = time_calls(b, fit < FEWEST_CALLS ? FEWEST_CALLS : fit > MOST_CALLS ? MOST_CALLS : (int)fit);
    if (b->rank == 0)
      printf("{\"op\":\"%s\",\"dtype\":\"f32\",\"bytes\":%lld,\"us\":%.3f,\"right\":%s,\"peer\":\"openmpi\"}\n", b->op,
             (long long)sizeof(float) * b->piece * b->ranks, us, is_right ? "true" : "false");
  }
  return !all_right;
}

static int once(Bench* b, int rounds) {
  int i;
  for (i = 0; i < b->ranks; ++i) b->counts[i] = b->piece;
  if (right(b)) return measure(b, rounds);
  if (b->rank == 0) fprintf(stderr, "openmpi_collectives: %s gave wrong sums\n", b->op);
  return 1;
}

static int run(Bench* b, long long bytes, int rounds, int all_sizes) {
  const long long piece = bytes / (long long)sizeof(float) / b->ranks;
  int failed = 1;
  if (piece < 1 || piece * b->ranks > 0x7fffffff || rounds < 1) {
    if (b->rank == 0)
      fprintf(stderr, "openmpi_collectives: %lld bytes in %d rounds is not between 1 element a rank and 2^31 elements\n", bytes, rounds);
    return 2;
  }
  b->piece = (int)piece;
  b->full = malloc(sizeof(float) * (size_t)piece * (size_t)b->ranks);
  b->part = malloc(sizeof(float) * (size_t)piece);
  b->counts = malloc(sizeof(int) * (size_t)b->ranks);
  if (b->full != NULL && b->part != NULL && b->counts != NULL) failed = all_sizes ? sweep(b, bytes) : once(b, rounds);
  free(b->full);
  free(b->part);
  free(b->counts);
  return failed;
}

int main(int argc, char** argv) {
  Bench b = {0};
  int status = 2;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &b.ranks);
  if (argc == 4 && (strcmp(argv[1], "reduce_scatter") == 0 || strcmp(argv[1], "all_reduce") == 0 || strcmp(argv[1], "all_gather") == 0)) {
    const int all_sizes = strcmp(argv[3], "sweep") == 0;
    b.op = argv[1];
    status = run(&b, atoll(argv[2]), all_sizes ? 1 : atoi(argv[3]), all_sizes);
  } else if (b.rank == 0) {
    fprintf(stderr, "usage: openmpi_collectives reduce_scatter|all_reduce|all_gather BYTES ROUNDS|sweep\n");
  }
  MPI_Finalize();
  if (fflush(stdout) != 0 || ferror(stdout)) {
    fprintf(stderr, "openmpi_collectives: the output could not be written completely\n");
    status = 1;
  }
  return status;
}
