/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocking all-reduces of a few bytes, one after another: microseconds each on rank 0, by the library or, compiled by mpicc with WITH_MPI,
 * by MPI. Prints a line for each size: bytes, median, tenth and ninetieth percentile, mean. Started by compare_small.sh. */
#include <stdio.h>
#include <stdlib.h>

#include "times.h"

#ifdef WITH_MPI
#include <mpi.h>
#else
#include <megadp.h>
#endif

enum {
  WARM_UPS = 200,
  TIMES = 3000,
  MOST = 16384
};

static float data[MOST];

#ifdef WITH_MPI
static int all_reduce(int count) {
  return MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
#else
static mdp_comm* comm;
static int all_reduce(int count) {
  const int64_t shape = count;
  const mdp_tensor all = {.struct_size = sizeof all, .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &shape, .data = data};
  return mdp_all_reduce(comm, &all, &all, MDP_OP_SUM, NULL, NULL);
}
#endif

int main(int argc, char** argv) {
  static double times[TIMES];
  int rank = 0;
#ifdef WITH_MPI
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#else
  (void)argc;
  (void)argv;
  if (mdp_comm_create(NULL, NULL, &comm) != MDP_OK) return fprintf(stderr, "%s\n", mdp_last_error()), 1;
  rank = mdp_comm_rank(comm);
#endif
  for (int count = 2; count <= MOST; count *= 8) {
    for (int i = -WARM_UPS; i < TIMES; ++i) {
      const double begin = now_us();
      if (all_reduce(count) != 0) return 1;
      if (i >= 0) times[i] = now_us() - begin;
      for (int k = 0; k < count; k += 16) data[k] = 1; /* what is summed for ever overflows */
    }
    double sum = 0;
    for (int i = 0; i < TIMES; ++i) sum += times[i];
    qsort(times, TIMES, sizeof times[0], ascending);
    if (rank == 0) printf("%d %.2f %.2f %.2f %.2f\n", count * 4, times[TIMES / 2], times[TIMES / 10], times[TIMES * 9 / 10], sum / TIMES);
  }
#ifdef WITH_MPI
  MPI_Finalize();
#else
  mdp_comm_destroy(comm);
#endif
  return 0;
}
