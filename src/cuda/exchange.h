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
  // `memory`: from both sides as much as the longer way needs.
  CudaExchange(Group& group, std::unique_ptr<CudaMemory> out, std::unique_ptr<CudaMemory> in, const Counts& out_bytes,
               const Counts& in_bytes);

  Status begin(bool back) override;
  std::byte* outgoing(int rank) noexcept override { return at(*out_, way().out_at, rank); }
  Status start(Stream& stream, void* caller) override;
  Status finish(Stream& stream, void* caller) override;
  const std::byte* incoming(int rank) noexcept override { return at(*in_, way().in_at, rank); }
  Status end() override { return {}; }

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
  const std::unique_ptr<CudaMemory> out_, in_;
  const Way ways_[2];
  bool back_ = false;
  std::shared_ptr<Event> passed_;
};

}  // namespace megadp::cuda
