// SPDX-License-Identifier: Apache-2.0
// An all-gather whose pieces are updated on the way: a block of everyone's gradients is added up, read by the updates, and what these make
// of the parameters goes to everyone, all in the nearest caches. So the sum is never written, and parameters are not read once more.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "host/collective.h"
#include "host/copy_past.h"
#include "host/kernels.h"
#include "host/update_blocks.h"

namespace megadp::host {
namespace {

// Elements at a time. Of a step of AdamW on 30 million, 1024 take a fourth longer, as each array of a block is begun anew, and 4096 a
// tenth.
constexpr size_t kBlock = 16384;

class UpdateAndGather {
 public:
  UpdateAndGather(const Call& call, const SharedMemory& window)
      : call_(call),
        window_(window),
        todo_(*call.arguments.updates),
        piece_(call.operation.count / static_cast<uint64_t>(call.size())),
        first_(piece_ * static_cast<uint64_t>(call.rank())) {
    for (int rank = 0; rank < call.size(); ++rank) {
      grads_.push_back(call.arguments.grads->of(rank) + (todo_.grad_begin + first_) * size_of(todo_.grad_type));
    }
  }

  Status run() const {
    for (const PieceUpdates::One& one : todo_.updates) {
      if (Status possible = update(part_of(one.update, 0, 0)); !possible) return possible;
    }
    const size_t moved = 6 * sizeof(float) + grads_.size() * (size_of(todo_.grad_type) + call_.width());  // about: that of AdamW
    call_.executor().split(piece_, moved, [this](size_t begin, size_t count) {
      for (size_t at = begin; at < begin + count; at += kBlock) block(at, std::min<size_t>(kBlock, begin + count - at));
    });
    return {};
  }

 private:
  void block(uint64_t at, size_t n) const {
    alignas(64) std::byte sum[kBlock * sizeof(float)];
    const size_t width = size_of(todo_.grad_type);
    bool is_summed = false;
    for (const PieceUpdates::One& one : todo_.updates) {
      const uint64_t begin = std::max(at, one.begin), end = std::min(at + n, one.begin + one.update.count);
      if (begin >= end) continue;
      if (!std::exchange(is_summed, true)) add_up(sum, at, n);
      Update part = part_of(one.update, begin - one.begin, end - begin);
      part.grad = sum + (begin - at) * width;
      (void)update(part, call_.executor().kernels());  // run() has seen that it is possible
    }
    const auto copy = piece_ * call_.width() >= kBeyondCaches ? copy_past : copy_plainly;
    for (int step = 1; step < call_.size(); ++step) {
      copy(element((call_.rank() + step) % call_.size(), at), element(call_.rank(), at), n * call_.width());
    }
  }

  // All arrays of a reduction count alike: here from the first element of the piece.
  void add_up(std::byte* sum, uint64_t at, size_t n) const {
    auto* const to = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(sum) - at * size_of(todo_.grad_type));
    reduce_part(to, grads_.data(), call_.size(), at, n, todo_.grad_type, Op::sum, todo_.divisor, call_.executor().kernels());
  }

  std::byte* element(int rank, uint64_t at) const { return window_.of(rank) + (call_.operation.begin + first_ + at) * call_.width(); }
  static void copy_past(std::byte* to, const std::byte* from, size_t bytes) { copy_past_caches(to, from, bytes); }
  static void copy_plainly(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

  const Call& call_;
  const SharedMemory& window_;
  const PieceUpdates& todo_;
  const uint64_t piece_, first_;
  std::vector<const void*> grads_;  // of each rank, those of this rank's piece
};

}  // namespace

// Between the barriers all ranks have come to the step: nobody writes gradients or reads parameters.
Status update_and_gather(const Call& call, const SharedMemory& window) {
  if (Status met = call.barrier(); !met) return met;
  if (Status done = UpdateAndGather(call, window).run(); !done) return done;
  return call.barrier();
}

}  // namespace megadp::host
