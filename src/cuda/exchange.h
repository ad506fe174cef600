// SPDX-License-Identifier: Apache-2.0
// CudaExchange: pieces lie in memory of the device, and go as sends and receives that NCCL starts as one.
#pragma once

#include <memory>

#include "backend/exchange.h"
#include "backend/group.h"
#include "cuda/memory.h"

namespace megadp::cuda {

class CudaExchange final : public Exchange {
 public:
  struct Memories {
    std::unique_ptr<CudaMemory> out, in, lent;  // of the first two as much as the longer way needs
  };
  CudaExchange(Group& group, std::shared_ptr<Watch> watch, Memories memories, const Counts& out_bytes, const Counts& in_bytes);
  ~CudaExchange() override;

  Status begin(bool back) override;
  std::byte* outgoing(int rank) noexcept override { return at(*memories_->out, way().out_at, rank); }
  Status start(Stream& stream, void* caller, uint64_t lends) override;
  Status finish(Stream& stream, void* caller) override;
  const std::byte* incoming(int rank) noexcept override { return at(*memories_->in, way().in_at, rank); }
  const std::byte* lent_by(int /*rank*/, uint64_t* /*lends*/) noexcept override { return nullptr; }
  void end() noexcept override {}
  Status await_readers() override { return {}; }
  std::byte* lent() noexcept override { return static_cast<std::byte*>(memories_->lent->data()); }
  bool sees(int /*rank*/) const noexcept override { return false; }

 private:
  struct Way {
    Counts out, in, out_at, in_at;  // bytes
  };
  static Way make_way(const Counts& out, const Counts& in);
  const Way& way() const noexcept { return ways_[back_ ? 1 : 0]; }
  static std::byte* at(CudaMemory& memory, const Counts& offsets, int rank) noexcept {
    return static_cast<std::byte*>(memory.data()) + offsets[static_cast<size_t>(rank)];
  }

  Group& group_;
  const std::shared_ptr<Watch> watch_;
  std::shared_ptr<Memories> memories_;
  const Way ways_[2];
  bool back_ = false;
  std::shared_ptr<CudaEvent> passed_;
};

}  // namespace megadp::cuda
