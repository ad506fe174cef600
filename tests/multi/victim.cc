// SPDX-License-Identifier: Apache-2.0
// A rank that trains until a megadp call fails, and then says which call and how. One rank is told to be the victim: it sends itself
// SIGKILL or SIGSTOP at a given moment of a given phase, so that the moment is exact and yet random. Started by deaths_test.py, under any
// launcher.
//
// usage: victim TIMEOUT_SECONDS VICTIM PHASE DELAY_US SIGNAL [child]
//   VICTIM  rank that dies, -1: nobody
//   PHASE   rendezvous | backward | collective | step | compute: for a while no rank calls anything, and each then calls something else
//   child   the victim has forked a child that lives on
// Lines of JSON on stdout: {"event":"warm","rank":...} once all of it works, {"event":"signal",...} just before the signal, and at the end
// {"event":"failed","rank":...,"call":...,"begun":...,"ns":...,"blame":...} or {"event":"done",...}.
#include <signal.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "job.h"

namespace {

using namespace job;

constexpr int kWarmSteps = 3, kMostSteps = 20'000;  // minutes: whoever gets to the end was not told of the death
constexpr int kMostRendezvous = 5000;
constexpr auto kCompute = std::chrono::milliseconds(800);
constexpr size_t kParams = 12;

uint64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

struct Orders {
  uint64_t timeout_ns;
  int victim;
  std::string phase;
  int delay_us, signal;
  bool child;
};

// One line in one write, so that lines of several ranks do not mix.
template <class... Args>
void say(const Args&... args) {
  std::ostringstream line;
  (line << ... << args) << "\n";
  const std::string whole = line.str();
  if (write(STDOUT_FILENO, whole.data(), whole.size()) < 0) _exit(9);
}

class Victim {
 public:
  explicit Victim(const Orders& orders) : orders_(orders) {}

  // To be called as a phase begins.
  void enter(const char* phase, int rank) {
    if (rank != orders_.victim || orders_.phase != phase || armed_) return;
    armed_ = true;
    if (orders_.child && fork() == 0) {
      // Holds every descriptor of its parent open, and has no part in the job. Ends by itself long after the test.
      close(STDOUT_FILENO);
      close(STDERR_FILENO);
      sleep(60);
      _exit(0);
    }
    std::thread([this, rank] {
      std::this_thread::sleep_for(std::chrono::microseconds(orders_.delay_us));
      say("{\"event\":\"signal\",\"rank\":", rank, ",\"ns\":", now(), "}");
      kill(getpid(), orders_.signal);
    }).detach();
  }

 private:
  const Orders orders_;
  bool armed_ = false;
};

class Trainer {
 public:
  explicit Trainer(const Orders& orders) : orders_(orders), victim_(orders) {}

  int run(int rank) {
    rank_ = rank;
    victim_.enter("rendezvous", rank);
    mdp_comm_config config{};
    config.struct_size = sizeof config;
    config.timeout_ns = orders_.timeout_ns;
    // Many times, where the death is to happen in here: a rendezvous is over within moments.
    const int rendezvous = orders_.phase == "rendezvous" ? kMostRendezvous : 1;
    for (int i = 0; i < rendezvous; ++i) {
      comm_.reset();
      mdp_comm* comm = nullptr;
      if (failed("mdp_comm_create", [&] { return mdp_comm_create(&config, nullptr, &comm); })) return 1;
      comm_.reset(comm);
    }
    if (!set_up()) return 1;
    for (int step = 0; step < kMostSteps; ++step) {
      if (step == kWarmSteps) say("{\"event\":\"warm\",\"rank\":", rank_, "}");
      if (step == kWarmSteps && orders_.phase == "compute") return compute() ? 0 : 1;
      if (!train(step >= kWarmSteps)) return 1;
    }
    say("{\"event\":\"done\",\"rank\":", rank_, "}");
    return 0;
  }

 private:
  template <class Call>
  bool failed(const char* name, const Call& call) {
    const uint64_t begun = now();
    const mdp_status status = call();
    if (status >= 0) return false;
    mdp_error_info info{};
    info.struct_size = sizeof info;
    mdp_last_error_info(&info);
    std::string sentence;
    for (const char* c = mdp_last_error(); *c != '\0'; ++c) {
      if (*c == '"' || *c == '\\') sentence += '\\';
      sentence += *c;
    }
    say("{\"event\":\"failed\",\"rank\":", rank_, ",\"call\":\"", name, "\",\"status\":\"", mdp_status_name(status),
        "\",\"blame\":", info.rank, ",\"begun\":", begun, ",\"ns\":", now(), ",\"text\":\"", sentence, "\"}");
    return true;
  }

  bool set_up() {
    mdp_grid* grid = nullptr;
    if (failed("mdp_grid_create", [&] { return mdp_grid_create(comm_.get(), nullptr, &grid); })) return false;
    grid_.reset(grid);
    std::vector<std::string> names;
    for (size_t p = 0; p < kParams; ++p) names.push_back(std::to_string(p).insert(0, 1, 'w'));
    std::vector<mdp_param> params(kParams);
    for (size_t p = 0; p < kParams; ++p) {
      params[p] = mdp_param{};
      params[p].struct_size = sizeof(mdp_param);
      params[p].name = names[p].c_str();
      params[p].shape = &kElements;
      params[p].ndim = 1;
    }
    mdp_buffer* buffer = nullptr;
    if (failed("mdp_buffer_register", [&] { return mdp_buffer_register(nullptr, grid, nullptr, params.data(), kParams, &buffer); }))
      return false;
    buffer_.reset(buffer);
    mdp_optimizer* optimizer = nullptr;
    if (failed("mdp_optimizer_create", [&] { return mdp_optimizer_create(buffer, nullptr, &optimizer); })) return false;
    optimizer_.reset(optimizer);
    return true;
  }

  bool train(bool warm) {
    if (warm) victim_.enter("backward", rank_);
    for (size_t p = kParams; p-- > 0;) {
      if (failed("mdp_grad_ready", [&] { return mdp_grad_ready(buffer_.get(), p, nullptr); })) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    if (failed("mdp_grad_sync", [&] { return mdp_grad_sync(buffer_.get(), nullptr, nullptr); })) return false;
    if (warm) victim_.enter("step", rank_);
    if (failed("mdp_optimizer_step", [&] { return mdp_optimizer_step(optimizer_.get(), nullptr, nullptr, nullptr); })) return false;
    if (warm) victim_.enter("collective", rank_);
    return !failed("mdp_all_reduce", [&] { return all_reduce(); });
  }

  mdp_status all_reduce() {
    const int64_t count = static_cast<int64_t>(data_.size());
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.dtype = MDP_DTYPE_F32;
    tensor.ndim = 1;
    tensor.shape = &count;
    tensor.data = data_.data();
    return mdp_all_reduce(comm_.get(), &tensor, &tensor, MDP_OP_AVG, nullptr, nullptr);
  }

  // Nobody calls anything while the victim dies; the next call, whichever it is, must tell. On a busy machine it may come too early; that
  // is said, and then a barrier waits for the news.
  bool compute() {
    victim_.enter("compute", rank_);
    std::this_thread::sleep_for(kCompute);
    const uint64_t begun = now();
    if (!call_something((rank_ + orders_.delay_us) % 6)) return false;
    say("{\"event\":\"called\",\"rank\":", rank_, ",\"begun\":", begun, "}");
    return !failed("mdp_barrier", [&] { return mdp_barrier(comm_.get(), nullptr); });
  }

  bool call_something(int which) {
    mdp_buffer* const buffer = buffer_.get();
    switch (which) {
      case 0:
        return !failed("mdp_grad_ready", [&] { return mdp_grad_ready(buffer, kParams - 1, nullptr); });
      case 1:
        return !failed("mdp_grad_sync", [&] { return mdp_grad_sync(buffer, nullptr, nullptr); });
      case 2:
        return !failed("mdp_param_wait", [&] { return mdp_param_wait(buffer, 0, nullptr); });
      case 3:
        return !failed("mdp_microbatch_begin", [&] { return mdp_microbatch_begin(buffer, 1); });
      case 4:
        return !failed("mdp_barrier", [&] { return mdp_barrier(comm_.get(), nullptr); });
      default:
        return !failed("mdp_all_reduce", [&] { return all_reduce(); });
    }
  }

  static constexpr int64_t kElements = 100'000;
  const Orders orders_;
  Victim victim_;
  int rank_ = 0;
  std::vector<float> data_ = std::vector<float>(1 << 20);
  Comm comm_;
  Grid grid_;
  Buffer buffer_;
  Optimizer optimizer_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const Orders orders{static_cast<uint64_t>(std::atof(argv[1]) * 1e9), std::atoi(argv[2]), argv[3], std::atoi(argv[4]), std::atoi(argv[5]),
                      argc > 6 && std::strcmp(argv[6], "child") == 0};
  const char* rank = std::getenv("MEGADP_RANK") != nullptr ? std::getenv("MEGADP_RANK") : std::getenv("RANK");
  Trainer job(orders);
  return job.run(rank != nullptr ? std::atoi(rank) : 0);
}
