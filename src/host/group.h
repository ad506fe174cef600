// SPDX-License-Identifier: Apache-2.0
// HostGroup: the host backend's Group. Checks arguments and submits; what then happens on the stream's worker is in
// host/collective.h.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/group.h"
#include "host/collective.h"
#include "host/window.h"

namespace megadp::host {

class HostGroup final : public Group {
 public:
  // Collective over `members`. `network` is needed when they are on several nodes.
  static Result<std::unique_ptr<Group>> create(std::shared_ptr<World> world, std::shared_ptr<Network> network,
                                               const std::vector<int>& members);

  int rank() const noexcept override { return member_->rank(); }
  int size() const noexcept override { return member_->size(); }
  const std::vector<int>& members() const noexcept override { return member_->members(); }

  void log_submission(uint64_t number, const std::string& what) noexcept override { member_->log_submission(number, what); }
  std::vector<Submission> submissions(uint64_t number) const override { return member_->submissions(number); }
  void say(Word which, uint64_t number, uint64_t word) noexcept override { member_->say(which, number, word); }
  uint64_t hear(Word which, uint64_t number, const std::function<bool()>& give_up) override {
    return member_->hear(which, number, give_up);
  }

  Result<std::unique_ptr<Group>> split(const std::vector<int>& members) override;
  Result<std::unique_ptr<Window>> allocate_window(size_t bytes) override;

  Status together(Stream& stream, std::span<const WindowOp> calls) override;

  Status all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, Tag tag) override;
  Status reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, Tag tag) override;
  Status all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) override;
  Status all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) override;
  Status broadcast(Stream& stream, void* data, size_t count, DType type, int root, Tag tag) override;
  Status barrier(Stream& stream, Tag tag) override;

  Status reduce_scatter_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Op op, Tag tag) override;
  Status all_gather_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Tag tag) override;
  Status all_to_all_v(Stream& stream, const void* from, const Counts& from_counts, void* to, const Counts& to_counts, DType type,
                      Tag tag) override;
  Status send_recv(Stream& stream, const Message& send, const Message& recv) override;

 private:
  using Algorithm = std::function<Status(const Call&)>;

  explicit HostGroup(std::shared_ptr<Member> member) : member_(std::move(member)) {}

  Status submit(Stream& stream, Operation operation, Algorithm algorithm);
  Status submit_in_window(Stream& stream, const WindowOp& call);

  const std::shared_ptr<Member> member_;
  uint64_t windows_ = 0;  // allocated so far
  std::mutex submitting_;
  uint64_t operations_ = 0;  // under submitting_: so far
  uint64_t calls_ = 0;       // likewise: operations and messages
};

}  // namespace megadp::host
