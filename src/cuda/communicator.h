// SPDX-License-Identifier: Apache-2.0
// Communicator: one NCCL communicator. Calls on it are made one at a time and never block for longer than the World's timeout: NCCL is told
// to work in the background, and is asked until it is done, until a rank is lost, or until the time is over.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/gpu.h"

namespace megadp::cuda {

// How long what is on its way from another rank may take: its part of a collective, or news of its failure.
constexpr uint64_t kMomentNs = 500'000'000;

class Communicator {
 public:
  // Collective over `members` (world ranks, in the order of their ranks here).
  static Result<std::shared_ptr<Communicator>> create(std::shared_ptr<Gpu> gpu, const std::vector<int>& members);
  // Collective over this communicator. `members` empty: this rank takes no part, and gets a null pointer.
  Result<std::shared_ptr<Communicator>> split(const std::vector<int>& members);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // One call of the plugin on this communicator, until it is no longer pending. `what` as in "an all-reduce".
  Status call(const std::string& what, const std::function<int32_t(NcclComm*)>& function);
  // The collectives that `calls` calls, which NCCL then starts as one. A failure among them ends the communicator: it is not known which of
  // them other ranks have. `blame` is for a failure that is none of theirs.
  Status together(const std::string& what, const Blame& blame, const std::function<Status()>& calls);
  // Memory that NCCL can use without staging, local; and what makes it known to NCCL, collective, with the same bytes on every rank.
  Status allocate(size_t bytes, void** memory);
  Status make_known(void* memory, size_t bytes, void** registration);
  // Also after an abort. `registration` may be null.
  Status release(void* memory, void* registration);
  // The failure NCCL has found by itself, ok otherwise or while another thread is inside a call.
  Status poll();
  // Ends what is under way. Calls fail from now on.
  void abort();

  const std::shared_ptr<Gpu>& gpu() const noexcept { return gpu_; }

 private:
  Communicator(std::shared_ptr<Gpu> gpu, NcclComm* comm) noexcept : gpu_(std::move(gpu)), comm_(comm) {}
  static Status settle(const Gpu& gpu, NcclComm* comm, int32_t result, const std::string& what);

  const std::shared_ptr<Gpu> gpu_;
  std::recursive_mutex mutex_;  // calls come one at a time; those of a group within its own
  NcclComm* const comm_;
  bool aborted_ = false;  // under mutex_
  bool grouped_ = false;  // likewise: NCCL will start what is called when the group ends
};

}  // namespace megadp::cuda
