// SPDX-License-Identifier: Apache-2.0
// Member: this rank in a group of ranks with one GPU each, and how a collective of the group is put on the device. It lives until the last
// one that was submitted has been launched.
//
// NCCL promises neither an order of summation nor its precision. A group made with `exact` sums as the host does, in its order, in fp32,
// divided and rounded once: every rank sends each other rank its piece (all-to-all) and adds up what it received, at the cost of scratch
// memory as large as one chunk (kSumBytes). What NCCL has not, or not in our meaning (pieces of different sizes, a u8 sum that stops at
// 255, a maximum that a NaN survives), always goes that way.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/group.h"
#include "cuda/communicator.h"
#include "cuda/direction.h"
#include "cuda/launch_order.h"
#include "cuda/launcher.h"
#include "cuda/memory.h"
#include "cuda/watch.h"

namespace megadp::cuda {

class Member {
 public:
  struct Sum {
    DType type;
    Op op;
    double divisor;
    bool exact = false;   // not by NCCL
    bool in_f32 = false;  // the result, whatever the type; by sum_here() and sum_parts()
  };
  // Puts what the collective consists of on the stream; a method of this member.
  using Work = std::function<Status(Member& member, void* stream)>;
  struct Call {
    Collective kind;
    size_t count;
    DType type;
    std::string how = {};  // " (max)", " from rank 1": what must be the same on all ranks besides
  };
  struct Submission {
    Call call;
    Tag tag;
    std::shared_ptr<void> keep;
    Work work;
    std::function<Status()> set_up = {};  // collective: what has to be there before
    // Given by launch():
    std::string name = {}, said = {};  // for sentences; what all ranks say
    uint64_t number = 0;               // on the host's list
    uint64_t operation = 0;            // of the group; 0: none, a message
  };

  // `control` is the host's group of the same members; of a lane (cuda/lanes.h), of the whole group.
  Member(std::shared_ptr<Communicator> communicator, std::shared_ptr<Watch> watch, std::shared_ptr<Group> control, bool exact,
         std::optional<Direction> lane = {});
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const std::shared_ptr<Communicator>& communicator() const noexcept { return communicator_; }
  const std::shared_ptr<Gpu>& gpu() const noexcept { return gpu_; }
  const std::shared_ptr<Watch>& watch() const noexcept { return watch_; }
  Group& control() const noexcept { return *control_; }
  const std::shared_ptr<Group>& shared_control() const noexcept { return control_; }
  bool exact() const noexcept { return exact_; }
  int rank() const noexcept { return communicator_->rank(); }
  int size() const noexcept { return static_cast<int>(communicator_->members().size()); }

  // On the launcher's thread. Several are one group of NCCL's, between one pair of marks. A failure is the context's.
  Status launch(Launcher& on, std::span<Submission> all);

  // ── in member_sums.cc. Each puts its work on the stream, for a group of any size; for Submission::work ──
  bool summed_here(const Sum& sum) const;  // rather than by NCCL
  Status gather(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, DType type);
  Status spread(void* stream, std::byte* data, size_t count, DType type, int root);
  Status exchange(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, DType type);
  Status sum_all(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum);
  Status sum_pieces(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, const Sum& sum);
  Status sum_pieces(void* stream, const std::byte* from, std::byte* to, const Counts& counts, const Sum& sum);
  // As f32; the own piece of `from` may be overwritten.
  Status sum_pieces_in_f32(void* stream, std::byte* from, std::byte* to, const Counts& counts, Sum sum);
  Status barrier(void* stream);
  // Pieces of different sizes: see Group.
  Status gather(void* stream, const std::byte* from, std::byte* to, const Counts& counts, DType type);
  Status gather_in_place(void* stream, std::byte* data, const Counts& counts, DType type);
  Status exchange(void* stream, const std::byte* from, const Counts& from_counts, std::byte* to, const Counts& to_counts, DType type);
  Status sum_here(void* stream, const std::byte* from, std::byte* to, const Counts& counts, const Sum& sum);
  // Of a lane: this end's part of a message.
  Status pass(void* stream, void* data, size_t count, DType type, bool sends);

 private:
  using Transfers = std::vector<Transfer>;
  // In member_order.cc: where the devices of the group have no place for its channel alone, waits until this collective is the next on this
  // one. It is `line` then that holds the others back.
  Status take_turn(Launcher& on, uint64_t number, const std::shared_ptr<CudaEvent>& end, std::optional<LaunchOrder::InLine>* line);
  Status share_places(Launcher& on, uint64_t number);
  Status tell(Group::Word which, uint64_t number, uint64_t mine, uint64_t* largest);
  Status set_up(std::span<Submission> all);
  Status put(void* stream, std::span<Submission> all);
  Status say(Submission* one, uint64_t number, const std::string& among);
  Status compare_with_others(const Submission& mine) const;
  Status alone(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum);
  Status exchange(void* stream, const char* what, const Transfers& all, DType type);
  // call(rank, at) for each rank that has a piece, all of them at once; `at`: elements before it.
  Status for_each_piece(std::string_view what, const Counts& counts, const std::function<int32_t(NcclComm*, int32_t, uint64_t)>& call);
  Status native_all_reduce(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum);
  Status cast_to_f32(void* stream, std::byte* to, const std::byte* from, size_t count, DType type);
  Status sum_parts(void* stream, std::byte* parts, std::byte* to, size_t count, const Sum& sum);
  Result<std::byte*> scratch(size_t bytes);

  using Used = std::vector<std::shared_ptr<void>>;
  std::shared_ptr<Communicator> communicator_;  // until the end
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Group> control_;
  const bool exact_;
  const std::optional<Direction> lane_;
  enum class Places {
    unknown,  // nothing was launched yet
    own,      // every rank's channel has one
    shared
  };
  std::mutex launching_;
  Places places_ = Places::unknown;      // under launching_
  uint64_t launched_ = 0;                // under launching_: collectives so far
  std::shared_ptr<CudaMemory> scratch_;  // likewise
  std::shared_ptr<Used> used_;           // likewise: what the collective being launched works with
  const Submission* now_ = nullptr;      // likewise: that collective
};

}  // namespace megadp::cuda
