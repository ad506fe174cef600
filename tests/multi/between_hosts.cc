// SPDX-License-Identifier: Apache-2.0
// A rank of a job over several nodes, started by wire_test.py and strangers_test.py under `megadp run`. The first rank of every node prints
// lines of JSON.
// usage: between_hosts count ELEMENTS     collectives with known answers; how many bytes crossed the host's network devices in each
//        between_hosts time MIB ROUNDS    milliseconds of all_reduce and reduce_scatter of so much f32, the slowest rank's, by round
//        between_hosts scatter ELEMENTS TIMEOUT_SECONDS     milliseconds of one reduce_scatter
//        between_hosts splits COUNT     so many communicators of all ranks, or how making one has failed
//        between_hosts train SECONDS [TIMEOUT_SECONDS]      a small training for so long, or until rank 0 gets SIGUSR1
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "job.h"

namespace {

using namespace job;

volatile std::sig_atomic_t asked_to_end = 0;

struct Tensor : mdp_tensor {
  Tensor(float* from, int64_t elements) : mdp_tensor{}, size(elements) {
    struct_size = sizeof(mdp_tensor);
    dtype = MDP_DTYPE_F32;
    ndim = 1;
    data = from;
  }
  const mdp_tensor* get() {
    shape = &size;
    return this;
  }
  int64_t size;
};

struct Traffic {
  uint64_t out = 0, in = 0;
};

Traffic traffic() {
  Traffic all;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/net")) {
    if (device.path().filename() == "lo") continue;
    uint64_t value = 0;
    if (std::ifstream(device.path() / "statistics/tx_bytes") >> value) all.out += value;
    if (std::ifstream(device.path() / "statistics/rx_bytes") >> value) all.in += value;
  }
  return all;
}

class HostRank {
 public:
  explicit HostRank(double timeout_seconds) {
    mdp_comm_config config{};
    config.struct_size = sizeof config;
    config.timeout_ns = static_cast<uint64_t>(timeout_seconds * 1e9);
    mdp_comm* made = nullptr;
    ok(mdp_comm_create(&config, nullptr, &made));
    comm_.reset(made);
    rank_ = mdp_comm_rank(made);
    size_ = mdp_comm_size(made);
    const char* local = std::getenv("MEGADP_LOCAL_RANK");
    speaks_ = local != nullptr && std::string(local) == "0";
  }

  // Random-looking, of all magnitudes, so that another order of the sum has other bits.
  static float value(int rank, int64_t i) {
    const uint64_t x = (static_cast<uint64_t>(rank) * 1000003 + static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15U;
    return static_cast<float>(static_cast<int64_t>(x >> 20) - (int64_t{1} << 43)) * (x % 7 == 0 ? 1e-9F : 1e-12F);
  }
  static float sum(int ranks, int64_t i, int first = 0) {
    if (ranks == 1) return value(first, i);
    int left = 1;
    while (2 * left < ranks) left *= 2;
    return sum(left, i, first) + sum(ranks - left, i, first + left);
  }

  void count(int64_t elements) {
    std::vector<float> data(static_cast<size_t>(elements)), apart(data.size());
    Tensor from(data.data(), elements), to(apart.data(), elements);
    fill(data);
    counted("all_reduce", [&] { ok(mdp_all_reduce(comm_.get(), from.get(), to.get(), MDP_OP_SUM, nullptr, nullptr)); });
    compare(apart, "all_reduce", -1);
    counted("all_reduce in place", [&] { ok(mdp_all_reduce(comm_.get(), from.get(), from.get(), MDP_OP_SUM, nullptr, nullptr)); });
    compare(data, "all_reduce in place", -1);
    for (const int root : {0, size_ - 1}) {
      fill(data);
      counted("broadcast", [&] { ok(mdp_broadcast(comm_.get(), from.get(), root, nullptr, nullptr)); });
      compare(data, "broadcast", root);
    }
  }

  // Both hosts send and receive all the time.
  void scatter(int64_t elements) {
    std::vector<float> data(static_cast<size_t>(elements)), piece(data.size() / static_cast<size_t>(size_));
    fill(data);
    Tensor all(data.data(), elements), mine(piece.data(), elements / size_);
    const double ms = slowest([&] { ok(mdp_reduce_scatter(comm_.get(), all.get(), mine.get(), MDP_OP_SUM, nullptr, nullptr)); });
    compare(piece, "reduce_scatter", -1, rank_ * mine.size);
    say("{\"ms\":" + std::to_string(ms) + "}");
  }

  void splits(int count) {
    std::vector<Comm> made;
    mdp_status status = MDP_OK;
    for (int i = 0; i < count && status == MDP_OK; ++i) {
      mdp_comm* comm = nullptr;
      status = mdp_comm_split(comm_.get(), 0, rank_, &comm);
      if (status == MDP_OK) status = mdp_barrier(comm, nullptr);
      made.emplace_back(comm);
    }
    say(std::string(mdp_status_name(status)) + " " + (status == MDP_OK ? "" : mdp_last_error()));
  }

  void time(int64_t mib, int rounds) {
    const int64_t elements = mib * (1 << 18) / size_ * size_;
    std::vector<float> data(static_cast<size_t>(elements), 1.0F), piece(static_cast<size_t>(elements / size_));
    Tensor from(data.data(), elements), to(piece.data(), elements / size_);
    for (int round = 0; round < rounds; ++round) {
      const double all = slowest([&] { ok(mdp_all_reduce(comm_.get(), from.get(), from.get(), MDP_OP_AVG, nullptr, nullptr)); });
      const double scatter = slowest([&] { ok(mdp_reduce_scatter(comm_.get(), from.get(), to.get(), MDP_OP_SUM, nullptr, nullptr)); });
      if (rank_ == 0) std::printf("{\"all_reduce\":%.2f,\"reduce_scatter\":%.2f}\n", all, scatter);
    }
  }

  void train(double seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr int64_t kElements = 100'003;
    std::vector<float> data(kElements, 1.0F), go_on(1, 1.0F);
    Tensor array(data.data(), kElements), more(go_on.data(), 1);
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    uint64_t steps = 0;
    say("{\"event\":\"training\"}");
    while (go_on[0] > 0) {
      ok(mdp_all_reduce(comm_.get(), array.get(), array.get(), MDP_OP_AVG, nullptr, nullptr));
      require(data[kElements - 1] == 1.0F, "step ", steps, ": the average of ones is ", data[kElements - 1]);
      go_on[0] = Clock::now() < end && asked_to_end == 0 ? 1.0F : 0.0F;
      ok(mdp_broadcast(comm_.get(), more.get(), 0, nullptr, nullptr));
      ++steps;
    }
    say("{\"event\":\"done\",\"steps\":" + std::to_string(steps) + "}");
  }

 private:
  void fill(std::vector<float>& data) const {
    for (size_t i = 0; i < data.size(); ++i) data[i] = value(rank_, static_cast<int64_t>(i));
  }

  // Whether these are the root's elements, or the sums of all ranks' (root -1), from `begin` on.
  void compare(const std::vector<float>& found, const char* what, int root, int64_t begin = 0) const {
    for (size_t i = 0; i < found.size(); ++i) {
      const int64_t at = begin + static_cast<int64_t>(i);
      const float expected = root < 0 ? sum(size_, at) : value(root, at), got = found[i];
      require(std::memcmp(&expected, &got, sizeof got) == 0, what, ": element ", i, " is ", got, " and should be ", expected);
    }
  }

  void say(const std::string& line) const {
    if (!speaks_) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  template <class Call>
  void counted(const char* what, const Call& call) {
    ok(mdp_barrier(comm_.get(), nullptr));
    const Traffic before = traffic();
    ok(mdp_barrier(comm_.get(), nullptr));
    call();
    ok(mdp_barrier(comm_.get(), nullptr));
    const Traffic after = traffic();
    ok(mdp_barrier(comm_.get(), nullptr));
    say("{\"what\":\"" + std::string(what) + "\",\"out\":" + std::to_string(after.out - before.out) +
        ",\"in\":" + std::to_string(after.in - before.in) + "}");
  }

  template <class Call>
  double slowest(const Call& call) {
    using Clock = std::chrono::steady_clock;
    ok(mdp_barrier(comm_.get(), nullptr));
    const auto begin = Clock::now();
    call();
    float ms = std::chrono::duration<float, std::milli>(Clock::now() - begin).count();
    Tensor longest(&ms, 1);
    ok(mdp_all_reduce(comm_.get(), longest.get(), longest.get(), MDP_OP_MAX, nullptr, nullptr));
    return static_cast<double>(ms);
  }

  Comm comm_;
  int rank_ = 0, size_ = 0;
  bool speaks_ = false;
};

void run(const std::vector<std::string>& words) {
  const bool has_timeout = (words[0] == "train" || words[0] == "scatter") && words.size() > 2;
  HostRank rank(has_timeout ? std::stod(words[2]) : 0);
  if (words[0] == "count") return rank.count(std::stoll(words.at(1)));
  if (words[0] == "scatter") return rank.scatter(std::stoll(words.at(1)));
  if (words[0] == "splits") return rank.splits(std::stoi(words.at(1)));
  if (words[0] == "time") return rank.time(std::stoll(words.at(1)), std::stoi(words.at(2)));
  rank.train(std::stod(words.at(1)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  std::signal(SIGUSR1, [](int) { asked_to_end = 1; });
  try {
    run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
