// SPDX-License-Identifier: Apache-2.0
// HostGroup: the host backend's Group, this rank's end of it. Calls check their arguments and submit (group.cc); on the stream's worker the
// operation then runs within perform(), by one of the algorithms of host/collective.h. What is submitted keeps the group alive.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "backend/group.h"
#include "control/world.h"
#include "host/executor.h"
#include "host/memory.h"
#include "host/messages.h"
#include "host/operation.h"
#include "host/shared_memory.h"
#include "host/staging_stores.h"
#include "host/stream.h"
#include "host/sync.h"
#include "host/transport.h"
#include "host/window.h"

namespace megadp::host {

struct Arguments;

// Bytes of a half of the staging memory.
struct Part {
  size_t offset, bytes;
};

class HostGroup final : public Group, public std::enable_shared_from_this<HostGroup> {
 public:
  // Collective over `members`, blocking. `network` is needed if they are on several nodes; `pool` shares the work on long arrays, if there
  // is one.
  static Result<std::shared_ptr<HostGroup>> create(std::shared_ptr<World> world, std::shared_ptr<Network> network,
                                                   const std::vector<int>& members, std::shared_ptr<ThreadPool> pool = {});
  ~HostGroup() override;
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(members_.size()); }
  bool adds_squares() const noexcept override { return size() > 1; }  // one rank has nothing to read
  bool updates_pieces() const noexcept override { return size() > 1 && !spans_nodes(); }
  const std::vector<int>& members() const noexcept override { return members_; }
  bool spans_nodes() const noexcept { return local_.size() < members_.size(); }

  // Nothing is kept, nor heard, if no other member is on this node.
  void log_submission(uint64_t number, const std::string& what) noexcept override {
    if (sync_) sync_->log_submission(number, what);
  }
  std::vector<Submission> submissions(uint64_t number) const override {
    return sync_ ? sync_->submissions(number) : std::vector<Submission>();
  }
  void say(Word which, uint64_t number, uint64_t word) noexcept override {
    if (sync_) sync_->say(which, number, word);
  }
  uint64_t hear(Word which, uint64_t number, const std::function<bool()>& give_up) override {
    return sync_ ? sync_->hear(which, number, give_up) : 0;
  }

  Result<std::shared_ptr<Group>> split(const std::vector<int>& members) override;
  Result<std::unique_ptr<Window>> allocate_window(size_t bytes) override;

  Status together(Stream& stream, std::span<const WindowOp> calls) override;

  Status all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, const Tag& tag, float divisor) override;
  Status reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, const Tag& tag) override;
  Status all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, const Tag& tag) override;
  Status all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, const Tag& tag) override;
  Status broadcast(Stream& stream, void* data, size_t count, DType type, int root, const Tag& tag) override;
  Status barrier(Stream& stream, const Tag& tag) override;

  Status reduce_scatter_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Op op, const Tag& tag) override;
  Status all_gather_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, const Tag& tag) override;
  Status all_to_all_v(Stream& stream, const void* from, const Counts& from_counts, void* to, const Counts& to_counts, DType type,
                      const Tag& tag) override;
  Status send_recv(Stream& stream, const Message& send, const Message& recv) override;
  Result<std::unique_ptr<Exchange>> create_exchange(const Counts& out, const Counts& in, uint64_t lent) override;

  // ── for an exchange, in exchange.cc ──
  // The part of a window that rank `rank` has, or null if it is on another node.
  std::byte* part_of(const Window& window, int rank) const noexcept;
  // On the calling thread, until has_come(rank) is true for all of these ranks of the node. A failure is the World's.
  Status await(const std::vector<int>& ranks, const std::function<bool(int)>& has_come, const Describe& during);
  // Wakes those of them that are in await().
  void ring(const std::vector<int>& ranks) noexcept;
  // Between nodes: all at once, on the stream, which keeps their memory.
  struct Piece {
    int rank;
    std::byte* data;
    size_t bytes;
    bool sends;
  };
  Status pass(Stream& stream, std::vector<Piece> pieces, std::shared_ptr<void> memory, const char* what);

  // ── on a stream's worker ──
  Executor executor() const noexcept { return {best_kernels(), pool_.get()}; }
  // Runs `body` as this rank's call number `place` (1, 2, ...) on the group, whether operation or message. A failure ends the group, and
  // the World learns of it, since this rank's peers would wait for it.
  Status perform(uint64_t place, const Blame& blame, const Describe& during, const Stop& stop, const std::function<Status()>& body);
  // Within perform().
  Status barrier(const Operation& operation, const Stop& stop);
  // By rank, where everyone's data of the next turn lies: a half of the staging memory, or, if `bytes` are few, the slots of its barrier.
  const std::vector<std::byte*>& next_staging(size_t bytes);
  StagingStores& staging_stores() noexcept { return staging_stores_; }
  // Room for a pointer for each rank.
  std::vector<const void*>& pointers() noexcept { return pointers_; }
  // The rank whose half holds a broadcast after the barrier: the root, or on another node the first rank there.
  int source_of_broadcast(int root) const noexcept;

  // If the group is on several nodes of several ranks each, which lie node after node, and those of each are a subtree of the order of
  // summation: how many a node has. Otherwise 0.
  size_t ranks_of_node() const noexcept { return ranks_of_node_; }
  // How many nodes have a rank of the group.
  size_t nodes() const noexcept { return firsts_.size() - static_cast<size_t>(std::count(firsts_.begin(), firsts_.end(), -1)); }

  // ── between nodes: an exchange is what has been posted since the last one ended ──
  // Once for each operation, before its first.
  Status compare_with_other_nodes(const Operation& operation, const Stop& stop);
  // Waits for what was posted, and for the ranks of this node.
  Status end_exchange(const Operation& operation, const Stop& stop);
  void give_up_exchange() { transport_->give_up(); }
  // To each rank of another node its part of this rank's half, and into the half of each the part for this rank.
  using PartOf = std::function<Part(size_t rank)>;
  Status post_parts(const std::vector<std::byte*>& staging, const PartOf& out, const PartOf& in);
  // One rank of another node.
  Status post(size_t rank, const std::byte* out, size_t out_bytes, std::byte* in, size_t in_bytes);
  // By node, the root's first: the rank that a broadcast comes to there.
  std::vector<int> carriers_from(int root) const;
  // The first `bytes` of the root's half, to one rank of each node.
  Status post_from_root(int root, const std::vector<std::byte*>& staging, size_t bytes);

 private:
  HostGroup(std::shared_ptr<World> world, std::shared_ptr<Network> network, std::vector<int> members, std::shared_ptr<ThreadPool> pool);
  Status set_up();

  Status submit(Stream& stream, Arguments&& arguments);
  Status run(uint64_t place, const Arguments& arguments, const Stop& stop);

  // In messages.cc: a message, or both halves of an exchange, neither with this rank itself.
  Status exchange(const Message& send, const Message& recv, const Stop& stop);
  std::optional<MessageHalf> half_of(const Message& message, bool sends);
  bool is_local(const std::optional<MessageHalf>& half) const noexcept;
  Status exchange_between_nodes(MessageHalf* send, MessageHalf* recv, const Stop& stop, const Describe& during);
  Status exchange_both_ways(MessageHalf* local, MessageHalf* remote, const Stop& stop, const Describe& during);
  Status post_data(const MessageHalf& half);

  Status different(int rank, const Operation& operation, int other_rank, const Operation& other) const;

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Network> network_;
  const std::vector<int> members_;
  const std::shared_ptr<ThreadPool> pool_;
  int rank_ = 0;
  std::vector<int> local_;  // world ranks of the members on this node, in their order
  int local_rank_ = 0;
  std::vector<int> remote_;  // ranks in the group of the others
  size_t ranks_of_node_ = 0;
  std::vector<int> firsts_;                               // of each node the lowest rank in the group, by the number of the node
  std::shared_ptr<SharedMemory> control_;                 // if there is another member on this node
  std::vector<std::unique_ptr<Memory>> private_staging_;  // stands for the halves of other nodes' ranks, and the own one without control_
  uint64_t compared_ = 0;                                 // number of the last operation that was compared with other nodes
  std::vector<Operation> theirs_;                         // what the ranks of other nodes came for then
  std::unique_ptr<Transport> transport_;                  // if there is a member on another node; goes before the memory that it uses
  std::optional<Sync> sync_;
  std::vector<std::byte*> staging_[2];
  uint64_t turn_ = 0;
  StagingStores staging_stores_;
  std::vector<std::byte*> slots_[2];   // if all members are on this node
  std::vector<const void*> pointers_;  // of the call that runs

  uint64_t windows_ = 0;  // allocated so far
  std::mutex submitting_;
  uint64_t operations_ = 0;  // under submitting_: so far
  uint64_t calls_ = 0;       // likewise: operations and messages

  std::atomic<bool> running_{false};         // while an operation runs
  Status broken_;                            // of the call that runs
  uint64_t last_place_ = 0;                  // likewise: of the last call that ran
  std::map<int, uint64_t> sent_, received_;  // likewise: messages so far, by rank
};

}  // namespace megadp::host
