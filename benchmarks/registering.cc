// SPDX-License-Identifier: Apache-2.0
// How long it takes to register parameters of three elements: 100,000 and 300,000 of them in turn, each time in fresh processes, and the
// ratio of the two.
//
// usage: bench_registering [ROUNDS [RANKS]]      (9 rounds, 1 rank)
#include <megadp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

void must(mdp_status status, const char* call) {
  if (status >= 0) return;
  std::fprintf(stderr, "bench_registering: %s: %s: %s\n", call, mdp_status_name(status), mdp_last_error());
  std::_Exit(1);
}
#define MUST(call) must((call), #call)

double seconds_of(const mdp_unique_id* id, int rank, int ranks, size_t count) {
  const int64_t shape[] = {3};
  std::vector<std::string> names;
  names.reserve(count);
  std::vector<mdp_param> params(count);
  for (size_t p = 0; p < count; ++p) {
    names.push_back("model.layers." + std::to_string(p) + ".weight");
    params[p] = mdp_param{};
    params[p].struct_size = sizeof(mdp_param);
    params[p].name = names[p].c_str();
    params[p].shape = shape;
    params[p].ndim = 1;
  }
  mdp_comm_config config{};
  config.struct_size = sizeof config;
  config.rank = rank;
  config.size = ranks;
  mdp_comm* comm = nullptr;
  mdp_buffer* buffer = nullptr;
  MUST(mdp_comm_create(&config, ranks > 1 ? id : nullptr, &comm));
  MUST(mdp_barrier(comm, nullptr));
  const auto begin = std::chrono::steady_clock::now();
  MUST(mdp_buffer_register(comm, nullptr, nullptr, params.data(), count, &buffer));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of rank 0, all of them processes of their own that end at once.
double in_processes(int ranks, size_t count) {
  mdp_unique_id id;
  MUST(mdp_unique_id_create(&id));
  int ends[2];
  if (pipe(ends) != 0) std::exit(1);
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    const double seconds = seconds_of(&id, rank, ranks, count);
    if (rank == 0 && write(ends[1], &seconds, sizeof seconds) != sizeof seconds) std::_Exit(1);
    std::_Exit(0);
  }
  close(ends[1]);
  double seconds = 0;
  if (read(ends[0], &seconds, sizeof seconds) != sizeof seconds) std::exit(1);
  close(ends[0]);
  while (wait(nullptr) > 0) {
  }
  return seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9, ranks = argc > 2 ? std::atoi(argv[2]) : 1;
  if (rounds < 1 || ranks < 1) return 2;
  std::vector<double> few, many, ratios;
  for (int round = 0; round < rounds; ++round) {
    few.push_back(in_processes(ranks, 100'000));
    many.push_back(in_processes(ranks, 300'000));
    ratios.push_back(many.back() / few.back());
  }
  std::printf("%d rank%s, %d rounds, medians: 100,000 in %.3f s, 300,000 in %.3f s, ratio %.2f\n", ranks, ranks > 1 ? "s" : "", rounds,
              median(few), median(many), median(ratios));
}
