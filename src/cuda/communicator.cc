// SPDX-License-Identifier: Apache-2.0
#include "cuda/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "base/deadline.h"
#include "control/agreement.h"
#include "control/net/frame.h"
#include "cuda/at_work.h"
#include "cuda/watch.h"

namespace megadp::cuda {
namespace {

constexpr size_t kIdBytes = 128;

Status lost_while(std::string_view what, const Status& why) {
  return why.with_context(std::string(what));
}

int place_of(int member, const std::vector<int>& members) {
  return static_cast<int>(std::find(members.begin(), members.end(), member) - members.begin());
}

// What the first rank tells the others: its id for NCCL, or why it has none.
std::string write_id(const uint8_t* id, const Status& made) {
  FrameWriter writer;
  writer.bytes(made.ok() ? std::string_view(reinterpret_cast<const char*>(id), kIdBytes) : std::string_view());
  if (!made.ok()) writer.status(made);
  return writer.take();
}

Status read_id(const std::string& told, int first, uint8_t* id) {
  FrameReader reader(told);
  const std::string_view bytes = reader.bytes();
  if (bytes.size() == kIdBytes) {
    std::memcpy(id, bytes.data(), kIdBytes);
    return {};
  }
  const Status why = reader.status();
  if (!reader.finished()) return internal_error("rank ", first, " sent an id for NCCL that cannot be read");
  return why.with_context(text("rank ", first));
}

// What is going on is mostly known better elsewhere: by the rank that it happened to, or by the watch, which knows who has not come. Their
// words are on their way.
void wait_for_words(const Gpu& gpu) {
  for (const Deadline moment = Deadline::after_ns(kMomentNs); !gpu.failed() && !moment.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// What is left of a communicator.
struct Remains {
  Remains(std::shared_ptr<Gpu> on, NcclComm* of) noexcept : gpu(std::move(on)), comm(of) {}
  ~Remains() {
    if (gpu->usable_here()) gpu->plugin().comm_destroy(comm);
  }
  Remains(const Remains&) = delete;
  Remains& operator=(const Remains&) = delete;
  const std::shared_ptr<Gpu> gpu;
  NcclComm* const comm;
};

}  // namespace

Communicator::Communicator(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, std::vector<int> members, uint64_t line)
    : gpu_(std::move(gpu)),
      watch_(std::move(watch)),
      members_(std::move(members)),
      rank_(place_of(gpu_->world().rank(), members_)),
      line_(line) {}

// This rank's collectives are over, which does not mean that the others have all of it: what is behind in the network NCCL's own threads
// send, and they end with the communicator. So NCCL's outlives this one until the others are done with theirs, too.
Communicator::~Communicator() {
  if (!gpu_->usable_here()) return;
  const World::Ended ended = gpu_->world().end_line(members_, line_);
  if (comm_ == nullptr) return;
  try {
    auto remains = std::make_shared<Remains>(gpu_, comm_);
    comm_ = nullptr;
    if (ended == nullptr || aborted_) return;
    watch_->drop(std::move(remains), nullptr, [gpu = gpu_, ended] { return ended->load(std::memory_order_acquire) || gpu->failed(); });
  } catch (const std::bad_alloc&) {
    if (comm_ != nullptr) gpu_->plugin().comm_destroy(comm_);
  }
}

// Until NCCL is no longer at work in the background.
Status Communicator::settle(int32_t result, std::string_view what) const {
  const Gpu& gpu = *gpu_;
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
    result = gpu.plugin().comm_state(comm_);
  }
  if (result == kNcclRemoteFailure) {  // the echo of what happened to another rank
    wait_for_words(gpu);
    if (gpu.failed()) return lost_while(what, gpu.failure());
  }
  return gpu.check(result, what);
}

Status Communicator::open(const std::string& what, const Blame& blame) {
  const std::lock_guard lock(mutex_);
  if (gpu_->failed()) return gpu_->failure();
  if (comm_ != nullptr) return {};
  const Status mine = create().with_context(what).with_blame(blame);
  if (!mine) gpu_->fail(mine);  // the others wait in NCCL
  Status all_have = agree(gpu_->world(), members_, {"communicator of NCCL"}, mine, line_);
  if (!all_have) gpu_->fail(all_have);
  return all_have;
}

Status Communicator::create() {
  World& world = gpu_->world();
  const PluginTable& plugin = gpu_->plugin();
  uint8_t id[kIdBytes] = {};
  Status made;
  if (rank_ == 0) made = gpu_->check(plugin.nccl_unique_id(gpu_->nccl(), id), "making an id for NCCL");
  auto told = world.broadcast(members_, "id of NCCL", write_id(id, made), line_);
  if (!told) return told.status();
  if (!made) return made;
  if (Status read = read_id(*told, members_[0], id); !read) return read;
  const int32_t result = plugin.comm_create(gpu_->nccl(), gpu_->device(), id, rank_, static_cast<int32_t>(members_.size()), &comm_);
  Status settled = settle(result, "creating a communicator of NCCL");
  AtWork::awaited_at_exit(members_.size() > 1 ? Loaded::several_ranks : Loaded::communicator);  // NCCL loads what the ranks are joined by
  return settled;
}

Result<uint64_t> Communicator::largest(uint64_t mine) {
  const auto all = exchange_as(gpu_->world(), members_, "order of collectives", mine, line_);
  if (!all) return all.status();
  return *std::max_element(all->begin(), all->end());
}

Status Communicator::call(std::string_view what, const std::function<int32_t(NcclComm*)>& function) {
  const std::lock_guard lock(mutex_);
  if (gpu_->failed()) return gpu_->failure();
  if (grouped_) {
    const int32_t result = function(comm_);
    return gpu_->check(result == kPending ? 0 : result, what);
  }
  Status settled = settle(function(comm_), what);
  // If memory is lacking nothing was begun; what else goes wrong leaves the ranks at different places.
  if (!settled && settled.code() != Code::memory) gpu_->fail(settled);
  return settled;
}

Status Communicator::together(std::string_view what, const Blame& blame, const std::function<Status()>& calls) {
  static const Status& no_memory = *new Status(Code::memory, "no memory was left to submit a group of collectives");
  const std::lock_guard lock(mutex_);
  if (gpu_->failed()) return gpu_->failure();
  if (grouped_) return calls();
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
  Status settled = settle(end(), what).with_blame(blame);
  // What it failed with comes first; but another rank's failure is told in that rank's words, for which settle() has waited.
  if (!called && (settled.ok() || !gpu_->failed())) settled = called;
  if (!settled) gpu_->fail(settled);
  return settled;
}

Status Communicator::make_known(void* memory, size_t bytes, void** registration) {
  return call("making memory known to NCCL",
              [&](NcclComm* comm) { return gpu_->plugin().comm_register(comm, memory, bytes, registration); });
}

Status Communicator::forget(void* registration) {
  const std::lock_guard lock(mutex_);
  return gpu_->check(gpu_->plugin().comm_deregister(comm_, registration), "forgetting memory");
}

Status Communicator::poll() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || aborted_ || comm_ == nullptr) return {};
  const int32_t result = gpu_->plugin().comm_state(comm_);
  return result == kPending ? Status() : gpu_->check(result, "a collective");
}

void Communicator::abort() {
  const std::lock_guard lock(mutex_);  // a call under way notices the failure and lets go
  if (aborted_) return;
  aborted_ = true;
  if (comm_ != nullptr) gpu_->plugin().comm_abort(comm_);
}

}  // namespace megadp::cuda
