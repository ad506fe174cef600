// SPDX-License-Identifier: Apache-2.0
// Communicator: one NCCL communicator, which NCCL makes when it is first needed: it takes time, and memory of the device. Calls on it are
// made one at a time and never block for longer than the World's timeout: NCCL is told to work in the background, and is asked until it is
// done, until a rank is lost, or until the time is over.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/gpu.h"

namespace megadp::cuda {

class Watch;

// How long what is on its way from another rank may take: its part of a collective, or news of its failure.
constexpr uint64_t kMomentNs = 500'000'000;

class Communicator {
 public:
  // Local. Of `members` (world ranks, in the order of their ranks here), which all make theirs. `line`: of Gpu::line_of(), of its own.
  Communicator(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, std::vector<int> members, uint64_t line);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Makes NCCL's, if there is none yet: collective, before the first call below. It is there for all members, or for none of them, who get
  // the reason of the rank that failed. A failure is the tree's. `what` needs it, for the sentence, and `blame` likewise.
  Status open(const std::string& what, const Blame& blame);
  // The largest of the words that the members give, all in one order of such calls. Collective. May take as long as a rank does.
  Result<uint64_t> largest(uint64_t mine);
  // One call of the plugin on this communicator, until it is no longer pending. `what` as in "an all-reduce".
  Status call(std::string_view what, const std::function<int32_t(NcclComm*)>& function);
  // The collectives that `calls` calls, which NCCL then starts as one. A failure among them ends the communicator: it is not known which of
  // them other ranks have. `blame` is for a failure that is none of theirs. Within another such call they are part of that one.
  Status together(std::string_view what, const Blame& blame, const std::function<Status()>& calls);
  // Makes memory of the plugin's nccl_allocate() known to NCCL: collective, with the same bytes on every rank.
  Status make_known(void* memory, size_t bytes, void** registration);
  // Local, also after an abort.
  Status forget(void* registration);
  // The failure NCCL has found by itself, ok otherwise or while another thread is inside a call.
  Status poll();
  // Ends what is under way. Calls fail from now on.
  void abort();

  const std::shared_ptr<Gpu>& gpu() const noexcept { return gpu_; }
  const std::vector<int>& members() const noexcept { return members_; }
  int rank() const noexcept { return rank_; }  // this one's, among them

 private:
  Status settle(int32_t result, std::string_view what) const;
  Status create();

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  const std::vector<int> members_;
  const int rank_;
  const uint64_t line_;         // in the control plane: other threads exchange on theirs meanwhile
  std::recursive_mutex mutex_;  // calls come one at a time; those of a group within its own
  NcclComm* comm_ = nullptr;    // under mutex_
  bool aborted_ = false;        // likewise
  bool grouped_ = false;        // likewise: NCCL will start what is called when the group ends
};

}  // namespace megadp::cuda
