/* SPDX-License-Identifier: Apache-2.0
 * Heat in a plate, by explicit steps, on a grid of ranks: the plate is cut in both dimensions, and each rank has a part with a halo one
 * cell wide. While halos are on their way, the inside is computed; then the rim. Prints a sum over all cells, which is the same for every
 * number of ranks.
 *
 *     megadp run -n 4 -- heat [ROWS COLUMNS STEPS]
 */
#include <inttypes.h>
#include <megadp.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  DEVICE_CPU = 1, /* as DLPack numbers it */
  MOST = 1 << 20
};
static const double RATE = 0.2; /* of what flows to a neighbour in a step; stable below 1/4 */

typedef struct {
  mdp_comm* comm;
  mdp_halo* halo;
  int rank, ranks;
  int64_t whole[2], part[2], begin[2];
  int64_t width;    /* of a padded row */
  double* plate[2]; /* now and next, in turns: arrays of the halo's, which neighbours read where they lie */
} heat;

static int failed(const heat* h, mdp_status status, const char* call) {
  if (status >= 0) return 0;
  fprintf(stderr, "heat: rank %d: %s: %s: %s\n", h->rank, call, mdp_status_name(status), mdp_last_error());
  return 1;
}

/* The most square grid of so many ranks. */
static void choose_grid(int ranks, int64_t* grid) {
  grid[0] = 1;
  for (int64_t rows = 1; rows * rows <= ranks; ++rows) {
    if (ranks % rows == 0) grid[0] = rows;
  }
  grid[1] = ranks / grid[0];
}

static int make_plate(heat* h) {
  int64_t grid[2];
  choose_grid(h->ranks, grid);
  const int64_t place[] = {h->rank / grid[1], h->rank % grid[1]}; /* the last dimension varies fastest */
  for (int d = 0; d < 2; ++d) {
    h->begin[d] = h->whole[d] * place[d] / grid[d];
    h->part[d] = h->whole[d] * (place[d] + 1) / grid[d] - h->begin[d];
  }
  const int64_t one[] = {1, 1};
  /* Without edges, which are kept: the plate lies in ice, zero degrees, as arrays of the halo's are at first. */
  const mdp_halo_config config = {.struct_size = sizeof config,
                                  .dtype = MDP_DTYPE_F64,
                                  .ndim = 2,
                                  .grid = grid,
                                  .shape = h->part,
                                  .low = one,
                                  .high = one,
                                  .flags = MDP_HALO_FACES,
                                  .arrays = 2};
  if (failed(h, mdp_halo_create(h->comm, &config, &h->halo), "mdp_halo_create")) return 1;
  for (uint64_t i = 0; i < 2; ++i) {
    mdp_tensor array = {.struct_size = sizeof array};
    if (failed(h, mdp_halo_array(h->halo, i, &array), "mdp_halo_array")) return 1;
    h->plate[i] = array.data;
  }
  h->width = h->part[1] + 2;
  for (int64_t row = 0; row < h->part[0]; ++row) { /* hot in the middle */
    for (int64_t column = 0; column < h->part[1]; ++column) {
      const double y = (double)(2 * (h->begin[0] + row) + 1) / (double)h->whole[0] - 1;
      const double x = (double)(2 * (h->begin[1] + column) + 1) / (double)h->whole[1] - 1;
      h->plate[0][(row + 1) * h->width + column + 1] = x * x + y * y < 0.25 ? 100 : 10;
    }
  }
  return 0;
}

/* Cells of the padded part, from a row and a column on, up to others. */
static void compute(const heat* h, const double* now, double* next, int64_t row, int64_t column, int64_t to_row, int64_t to_column) {
  for (int64_t r = row; r < to_row; ++r) {
    for (int64_t i = r * h->width + column; i < r * h->width + to_column; ++i) {
      next[i] = now[i] + RATE * (now[i - h->width] + now[i + h->width] + now[i - 1] + now[i + 1] - 4 * now[i]);
    }
  }
}

static int step(heat* h, int number) {
  const double* const now = h->plate[number % 2];
  double* const next = h->plate[(number + 1) % 2];
  const int64_t rows = h->part[0], columns = h->part[1];
  mdp_tensor field = {.struct_size = sizeof field};
  if (failed(h, mdp_halo_array(h->halo, (uint64_t)number % 2, &field), "mdp_halo_array")) return 1;
  if (failed(h, mdp_halo_start(h->halo, &field, 1, 0, NULL), "mdp_halo_start")) return 1;
  compute(h, now, next, 2, 2, rows, columns); /* what needs no halo */
  if (failed(h, mdp_halo_finish(h->halo, NULL), "mdp_halo_finish")) return 1;
  compute(h, now, next, 1, 1, 2, columns + 1);
  if (rows > 1) compute(h, now, next, rows, 1, rows + 1, columns + 1);
  compute(h, now, next, 2, 1, rows, 2);
  if (columns > 1) compute(h, now, next, 2, columns, rows, columns + 1);
  return 0;
}

/* The plate is gathered, since a sum of the ranks' sums would depend on how it is cut: each has zeros where others have their parts. */
static int report(heat* h, int steps) {
  const int64_t cells = h->whole[0] * h->whole[1];
  double* const all = calloc((size_t)cells, sizeof *all);
  if (all == NULL) {
    fprintf(stderr, "heat: rank %d: out of memory\n", h->rank);
    return 1;
  }
  for (int64_t row = 0; row < h->part[0]; ++row) {
    for (int64_t column = 0; column < h->part[1]; ++column) {
      all[(h->begin[0] + row) * h->whole[1] + h->begin[1] + column] = h->plate[steps % 2][(row + 1) * h->width + column + 1];
    }
  }
  const mdp_tensor tensor = {
      .struct_size = sizeof tensor, .dtype = MDP_DTYPE_F64, .device_type = DEVICE_CPU, .ndim = 1, .data = all, .shape = &cells};
  const int bad = failed(h, mdp_all_reduce(h->comm, &tensor, &tensor, MDP_OP_SUM, NULL, NULL), "mdp_all_reduce");
  double sum = 0;
  for (int64_t i = 0; i < cells; ++i) sum += all[i];
  if (!bad && h->rank == 0) printf("%" PRId64 " x %" PRId64 " cells, %d steps: sum %.17g\n", h->whole[0], h->whole[1], steps, sum);
  free(all);
  return bad;
}

static int run(heat* h, int steps) {
  if (make_plate(h)) return 1;
  for (int number = 0; number < steps; ++number) {
    if (step(h, number)) return 1;
  }
  return report(h, steps);
}

static int number_of(const char* text, int least) {
  char* end = NULL;
  const long value = strtol(text, &end, 10);
  if (*text != '\0' && *end == '\0' && value >= least && value <= MOST) return (int)value;
  fprintf(stderr, "heat: '%s' must be a whole number, %d to %d\n", text, least, MOST);
  exit(2);
}

int main(int argc, char** argv) {
  if (argc != 1 && argc != 4) {
    fprintf(stderr, "usage: heat [ROWS COLUMNS STEPS]\n");
    return 2;
  }
  heat h = {.whole = {argc > 1 ? number_of(argv[1], 1) : 96, argc > 1 ? number_of(argv[2], 1) : 80}};
  const int steps = argc > 1 ? number_of(argv[3], 0) : 200;
  const mdp_comm_config config = {.struct_size = sizeof config, .backend = MDP_BACKEND_HOST};
  if (failed(&h, mdp_comm_create(&config, NULL, &h.comm), "mdp_comm_create")) return 1;
  h.rank = mdp_comm_rank(h.comm);
  h.ranks = mdp_comm_size(h.comm);
  const int bad = run(&h, steps);
  mdp_halo_destroy(h.halo);
  mdp_comm_destroy(h.comm);
  return bad;
}
