// SPDX-License-Identifier: Apache-2.0
// Comm: this rank in one ordered group of ranks. Tree: what a communicator shares with its splits and with everything made from them: the
// control plane, the backend, and the one queue on which all collectives run, so that every rank runs them in one order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/bootstrap/launch.h"
#include "backend/registry.h"
#include "backend/world.h"
#include "base/status.h"

namespace megadp {

class Request;

struct Tree {
  std::shared_ptr<World> world;
  std::shared_ptr<Backend> backend;
  // An eventfd with EFD_SEMAPHORE, invalid until asked for: one is added when a request finishes and taken off when the caller has seen it.
  // `event_owed` are those seen before their one was added. Before queue, whose last events still write to it.
  Fd event_fd;
  std::atomic<int> event_owed{0};
  std::unique_ptr<Stream> queue;
  // Where the backend is a device: the host's queue, for what ranks tell each other. It runs beside `queue`.
  std::unique_ptr<Stream> host_queue;
  bool on_device() const noexcept { return host_queue != nullptr; }
  Stream& control() const noexcept { return host_queue ? *host_queue : *queue; }
  // What comes next in control() comes after the event, which is in `queue`.
  Status order_control_after(const std::shared_ptr<Event>& event) const;

  // ok while the tree is usable: not in a forked child, no rank lost, nothing aborted.
  Status usable() const;
};

class Comm {
 public:
  // Collective over all ranks of the launch.
  static Result<std::shared_ptr<Comm>> create(const BackendConfig& backend, const Launch& launch, uint64_t timeout_ns);
  // Collective over this communicator. A null pointer where color < 0.
  Result<std::shared_ptr<Comm>> split(int color, int key);
  // Collective over this communicator: a communicator of `members` (world ranks, this one among them). A null pointer where `members` is
  // empty.
  Result<std::shared_ptr<Comm>> subset(const std::vector<int>& members);

  int rank() const noexcept { return group_->rank(); }
  int size() const noexcept { return group_->size(); }
  Group& group() noexcept { return *group_; }
  Tree& tree() noexcept { return *tree_; }
  const std::shared_ptr<Tree>& shared_tree() const noexcept { return tree_; }
  // This process's rank in the world.
  int world_rank() const noexcept { return tree_->world->rank(); }

  // A request for the point that the queue and control() have come to (event fd included); see Request for `complete`.
  Result<std::shared_ptr<Request>> request(std::function<Status()> complete = {});
  // Ends a series of submissions to the queue: with `want_request` a request that reports their end; otherwise orders `consumer` after
  // them, which on the host means waiting here, and returns a null pointer.
  // `used` is the stream they were submitted to: the queue, or control(), whose consumer is the calling thread.
  Result<std::shared_ptr<Request>> finish(Stream& used, void* consumer, bool want_request);

  // Blocking barrier.
  Status barrier();

 private:
  Comm(std::shared_ptr<Tree> tree, std::unique_ptr<Group> group) : tree_(std::move(tree)), group_(std::move(group)) {}

  std::shared_ptr<Tree> tree_;  // before group_: groups go first
  std::unique_ptr<Group> group_;
};

}  // namespace megadp
