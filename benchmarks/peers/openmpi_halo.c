/* SPDX-License-Identifier: Apache-2.0
 *
 * The exchanges that bench_halo times, by MPI: neighbours' derived types sent and received at once, and MPI_Neighbor_alltoallw. Without
 * corners, which these do not bring. Started by compare_halos.sh. Usage: openmpi_halo N ROWS COLUMNS WIDTH [ROUNDS [EXCHANGES]] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "../rim.h"

typedef struct {
  MPI_Comm grid;
  int part[2], width, neighbours[4]; /* before and behind in each dimension */
  MPI_Datatype sent[4], received[4];
  MPI_Aint places[4];
  float* data;
} Bench;

static MPI_Datatype part_of(const Bench* b, int dim, int begin) {
  const int padded[] = {b->part[0] + 2 * b->width, b->part[1] + 2 * b->width};
  int sizes[] = {b->part[0], b->part[1]}, starts[] = {b->width, b->width};
  MPI_Datatype type;
  sizes[dim] = b->width;
  starts[dim] = begin;
  MPI_Type_create_subarray(2, padded, sizes, starts, MPI_ORDER_C, MPI_FLOAT, &type);
  MPI_Type_commit(&type);
  return type;
}

static void by_messages(const Bench* b) {
  MPI_Request requests[8];
  int i;
  for (i = 0; i < 4; ++i) MPI_Irecv(b->data, 1, b->received[i], b->neighbours[i], i ^ 1, b->grid, &requests[i]);
  for (i = 0; i < 4; ++i) MPI_Isend(b->data, 1, b->sent[i], b->neighbours[i], i, b->grid, &requests[4 + i]);
  MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
}

static void by_collective(const Bench* b) {
  static const int ones[] = {1, 1, 1, 1};
  MPI_Neighbor_alltoallw(b->data, ones, b->places, b->sent, b->data, ones, b->places, b->received, b->grid);
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median_of(const Bench* b, void (*once)(const Bench*), int rounds, int exchanges) {
  double* times = calloc((size_t)rounds, sizeof *times);
  double median;
  int round, i;
  for (round = -2; round < rounds; ++round) {
    double mine = 0, slowest, begin;
    MPI_Barrier(b->grid);
    for (i = 0; i < exchanges; ++i) {
      write_rim(b->data, b->part[0], b->part[1], b->width, (float)i);
      MPI_Barrier(b->grid);
      begin = MPI_Wtime();
      once(b);
      mine += (MPI_Wtime() - begin) * 1e6 / exchanges;
    }
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, b->grid);
    if (round >= 0) times[round] = slowest;
  }
  qsort(times, (size_t)rounds, sizeof *times, ascending);
  median = times[rounds / 2];
  free(times);
  return median;
}

int main(int argc, char** argv) {
  const int none[] = {0, 0};
  Bench b = {0};
  int rank, d, dims[2], rounds, exchanges;
  double messages, collective;
  MPI_Init(&argc, &argv);
  if (argc < 5) return 2;
  dims[0] = atoi(argv[2]);
  dims[1] = atoi(argv[3]);
  b.width = atoi(argv[4]);
  rounds = argc > 5 ? atoi(argv[5]) : 20;
  exchanges = argc > 6 ? atoi(argv[6]) : 50;
  for (d = 0; d < 2; ++d) b.part[d] = atoi(argv[1]) / dims[d];
  MPI_Cart_create(MPI_COMM_WORLD, 2, dims, none, 0, &b.grid);
  MPI_Comm_rank(b.grid, &rank);
  for (d = 0; d < 2; ++d) {
    MPI_Cart_shift(b.grid, d, 1, &b.neighbours[2 * d], &b.neighbours[2 * d + 1]);
    b.sent[2 * d] = part_of(&b, d, b.width);
    b.sent[2 * d + 1] = part_of(&b, d, b.part[d]);
    b.received[2 * d] = part_of(&b, d, 0);
    b.received[2 * d + 1] = part_of(&b, d, b.width + b.part[d]);
  }
  b.data = calloc((size_t)(b.part[0] + 2 * b.width) * (size_t)(b.part[1] + 2 * b.width), sizeof(float));
  messages = median_of(&b, by_messages, rounds, exchanges);
  collective = median_of(&b, by_collective, rounds, exchanges);
  if (rank == 0)
    printf("{\"library\": \"openmpi\", \"width\": %d, \"messages_us\": %.2f, \"alltoallw_us\": %.2f}\n", b.width, messages, collective);
  MPI_Finalize();
  return 0;
}
