// SPDX-License-Identifier: Apache-2.0
// A rank whose child tries to join a world of its own. Started by fork_test.py under `megadp run`, on one node or on two.
// usage: forks [ROOT]      ROOT: host:port where the children's rank 0 shall listen, if they are on several nodes
// Prints what mdp_comm_create told the child, and leaves with 0 when the parent's communicator is as good as before.
//        forks --leave     rank 1 leaves a group while a child of it lives; rank 0 prints what it is told there
//        forks --die       rank 1 dies and leaves a child, whose pid it has printed; the others print what they are told
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "job.h"

namespace {

using namespace job;

void join_in_child(const mdp_unique_id& id, int rank, int size) {
  mdp_comm_config config{};
  config.struct_size = sizeof config;
  config.rank = rank;
  config.size = size;
  config.timeout_ns = kTimeoutNs;
  mdp_comm* comm = nullptr;
  const mdp_status status = mdp_comm_create(&config, &id, &comm);
  std::printf("child of rank %d: %s %s\n", rank, mdp_status_name(status), status == MDP_OK ? "" : mdp_last_error());
  std::fflush(stdout);
  if (status == MDP_OK) ok(mdp_barrier(comm, nullptr));
  mdp_comm_destroy(comm);
}

void run() {
  mdp_comm* made = nullptr;
  ok(mdp_comm_create(nullptr, nullptr, &made));
  const Comm comm(made);
  const int rank = mdp_comm_rank(made), size = mdp_comm_size(made);  // a child's handle would not say
  mdp_unique_id id{};
  if (rank == 0) ok(mdp_unique_id_create(&id));
  const int64_t bytes = sizeof id;
  mdp_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = MDP_DTYPE_U8;
  tensor.ndim = 1;
  tensor.shape = &bytes;
  tensor.data = &id;
  ok(mdp_broadcast(made, &tensor, 0, nullptr, nullptr));

  const pid_t child = fork();
  if (child == 0) {
    join_in_child(id, rank, size);
    std::_Exit(0);
  }
  int status = -1;
  require(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child ended with ", status);
  ok(mdp_barrier(made, nullptr));
  ok(mdp_broadcast(made, &tensor, 0, nullptr, nullptr));
}

void leave() {
  mdp_comm_config config{};
  config.struct_size = sizeof config;
  config.timeout_ns = kTimeoutNs;
  mdp_comm* made = nullptr;
  ok(mdp_comm_create(&config, nullptr, &made));
  const Comm comm(made);
  ok(mdp_comm_split(made, 0, 0, &made));
  Comm group(made);
  ok(mdp_barrier(group.get(), nullptr));
  if (mdp_comm_rank(comm.get()) == 1) {
    const pid_t child = fork();
    if (child == 0) {
      sleep(90);
      std::_Exit(0);
    }
    group.reset();
    (void)mdp_barrier(comm.get(), nullptr);  // until the other has been told, which ends all groups
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    return;
  }
  const mdp_status status = mdp_barrier(group.get(), nullptr);
  std::printf("%s %s\n", mdp_status_name(status), mdp_last_error());
  std::fflush(stdout);
}

void die() {
  mdp_comm* made = nullptr;
  ok(mdp_comm_create(nullptr, nullptr, &made));
  const Comm comm(made);
  ok(mdp_barrier(made, nullptr));
  if (mdp_comm_rank(made) == 1) {
    const pid_t child = fork();
    if (child == 0) {
      for (int fd = 0; fd <= 2; ++fd) close(fd);  // who reads what its parent prints must not wait for it
      sleep(90);
      std::_Exit(0);
    }
    std::printf("child %d\n", static_cast<int>(child));
    std::fflush(stdout);
    kill(getpid(), SIGKILL);
  }
  const mdp_status status = mdp_barrier(made, nullptr);
  std::printf("%s %s\n", mdp_status_name(status), mdp_last_error());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  try {
    if (word == "--die") {
      die();
    } else if (word == "--leave") {
      leave();
    } else {
      if (!word.empty()) setenv("MEGADP_ROOT", argv[1], 1);
      run();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
