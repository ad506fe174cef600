// SPDX-License-Identifier: Apache-2.0
// CudaGroup: the collectives of a group of ranks with one GPU each, by NCCL. Checks arguments and submits; what the launcher of the stream
// then does is in cuda/member.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/group.h"
#include "cuda/lanes.h"
#include "cuda/member.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "cuda/watch.h"

namespace megadp::cuda {

class CudaWindow final : public Window {
 public:
  struct Block {
    std::shared_ptr<Communicator> communicator;
    size_t bytes = 0;
    void* data = nullptr;
    void* registration = nullptr;  // with NCCL, since the first collective in it
    Status make_known();
    ~Block();
  };
  CudaWindow(std::shared_ptr<Deferred<Block>> block, uint64_t number) : block_(std::move(block)), number_(number) {}
  CudaWindow(const CudaWindow&) = delete;
  CudaWindow& operator=(const CudaWindow&) = delete;

  std::byte* data() noexcept override { return static_cast<std::byte*>((*block_)->data); }
  size_t bytes() const noexcept override { return (*block_)->bytes; }
  uint64_t number() const noexcept { return number_; }  // within its group, from 1
  const std::shared_ptr<Deferred<Block>>& block() const noexcept { return block_; }

 private:
  const std::shared_ptr<Deferred<Block>> block_;  // outlives the window while a collective uses it
  const uint64_t number_;
};

class CudaGroup final : public Group {
 public:
  // With all ranks of `control`, the host's group of the same members, which make theirs in one order.
  CudaGroup(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, std::shared_ptr<Group> control, bool exact);

  int rank() const noexcept override { return control().rank(); }
  int size() const noexcept override { return control().size(); }
  const std::vector<int>& members() const noexcept override { return control().members(); }
  Group& control() noexcept override { return member_->control(); }

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

 private:
  const Group& control() const noexcept { return member_->control(); }
  Result<Member::Submission> prepare(const WindowOp& call);
  // All at once, or one after another.
  Status submit(Stream& stream, std::vector<Member::Submission> all, bool at_once);
  Status submit(Stream& stream, const Member::Call& call, const Tag& tag, Member::Work work);

  const std::shared_ptr<Member> member_;  // what is submitted has another reference
  Lanes lanes_;
  uint64_t windows_ = 0;  // allocated so far
};

}  // namespace megadp::cuda
