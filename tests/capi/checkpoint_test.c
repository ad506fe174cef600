/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints: what is loaded is what was saved, on any number of ranks, with any sharding and buckets; and training goes on with the bits
 * of a run that was never interrupted. Gradients are small integers, the same on all ranks, so that sums are exact. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

enum {
  A,
  B,
  FIXED,
  C,
  EMPTY_ONE,
  D,
  COUNT,
  LONGEST = 3001,
  STATES = 3
};
static const int64_t lengths[COUNT] = {37, 70, 5, LONGEST, 0, 3};
static const char* const names[COUNT] = {"a", "b/with \"quotes\"", "fixed", "c", "empty", "d"};
static const char* const state_names[STATES] = {"master", "exp_avg", "exp_avg_sq"};
static const mdp_dtype dtypes[COUNT] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_F32, MDP_DTYPE_F16};

static char path[512];

static const char* directory_of(const char* name) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* ── A job, and all of its state, whatever rank has it ── */

typedef struct {
  int32_t n;
  mdp_sharding sharding;
  uint64_t bucket_elements;
  int32_t instances;
} shape_of_job;

static job job_of(const mdp_unique_id* id, int32_t rank, const shape_of_job* how) {
  job j = {.comm = comm_open(id, rank, how->n, UINT64_C(60000000000))};
  SIZED(mdp_grid_config, grid);
  grid.instances = how->instances;
  OK(mdp_grid_create(j.comm, &grid, &j.grid));
  mdp_param params[COUNT];
  for (int p = 0; p < COUNT; ++p) {
    params[p] = vector_param(names[p], dtypes[p], &lengths[p]);
    params[p].flags = p == FIXED ? MDP_PARAM_FROZEN : 0;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = how->sharding;
  config.bucket_elements = how->bucket_elements;
  OK(mdp_buffer_register(NULL, j.grid, &config, params, COUNT, &j.buffer));
  SIZED(mdp_optimizer_config, adamw);
  adamw.lr = 0.0625;
  adamw.weight_decay = 0.125;
  OK(mdp_optimizer_create(j.buffer, &adamw, &j.optimizer));
  return j;
}

typedef struct {
  float params[COUNT][LONGEST], states[STATES][COUNT][LONGEST];
  uint64_t steps[COUNT];
} everything;

/* What is between ranks that are threads ThreadSanitizer does not see. */
static pthread_mutex_t collecting = PTHREAD_MUTEX_INITIALIZER;

/* Each rank adds what it has; replicas have the same. */
static void collect(const job* j, everything* all) {
  mdp_range ranges[256];
  const size_t count = owned_ranges(j->buffer, ranges, 256);
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    float values[LONGEST];
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_read(j->buffer, p, &t, NULL));
    uint64_t steps = 0;
    OK(mdp_optimizer_steps(j->optimizer, p, &steps));
    pthread_mutex_lock(&collecting);
    memcpy(all->params[p], values, (size_t)lengths[p] * sizeof(float));
    all->steps[p] = steps;
    pthread_mutex_unlock(&collecting);
  }
  for (size_t i = 0; i < count; ++i) {
    for (int k = 0; k < STATES; ++k) {
      SIZED(mdp_tensor, view);
      OK(mdp_optimizer_state(j->optimizer, (size_t)ranges[i].param, state_names[k], &view));
      pthread_mutex_lock(&collecting);
      memcpy(all->states[k][ranges[i].param] + ranges[i].param_begin, view.data, (size_t)view.shape[0] * sizeof(float));
      pthread_mutex_unlock(&collecting);
    }
  }
}

static void set_everything(const job* j, const everything* shared) {
  everything* const all = malloc(sizeof *all);
  pthread_mutex_lock(&collecting);
  memcpy(all, shared, sizeof *all);
  pthread_mutex_unlock(&collecting);
  mdp_range ranges[256];
  const size_t count = owned_ranges(j->buffer, ranges, 256);
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    float values[LONGEST];
    memcpy(values, all->params[p], sizeof values);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_write(j->buffer, p, &t, NULL));
  }
  for (size_t i = 0; i < count; ++i) {
    for (int k = 0; k < STATES; ++k) {
      SIZED(mdp_tensor, view);
      OK(mdp_optimizer_state(j->optimizer, (size_t)ranges[i].param, state_names[k], &view));
      memcpy(view.data, all->states[k][ranges[i].param] + ranges[i].param_begin, (size_t)view.shape[0] * sizeof(float));
    }
  }
  uint64_t taken = 0;
  for (int p = 0; p < COUNT; ++p) taken = all->steps[p] > taken ? all->steps[p] : taken;
  OK(mdp_optimizer_set_steps(j->optimizer, taken, all->steps, COUNT));
  free(all);
}

static void first_values(const job* j) {
  for (int p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    float values[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)(i % 19 - 9) / 8;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_write(j->buffer, (size_t)p, &t, NULL));
  }
}

/* Parameter D is left out of some steps, so that counts differ. */
static void take_steps(const job* j, int from, int to) {
  for (int step = from; step < to; ++step) {
    for (int p = COUNT; p-- > 0;) {
      if (p == FIXED) continue;
      if (p == D && step % 3 == 1) {
        OK(mdp_grad_skip(j->buffer, (size_t)p));
        continue;
      }
      float values[LONGEST];
      for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)((i * (7 + p) + step * 5) % 23 - 11);
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
      OK(mdp_grad_put(j->buffer, (size_t)p, &t, 0, NULL));
    }
    SIZED(mdp_step_report, report);
    OK(mdp_optimizer_step(j->optimizer, NULL, &report, NULL));
    CHECK(report.step == (uint64_t)step + 1);
  }
}

static mdp_checkpoint_part part_of(const job* j) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
  return part;
}

static mdp_checkpoint_config config_of(const char* directory, const mdp_checkpoint_part* part) {
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = part, .part_count = 1};
  return config;
}

static mdp_status save(const job* j, const char* directory) {
  const mdp_checkpoint_part part = part_of(j);
  const mdp_checkpoint_config config = config_of(directory, &part);
  return mdp_checkpoint_save(&config, NULL);
}

static mdp_status load(const job* j, const char* directory) {
  const mdp_checkpoint_part part = part_of(j);
  const mdp_checkpoint_config config = config_of(directory, &part);
  return mdp_checkpoint_load(&config);
}

/* ── Any number of ranks, any sharding, any buckets ── */

typedef struct {
  shape_of_job how;
  const char* directory;
  int number, steps; /* of the stage; of each stage */
  everything *loaded, *later, *beside;
} stage;

static void one_stage(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const stage* s = argument;
  (void)n;
  job j = job_of(id, rank, &s->how);
  const int from = s->number * s->steps;
  if (s->number == 0) {
    first_values(&j);
  } else {
    OK(load(&j, s->directory));
    collect(&j, s->loaded);
    /* A new run that is given the same by hand. */
    OK(mdp_barrier(j.comm, NULL));
    mdp_unique_id other;
    memcpy(&other, id, sizeof other);
    set_everything(&j, s->loaded);
    take_steps(&j, from, from + s->steps);
    collect(&j, s->beside);
    OK(load(&j, s->directory));
  }
  take_steps(&j, from, from + s->steps);
  collect(&j, s->later);
  OK(save(&j, s->directory));
  job_close(&j);
}

static void loads_at_any_size(void** state) {
  (void)state;
  static const shape_of_job stages[] = {{2, MDP_SHARDING_ZERO_1, 400, 1},  {3, MDP_SHARDING_ZERO_2, 0, 1},
                                        {5, MDP_SHARDING_ZERO_0, 1000, 1}, {1, MDP_SHARDING_ZERO_1, 77, 1},
                                        {4, MDP_SHARDING_ZERO_1, 400, 2},  {2, MDP_SHARDING_ZERO_2, 300, 1}};
  enum {
    STAGES = sizeof stages / sizeof *stages,
    EACH = 2
  };
  char directory[512];
  snprintf(directory, sizeof directory, "%s", directory_of("sizes/made on\nthe way"));
  everything* before = NULL;
  for (int number = 0; number < STAGES; ++number) {
    stage s = {
        stages[number], directory, number, EACH, calloc(1, sizeof *s.loaded), calloc(1, sizeof *s.later), calloc(1, sizeof *s.beside)};
    run_ranks(s.how.n, one_stage, &s);
    CHECK(number == 0 || memcmp(s.loaded, before, sizeof *before) == 0);
    CHECK(number == 0 || memcmp(s.beside, s.later, sizeof *before) == 0);
    free(s.loaded);
    free(s.beside);
    free(before);
    before = s.later;
  }
  const shape_of_job alone = {1, MDP_SHARDING_ZERO_1, 0, 1};
  job whole = job_of(NULL, 0, &alone);
  first_values(&whole);
  take_steps(&whole, 0, STAGES * EACH);
  everything* wanted = calloc(1, sizeof *wanted);
  collect(&whole, wanted);
  CHECK(memcmp(before, wanted, sizeof *wanted) == 0);
  free(before);
  free(wanted);
  job_close(&whole);
}

/* ── Replicas ── */

typedef struct {
  const char* directory;
  shape_of_job how;
  int32_t changed_on; /* -1: nowhere */
} replicas;

/* What the checkpoint does not have stays as it is: there a replica may have another moment. */
static void load_beside_a_moment(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const replicas* const r = argument;
  (void)n;
  job j = job_of(id, rank, &r->how);
  first_values(&j);
  const mdp_checkpoint_part part = part_of(&j);
  mdp_checkpoint_config config = config_of(r->directory, &part);
  config.optional = "*";
  const int64_t two = 2;
  float values[2] = {1, 2};
  const mdp_tensor other = tensor_of(MDP_DTYPE_F32, values, &two);
  const mdp_checkpoint_tensor tensor = {.struct_size = sizeof tensor, .name = "another", .tensor = &other};
  if (rank == r->changed_on) {
    SIZED(mdp_tensor, view);
    size_t p = 0; /* of which it owns something */
    do OK(mdp_optimizer_state(j.optimizer, p, "exp_avg_sq", &view));
    while (view.shape[0] == 0 && ++p < COUNT);
    ((float*)view.data)[0] += 1;
  }
  config.tensors = &tensor;
  config.tensor_count = 1;
  if (r->changed_on < 0) {
    OK(mdp_checkpoint_load(&config));
    OK(mdp_buffer_verify(j.buffer));
  } else {
    FAILS(MDP_E_DESYNC, "mdp_checkpoint_load: exp_avg_sq of parameter", mdp_checkpoint_load(&config));
    FAILS(MDP_E_STATE, NULL, mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  }
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

/* A checkpoint that has none of the parameters. */
static void save_another(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)n;
  const mdp_param param = {.struct_size = sizeof param, .dtype = MDP_DTYPE_F32, .name = "another model's", .shape = &lengths[0], .ndim = 1};
  job j = {.comm = comm_open(id, rank, 1, UINT64_C(60000000000))};
  OK(mdp_buffer_register(j.comm, NULL, NULL, &param, 1, &j.buffer));
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer};
  const mdp_checkpoint_config config = config_of(argument, &part);
  OK(mdp_checkpoint_save(&config, NULL));
  job_close(&j);
}

static void replicas_have_the_same_moments(void** state) {
  (void)state;
  char directory[512];
  snprintf(directory, sizeof directory, "%s", directory_of("another"));
  run_ranks(1, save_another, directory);
  static const shape_of_job hows[] = {{2, MDP_SHARDING_ZERO_0, 400, 1}, {4, MDP_SHARDING_ZERO_1, 400, 2}, {2, MDP_SHARDING_ZERO_1, 400, 1}};
  for (size_t k = 0; k < 3; ++k) {
    for (int32_t rank = -1; rank < (k < 2 ? 2 : 0); ++rank) {
      replicas r = {directory, hows[k], rank};
      run_ranks(hows[k].n, load_beside_a_moment, &r);
    }
  }
}

/* ── What goes along ── */

static job trained(const mdp_unique_id* id, int32_t rank, int32_t n, int steps) {
  const shape_of_job how = {n, MDP_SHARDING_ZERO_1, 400, 1};
  job j = job_of(id, rank, &how);
  first_values(&j);
  take_steps(&j, 0, steps);
  return j;
}

static void along(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = trained(id, rank, n, 1);
  char directory[512];
  snprintf(directory, sizeof directory, "%s/along", folder);
  int64_t counters[6] = {1, -1, 2, -2, 3, -3};
  float fixed[5] = {1, 2, 3, 4, 5};
  const int64_t three = 3, two = 2, five = lengths[FIXED];
  const mdp_tensor strided = {
      .struct_size = sizeof strided, .dtype = MDP_DTYPE_I64, .ndim = 1, .data = counters, .shape = &three, .strides = &two};
  const mdp_tensor whole = tensor_of(MDP_DTYPE_F32, fixed, &five);
  const mdp_checkpoint_tensor tensors[2] = {{.struct_size = sizeof *tensors, .name = "counters", .tensor = &strided},
                                            {.struct_size = sizeof *tensors, .name = "fixed", .tensor = &whole}};
  const mdp_checkpoint_part part = part_of(&j);
  mdp_checkpoint_config config = config_of(directory, &part);
  config.tensors = tensors;
  config.tensor_count = 2;
  config.shared_data = "position 7";
  config.shared_bytes = 10;
  config.rank_data = &rank;
  config.rank_bytes = sizeof rank;
  OK(mdp_checkpoint_save(&config, NULL));
  memset(counters, 0, sizeof counters);
  memset(fixed, 0, sizeof fixed);
  OK(mdp_checkpoint_load(&config));
  CHECK(counters[0] == 1 && counters[1] == 0 && counters[2] == 2 && counters[4] == 3 && counters[5] == 0);
  for (int i = 0; i < 5; ++i) CHECK(fixed[i] == (float)i + 1);

  int32_t told = -1;
  size_t needed = 0;
  char text[16] = "";
  OK(mdp_checkpoint_data(directory, rank, &told, sizeof told, &needed));
  CHECK(told == rank && needed == sizeof told);
  FAILS(MDP_E_INVALID, "capacity is 3; 10 bytes were given", mdp_checkpoint_data(directory, -1, text, 3, &needed));
  CHECK(needed == 10);
  OK(mdp_checkpoint_data(directory, -1, text, sizeof text, &needed));
  CHECK(memcmp(text, "position 7", 10) == 0);
  FAILS(MDP_E_INVALID, "rank is 2; the checkpoint was saved by ranks 0 to 1",
        mdp_checkpoint_data(directory, n, text, sizeof text, &needed));

  /* What only one side has is an error, unless it is said to be optional. */
  config.tensor_count = 1;
  OK(mdp_checkpoint_load(&config)); /* a frozen parameter need not be taken */
  config.tensor_count = 0;
  FAILS(MDP_E_INVALID, "'counters' is in ", mdp_checkpoint_load(&config));
  config.optional = "nothing\ncount*";
  OK(mdp_checkpoint_load(&config));
  const mdp_checkpoint_tensor more = {.struct_size = sizeof more, .name = "more", .tensor = &whole};
  config.tensors = &more;
  config.tensor_count = 1;
  FAILS(MDP_E_INVALID, "'more' is here, f32[5], and not in ", mdp_checkpoint_load(&config));
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void tensors_and_data_go_along(void** state) {
  (void)state;
  run_ranks(2, along, NULL);
}

static void parameters_alone_and_hyperparameters(void** state) {
  (void)state;
  const char* const directory = directory_of("alone");
  job j = trained(NULL, 0, 1, 3);
  SIZED(mdp_param_group, group);
  group.lr = 0.5;
  OK(mdp_optimizer_set_param_group(j.optimizer, 0, &group));
  OK(save(&j, directory));
  everything *before = calloc(1, sizeof *before), *after = calloc(1, sizeof *after);
  collect(&j, before);
  job_close(&j);

  const shape_of_job how = {1, MDP_SHARDING_ZERO_2, 0, 1};
  j = job_of(NULL, 0, &how);
  const mdp_checkpoint_part part = part_of(&j);
  mdp_checkpoint_config config = config_of(directory, &part);
  char json[1024];
  OK(mdp_checkpoint_load(&config));
  OK(mdp_optimizer_info(j.optimizer, json, sizeof json, NULL));
  CHECK(strstr(json, "\"groups\":[{\"lr\":0.0625,") != NULL);
  config.flags = MDP_CHECKPOINT_LOAD_HYPER;
  OK(mdp_checkpoint_load(&config));
  OK(mdp_optimizer_info(j.optimizer, json, sizeof json, NULL));
  CHECK(strstr(json, "\"groups\":[{\"lr\":0.5,") != NULL);
  config.flags = MDP_CHECKPOINT_PARAMS_ONLY;
  OK(mdp_checkpoint_load(&config));
  collect(&j, after);
  CHECK(memcmp(before->params, after->params, sizeof before->params) == 0);
  CHECK(memcmp(before->states[0], after->states[0], sizeof before->states[0]) == 0);
  memset(before->states[1], 0, sizeof before->states[1]);
  CHECK(memcmp(before->states[1], after->states[1], sizeof before->states[1]) == 0);
  CHECK(memcmp(before->states[1], after->states[2], sizeof before->states[1]) == 0);
  for (int p = 0; p < COUNT; ++p) CHECK(after->steps[p] == 0);
  config.flags = 4;
  FAILS(MDP_E_INVALID, "config.flags is 4", mdp_checkpoint_load(&config));
  free(before);
  free(after);
  job_close(&j);
}

/* ── The folder ── */

static int entries(const char* directory) {
  DIR* const list = opendir(directory);
  int count = 0;
  if (!CHECK(list != NULL)) return -1;
  for (const struct dirent* entry; (entry = readdir(list)) != NULL;) count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
  closedir(list);
  return count;
}

static int exists(const char* directory, const char* name) {
  char at[800];
  snprintf(at, sizeof at, "%s/%s", directory, name);
  return access(at, F_OK) == 0;
}

static void the_newest_are_kept(void** state) {
  (void)state;
  const char* const directory = directory_of("keep");
  job j = trained(NULL, 0, 1, 1);
  const mdp_checkpoint_part part = part_of(&j);
  mdp_checkpoint_config config = config_of(directory, &part);
  FAILS(MDP_E_SYSTEM, "keep", mdp_checkpoint_load(&config));
  OK(mdp_checkpoint_save(&config, NULL));
  OK(mdp_checkpoint_save(&config, NULL));
  CHECK(exists(directory, "checkpoint-000001/manifest.json") && exists(directory, "checkpoint-000002/rank-00000.safetensors"));
  config.keep = 2;
  OK(mdp_checkpoint_save(&config, NULL));
  CHECK(entries(directory) == 2 && exists(directory, "checkpoint-000002") && exists(directory, "checkpoint-000003"));
  /* One without a manifest is none, but its number is taken; with less digits it is a folder of somebody else's. */
  char at[800];
  snprintf(at, sizeof at, "%s/checkpoint-77", directory);
  CHECK(mkdir(at, 0700) == 0);
  snprintf(at, sizeof at, "%s/checkpoint-000009", directory);
  CHECK(mkdir(at, 0700) == 0);
  char json[20000];
  OK(mdp_checkpoint_info(directory, json, sizeof json, NULL));
  CHECK(strstr(json, "/keep/checkpoint-000003\",\"format\":\"megadp checkpoint\"") != NULL);
  OK(mdp_checkpoint_load(&config));
  config.keep = 0;
  OK(mdp_checkpoint_save(&config, NULL));
  CHECK(exists(directory, "checkpoint-000010/manifest.json"));
  snprintf(at, sizeof at, "%s/checkpoint-000002/", directory);
  config.directory = at;
  OK(mdp_checkpoint_load(&config)); /* a certain one, in which nothing is saved: that would be loaded no more */
  FAILS(MDP_E_INVALID, "/keep/checkpoint-000002, which has a manifest.json", mdp_checkpoint_save(&config, NULL));
  CHECK(entries(at) == 2);
  job_close(&j);
}

/* ── Bad input ── */

static void flip(const char* name, long at) {
  FILE* const file = fopen(name, "r+b");
  if (!CHECK(file != NULL)) return;
  fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
  const int byte = fgetc(file);
  fseek(file, -1, SEEK_CUR);
  fputc(byte ^ 1, file);
  fclose(file);
}

/* `what`, which is there once, becomes `by`, of the same length. */
static void replace_in(const char* name, const char* what, const char* by) {
  static char content[1 << 16];
  FILE* const file = fopen(name, "r+b");
  if (!CHECK(file != NULL)) return;
  content[fread(content, 1, sizeof content - 1, file)] = '\0';
  const char* const at = strstr(content, what);
  if (CHECK(at != NULL && strlen(what) == strlen(by))) {
    fseek(file, at - content, SEEK_SET);
    fwrite(by, 1, strlen(by), file);
  }
  fclose(file);
}

static void append_to(const char* name, const char* what) {
  FILE* const file = fopen(name, "ab");
  if (!CHECK(file != NULL)) return;
  fputs(what, file);
  fclose(file);
}

/* A failed check has changed nothing. */
static void refused_unchanged(const job* j, const char* directory, mdp_status code, const char* words) {
  everything *before = calloc(1, sizeof *before), *after = calloc(1, sizeof *after);
  collect(j, before);
  FAILS(code, words, load(j, directory));
  collect(j, after);
  CHECK(memcmp(before, after, sizeof *before) == 0);
  free(before);
  free(after);
}

static void damage_is_found(void** state) {
  (void)state;
  const char* const directory = directory_of("damage");
  job j = trained(NULL, 0, 1, 2);
  OK(save(&j, directory));
  char file[800], manifest[800];
  snprintf(file, sizeof file, "%s/checkpoint-000001/rank-00000.safetensors", directory);
  snprintf(manifest, sizeof manifest, "%s/checkpoint-000001/manifest.json", directory);
  take_steps(&j, 2, 3);

  flip(file, 100); /* in the header */
  refused_unchanged(&j, directory, MDP_E_CORRUPT, "rank-00000.safetensors is damaged: the checksum of its header");
  flip(file, 100);
  flip(manifest, 3);
  refused_unchanged(&j, directory, MDP_E_CORRUPT, "manifest.json: ");
  flip(manifest, 3);
  struct stat about;
  CHECK(stat(file, &about) == 0 && truncate(file, about.st_size + 1) == 0);
  refused_unchanged(&j, directory, MDP_E_CORRUPT, "bytes, and ");
  CHECK(truncate(file, about.st_size) == 0);

  /* What could be as it says, but has not been written so. */
  replace_in(manifest, "\"version\":1", "\"version\":0");
  refused_unchanged(&j, directory, MDP_E_CORRUPT, "manifest.json: its checksum is not that of what it says");
  char report[400];
  FAILS(MDP_E_CORRUPT, "manifest.json: its checksum", mdp_checkpoint_verify(directory, report, sizeof report, NULL));
  replace_in(manifest, "\"version\":0", "\"version\":1");
  CHECK(stat(manifest, &about) == 0 && truncate(manifest, about.st_size - 2) == 0);
  append_to(manifest, ",\"shared_bytes\":0}\n");
  refused_unchanged(&j, directory, MDP_E_CORRUPT, "manifest.json: its checksum is not that of what it says");
  CHECK(truncate(manifest, about.st_size - 2) == 0);
  append_to(manifest, "}\n");

  /* Numbers that contradict each other; without a checksum, as megadp once wrote it. */
  replace_in(manifest, "\"checksum\"", "\"unchecks\"");
  OK(load(&j, directory));
  take_steps(&j, 2, 3);
  replace_in(manifest, "\"rule\":\"AdamW\",\"steps\":2", "\"rule\":\"AdamW\",\"steps\":1");
  refused_unchanged(&j, directory, MDP_E_CORRUPT, "has a parameter that has taken 2 steps of 1");
  replace_in(manifest, "\"rule\":\"AdamW\",\"steps\":1", "\"rule\":\"AdamW\",\"steps\":2");

  flip(file, -1); /* in the data: found while it is copied */
  SIZED(mdp_tensor, view);
  float values[LONGEST] = {0};
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[A]);
  FAILS(MDP_E_CORRUPT, "rank-00000.safetensors is damaged: the checksum of bytes ", load(&j, directory));
  FAILS(MDP_E_STATE, "neither the old nor the new", mdp_param_read(j.buffer, A, &t, NULL));
  FAILS(MDP_E_STATE, "neither the old nor the new", mdp_buffer_param_view(j.buffer, A, &view));
  FAILS(MDP_E_STATE, "neither the old nor the new", mdp_optimizer_state(j.optimizer, A, "exp_avg", &view));
  FAILS(MDP_E_STATE, "neither the old nor the new", mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  FAILS(MDP_E_STATE, "neither the old nor the new", save(&j, directory));
  FAILS(MDP_E_CORRUPT, "damaged", load(&j, directory));
  flip(file, -1);
  OK(load(&j, directory));
  OK(mdp_param_read(j.buffer, A, &t, NULL));
  take_steps(&j, 2, 3);
  CHECK(unlink(file) == 0);
  refused_unchanged(&j, directory, MDP_E_SYSTEM, "rank-00000.safetensors: No such file or directory");
  job_close(&j);
}

/* Values that no optimizer may be given, in a manifest without a checksum. */
static void wrong_values_are_refused(void** state) {
  (void)state;
  const char* const directory = directory_of("values");
  job j = trained(NULL, 0, 1, 2);
  OK(save(&j, directory));
  char manifest[800];
  snprintf(manifest, sizeof manifest, "%s/checkpoint-000001/manifest.json", directory);
  replace_in(manifest, "\"checksum\"", "\"unchecks\"");
  const mdp_checkpoint_part part = part_of(&j);
  mdp_checkpoint_config config = config_of(directory, &part);
  config.flags = MDP_CHECKPOINT_LOAD_HYPER;
  static const char* const wrong[][2] = {{"\"beta1\":0.9,", "\"beta1\":1.0,"}, {"\"eps\":1e-08,", "\"eps\":1e-38,"}};
  for (size_t i = 0; i < 2; ++i) {
    replace_in(manifest, wrong[i][0], wrong[i][1]);
    FAILS(MDP_E_CORRUPT, i == 0 ? "the optimizer's beta1 is not what it may be" : "the optimizer's eps", mdp_checkpoint_load(&config));
    replace_in(manifest, wrong[i][1], wrong[i][0]);
  }
  OK(mdp_checkpoint_load(&config));
  job_close(&j);
}

static void other_models_are_refused(void** state) {
  (void)state;
  const char* const directory = directory_of("other");
  job j = trained(NULL, 0, 1, 1);
  OK(save(&j, directory));
  job other = {.comm = comm_open(NULL, 0, 1, UINT64_C(20000000000))};
  const int64_t shape[2] = {10, 7}, longer[2] = {10, 8};
  mdp_param param = {.struct_size = sizeof param, .name = names[B], .dtype = MDP_DTYPE_BF16, .ndim = 2, .shape = longer};
  OK(mdp_buffer_register(other.comm, NULL, NULL, &param, 1, &other.buffer));
  const mdp_checkpoint_part part = part_of(&other);
  mdp_checkpoint_config config = config_of(directory, &part);
  FAILS(MDP_E_INVALID, "is bf16[10,8] here, and bf16[70] in ", mdp_checkpoint_load(&config));
  config.optional = "?";
  FAILS(MDP_E_INVALID, "this is another model: ", mdp_checkpoint_load(&config));
  (void)shape;
  FAILS(MDP_E_INVALID, "config.parts[0].optimizer is not one of the buffer beside it", ({
          mdp_checkpoint_part mixed = part_of(&j);
          mixed.buffer = other.buffer;
          mdp_checkpoint_config wrong = config_of(directory, &mixed);
          mdp_checkpoint_save(&wrong, NULL);
        }));
  config.part_count = 0;
  FAILS(MDP_E_INVALID, "config.part_count is 0", mdp_checkpoint_save(&config, NULL));
  job_close(&other);
  job_close(&j);
}

static void folders_that_cannot_be_used(void** state) {
  (void)state;
  char at[800], before[512];
  snprintf(before, sizeof before, "%s", directory_of("unusable"));
  job j = trained(NULL, 0, 1, 1);
  OK(save(&j, before));
  snprintf(at, sizeof at, "%s/loop", folder);
  CHECK(symlink(at, at) == 0);
  FAILS(MDP_E_SYSTEM, "Too many levels of symbolic links", save(&j, at));
  FAILS(MDP_E_SYSTEM, "Too many levels of symbolic links", load(&j, at));
  FAILS(MDP_E_SYSTEM, "Not a directory", save(&j, "/dev/null"));
  FAILS(MDP_E_INVALID, "config.directory is empty", save(&j, ""));
  FAILS(MDP_E_INVALID, "config.directory is NULL", save(&j, NULL));

  /* No room: whatever write it happens at, nothing is left, the checkpoint before stays, and no signal ends the process. */
  struct rlimit was;
  CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
  for (rlim_t most = 0; most < 30000; most += 3000) {
    const struct rlimit small = {most, was.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    const mdp_status status = save(&j, before);
    CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0);
    CHECK(status == MDP_E_SYSTEM && strstr(mdp_last_error(), "File too large") != NULL);
    CHECK(entries(before) == 1);
  }
  OK(load(&j, before));
  job_close(&j);
}

static void different_wishes(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = trained(id, rank, n, 1);
  const mdp_checkpoint_part part = part_of(&j);
  mdp_checkpoint_config config = config_of(rank == 0 ? "one" : "two", &part);
  FAILS(MDP_E_DESYNC, "directory 'one'", mdp_checkpoint_save(&config, NULL));
  FAILS(MDP_E_DESYNC, "directory 'one'", mdp_checkpoint_load(&config));
  const mdp_checkpoint_config same = config_of("one", &part);
  config = same;
  config.keep = rank == 0 ? 3 : 4;
  FAILS(MDP_E_DESYNC, "keep 4", mdp_checkpoint_save(&config, NULL));
  config = same;
  config.flags = rank == 0 ? 0 : MDP_CHECKPOINT_PARAMS_ONLY;
  FAILS(MDP_E_DESYNC, "parameters only yes", mdp_checkpoint_load(&config));
  config.flags = rank == 0 ? 0 : MDP_CHECKPOINT_LOAD_HYPER;
  FAILS(MDP_E_DESYNC, "load hyperparameters yes", mdp_checkpoint_load(&config));
  config = same;
  config.optional = rank == 0 ? "a\nb*" : "a\nb";
  FAILS(MDP_E_DESYNC, "optional 'b*'", mdp_checkpoint_load(&config));
  mdp_checkpoint_part without = part;
  without.optimizer = rank == 0 ? j.optimizer : NULL;
  config = same;
  config.parts = &without;
  FAILS(MDP_E_DESYNC, "optimizers 0", mdp_checkpoint_save(&config, NULL));
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void ranks_must_ask_for_the_same(void** state) {
  (void)state;
  run_ranks(2, different_wishes, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(loads_at_any_size),           TEST(replicas_have_the_same_moments),
      TEST(tensors_and_data_go_along),   TEST(parameters_alone_and_hyperparameters),
      TEST(the_newest_are_kept),         TEST(damage_is_found),
      TEST(wrong_values_are_refused),    TEST(other_models_are_refused),
      TEST(folders_that_cannot_be_used), TEST(ranks_must_ask_for_the_same),
  };
  return cmocka_run_group_tests(tests, open_folder, close_folder);
}
