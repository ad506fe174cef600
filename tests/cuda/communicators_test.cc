// SPDX-License-Identifier: Apache-2.0
// A device's communicators: NCCL makes each at the first collective on it, for all its ranks or, with the reason of the one that failed,
// for none; and how many of them a device holds at once is said by MEGADP_COLLECTIVES_AT_ONCE.
#include <cstdlib>

#include "standin.h"
#include "standin_job.h"

namespace {

using namespace job;
namespace standin = megadp::standin;

constexpr uint64_t kLongNs = 60'000'000'000;
const Kind kOnDevice{MDP_BACKEND_CUDA, 0, kLongNs};
const std::vector<int64_t> kShape = {3};

void sum(mdp_comm* comm, const DeviceFloats& values, int device) {
  const mdp_tensor all = floats(values.data(), kShape, device);
  mdp_request* request = nullptr;
  ok(mdp_all_reduce(comm, &all, &all, MDP_OP_SUM, nullptr, &request));
  const mdp_status done = mdp_request_wait(request, UINT64_MAX);
  mdp_request_free(request);
  ok(done);
}

// Counted by rank 0, between two barriers, of which the device has no part.
void made(const KindRank& rank, int wanted, const char* when) {
  ok(mdp_barrier(rank.comm.get(), nullptr));
  const int found = standin::communicators_made();
  ok(mdp_barrier(rank.comm.get(), nullptr));
  require(found == wanted, found, " communicators were made ", when, ", not ", wanted);
}

void at_first_use(KindRank& rank) {
  const DeviceFloats values({1, 2, 3});
  mdp_comm* part = nullptr;
  ok(mdp_comm_split(rank.comm.get(), 0, 0, &part));
  const Comm kept(part);
  {
    const Model model(rank, {});
    made(rank, 0, "before the first collective");
    sum(part, values, rank.rank);
    made(rank, 2, "by the first");
    sum(part, values, rank.rank);
    made(rank, 2, "by the second");
    require(values.values() == std::vector<float>{4, 8, 12}, "the sum begins with ", values.values()[0]);
    model.backward(1);
    ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr));
    (void)model.read();
    made(rank, 6, "by the first step");  // for gradients and for gathers
    for (int step = 2; step < 5; ++step) {
      model.backward(step);
      ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr));
    }
    (void)model.read();
    made(rank, 6, "by later steps");
    const int events = standin::events_made();
    ok(mdp_barrier(rank.comm.get(), nullptr));
    for (int step = 5; step < 30; ++step) {
      model.backward(step);
      ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr));
    }
    (void)model.read();
    const int more = standin::events_made() - events;  // of both ranks: of what happened to be under way at once for the first time
    require(more < 25, "25 steps made ", more, " events");
  }
}

// One for each direction between two ranks, at its first message.
void by_messages(KindRank& rank) {
  const DeviceFloats values({1, 2, 3}), others({0, 0, 0});
  const mdp_tensor from = floats(values.data(), kShape, rank.rank), to = floats(others.data(), kShape, rank.rank);
  const int other = 1 - rank.rank;
  const auto finished = [](mdp_status called, mdp_request*& request) {
    ok(called);
    const mdp_status done = mdp_request_wait(request, UINT64_MAX);
    mdp_request_free(request);
    ok(done);
  };
  mdp_request* request = nullptr;
  made(rank, 0, "before the first message");
  for (int i = 0; i < 2; ++i) {
    const mdp_status called = rank.rank == 0 ? mdp_send(rank.comm.get(), &from, other, nullptr, &request)
                                             : mdp_recv(rank.comm.get(), &to, other, nullptr, &request);
    finished(called, request);
    made(rank, 2, "by messages one way");
  }
  for (int i = 0; i < 2; ++i) {
    const mdp_status called = mdp_send_recv(rank.comm.get(), &from, other, &to, other, nullptr, &request);
    finished(called, request);
    made(rank, 4, "by messages both ways");
  }
  finished(mdp_send_recv(rank.comm.get(), &from, rank.rank, &to, rank.rank, nullptr, &request), request);
  made(rank, 4, "by messages of its own");
  require(others.values() == std::vector<float>{1, 2, 3}, "something else arrived");
}

// What failed there is what all ranks say, in whatever order they learn of it.
void fails_on(int failing, const char* tried, KindRank& rank) {
  const DeviceFloats values({1, 2, 3});
  const mdp_tensor all = floats(values.data(), kShape, rank.rank);
  ok(mdp_barrier(rank.comm.get(), nullptr));
  (void)mdp_all_reduce(rank.comm.get(), &all, &all, MDP_OP_SUM, nullptr, nullptr);
  const mdp_error_info info = failure_of(rank);
  const std::string said = info.text;
  require(info.status == MDP_E_BACKEND, "got ", mdp_status_name(info.status), ": ", said);
  for (const char* word : {"all_reduce of 3 f32", "operation 1 of the group", tried, "stand-in failure"}) {
    require(said.find(word) != std::string::npos, "'", said, "' does not say ", word);
  }
  require(rank.rank == failing || said.find("rank " + std::to_string(failing)) != std::string::npos, "'", said, "' does not name rank ",
          failing);
  require(info.rank == failing, "rank ", info.rank, " is blamed");
}

bool not_on_rank_1() {
  standin::failing_creation() = 1;
  const bool good = run_kind("not on rank 1", kOnDevice, 3, [](KindRank& rank) { fails_on(1, "creating a communicator of NCCL", rank); });
  standin::wait_for_threads();
  standin::failing_creation() = -1;
  return good;
}

bool without_an_id() {
  standin::failing_id() = true;
  bool good = true;
  for (int round = 0; round < 20; ++round) {
    good = run_kind("without an id", kOnDevice, 3, [](KindRank& rank) { fails_on(0, "making an id for NCCL", rank); }) && good;
  }
  standin::wait_for_threads();
  standin::failing_id() = false;
  return good;
}

mdp_status open_alone(std::string* sentence) {
  mdp_comm_config config{};
  config.struct_size = sizeof config;
  config.backend = MDP_BACKEND_CUDA;
  config.rank = 0;
  config.size = 1;
  mdp_unique_id id;
  ok(mdp_unique_id_create(&id));
  mdp_comm* made = nullptr;
  const mdp_status status = mdp_comm_create(&config, &id, &made);
  *sentence = status == MDP_OK ? "" : mdp_last_error();
  const Comm kept(made);
  return status;
}

bool said_by_the_environment() {
  return run_kind("environment", {MDP_BACKEND_HOST, 0, kLongNs}, 1, [](KindRank&) {
    const char* const name = "MEGADP_COLLECTIVES_AT_ONCE";
    std::string sentence;
    for (const char* const good : {"1", "4", "1024", ""}) {
      setenv(name, good, 1);
      require(open_alone(&sentence) == MDP_OK, "'", good, "' was refused: ", sentence);
    }
    for (const char* const bad : {"0", "-1", "1025", "99999999999999999999", "four", "4x", "4 ", " "}) {
      setenv(name, bad, 1);
      const mdp_status status = open_alone(&sentence);
      require(status == MDP_E_INVALID, "'", bad, "' got ", mdp_status_name(status), ": ", sentence);
      for (const std::string& word : {std::string(name), std::string("\"") + bad + "\"", std::string("a number from 1 to 1024")}) {
        require(sentence.find(word) != std::string::npos, "'", sentence, "' does not say ", word);
      }
    }
    unsetenv(name);
  });
}

}  // namespace

int main() {
  megadp::cuda::use_plugin(plugin());
  bool good = run_kind("at first use", kOnDevice, 2, at_first_use);
  standin::wait_for_threads();
  standin::communicators_made() = 0;
  good = run_kind("by messages", kOnDevice, 2, by_messages) && good;
  standin::wait_for_threads();
  good = not_on_rank_1() && good;
  good = without_an_id() && good;
  good = said_by_the_environment() && good;
  standin::wait_for_threads();
  return good ? 0 : 1;
}
