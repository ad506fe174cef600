// SPDX-License-Identifier: Apache-2.0
// The collectives as they run on a stream's worker: over windows, and over any memory by way of the group's staging memory. Group checks
// the arguments and submits; these compute.
//
//   control memory, one part per rank:   [ ControlPage, 1 page | staging half 0 | staging half 1 ]
//
// A staged collective is cut into turns; turn t uses half t & 1 of everyone's staging memory:
//   copy my input into my half ── barrier ── read what I need from everyone's half
// One barrier per turn is enough: a rank writes to a half again two turns later, after a barrier to which everyone came having read it.
//
// A group over several nodes does everything by turns. The halves of ranks on other nodes are private memory here, filled by the transport
// with what this rank needs of them before the barrier; the algorithms, and so the order of every sum, are the same.
//
// A message between two ranks of a node goes through the half of its sender that the next turn uses: nobody reads it any more, as all have
// come to the barrier of the last turn since.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "control/world.h"
#include "host/operation.h"
#include "host/shared_memory.h"
#include "host/stream.h"
#include "host/sync.h"
#include "host/transport.h"

namespace megadp::host {

constexpr size_t kControlBytes = 4096;
constexpr size_t kStagingHalfBytes = 512 << 10;
static_assert(kControlBytes + 2 * kStagingHalfBytes == kGroupBytes);

// Bytes of a half.
struct Part {
  size_t offset, bytes;
};

// This rank's end of a group, kept alive by the group and by submitted work.
class Member {
 public:
  // Collective, blocking. `network` is needed when the members are on several nodes.
  static Result<std::shared_ptr<Member>> create(std::shared_ptr<World> world, std::shared_ptr<Network> network, std::vector<int> members);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  World& world() const noexcept { return *world_; }
  // A group of some of the members, to which the caller belongs. Collective over those, blocking.
  Result<std::shared_ptr<Member>> split(const std::vector<int>& members) const { return create(world_, network_, members); }
  const std::vector<int>& members() const noexcept { return members_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  bool spans_nodes() const noexcept { return local_.size() < members_.size(); }

  // Memory that the members of this node see; all members agree on it. Collective, blocking.
  Result<std::shared_ptr<SharedMemory>> create_shared_memory(const Subject& what, bool touch);

  // See Group::log_submission. Nothing is kept if no other member is on this node.
  void log_submission(uint64_t number, const std::string& what) noexcept {
    if (sync_) sync_->log_submission(number, what);
  }
  std::vector<Group::Submission> submissions(uint64_t number) const {
    return sync_ ? sync_->submissions(number) : std::vector<Group::Submission>();
  }
  void say(Group::Word which, uint64_t number, uint64_t word) noexcept {
    if (sync_) sync_->say(which, number, word);
  }
  uint64_t hear(Group::Word which, uint64_t number, const std::function<bool()>& give_up) const {
    return sync_ ? sync_->hear(which, number, give_up) : 0;
  }

  // Runs `body` on a stream's worker, as this rank's call number `place` (1, 2, ...) on the group, whether operation or message. A failure
  // ends the group, and the World learns of it, since this rank's peers would wait for it in vain.
  Status perform(uint64_t place, const Blame& blame, const Describe& during, const Stop& stop, const std::function<Status()>& body);
  // Within perform().
  Status barrier(const Operation& operation, const Stop& stop);
  // `post` sends what the ranks of other nodes need of this rank's half, and receives theirs; then it is a barrier.
  Status exchange_and_barrier(const Operation& operation, const Stop& stop, const std::function<Status()>& post);
  // For `post`: to each rank of another node its part of this rank's half, and into the half of each the part for this rank.
  using PartOf = std::function<Part(size_t rank)>;
  Status post_parts(const std::vector<std::byte*>& staging, const PartOf& out, const PartOf& in);
  // The first `bytes` of the root's half, to one rank of each node.
  Status post_from_root(int root, const std::vector<std::byte*>& staging, size_t bytes);
  // A message, or both halves of an exchange, neither with this rank itself.
  Status exchange(const Message& send, const Message& recv, const Stop& stop);
  // The rank whose half holds a broadcast after the barrier: the root, or on another node the first rank there.
  int source_of_broadcast(int root) const noexcept;
  // This turn's half of everyone's staging memory, by rank.
  const std::vector<std::byte*>& next_staging();

 private:
  Member(std::shared_ptr<World> world, std::shared_ptr<Network> network, std::vector<int> members);
  Status set_up();
  std::optional<MessageHalf> half_of(const Message& message, bool sends);
  bool is_local(const std::optional<MessageHalf>& half) const noexcept;
  Status exchange_between_nodes(MessageHalf* send, MessageHalf* recv, const Stop& stop, const Describe& during);
  Status exchange_both_ways(MessageHalf* local, MessageHalf* remote, const Stop& stop, const Describe& during);
  Status post_data(const MessageHalf& half);
  Status compare_with_other_nodes(const Operation& operation, const Stop& stop);
  Status different(int rank, const Operation& operation, int other_rank, const Operation& other) const;

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Network> network_;
  const std::vector<int> members_;
  int rank_ = 0;
  std::vector<int> local_;  // world ranks of the members on this node, in their order
  int local_rank_ = 0;
  std::vector<int> remote_;                               // ranks in the group of the others
  std::vector<int> firsts_;                               // of each node the lowest rank in the group, by the number of the node
  std::unique_ptr<Transport> transport_;                  // if there is a member on another node
  std::shared_ptr<SharedMemory> control_;                 // if there is another member on this node
  std::vector<std::unique_ptr<Memory>> private_staging_;  // stands for the halves of other nodes' ranks, and the own one without control_
  uint64_t compared_ = 0;                                 // number of the last operation that was compared with other nodes
  std::optional<Sync> sync_;
  std::vector<std::byte*> staging_[2];
  uint64_t turn_ = 0;

  std::mutex running_;                       // held while an operation runs
  Status broken_;                            // under running_
  uint64_t last_place_ = 0;                  // under running_: of the last call that ran
  std::map<int, uint64_t> sent_, received_;  // likewise: messages so far, by rank
};

// What one collective needs while it runs.
struct Call {
  Member& member;
  const Operation& operation;
  const Stop& stop;

  int rank() const noexcept { return member.rank(); }
  int size() const noexcept { return member.size(); }
  size_t width() const noexcept { return size_of(operation.type); }
  Status barrier() const { return member.barrier(operation, stop); }
  // `post` is asked for between nodes only.
  template <class Post>
  Status exchange_and_barrier(const Post& post) const {
    return member.spans_nodes() ? member.exchange_and_barrier(operation, stop, post) : barrier();
  }
};

// In windows; see backend/group.h.
Status window_reduce_scatter(const Call& call, const SharedMemory& window);
Status window_all_reduce(const Call& call, const SharedMemory& window);
Status window_all_gather(const Call& call, const SharedMemory& window);
Status window_broadcast(const Call& call, const SharedMemory& window);

// On any memory. `count`: elements per rank for reduce_scatter, all_gather and all_to_all, of the whole for all_reduce.
Status staged_reduce_scatter(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status staged_all_reduce(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status staged_all_gather(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status staged_all_to_all(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status staged_broadcast(const Call& call, std::byte* data, size_t bytes, int root);

// With pieces of different sizes.
Status staged_reduce_scatter(const Call& call, const std::byte* from, std::byte* to, const Counts& counts);
Status staged_all_gather(const Call& call, const std::byte* from, std::byte* to, const Counts& counts);
Status staged_all_to_all(const Call& call, const std::byte* from, const Counts& from_counts, std::byte* to, const Counts& to_counts);
// Comes before the first two: whether all ranks gave the same.
Status compare_counts(const Call& call, const Counts& counts);

}  // namespace megadp::host
