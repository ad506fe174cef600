/* SPDX-License-Identifier: Apache-2.0
 * Saves checkpoints whose values tell their number, or says which number folders of checkpoints have.
 *
 * usage: saver save DIRECTORY TIMES KEEP     goes on from the newest checkpoint; a line "saved N" after each
 *        saver beside DIRECTORY TIMES KEEP   the same, written beside a training that goes on
 *        saver load < PATHS                  a line each: the number, or the error */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "megadp.h"

enum {
  LENGTH = 24
};

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} job;

static void ok(mdp_status status) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s\n", mdp_status_name(status), mdp_last_error());
  exit(1);
}

static job open_job(void) {
  job j;
  const int64_t length = LENGTH;
  const mdp_grid_config grid = {.struct_size = sizeof grid};
  const mdp_param param = {.struct_size = sizeof param, .name = "values", .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &length};
  const mdp_buffer_config buffer = {.struct_size = sizeof buffer};
  const mdp_optimizer_config adamw = {.struct_size = sizeof adamw, .lr = 0.5};
  ok(mdp_comm_create(NULL, NULL, &j.comm));
  ok(mdp_grid_create(j.comm, &grid, &j.grid));
  ok(mdp_buffer_register(NULL, j.grid, &buffer, &param, 1, &j.buffer));
  ok(mdp_optimizer_create(j.buffer, &adamw, &j.optimizer));
  return j;
}

static mdp_tensor tensor_of(float* values) {
  static const int64_t length = LENGTH;
  const mdp_tensor tensor = {.struct_size = sizeof tensor, .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &length, .data = values};
  return tensor;
}

static void set_values(const job* j, uint64_t number) {
  float values[LENGTH];
  for (int i = 0; i < LENGTH; ++i) values[i] = (float)(number * 32 + (uint64_t)i);
  const mdp_tensor tensor = tensor_of(values);
  ok(mdp_param_write(j->buffer, 0, &tensor, NULL));
}

/* Of what is there: -1 if values, steps and data do not all tell the same number. */
static int64_t number_of(const job* j, const char* directory) {
  float values[LENGTH];
  const mdp_tensor tensor = tensor_of(values);
  ok(mdp_param_read(j->buffer, 0, &tensor, NULL));
  uint64_t steps = 0, data = 0;
  size_t bytes = 0;
  ok(mdp_optimizer_steps(j->optimizer, 0, &steps));
  if (mdp_checkpoint_data(directory, -1, &data, sizeof data, &bytes) < 0 || bytes != sizeof data || steps != data) return -1;
  for (int i = 0; i < LENGTH; ++i) {
    if (values[i] != (float)(data * 32 + (uint64_t)i)) return -1;
  }
  return (int64_t)data;
}

static mdp_checkpoint_config config_of(const char* directory, const mdp_checkpoint_part* part) {
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = part, .part_count = 1};
  return config;
}

static void set_number(const job* j, uint64_t number) {
  set_values(j, number);
  ok(mdp_optimizer_set_steps(j->optimizer, number, &number, 1));
}

static void save_beside(const job* j, const mdp_checkpoint_config* config) {
  mdp_request* request = NULL;
  ok(mdp_checkpoint_save(config, &request));
  set_number(j, 1000000); /* which is in no checkpoint */
  ok(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
}

/* The path of the newest one: another may come while it is loaded. */
static mdp_status find(const char* directory, char* path, size_t size) {
  static const char member[] = "{\"path\":\"";
  char json[16384];
  const mdp_status found = mdp_checkpoint_info(directory, json, sizeof json, NULL);
  if (found >= 0) snprintf(path, size, "%.*s", (int)strcspn(json + strlen(member), "\""), json + strlen(member));
  return found;
}

static void save(const job* j, const char* directory, uint64_t times, uint64_t keep, int beside) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
  char path[4096];
  mdp_checkpoint_config config = config_of(path, &part);
  uint64_t number = 0;
  if (find(directory, path, sizeof path) >= 0 && mdp_checkpoint_load(&config) >= 0) {
    const int64_t loaded = number_of(j, path);
    if (loaded < 0) exit(3);
    number = (uint64_t)loaded;
  }
  config.directory = directory;
  config.keep = keep;
  config.shared_data = &number;
  config.shared_bytes = sizeof number;
  for (const uint64_t end = number + times; number < end;) {
    ++number;
    set_number(j, number);
    if (beside) {
      save_beside(j, &config);
    } else {
      ok(mdp_checkpoint_save(&config, NULL));
    }
    char line[64];
    const int length = snprintf(line, sizeof line, "saved %" PRIu64 "\n", number);
    if (mdp_comm_rank(j->comm) == 0 && write(STDOUT_FILENO, line, (size_t)length) != length) exit(2);
  }
}

static void load_all(const job* j) {
  char directory[4096], path[4096];
  while (fgets(directory, sizeof directory, stdin) != NULL) {
    directory[strcspn(directory, "\n")] = '\0';
    const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
    const mdp_checkpoint_config config = config_of(path, &part);
    mdp_status loaded = find(directory, path, sizeof path);
    if (loaded >= 0) loaded = mdp_checkpoint_load(&config);
    if (loaded < 0) {
      printf("%s: %s\n", mdp_status_name(loaded), mdp_last_error());
    } else {
      printf("%" PRId64 "\n", number_of(j, path));
    }
    fflush(stdout);
  }
}

int main(int argc, char** argv) {
  const int loads = argc == 2 && strcmp(argv[1], "load") == 0;
  if (!loads && argc != 5) return 2;
  const job j = open_job();
  if (!loads) {
    save(&j, argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), strcmp(argv[1], "beside") == 0);
  } else {
    load_all(&j);
  }
  mdp_optimizer_destroy(j.optimizer);
  mdp_buffer_destroy(j.buffer);
  mdp_grid_destroy(j.grid);
  mdp_comm_destroy(j.comm);
  return 0;
}
