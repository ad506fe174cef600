// SPDX-License-Identifier: Apache-2.0
// What the checks of gradients cost: whole steps (gradients in, sync, AdamW, gather) of ranks that are threads of this program, without
// checks and with each of them, in turns. Of each the median of the processor's time, which other programs on the machine lengthen least,
// by rank; and the least time by the clock.
//
// usage: bench_checks [RANKS 2] [MILLIONS of parameters 8] [ROUNDS 31]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "megadp.h"

namespace {

constexpr int kVariants = 4, kParams = 16;
constexpr const char* kNames[kVariants] = {"none", "finite", "large", "both"};
constexpr uint64_t kFlags[kVariants] = {0, MDP_BUFFER_CHECK_FINITE, MDP_BUFFER_CHECK_LARGE,
                                        MDP_BUFFER_CHECK_FINITE | MDP_BUFFER_CHECK_LARGE};

void must(mdp_status status) {
  if (status >= 0) return;
  std::fprintf(stderr, "bench_checks: %s\n", mdp_last_error());
  std::exit(1);
}

struct Model {
  mdp_buffer* buffer = nullptr;
  mdp_optimizer* optimizer = nullptr;
};

struct Kind {
  const char* name;
  mdp_dtype dtype, grads;
  bool put;
};

Model make_model(mdp_comm* comm, const Kind& kind, int64_t length, uint64_t flags) {
  Model model;
  std::vector<std::string> names;
  for (int p = 0; p < kParams; p++) names.push_back("layer" + std::to_string(p));
  std::vector<mdp_param> params(kParams);
  for (int p = 0; p < kParams; p++) {
    params[static_cast<size_t>(p)].struct_size = sizeof(mdp_param);
    params[static_cast<size_t>(p)].dtype = kind.dtype;
    params[static_cast<size_t>(p)].name = names[static_cast<size_t>(p)].c_str();
    params[static_cast<size_t>(p)].shape = &length;
    params[static_cast<size_t>(p)].ndim = 1;
  }
  mdp_buffer_config config{};
  config.struct_size = sizeof config;
  config.grad_dtype = kind.grads;
  config.flags = flags;
  must(mdp_buffer_register(comm, nullptr, &config, params.data(), params.size(), &model.buffer));
  must(mdp_optimizer_create(model.buffer, nullptr, &model.optimizer));
  return model;
}

void step(const Model& model, const Kind& kind, std::vector<float>& gradient) {
  const auto length = static_cast<int64_t>(gradient.size());
  mdp_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = MDP_DTYPE_F32;
  tensor.device_type = 1;
  tensor.ndim = 1;
  tensor.data = gradient.data();
  tensor.shape = &length;
  for (size_t p = kParams; p-- > 0;) {
    must(kind.put ? mdp_grad_put(model.buffer, p, &tensor, 0, nullptr) : mdp_grad_ready(model.buffer, p, nullptr));
  }
  must(mdp_optimizer_step(model.optimizer, nullptr, nullptr, nullptr));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double processor_time_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void run(const mdp_unique_id& id, int rank, int ranks, int64_t length, int rounds, const Kind& kind) {
  mdp_comm_config config{};
  config.struct_size = sizeof config;
  config.backend = MDP_BACKEND_HOST;
  config.rank = rank;
  config.size = ranks;
  mdp_comm* comm = nullptr;
  must(mdp_comm_create(&config, &id, &comm));
  std::vector<float> gradient(static_cast<size_t>(length), 0.25F);
  Model models[kVariants];
  for (int v = 0; v < kVariants; v++) models[v] = make_model(comm, kind, length, kFlags[v]);
  std::vector<double> times[kVariants], processor[kVariants];
  for (int round = -3; round < rounds; round++) {  // the first ones are not counted
    double ms[kVariants], processor_ms[kVariants];
    for (int turn = 0; turn < kVariants; turn++) {
      const int v = (turn + round + 4) % kVariants;
      must(mdp_barrier(comm, nullptr));
      const uint64_t begin = megadp::now_ns();
      const double processor_begin = processor_time_ms();
      step(models[v], kind, gradient);
      must(mdp_barrier(comm, nullptr));
      ms[v] = static_cast<double>(megadp::now_ns() - begin) / 1e6;
      processor_ms[v] = (processor_time_ms() - processor_begin) / ranks;
    }
    for (int v = 0; v < kVariants && round >= 0; v++) times[v].push_back(ms[v]), processor[v].push_back(processor_ms[v]);
  }
  const double elements = static_cast<double>(length) * kParams;
  for (int v = 0; v < kVariants && rank == 0; v++) {
    const double typical = median(processor[v]), more = typical - median(processor[0]);
    std::printf("%-30s %-7s %8.3f ms of a processor a step, %+7.3f ns an element, %+6.1f %%; by the clock at least %8.3f ms\n", kind.name,
                kNames[v], typical, more * 1e6 / elements, 100 * more / median(processor[0]),
                *std::min_element(times[v].begin(), times[v].end()));
  }
  for (const Model& model : models) mdp_optimizer_destroy(model.optimizer), mdp_buffer_destroy(model.buffer);
  mdp_comm_destroy(comm);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2, rounds = argc > 3 ? std::atoi(argv[3]) : 31;
  const double millions = argc > 2 ? std::atof(argv[2]) : 8;
  const auto length = static_cast<int64_t>(millions * 1e6 / kParams);
  if (ranks < 1 || rounds < 1 || length < 1) {
    std::fprintf(stderr, "usage: bench_checks [RANKS 2] [MILLIONS of parameters 8] [ROUNDS 31]\n");
    return 2;
  }
  for (const Kind& kind : {Kind{"f32, gradients put", MDP_DTYPE_F32, MDP_DTYPE_F32, true},
                           Kind{"f32, gradients in views", MDP_DTYPE_F32, MDP_DTYPE_F32, false},
                           Kind{"bf16, f32 gradients put", MDP_DTYPE_BF16, MDP_DTYPE_F32, true},
                           Kind{"bf16, bf16 gradients in views", MDP_DTYPE_BF16, MDP_DTYPE_SAME, false}}) {
    mdp_unique_id id;
    must(mdp_unique_id_create(&id));
    std::vector<std::thread> others;
    for (int rank = 1; rank < ranks; rank++) others.emplace_back([&, rank] { run(id, rank, ranks, length, rounds, kind); });
    run(id, 0, ranks, length, rounds, kind);
    for (std::thread& other : others) other.join();
  }
}
