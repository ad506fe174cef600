/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives on f32 arrays over several nodes, by the library or, compiled by mpicc with WITH_MPI, by MPI. Rank 0 prints a line for each:
 * name, and the median in milliseconds of the slowest rank's times. Started by compare_between_nodes.sh.
 * usage: between_nodes MIB ROUNDS */
#include <stdio.h>
#include <stdlib.h>

#include "times.h"

#ifdef WITH_MPI
#include <mpi.h>
#else
#include <megadp.h>
#endif

enum {
  KINDS = 4,
  MOST_ROUNDS = 99
};
static const char* const names[KINDS] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};

#ifdef WITH_MPI
static int run(int kind, float* all, float* part, size_t count, int ranks) {
  const int whole = (int)count, piece = (int)(count / (size_t)ranks);
  switch (kind) {
    case 0:
      return MPI_Allreduce(MPI_IN_PLACE, all, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case 1:
      return MPI_Reduce_scatter_block(all, part, piece, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case 2:
      return MPI_Allgather(part, piece, MPI_FLOAT, all, piece, MPI_FLOAT, MPI_COMM_WORLD);
    default:
      return MPI_Bcast(all, whole, MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
}
static int barrier(void) {
  return MPI_Barrier(MPI_COMM_WORLD);
}
#else
static mdp_comm* comm;
static int run(int kind, float* all, float* part, size_t count, int ranks) {
  const int64_t whole = (int64_t)count, piece = whole / ranks;
  const mdp_tensor a = {.struct_size = sizeof a, .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &whole, .data = all};
  const mdp_tensor p = {.struct_size = sizeof p, .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &piece, .data = part};
  switch (kind) {
    case 0:
      return mdp_all_reduce(comm, &a, &a, MDP_OP_SUM, NULL, NULL);
    case 1:
      return mdp_reduce_scatter(comm, &a, &p, MDP_OP_SUM, NULL, NULL);
    case 2:
      return mdp_all_gather(comm, &p, &a, NULL, NULL);
    default:
      return mdp_broadcast(comm, &a, 0, NULL, NULL);
  }
}
static int barrier(void) {
  return mdp_barrier(comm, NULL);
}
#endif

int main(int argc, char** argv) {
  static double times[MOST_ROUNDS];
  int rank = 0, ranks = 1, status = 0;
#ifdef WITH_MPI
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
#else
  if (mdp_comm_create(NULL, NULL, &comm) != MDP_OK) return fprintf(stderr, "%s\n", mdp_last_error()), 1;
  rank = mdp_comm_rank(comm);
  ranks = mdp_comm_size(comm);
#endif
  const int rounds = argc > 2 ? atoi(argv[2]) : 0;
  if (rounds < 1 || rounds > MOST_ROUNDS) return fprintf(stderr, "usage: between_nodes MIB ROUNDS\n"), 2;
  const size_t count = (size_t)atoi(argv[1]) * 262144 / (size_t)ranks * (size_t)ranks;
  float *all = malloc(count * sizeof *all), *part = malloc(count / (size_t)ranks * sizeof *part);
  if (all == NULL || part == NULL) return 1;
  for (int kind = 0; kind < KINDS; ++kind) {
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < count; ++i) all[i] = 1;
      for (size_t i = 0; i < count / (size_t)ranks; ++i) part[i] = 1;
      status |= barrier();
      const double begin = now_us();
      status |= run(kind, all, part, count, ranks);
      status |= barrier(); /* so that the slowest rank counts */
      times[round] = (now_us() - begin) / 1e3;
      if (kind == 0 && all[count - 1] != (float)ranks)
        return fprintf(stderr, "a sum of ones over %d ranks is %g\n", ranks, all[count - 1]), 1;
    }
    if (status != 0) return 1;
    qsort(times, (size_t)rounds, sizeof times[0], ascending);
    if (rank == 0) printf("%s %.1f\n", names[kind], times[rounds / 2]);
  }
  free(all);
  free(part);
#ifdef WITH_MPI
  MPI_Finalize();
#else
  mdp_comm_destroy(comm);
#endif
  return 0;
}
