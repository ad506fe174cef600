// SPDX-License-Identifier: Apache-2.0
// A process that ends while the library's threads are at work on the device: on the stand-in, which is torn down at the exit as CUDA is.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "standin.h"
#include "standin_job.h"

// Threads that are held up as the process ends still own what they work on.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}

namespace {

using std::chrono::milliseconds;

constexpr int kLeft = 0, kTooSoon = 3;

void step_of(int ranks) {
  const bool ran = job::run_kind("a step", {}, ranks, [](job::KindRank& rank) {
    const job::Model model(rank, {});
    model.backward(1);
    job::ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr));
  });
  if (!ran) std::_Exit(kTooSoon);
}

// All handles are gone, and the watch's thread stands in the middle of freeing their memory. Before, ranks have met by NCCL.
void leave_memory_behind() {
  step_of(2);
  megadp::standin::release_gate().close();
  step_of(1);
  for (int i = 0; megadp::standin::release_gate().held() == 0; ++i) {
    if (i == 10'000) std::_Exit(kTooSoon);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void open_later() {
  std::thread([] {
    std::this_thread::sleep_for(milliseconds(300));
    megadp::standin::release_gate().open();
  }).detach();
}

// It is awaited, and what would come after it does not begin.
void ends_at_work() {
  leave_memory_behind();
  open_later();
  std::exit(kLeft);
}

// Then the process ends all the same, after one wait of 3 s, however many libraries it was registered after.
void work_never_ends() {
  leave_memory_behind();
  ::alarm(6);  // between that, with the teardown, and two waits
  std::exit(kLeft);
}

// Rank 1 comes to the collective after the exit has begun; rank 0's, which waits for it in NCCL, is then not put on the device any more.
void ends_while_launching() {
  megadp::standin::connects_late() = true;
  static std::atomic<bool> launched{false};
  std::thread([] {
    job::run_kind("a collective", {}, 2, [](job::KindRank& rank) {
      const job::DeviceFloats data(std::vector<float>(64, 1));
      const std::vector<int64_t> shape = {64};
      const mdp_tensor tensor = job::floats(data.data(), shape, rank.rank);
      mdp_request* request = nullptr;
      while (rank.rank == 1 && !launched) std::this_thread::sleep_for(milliseconds(1));
      if (rank.rank == 1) std::this_thread::sleep_for(milliseconds(300));
      job::ok(mdp_all_reduce(rank.comm.get(), &tensor, &tensor, MDP_OP_SUM, nullptr, &request));
      launched = true;
      job::ok(mdp_request_wait(request, UINT64_MAX));
      std::this_thread::sleep_for(std::chrono::hours(1));
    });
  }).detach();
  while (!launched) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(100));
  std::exit(kLeft);
}

#if !defined(__SANITIZE_THREAD__)  // which does not survive the fork of a process with threads
// A child has nothing to wait for: the threads are its parent's.
void child_of_one_at_work() {
  leave_memory_behind();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(2);
    std::exit(kLeft);
  }
  int how = 0;
  if (::waitpid(child, &how, 0) != child || how != 0) std::_Exit(kTooSoon);
  open_later();
  std::exit(kLeft);
}
#endif

bool in_process(const char* name, void (*body)()) {
  const pid_t child = ::fork();
  if (child == 0) {
    megadp::standin::teardown_ms() = 600;
    body();
    std::_Exit(kTooSoon);
  }
  int how = 0;
  if (::waitpid(child, &how, 0) == child && how == 0) return true;
  std::cerr << "FAILED " << name << ": the process ended with status " << std::hex << how << "\n";
  return false;
}

}  // namespace

int main() {
  megadp::cuda::use_plugin(job::plugin());
  bool good = in_process("an exit while memory is freed", ends_at_work);
  good = in_process("an exit while memory is freed for ever", work_never_ends) && good;
  good = in_process("an exit while a collective is launched", ends_while_launching) && good;
#if !defined(__SANITIZE_THREAD__)
  good = in_process("an exit of a child whose parent frees memory", child_of_one_at_work) && good;
#endif
  return good ? 0 : 1;
}
