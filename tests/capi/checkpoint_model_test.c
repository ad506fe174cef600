/* SPDX-License-Identifier: Apache-2.0
 * Models in ordinary safetensors files, of this and of other writers; and what is looked for in a checkpoint without loading it. */
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

static char path[600];

static const char* path_of(const char* name) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* ── Files as others write them ── */

static void write_file(const char* name, const char* header, const void* data, size_t bytes) {
  FILE* const file = fopen(path_of(name), "wb");
  if (!CHECK(file != NULL)) return;
  const uint64_t length = strlen(header);
  for (int i = 0; i < 8; ++i) fputc((int)(length >> (8 * i) & 255), file);
  fwrite(header, 1, length, file);
  fwrite(data, 1, bytes, file);
  fclose(file);
}

static void write_text(const char* name, const char* text) {
  FILE* const file = fopen(path_of(name), "wb");
  if (!CHECK(file != NULL)) return;
  fputs(text, file);
  fclose(file);
}

enum {
  A = 3,
  B = 4
};

/* Parameters "a", three f32, and "b", four bf16; under other names in `names`. */
static job two_params(const char* const* names) {
  static const char* const plain[2] = {"a", "b"};
  job j = {.comm = comm_open(NULL, 0, 1, UINT64_C(60000000000))};
  const int64_t three = A, square[2] = {2, 2};
  const mdp_param params[2] = {
      {.struct_size = sizeof *params, .name = (names ? names : plain)[0], .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &three},
      {.struct_size = sizeof *params, .name = (names ? names : plain)[1], .dtype = MDP_DTYPE_BF16, .ndim = 2, .shape = square}};
  OK(mdp_buffer_register(j.comm, NULL, NULL, params, 2, &j.buffer));
  OK(mdp_optimizer_create(j.buffer, NULL, &j.optimizer));
  return j;
}

static mdp_status load_params(const job* j, const char* name, const char* optional) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
  const mdp_checkpoint_config config = {.struct_size = sizeof config,
                                        .directory = path_of(name),
                                        .parts = &part,
                                        .part_count = 1,
                                        .optional = optional,
                                        .flags = MDP_CHECKPOINT_PARAMS_ONLY};
  return mdp_checkpoint_load(&config);
}

static mdp_status save(const job* j, const char* name) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = path_of(name), .parts = &part, .part_count = 1};
  return mdp_checkpoint_save(&config, NULL);
}

static void clear(const job* j) {
  const float zeros[B] = {0};
  const int64_t three = A, square[2] = {2, 2};
  mdp_tensor t = tensor_of(MDP_DTYPE_F32, (void*)zeros, &three);
  OK(mdp_param_write(j->buffer, 0, &t, NULL));
  t.ndim = 2;
  t.shape = square;
  OK(mdp_param_write(j->buffer, 1, &t, NULL));
}

/* Whether a is 1 2 3, and b 0.5 1 1.5 2, and its master likewise. */
static int has_values(const job* j) {
  float a[A], b[B];
  const int64_t three = A, square[2] = {2, 2};
  mdp_tensor t = tensor_of(MDP_DTYPE_F32, a, &three);
  OK(mdp_param_read(j->buffer, 0, &t, NULL));
  t.data = b;
  t.ndim = 2;
  t.shape = square;
  OK(mdp_param_read(j->buffer, 1, &t, NULL));
  SIZED(mdp_tensor, master);
  OK(mdp_optimizer_state(j->optimizer, 1, "master", &master));
  for (int i = 0; i < A; ++i)
    if (a[i] != (float)i + 1) return 0;
  for (int i = 0; i < B; ++i)
    if (b[i] != (float)(i + 1) / 2 || ((const float*)master.data)[i] != b[i]) return 0;
  return 1;
}

static void others_files_are_taken(void** state) {
  (void)state;
  job j = two_params(NULL);
  /* b comes first, as an f16 at an odd place behind a tensor of truth values; a is an f64's neighbour. */
  struct {
    uint8_t truth, b[8], a[12];
  } packed;
  const uint16_t halves[B] = {0x3800, 0x3c00, 0x3e00, 0x4000};
  const float a[A] = {1, 2, 3};
  packed.truth = 1;
  memcpy(packed.b, halves, sizeof halves);
  memcpy(packed.a, a, sizeof a);
  write_file("odd.safetensors",
             "{\"__metadata__\":{\"format\":\"pt\",\"also a\":\"a\"},\n \"mask\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[0,1]}, "
             "\"b\":{\"shape\":[2,2],\"data_offsets\":[1,9],\"dtype\":\"F16\"},"
             "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[9,21]}}   ",
             &packed, sizeof packed);
  FAILS(MDP_E_INVALID, "'mask' is in ", load_params(&j, "odd.safetensors", NULL));
  CHECK(strstr(mdp_last_error(), "odd.safetensors, BOOL[], and not here") != NULL);
  OK(load_params(&j, "odd.safetensors", "mas?"));
  CHECK(has_values(&j));
  job_close(&j);

  /* Under the name of one that shares its memory there. */
  const char* const other[2] = {"also a", "b"};
  j = two_params(other);
  OK(load_params(&j, "odd.safetensors", "mask"));
  CHECK(has_values(&j));
  job_close(&j);
  const char* const wrong[2] = {"a", "mask"};
  j = two_params(wrong);
  FAILS(MDP_E_UNSUPPORTED, "'mask' is BOOL in ", load_params(&j, "odd.safetensors", "*"));
  FAILS(MDP_E_UNSUPPORTED, "'mask' is BOOL in ", mdp_checkpoint_export(path_of("odd.safetensors"), "unwritten.safetensors", 0));
  job_close(&j);
}

/* What one file of a model stores goes before another name of that in a file that comes earlier. */
static void another_files_alias_hides_nothing(void** state) {
  (void)state;
  const float x[A] = {7, 8, 9};
  struct {
    float a[A];
    uint16_t b[B];
  } second = {{1, 2, 3}, {0x3f00, 0x3f80, 0x3fc0, 0x4000}};
  write_file("several-1.safetensors", "{\"__metadata__\":{\"a\":\"x\"},\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", x,
             sizeof x);
  write_file("several-2.safetensors",
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
             "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[12,20]}}",
             &second, 20);
  write_text("several.safetensors.index.json",
             "{\"metadata\":{},\"weight_map\":{\"x\":\"several-1.safetensors\",\"a\":\"several-2.safetensors\","
             "\"b\":\"several-2.safetensors\"}}");
  job j = two_params(NULL);
  OK(load_params(&j, "several.safetensors.index.json", "x"));
  CHECK(has_values(&j));
  job_close(&j);
}

/* Where it is read piece by piece no element is cut in two. */
static void long_arrays_may_lie_askew(void** state) {
  (void)state;
  enum {
    LONG = 600001
  };
  const int64_t length = LONG;
  float *const written = malloc(LONG * sizeof(float)), *const read = malloc(LONG * sizeof(float));
  char *const data = calloc(LONG + 1, sizeof(float)), header[200];
  for (int i = 0; i < LONG; ++i) written[i] = (float)i;
  memcpy(data + 3, written, LONG * sizeof(float));
  snprintf(header, sizeof header,
           "{\"m\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},\"long\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":["
           "3,%d]}}",
           LONG, 3 + 4 * LONG);
  write_file("long.safetensors", header, data, 3 + LONG * sizeof(float));
  job j = {.comm = comm_open(NULL, 0, 1, UINT64_C(60000000000))};
  const mdp_param param = {.struct_size = sizeof param, .name = "long", .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &length};
  OK(mdp_buffer_register(j.comm, NULL, NULL, &param, 1, &j.buffer));
  OK(load_params(&j, "long.safetensors", "m"));
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, read, &length);
  OK(mdp_param_read(j.buffer, 0, &t, NULL));
  CHECK(memcmp(read, written, LONG * sizeof(float)) == 0);
  job_close(&j);
  free(written);
  free(read);
  free(data);
}

static void what_is_no_model_is_refused(void** state) {
  (void)state;
  job j = two_params(NULL);
  clear(&j);
  char data[20] = {0};
  write_file("short.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", data, 11);
  FAILS(MDP_E_CORRUPT, "short.safetensors is no safetensors file: tensor 'a' lies beyond its end",
        load_params(&j, "short.safetensors", NULL));
  write_file("long.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", data, 13);
  FAILS(MDP_E_CORRUPT, "it has 13 bytes of data, and its tensors take 12", load_params(&j, "long.safetensors", NULL));
  write_file("fraction.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3.0],\"data_offsets\":[0,12]}}", data, 12);
  FAILS(MDP_E_CORRUPT, "fraction.safetensors is no safetensors file", load_params(&j, "fraction.safetensors", NULL));
  write_file("sums.safetensors",
             "{\"__metadata__\":{\"megadp.checksums\":\"0123\"},\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", data,
             12);
  FAILS(MDP_E_CORRUPT, "sums.safetensors is damaged: it has no 1 checksums", load_params(&j, "sums.safetensors", NULL));
  write_file("gap.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]}}", data, 16);
  FAILS(MDP_E_CORRUPT, "tensor 'a' begins at byte 4 of its data, where the one before it ends at 0",
        load_params(&j, "gap.safetensors", NULL));
  write_file("overlap.safetensors",
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
             "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[8,20]}}",
             data, 20);
  FAILS(MDP_E_CORRUPT, "tensor 'b' begins at byte 8 of its data, where the one before it ends at 12",
        load_params(&j, "overlap.safetensors", NULL));
  write_text("text.safetensors", "not one");
  FAILS(MDP_E_CORRUPT, "text.safetensors is no safetensors file: it has 7 bytes", load_params(&j, "text.safetensors", NULL));
  write_text("text.json", "{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
  FAILS(MDP_E_SYSTEM, "gone.safetensors: No such file or directory", load_params(&j, "text.json", NULL));
  write_text("above.json", "{\"weight_map\":{\"a\":\"../gone.safetensors\"}}");
  FAILS(MDP_E_CORRUPT, "above.json is no index of a model: weight_map has '../gone.safetensors'", load_params(&j, "above.json", NULL));
  write_file("one.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", data, 12);
  write_text("one.json", "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}}");
  FAILS(MDP_E_CORRUPT, "one.json says that 'b' is in one.safetensors, and it is not", load_params(&j, "one.json", NULL));
  FAILS(MDP_E_SYSTEM, "nowhere", load_params(&j, "nowhere", NULL));
  CHECK(mkfifo(path_of("pipe"), 0600) == 0);
  FAILS(MDP_E_CORRUPT, "pipe is not an ordinary file", load_params(&j, "pipe", NULL));
  job_close(&j);
}

/* ── Export ── */

static int entries(const char* name) {
  DIR* const list = opendir(path_of(name));
  int count = 0;
  if (list == NULL) return -1;
  for (const struct dirent* entry; (entry = readdir(list)) != NULL;) count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
  closedir(list);
  return count;
}

static job saved(const char* name) {
  job j = two_params(NULL);
  float a[A] = {1, 2, 3}, b[B] = {0.5F, 1, 1.5F, 2};
  const int64_t three = A, square[2] = {2, 2};
  mdp_tensor t = tensor_of(MDP_DTYPE_F32, a, &three);
  OK(mdp_param_write(j.buffer, 0, &t, NULL));
  t.data = b;
  t.ndim = 2;
  t.shape = square;
  OK(mdp_param_write(j.buffer, 1, &t, NULL));
  OK(save(&j, name));
  return j;
}

static void exports_are_models(void** state) {
  (void)state;
  job j = saved("run");
  char from[600], to[600];
  snprintf(from, sizeof from, "%s", path_of("run"));
  OK(mdp_checkpoint_export(from, path_of("out/model.safetensors"), 0));
  CHECK(entries("out") == 1);
  clear(&j);
  OK(load_params(&j, "out", NULL)); /* the folder is enough */
  CHECK(has_values(&j));
  char json[4000];
  OK(mdp_checkpoint_info(path_of("out"), json, sizeof json, NULL));
  CHECK(strstr(json, "/out/model.safetensors\",\"format\":\"safetensors\"") != NULL);
  CHECK(strstr(json, "{\"name\":\"b\",\"dtype\":\"bf16\",\"shape\":[2,2]") != NULL);

  /* In several files; and from those one again. */
  OK(mdp_checkpoint_export(from, path_of("parts/model.safetensors"), 13));
  CHECK(entries("parts") == 3 && access(path_of("parts/model-00002-of-00002.safetensors"), F_OK) == 0);
  clear(&j);
  OK(load_params(&j, "parts", NULL));
  CHECK(has_values(&j));
  snprintf(from, sizeof from, "%s", path_of("parts"));
  OK(mdp_checkpoint_export(from, path_of("again.safetensors"), 0));
  clear(&j);
  OK(load_params(&j, "again.safetensors", NULL));
  CHECK(has_values(&j));

  /* Over nothing, and nothing is left of what failed. */
  snprintf(to, sizeof to, "%s", path_of("again.safetensors"));
  FAILS(MDP_E_INVALID, "again.safetensors is there already", mdp_checkpoint_export(from, to, 0));
  FAILS(MDP_E_INVALID, "path is 'model.bin'; it must be a file that is called ....safetensors",
        mdp_checkpoint_export(from, "model.bin", 0));
  FAILS(MDP_E_INVALID, "path is NULL", mdp_checkpoint_export(from, NULL, 0));
  FAILS(MDP_E_INVALID, "directory is empty", mdp_checkpoint_export("", to, 0));
  CHECK(unlink(path_of("parts/model-00002-of-00002.safetensors")) == 0);
  FAILS(MDP_E_SYSTEM, "model-00002-of-00002.safetensors: No such file", mdp_checkpoint_export(from, path_of("none/m.safetensors"), 0));
  CHECK(entries("none") == -1);
  OK(mdp_checkpoint_verify(path_of("out"), NULL, 0, NULL));
  job_close(&j);
}

/* Readers would take it for what is no tensor. */
static void a_name_that_the_format_has_taken(void** state) {
  (void)state;
  static const char* const names[2] = {"a", "__metadata__"};
  job j = two_params(names);
  char from[600];
  OK(save(&j, "taken"));
  snprintf(from, sizeof from, "%s", path_of("taken"));
  FAILS(MDP_E_UNSUPPORTED, "'__metadata__' names no tensor in a safetensors file",
        mdp_checkpoint_export(from, path_of("taken.safetensors"), 0));
  job_close(&j);
}

/* ── Hosts that have not the same ── */

enum {
  WIDE = 50000 /* f32, more than are looked at */
};

/* A rank's own folder is its working directory, so that one path means another file on each: as on hosts that do not share a folder. */
static void load_from_own_folder(const mdp_unique_id* id, int32_t rank, int32_t nranks, void* argument) {
  const char* const refused = argument;
  char own[600];
  snprintf(own, sizeof own, "%s/host-%d", folder, (int)rank);
  if (!CHECK(unshare(CLONE_FS) == 0 && chdir(own) == 0)) return; /* this thread's alone */
  job j = {.comm = comm_open(id, rank, nranks, UINT64_C(60000000000))};
  const int64_t few = A, wide = WIDE;
  const mdp_param params[2] = {vector_param("few", MDP_DTYPE_F32, &few), vector_param("wide", MDP_DTYPE_F32, &wide)};
  OK(mdp_buffer_register(j.comm, NULL, NULL, params, 2, &j.buffer));
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer};
  for (int i = 0; i < 3; ++i) {
    static const char* const paths[3] = {"m/model.safetensors", "m", "m/model.safetensors.index.json"};
    const mdp_checkpoint_config config = {
        .struct_size = sizeof config, .directory = paths[i], .parts = &part, .part_count = 1, .flags = MDP_CHECKPOINT_PARAMS_ONLY};
    if (refused == NULL) {
      OK(mdp_checkpoint_load(&config));
    } else {
      FAILS(MDP_E_CORRUPT, refused, mdp_checkpoint_load(&config));
    }
  }
  job_close(&j);
}

/* In each host's folder one model; `other` is the element of the second's that is not as in the first, of both arrays. */
static void write_models(int other) {
  static float values[A + WIDE];
  for (int host = 0; host < 2; ++host) {
    for (int i = 0; i < A + WIDE; ++i) values[i] = (float)i;
    if (host == 1 && other >= 0) values[other] += 0.5F;
    char header[300];
    snprintf(header, sizeof header,
             "{\"few\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]},"
             "\"wide\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
             A, 4 * A, WIDE, 4 * A, 4 * (A + WIDE));
    write_file(host == 0 ? "host-0/m/model.safetensors" : "host-1/m/model.safetensors", header, values, sizeof values);
  }
}

/* They were mixed in silence. */
static void a_model_that_differs_by_host_is_refused(void** state) {
  (void)state;
  static const char* const folders[4] = {"host-0", "host-0/m", "host-1", "host-1/m"};
  for (int i = 0; i < 4; ++i) CHECK(mkdir(path_of(folders[i]), 0700) == 0);
  for (int host = 0; host < 2; ++host) {
    write_text(host == 0 ? "host-0/m/model.safetensors.index.json" : "host-1/m/model.safetensors.index.json",
               "{\"weight_map\":{\"few\":\"model.safetensors\",\"wide\":\"model.safetensors\"}}");
  }
  write_models(-1);
  run_ranks(2, load_from_own_folder, NULL);
  static char refused[] = "holds another model here than on rank 0: it must be the same on all hosts";
  const int others[] = {0, A - 1, A, A + WIDE / 3, A + WIDE - 1}; /* of each array its ends, and of the wide one a place between */
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    write_models(others[i]);
    run_ranks(2, load_from_own_folder, refused);
  }
}

/* ── Damage ── */

static void flip(const char* name, long at) {
  FILE* const file = fopen(path_of(name), "r+b");
  if (!CHECK(file != NULL)) return;
  fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
  const int byte = fgetc(file);
  fseek(file, -1, SEEK_CUR);
  fputc(byte ^ 1, file);
  fclose(file);
}

static void every_damage_is_told(void** state) {
  (void)state;
  job j = saved("damaged");
  char directory[600], lines[2000];
  snprintf(directory, sizeof directory, "%s", path_of("damaged"));
  size_t needed = 0;
  OK(mdp_checkpoint_verify(directory, lines, sizeof lines, &needed));
  CHECK(needed == 1 && lines[0] == '\0');
  char file[600];
  snprintf(file, sizeof file, "%s", path_of("damaged/checkpoint-000001/rank-00000.safetensors"));
  OK(mdp_checkpoint_verify(file, NULL, 0, NULL));
  flip("damaged/checkpoint-000001/rank-00000.safetensors", -1);
  FAILS(MDP_E_CORRUPT, "rank-00000.safetensors is damaged: the checksum of bytes ", mdp_checkpoint_verify(file, NULL, 0, NULL));
  FAILS(MDP_E_CORRUPT, "rank-00000.safetensors is damaged: the checksum of bytes ",
        mdp_checkpoint_verify(directory, lines, sizeof lines, &needed));
  CHECK(needed == strlen(lines) + 1 && strchr(lines, '\n') == lines + strlen(lines) - 1);
  char few[11];
  FAILS(MDP_E_CORRUPT, "damaged", mdp_checkpoint_verify(directory, few, sizeof few, NULL));
  CHECK(strncmp(few, lines, 10) == 0 && few[10] == '\0');
  FAILS(MDP_E_CORRUPT, "damaged", mdp_checkpoint_export(directory, path_of("broken/m.safetensors"), 0));
  CHECK(entries("broken") == 0);
  CHECK(unlink(path_of("damaged/checkpoint-000001/rank-00000.safetensors")) == 0);
  FAILS(MDP_E_SYSTEM, "places, the first: ", mdp_checkpoint_verify(directory, lines, sizeof lines, NULL));
  FAILS(MDP_E_INVALID, "damage is NULL, and capacity is 5", mdp_checkpoint_verify(directory, NULL, 5, NULL));
  FAILS(MDP_E_SYSTEM, "nowhere", mdp_checkpoint_verify(path_of("nowhere"), NULL, 0, NULL));
  job_close(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(others_files_are_taken),
                                     TEST(another_files_alias_hides_nothing),
                                     TEST(long_arrays_may_lie_askew),
                                     TEST(what_is_no_model_is_refused),
                                     TEST(exports_are_models),
                                     TEST(a_name_that_the_format_has_taken),
                                     TEST(a_model_that_differs_by_host_is_refused),
                                     TEST(every_damage_is_told)};
  return cmocka_run_group_tests(tests, open_folder, close_folder);
}
