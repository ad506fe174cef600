/* SPDX-License-Identifier: Apache-2.0
 * What belongs to the whole process, and a program may do with it what it likes: its first descriptors, its directory, its locale. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

static char path[600];
static const char* in_folder(const char* name) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static mdp_status save(const job* j, const char* directory, mdp_request** out) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1};
  return mdp_checkpoint_save(&config, out);
}

static mdp_status load_all(const job* j, const char* directory) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
  const mdp_checkpoint_config config = {
      .struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1, .flags = MDP_CHECKPOINT_LOAD_HYPER};
  return mdp_checkpoint_load(&config);
}

/* ── Descriptors ── */

static int none_is_taken(void) {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) return 0;
  }
  return 1;
}

typedef struct {
  const char* directory;
  int taken;
} closed;

static void train(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  closed* found = argument;
  job j = job_open(id, rank, n);
  int fd = -1;
  OK(mdp_comm_event_fd(j.comm, &fd));
  put_all(j.buffer);
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  OK(save(&j, found->directory, NULL));
  OK(mdp_barrier(j.comm, NULL));
  if (rank == 0) found->taken = !none_is_taken();
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

/* Where they are closed, what a program prints goes to whoever has their numbers: it would be memory that ranks share. */
static void standard_descriptors_are_left_closed(void** state) {
  (void)state;
  int kept[3];
  for (int fd = 0; fd <= 2; ++fd) kept[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 50);
  for (int fd = 0; fd <= 2; ++fd) close(fd);
  closed found = {.directory = in_folder("closed")};
  run_ranks(2, train, &found);
  for (int fd = 0; fd <= 2; ++fd) {
    if (kept[fd] < 0) continue;
    dup2(kept[fd], fd);
    close(kept[fd]);
  }
  CHECK(!found.taken);
}

/* ── The directory ── */

/* A checkpoint that is written later lies where the path led to when it was asked for. */
static void relative_paths_are_of_the_call(void** state) {
  (void)state;
  char before[600], name[20];
  CHECK(getcwd(before, sizeof before) != NULL);
  job j = job_open(NULL, 0, 1);
  for (int k = 0; k < 10; ++k) {
    CHECK(chdir(folder) == 0);
    snprintf(name, sizeof name, "relative%d", k);
    mdp_request* request = NULL;
    OK(save(&j, name, &request));
    CHECK(mkdir("elsewhere", 0700) == 0 || errno == EEXIST);
    CHECK(chdir("elsewhere") == 0);
    OK(mdp_request_wait(request, UINT64_MAX));
    mdp_request_free(request);
    CHECK(access(name, F_OK) != 0 && access(in_folder(name), F_OK) == 0);
  }
  CHECK(chdir(before) == 0);
  job_close(&j);
}

/* ── The locale ── */

/* One with a decimal comma, made here, since few machines have any: as localedef writes it for glibc. */
static int use_decimal_comma(void) {
  static const struct {
    uint32_t version, fields, at[6]; /* of each of the six, from here */
    char point[2], separator[2], grouping[4];
    uint32_t wide_point, wide_separator;
    char codeset[6];
  } numeric = {0x20031114, 6, {0x20, 0x22, 0x24, 0x28, 0x2c, 0x30}, ",", ".", {3, 3}, ',', '.', "UTF-8"};
  char name[700];
  setenv("LOCPATH", folder, 1);
  if (mkdir(in_folder("comma"), 0700) != 0) return 0;
  snprintf(name, sizeof name, "%s/comma/LC_NUMERIC", folder);
  FILE* const file = fopen(name, "wb");
  if (file == NULL) return 0;
  const size_t written = fwrite(&numeric, 0x36, 1, file);
  return fclose(file) == 0 && written == 1 && setlocale(LC_NUMERIC, "comma") != NULL;
}

static void numbers_have_a_point_everywhere(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  SIZED(mdp_scaler, scaler);
  scaler.scale = 1536.5;
  OK(mdp_optimizer_set_scaler(j.optimizer, &scaler));
  char directory[600];
  snprintf(directory, sizeof directory, "%s", in_folder("point"));
  OK(save(&j, directory, NULL));
  char with_point[20000], with_comma[20000], number[20];
  size_t needed = 0;
  OK(mdp_checkpoint_info(directory, with_point, sizeof with_point, &needed));
  CHECK(use_decimal_comma());
  snprintf(number, sizeof number, "%.1f", 1.5);
  CHECK(strcmp(number, "1,5") == 0);

  OK(mdp_checkpoint_info(directory, with_comma, sizeof with_comma, &needed));
  CHECK(strcmp(with_point, with_comma) == 0 && strstr(with_point, "1536.5") != NULL);
  for (int k = 0; k < 2; ++k) { /* written with a point, then where there is a comma */
    scaler.scale = 1024;
    OK(mdp_optimizer_set_scaler(j.optimizer, &scaler));
    OK(load_all(&j, directory));
    OK(mdp_optimizer_scaler(j.optimizer, &scaler));
    CHECK(scaler.scale == 1536.5);
    OK(save(&j, directory, NULL));
  }
  setlocale(LC_NUMERIC, "C");
  unsetenv("LOCPATH");
  job_close(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(standard_descriptors_are_left_closed),
      TEST(relative_paths_are_of_the_call),
      TEST(numbers_have_a_point_everywhere),
  };
  return cmocka_run_group_tests(tests, open_folder, close_folder);
}
