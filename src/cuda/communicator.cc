// SPDX-License-Identifier: Apache-2.0
#include "cuda/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/deadline.h"
#include "control/agreement.h"

namespace megadp::cuda {
namespace {

constexpr size_t kIdBytes = 128;

Status lost_while(const std::string& what, const Status& why) {
  return why.with_context(what);
}

// What is going on is mostly known better elsewhere: by the rank that it happened to, or by the watch, which knows who has not come. Their
// words are on their way.
void wait_for_words(const Gpu& gpu) {
  for (const Deadline moment = Deadline::after_ns(kMomentNs); !gpu.failed() && !moment.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

// Until NCCL is no longer at work in the background.
Status Communicator::settle(const Gpu& gpu, NcclComm* comm, int32_t result, const std::string& what) {
  const Deadline deadline = Deadline::after_ns(gpu.world().timeout_ns());
  for (uint64_t nap_ns = 1'000; result == kPending; nap_ns = std::min<uint64_t>(nap_ns * 2, 1'000'000)) {
    if (gpu.failed()) return lost_while(what, gpu.failure());
    if (deadline.passed()) {
      wait_for_words(gpu);
      if (gpu.failed()) return lost_while(what, gpu.failure());
      return {Code::timeout, text(what, ": NCCL did not finish within ", gpu.world().timeout_ns() / 1'000'000,
                                  " ms: another rank has not come, or the ranks cannot reach each other")};
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
    result = gpu.plugin().comm_state(comm);
  }
  if (result == kNcclRemoteFailure) {  // the echo of what happened to another rank
    wait_for_words(gpu);
    if (gpu.failed()) return lost_while(what, gpu.failure());
  }
  return gpu.check(result, what);
}

Result<std::shared_ptr<Communicator>> Communicator::create(std::shared_ptr<Gpu> gpu, const std::vector<int>& members) {
  World& world = gpu->world();
  const auto rank = std::find(members.begin(), members.end(), world.rank()) - members.begin();
  uint8_t id[kIdBytes] = {};
  Status made;
  if (rank == 0) made = gpu->check(gpu->plugin().nccl_unique_id(gpu->nccl(), id), "making an id for NCCL");
  // Rank 0's failure is everyone's: an empty message says so.
  auto all = world.exchange(members, "id of NCCL",
                            rank == 0 && made.ok() ? std::string(reinterpret_cast<const char*>(id), kIdBytes) : std::string());
  if (!all) return all.status();
  if (!made) return made;
  if (all->front().size() != kIdBytes) {
    return Status(Code::backend, text("rank ", members[0], " could not make an id for NCCL"), Blame{.rank = members[0]});
  }
  std::memcpy(id, all->front().data(), kIdBytes);
  NcclComm* comm = nullptr;
  const std::string what = "creating a communicator of NCCL";
  const int32_t result =
      gpu->plugin().comm_create(gpu->nccl(), gpu->device(), id, static_cast<int32_t>(rank), static_cast<int32_t>(members.size()), &comm);
  std::shared_ptr<Communicator> communicator;
  if (result == 0 || result == kPending) communicator.reset(new Communicator(gpu, comm));
  const Status mine = communicator == nullptr ? gpu->check(result, what) : settle(*gpu, comm, result, what);
  if (!mine) gpu->fail(mine);  // the others wait in NCCL
  Status all_have = agree(world, members, {"communicator of NCCL"}, mine);
  if (all_have.ok()) return communicator;
  gpu->fail(all_have);
  if (communicator != nullptr) communicator->abort();
  return all_have;
}

Result<std::shared_ptr<Communicator>> Communicator::split(const std::vector<int>& members) {
  // The lowest member names the part: parts do not overlap.
  const int32_t color = members.empty() ? -1 : *std::min_element(members.begin(), members.end());
  const auto key = std::find(members.begin(), members.end(), gpu_->world().rank()) - members.begin();
  NcclComm* part = nullptr;
  const std::string what = "splitting a communicator of NCCL";
  const std::lock_guard lock(mutex_);
  if (gpu_->failed()) return gpu_->failure();
  const int32_t result = gpu_->plugin().comm_split(comm_, color, static_cast<int32_t>(key), &part);
  std::shared_ptr<Communicator> communicator(part == nullptr ? nullptr : new Communicator(gpu_, part));
  Status settled = settle(*gpu_, part == nullptr ? comm_ : part, result, what);
  if (!settled) gpu_->fail(settled);  // the others wait in NCCL
  if (!members.empty()) settled = agree(gpu_->world(), members, {"split of a communicator of NCCL"}, settled);
  if (settled.ok()) return communicator;
  gpu_->fail(settled);
  if (communicator != nullptr) communicator->abort();
  return settled;
}

Communicator::~Communicator() {
  if (gpu_->usable_here()) gpu_->plugin().comm_destroy(comm_);
}

Status Communicator::call(const std::string& what, const std::function<int32_t(NcclComm*)>& function) {
  const std::lock_guard lock(mutex_);
  if (gpu_->failed()) return gpu_->failure();
  if (grouped_) {
    const int32_t result = function(comm_);
    return gpu_->check(result == kPending ? 0 : result, what);
  }
  Status settled = settle(*gpu_, comm_, function(comm_), what);
  // Where memory is lacking nothing was begun; what else goes wrong leaves the ranks at different places.
  if (!settled && settled.code() != Code::memory) gpu_->fail(settled);
  return settled;
}

Status Communicator::together(const std::string& what, const Blame& blame, const std::function<Status()>& calls) {
  static const Status& no_memory = *new Status(Code::memory, "no memory was left to submit a group of collectives");
  const std::lock_guard lock(mutex_);
  if (gpu_->failed()) return gpu_->failure();
  if (Status begun = gpu_->check(gpu_->plugin().comm_group_begin(comm_), what); !begun) {
    gpu_->fail(begun);
    return begun;
  }
  grouped_ = true;
  const auto end = [this] {
    grouped_ = false;
    return gpu_->plugin().comm_group_end(comm_);
  };
  Status called;
  try {
    called = calls();
  } catch (...) {  // for want of memory; NCCL's group is the thread's, and ended whatever happens
    (void)end();
    gpu_->fail(no_memory);
    abort();  // what was called waits for ranks that have the whole of it
    throw;
  }
  Status settled = settle(*gpu_, comm_, end(), what).with_blame(blame);
  // What it failed with comes first; but another rank's failure is told in that rank's words, for which settle() has waited.
  if (!called && (settled.ok() || !gpu_->failed())) settled = called;
  if (!settled) gpu_->fail(settled);
  return settled;
}

// Local: other ranks learn of a failure from the caller, and nothing is at another place because of it.
Status Communicator::allocate(size_t bytes, void** memory) {
  const std::lock_guard lock(mutex_);
  if (gpu_->failed()) return gpu_->failure();
  return gpu_->check(gpu_->plugin().comm_allocate(comm_, bytes, memory), text("allocating ", bytes, " bytes"));
}

Status Communicator::make_known(void* memory, size_t bytes, void** registration) {
  return call(text("making ", bytes, " bytes known to NCCL"),
              [&](NcclComm* comm) { return gpu_->plugin().comm_register(comm, memory, bytes, registration); });
}

Status Communicator::release(void* memory, void* registration) {
  const std::lock_guard lock(mutex_);
  const PluginTable& plugin = gpu_->plugin();
  return gpu_->check(plugin.comm_release(comm_, memory, registration), "freeing memory");
}

Status Communicator::poll() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || aborted_) return {};
  const int32_t result = gpu_->plugin().comm_state(comm_);
  return result == kPending ? Status() : gpu_->check(result, "a collective");
}

void Communicator::abort() {
  const std::lock_guard lock(mutex_);  // a call under way notices the failure and lets go
  if (aborted_) return;
  aborted_ = true;
  gpu_->plugin().comm_abort(comm_);
}

}  // namespace megadp::cuda
