// SPDX-License-Identifier: Apache-2.0
// Ranks that do not come to a collective of a device, leave, or abort while it waits for them: the others learn of it whether they wait or
// not, and what is queued behind the collective changes nothing.
#include <filesystem>

#include "standin.h"
#include "standin_job.h"

namespace {

using namespace job;
namespace standin = megadp::standin;

struct Ending {
  const char* name;
  uint64_t timeout_ns;
  mdp_status status;
  std::vector<std::string> words;
};

const Ending kNeverComes = {
    "a rank that never comes", 2'000'000'000, MDP_E_TIMEOUT, {"did not end within 2000 ms", "all_reduce", "rank 2 has not come to it"}};
const Ending kLeaves = {"a rank that leaves", 60'000'000'000, MDP_E_PEER, {"rank 2", "left"}};
const Ending kAborts = {"a rank that aborts", 60'000'000'000, MDP_E_ABORTED, {"rank 2"}};

void check(const Ending& ending, mdp_status status, const std::string& sentence) {
  require(status == ending.status, "got ", mdp_status_name(status), ": ", sentence);
  for (const std::string& word : ending.words) require(sentence.find(word) != std::string::npos, "'", sentence, "' does not say ", word);
}

// Freeing waits for the whole device, and is under way on ranks 0 and 1 when their step comes.
void free_while_submitting(KindRank& rank, mdp_optimizer* dropped) {
  standin::ReleaseGate& gate = standin::release_gate();
  if (rank.rank == 2) gate.close();
  ok(mdp_barrier(rank.comm.get(), nullptr));
  if (rank.rank != 2) mdp_optimizer_destroy(dropped);
  for (int i = 0; i < 10000 && gate.held() < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (rank.rank != 2) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // they submit now
  gate.open();
}

// Rank 2 takes its part in everything but the step. Rank 0 waits for its report, rank 1 for nothing.
void step_without_rank_2(const Ending& ending, KindRank& rank, std::atomic<int>* over) {
  mdp_optimizer* dropped = nullptr;
  {
    const Model model(rank, {});
    model.backward(1);
    ok(mdp_optimizer_create(model.buffer(), &model.rule(), &dropped));
    ok(mdp_buffer_verify(model.buffer()));  // so that nobody is needed any more for what came before
    const auto before = model.look();
    free_while_submitting(rank, dropped);
    if (rank.rank == 2) {
      if (&ending == &kAborts) ok(mdp_comm_abort(rank.comm.get()));
      if (&ending == &kNeverComes) check(ending, failure_of(rank).status, failure_of(rank).text);
    } else if (rank.rank == 0) {
      mdp_step_report report = empty_report();
      const mdp_status status = mdp_optimizer_step(model.optimizer(), nullptr, &report, nullptr);
      check(ending, status, mdp_last_error());
    } else {
      mdp_status status = mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr);
      if (status != MDP_OK) check(ending, status, mdp_last_error());  // it came late
      check(ending, failure_of(rank).status, failure_of(rank).text);
      status = mdp_param_wait(model.buffer(), SIZE_MAX, nullptr);
      check(ending, status, mdp_last_error());
    }
    if (rank.rank != 2) {
      // The queue is released: memory is given back only once everything has left the device. Until the end nothing may have changed.
      for (int i = 0; i < 20; ++i) {
        require(model.look() == before, "parameters were changed by what was queued behind");
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  }
  if (rank.rank == 2) mdp_optimizer_destroy(dropped);
  rank.comm.reset();
  ++*over;
}

ptrdiff_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// A launcher that waits for the lost rank for ever would stay.
bool all_threads_end(ptrdiff_t before) {
  for (int tries = 0; tries < 2000; ++tries) {
    if (threads() <= before) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::cerr << "FAILED: " << threads() - before << " threads are left\n";
  return false;
}

bool lost(const Ending& ending) {
  std::thread([] {}).join();  // a sanitizer's own thread comes with the first
  const ptrdiff_t before = threads();
  bool good = true;
  for (const uint64_t flags : {uint64_t{0}, uint64_t{MDP_COMM_EXACT_SUMS}}) {
    std::atomic<int> over{0};
    good = run_kind(ending.name, {MDP_BACKEND_CUDA, flags, ending.timeout_ns}, 3,
                    [&](KindRank& rank) { step_without_rank_2(ending, rank, &over); }) &&
           good && over == 3;
  }
  return all_threads_end(before) && good;
}

// NCCL would hang, or sum what does not belong together. Whoever comes second compares.
bool different_calls() {
  std::vector<std::unique_ptr<DeviceFloats>> values;  // longer than anything works on them
  for (int rank = 0; rank < 3; ++rank) values.push_back(std::make_unique<DeviceFloats>(std::vector<float>(100, 1)));
  const std::vector<int64_t> shape = {100};
  const bool good = run_kind("different calls", {MDP_BACKEND_CUDA, 0, 60'000'000'000}, 3, [&](KindRank& rank) {
    const mdp_tensor all = floats(values[static_cast<size_t>(rank.rank)]->data(), shape, rank.rank);
    for (const mdp_op op : {MDP_OP_SUM, rank.rank == 1 ? MDP_OP_MAX : MDP_OP_SUM}) {
      if (mdp_all_reduce(rank.comm.get(), &all, &all, op, nullptr, nullptr) != MDP_OK) break;  // the others may be ahead
    }
    const mdp_error_info info = failure_of(rank);
    const std::string said = info.text;
    require(info.status == MDP_E_DESYNC, "got ", mdp_status_name(info.status), ": ", said);
    const char* const words[] = {"called different operations: all_reduce of 100 f32 (", "all_reduce of 100 f32 (max) ", "operation 2 of"};
    for (const char* word : words) require(said.find(word) != std::string::npos, "'", said, "' does not say ", word);
    require(said.find("ranks 0 and 1") != std::string::npos || said.find("ranks 1 and 2") != std::string::npos, "'", said,
            "' does not name the ranks");
  });
  standin::wait_for_threads();
  return good;
}

// One rank's NCCL refuses the second collective of a group: that rank has started none of them, the others wait for it in the first, or
// hear at once that something has happened, and wait for what it was.
void sync_half_a_group(KindRank& rank, mdp_sharding sharding) {
  const Model model(rank, {MDP_DTYPE_F32, sharding, 0, MDP_BUFFER_NO_OVERLAP, true});
  for (size_t p = kShapes.size(); p-- > 0;) model.put(p, model.gradient(p, 1));
  ok(mdp_barrier(rank.comm.get(), nullptr));
  const mdp_status status = mdp_grad_sync(model.buffer(), nullptr, nullptr);
  const std::string said = status == MDP_OK ? failure_of(rank).text : mdp_last_error();
  require(said.find("2 of 2 at once") != std::string::npos && said.find("bucket 1") != std::string::npos, "'", said,
          "' does not say which one failed");
  if (rank.rank == 1) require(status == MDP_E_BACKEND, "got ", mdp_status_name(status), ": ", said);
  if (rank.rank != 1) require(said.find("rank 1") != std::string::npos, "'", said, "' does not name rank 1");
  require(failure_of(rank).status == MDP_E_BACKEND, "got ", failure_of(rank).text);
}

bool half_a_group() {
  bool good = true;
  standin::failing_rank() = 1;
  for (const bool know : {false, true}) {
    standin::others_know() = know;
    for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1}) {
      const Kind kind{MDP_BACKEND_CUDA, 0, 60'000'000'000};
      good = run_kind("half a group", kind, 3, [&](KindRank& rank) { sync_half_a_group(rank, sharding); }) && good;
    }
  }
  standin::others_know() = false;
  standin::failing_rank() = -1;
  standin::wait_for_threads();
  return good;
}

// Rank 0 has its sum and goes, of a part of the communicator or altogether, while what it has sent is not with rank 1 yet.
void go_before_it_has_arrived(KindRank& rank, bool of_a_part, std::atomic<bool>* arrived) {
  const DeviceFloats values({1, 2, 3});
  const std::vector<int64_t> shape = {3};
  const mdp_tensor all = floats(values.data(), shape, rank.rank);
  Comm part;
  if (of_a_part) {
    mdp_comm* made = nullptr;
    ok(mdp_comm_split(rank.comm.get(), 0, 0, &made));
    part.reset(made);
  }
  mdp_request* request = nullptr;
  ok(mdp_all_reduce(of_a_part ? part.get() : rank.comm.get(), &all, &all, MDP_OP_SUM, nullptr, &request));
  ok(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  require(values.values() == std::vector<float>{2, 4, 6}, "the sum is wrong");
  if (rank.rank == 1) *arrived = true;
  part.reset();
  if (of_a_part) ok(mdp_barrier(rank.comm.get(), nullptr));
  mdp_error_info info{};
  info.struct_size = sizeof info;
  ok(mdp_comm_error_info(rank.comm.get(), &info));
  require(info.status == MDP_OK, info.text);
  if (rank.rank == 1) return;
  rank.comm.reset();
  require(*arrived, "the process could have ended, and rank 1 had not got all");
}

bool goes_before_it_has_arrived() {
  bool good = true;
  standin::receiving_late() = 1;
  for (const bool of_a_part : {false, true}) {
    std::atomic<bool> arrived{false};
    good = run_kind("a rank that goes first", {MDP_BACKEND_CUDA, 0, 60'000'000'000}, 2,
                    [&](KindRank& rank) { go_before_it_has_arrived(rank, of_a_part, &arrived); }) &&
           good;
  }
  standin::receiving_late() = -1;
  standin::wait_for_threads();
  return good;
}

// Nobody waits for what the device of rank 1 says that it could not do: all ranks learn of it, with CUDA's sentence.
bool broken_device() {
  std::vector<std::unique_ptr<DeviceFloats>> values;  // longer than anything works on them
  for (int rank = 0; rank < 3; ++rank) values.push_back(std::make_unique<DeviceFloats>(std::vector<float>(100, 1)));
  const bool good = run_kind("a device that breaks", {MDP_BACKEND_CUDA, 0, 60'000'000'000}, 3, [&](KindRank& rank) {
    const std::vector<int64_t> shape = {100};
    const mdp_tensor all = floats(values[static_cast<size_t>(rank.rank)]->data(), shape, rank.rank);
    mdp_request* request = nullptr;
    ok(mdp_all_reduce(rank.comm.get(), &all, &all, MDP_OP_SUM, nullptr, &request));
    const mdp_status done = mdp_request_wait(request, UINT64_MAX);
    mdp_request_free(request);
    if (rank.rank == 1) {
      ok(done);  // the others may know already
      standin::broken_device() = 1;
    }
    (void)mdp_all_reduce(rank.comm.get(), &all, &all, MDP_OP_SUM, nullptr, nullptr);
    const mdp_error_info info = failure_of(rank);
    const std::string said = info.text;
    require(info.status == MDP_E_BACKEND && info.rank == 1, "rank ", info.rank, ": ", mdp_status_name(info.status), ": ", said);
    for (const std::string& word : {std::string("on CUDA device 1"), "stand-in failure " + std::to_string(standin::kBadMemory)}) {
      require(said.find(word) != std::string::npos, "'", said, "' does not say ", word);
    }
  });
  standin::broken_device() = -1;
  standin::wait_for_threads();
  return good;
}

// Rank 1 comes to neither of two collectives. What is before the first on rank 0's stream holds it up: its time does not run, but that of
// the second, on another stream, does.
void behind_another_stream(KindRank& rank, const DeviceFloats& values) {
  const std::vector<int64_t> shape = {100};
  const mdp_tensor all = floats(values.data(), shape, rank.rank);
  mdp_comm* split = nullptr;
  ok(mdp_comm_split(rank.comm.get(), 0, 0, &split));
  const Comm part(split);
  for (mdp_comm* const comm : {rank.comm.get(), split}) ok(mdp_all_reduce(comm, &all, &all, MDP_OP_SUM, nullptr, nullptr));
  ok(mdp_barrier(rank.comm.get(), nullptr));
  if (rank.rank == 1) {
    require(failure_of(rank).status == MDP_E_TIMEOUT, "got ", failure_of(rank).text);
    return;
  }
  void* slow = nullptr;
  require(plugin().stream_create(nullptr, false, &slow) == 0, "no stream");
  std::atomic<bool> over{false};
  standin::queue_of(nullptr, slow)->submit([&over] {
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  std::string missing;
  try {
    mdp_request* request = nullptr;
    ok(mdp_all_reduce(rank.comm.get(), &all, &all, MDP_OP_SUM, slow, &request));
    mdp_request_free(request);
    // Where a device holds one collective at a time the call itself waits for its turn.
    if (const mdp_status second = mdp_all_reduce(split, &all, &all, MDP_OP_SUM, nullptr, nullptr); second != MDP_E_TIMEOUT) ok(second);
    const mdp_error_info info = failure_of(rank);
    require(info.status == MDP_E_TIMEOUT && info.rank == 1, "rank ", info.rank, ": ", mdp_status_name(info.status), ": ", info.text);
  } catch (const std::exception& error) {
    missing = error.what();
  }
  over = true;
  plugin().stream_synchronize(nullptr, slow);
  plugin().stream_destroy(nullptr, slow);
  require(missing.empty(), missing);
}

bool does_not_come_behind_another_stream() {
  std::vector<std::unique_ptr<DeviceFloats>> values;
  for (int rank = 0; rank < 2; ++rank) values.push_back(std::make_unique<DeviceFloats>(std::vector<float>(100, 1)));
  const bool good = run_kind("behind another stream", {MDP_BACKEND_CUDA, 0, kNeverComes.timeout_ns}, 2,
                             [&](KindRank& rank) { behind_another_stream(rank, *values[static_cast<size_t>(rank.rank)]); });
  standin::wait_for_threads();
  return good;
}

}  // namespace

int main() {
  megadp::cuda::use_plugin(plugin());
  bool good = true;
  for (const Ending* ending : {&kNeverComes, &kLeaves, &kAborts}) good = lost(*ending) && good;
  standin::wait_for_threads();
  good = different_calls() && good;
  good = half_a_group() && good;
  good = goes_before_it_has_arrived() && good;
  good = broken_device() && good;
  good = does_not_come_behind_another_stream() && good;
  std::cerr << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
