/* SPDX-License-Identifier: Apache-2.0
 * How many threads a rank costs: those of the library in its process, by name. There is one for every communicator that the caller has
 * collectives on (with a device, two), none for one that is only there, and few besides. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "channels.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* Those whose name begins with "mdp". What begins otherwise looks after the job, not after a communicator. */
static int library_threads(void) {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  if (!CHECK(tasks != NULL)) return -1;
  for (const struct dirent* task; (task = readdir(tasks)) != NULL;) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    FILE* const file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
    if (file == NULL) continue; /* it has ended meanwhile */
    if (fgets(name, sizeof name, file) != NULL) count += strncmp(name, "mdp", 3) == 0;
    fclose(file);
  }
  closedir(tasks);
  return count;
}

/* A thread may take a moment to end after the handle that it served. */
static int threads_come_down_to(int most) {
  const struct timespec moment = {0, 10000000};
  for (int i = 0; i < 500 && library_threads() > most; ++i) nanosleep(&moment, NULL);
  return library_threads();
}

/* Gradients and gathers; a device has one beside gradients, and a watch. */
static int besides(void) {
  return on_cuda ? 4 : 3;
}
/* A communicator: a device's has one for what goes over the host. */
static int each(void) {
  return on_cuda ? 2 : 1;
}
enum {
  USED = 3,
  UNUSED = 5,
  CYCLES = 20
};

static int check_at_most(int count, int most, const char* when) {
  if (count > most) fprintf(stderr, "%d threads of the library %s, wanted at most %d\n", count, when, most);
  return CHECK(count <= most);
}

static void take_a_step(model* m) {
  dice d = dice_of(0, 0);
  put_parts(m, 0, &d);
  sync_and_check(m);
  step_and_check(m);
}

static void count_threads(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm *world = comm_in_time(id, rank, n), *used[USED], *unused[UNUSED];
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(world, NULL, &grid));
  room arrays = room_open(world);
  model m = model_open(grid, 0);
  take_a_step(&m);
  CHECK(library_threads() > 0); /* they are known by their names */
  check_at_most(library_threads(), besides(), "after a step");
  for (int i = 0; i < USED; ++i) OK(mdp_comm_split(world, 0, rank, &used[i]));
  for (int i = 0; i < UNUSED; ++i) OK(mdp_comm_split(world, 0, rank, &unused[i]));
  check_at_most(library_threads(), besides(), "beside communicators that are not used");
  for (int i = 0; i < USED; ++i) {
    for (int number = 0; number < SLOTS; ++number) call_now(used[i], (kind)(number % KINDS), number, &arrays, number);
    check_at_most(library_threads(), besides() + each() * (i + 1), "beside communicators that are used");
  }
  call_now(world, ALL_REDUCE, 0, &arrays, 1);
  take_a_step(&m);
  check_at_most(library_threads(), besides() + each() * (USED + 1), "with the world used too");
  for (int i = 0; i < UNUSED; ++i) mdp_comm_destroy(unused[i]);
  for (int i = 0; i < USED; ++i) mdp_comm_destroy(used[i]);
  /* The last one's may be kept until another comes or goes. */
  check_at_most(threads_come_down_to(besides() + 2 * each()), besides() + 2 * each(), "when the communicators are gone");
  for (int i = 0; i < CYCLES; ++i) {
    mdp_comm* part = NULL;
    OK(mdp_comm_split(world, 0, rank, &part));
    call_now(part, ALL_REDUCE, i, &arrays, i);
    mdp_comm_destroy(part);
  }
  check_at_most(threads_come_down_to(besides() + 2 * each()), besides() + 2 * each(), "after communicators that came and went");
  OK(mdp_barrier(world, NULL)); /* no rank leaves while another one's last communicator is under way */
  model_close(&m);
  room_close(&arrays);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(world);
  check_at_most(threads_come_down_to(0), 0, "when all is gone");
}

/* Before anything else in this program: a fork of a process without other threads. */
static void threads_of_two_processes(void** state) {
  (void)state;
  enum {
    RANKS = 2
  };
  pid_t children[RANKS];
  mdp_unique_id id;
  if (on_cuda) SKIP("the stand-in's ranks are threads of one process");
  if (UNDER_THREAD_SANITIZER) SKIP("ThreadSanitizer starts no threads in a forked child");
  OK(mdp_unique_id_create(&id));
  for (int32_t rank = 0; rank < RANKS; ++rank) {
    children[rank] = fork();
    if (children[rank] != 0) continue;
    count_threads(&id, rank, RANKS, NULL);
    fflush(stderr);
    _exit(all_checks_held(NULL) == 0 ? 0 : 1);
  }
  for (int rank = 0; rank < RANKS; ++rank) {
    int status = -1;
    CHECK(children[rank] > 0 && waitpid(children[rank], &status, 0) == children[rank]);
    CHECK(status == 0);
  }
}

static void threads_of_a_single_rank(void** state) {
  (void)state;
  run_ranks(1, count_threads, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(threads_of_two_processes),
      TEST(threads_of_a_single_rank),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
