// SPDX-License-Identifier: Apache-2.0
// CudaGroup: the collectives of a group of ranks with one GPU each, by NCCL.
//
// NCCL promises neither an order of summation nor its precision. A group made with `exact` sums as the host does, in its order, in fp32,
// divided and rounded once: every rank sends each other rank its piece (all-to-all) and adds up what it received, at the cost of scratch
// memory as large as one chunk (kChunkBytes). Operations that NCCL has not in our meaning (a u8 sum that stops at 255, a maximum that a NaN
// survives) always go that way.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/group.h"
#include "cuda/communicator.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "cuda/watch.h"

namespace megadp::cuda {

class CudaWindow final : public Window {
 public:
  struct Block {  // registered with NCCL
    std::shared_ptr<Communicator> communicator;
    void* data = nullptr;
    void* registration = nullptr;
    ~Block();
  };
  CudaWindow(std::shared_ptr<Deferred<Block>> block, size_t bytes, uint64_t number)
      : block_(std::move(block)), bytes_(bytes), number_(number) {}
  CudaWindow(const CudaWindow&) = delete;
  CudaWindow& operator=(const CudaWindow&) = delete;

  std::byte* data() noexcept override { return static_cast<std::byte*>((*block_)->data); }
  size_t bytes() const noexcept override { return bytes_; }
  uint64_t number() const noexcept { return number_; }  // within its group, from 1
  const std::shared_ptr<Deferred<Block>>& block() const noexcept { return block_; }

 private:
  const std::shared_ptr<Deferred<Block>> block_;  // outlives the window while a collective uses it
  const size_t bytes_;
  const uint64_t number_;
};

class CudaGroup final : public Group {
 public:
  // `control` is the host's group of the same members.
  CudaGroup(std::shared_ptr<Communicator> communicator, std::shared_ptr<Watch> watch, std::unique_ptr<Group> control, bool exact);
  ~CudaGroup() override;
  CudaGroup(const CudaGroup&) = delete;
  CudaGroup& operator=(const CudaGroup&) = delete;

  int rank() const noexcept override { return control_->rank(); }
  int size() const noexcept override { return control_->size(); }
  const std::vector<int>& members() const noexcept override { return control_->members(); }
  Group& control() noexcept override { return *control_; }

  Result<std::unique_ptr<Group>> split(const std::vector<int>& members) override;
  Result<std::unique_ptr<Window>> allocate_window(size_t bytes) override;

  Status together(Stream& stream, std::span<const WindowCall> calls) override;

  Status all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, Tag tag) override;
  Status reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, Tag tag) override;
  Status all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) override;
  Status all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Tag tag) override;
  Status broadcast(Stream& stream, void* data, size_t count, DType type, int root, Tag tag) override;
  Status barrier(Stream& stream, Tag tag) override;

 private:
  struct Sum {
    DType type;
    Op op;
    double divisor;
  };
  using Work = std::function<Status(void* stream)>;
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
    std::string name = {};  // both given by submit_together()
    uint64_t number = 0;
  };
  Result<Submission> prepare(const WindowCall& call);
  Status submit(Stream& stream, const Call& call, const Tag& tag, std::shared_ptr<void> keep, Work work);
  // Between one pair of marks; several are one group of NCCL's.
  Status submit_together(Stream& stream, std::span<Submission> all);
  Status put(void* stream, std::span<Submission> all);
  Status compare_with_others(uint64_t number, const std::string& mine, const Tag& tag) const;
  bool summed_here(const Sum& sum) const;  // rather than by NCCL
  // In group_sums.cc. Each puts its work on the stream, for a group of any size.
  Status alone(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum);
  Status gather(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, DType type);
  Status spread(void* stream, std::byte* data, size_t count, DType type, int root);
  Status exchange(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, DType type);
  Status send_pieces(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, size_t stride, DType type);
  Status native_all_reduce(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum);
  Status sum_all(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum);
  Status sum_pieces(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, const Sum& sum);
  Status sum_parts(void* stream, const std::byte* parts, std::byte* to, size_t count, const Sum& sum);
  Result<std::byte*> scratch(size_t bytes);

  std::shared_ptr<Communicator> communicator_;  // until the end
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Group> control_;
  const bool exact_;
  uint64_t windows_ = 0;  // allocated so far
  std::mutex submitting_;
  uint64_t submitted_ = 0;                   // under submitting_
  std::shared_ptr<CudaMemory> scratch_;      // likewise
  std::vector<std::shared_ptr<void>> used_;  // likewise: what the collective being submitted works with
};

}  // namespace megadp::cuda
