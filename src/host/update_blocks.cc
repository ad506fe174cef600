// SPDX-License-Identifier: Apache-2.0
#include "host/update_blocks.h"

#include <algorithm>
#include <type_traits>

#include "base/rules.h"

namespace megadp::host {
namespace {

constexpr size_t kElementsAtOnce = 1024;

DType state_type(const Update& u, size_t k) {
  const DType type = rule(u.rule).state[k].type;
  return type == DType::f32 ? u.state_type : type;
}

class Blocks {
 public:
  Blocks(const Update& u, const Kernels& kernels)
      : u_(u), kernels_(kernels), rule_(rule(u.rule)), draws_(u.master == nullptr || u.rounds_state_with_bits) {
    if (draws_) key_ = key_of_step(u.random.key, *u.steps);
    const DType param_type = u.master == nullptr ? DType::f32 : u.param_type;
    update_ = kernels.steps->updates[u.rule].of[storage_index(u.grad_type)][storage_index(param_type)];
  }

  void run() {
    for (uint64_t begin = 0; begin < u_.count; begin += kElementsAtOnce) run(begin, std::min<uint64_t>(kElementsAtOnce, u_.count - begin));
  }

 private:
  bool is_widened(size_t k) const { return state_type(u_, k) != rule_.state[k].type; }

  void run(uint64_t begin, size_t n) {
    const CastFn widen = kernels_.casts->cast[storage_index(DType::f32)][storage_index(DType::bf16)];
    Update part = part_of(u_, begin, n);
    void* const param = part.param;
    if (u_.master == nullptr) {
      widen(master_, param, n);
      part.param = part.master = master_;
    }
    void* narrow[kMostStates] = {};
    for (size_t k = 0; k < rule_.state.size(); k++) {
      if (!is_widened(k)) continue;
      narrow[k] = part.state[k];
      widen(state_[k], narrow[k], n);
      part.state[k] = state_[k];
    }
    update_(part, false);
    if (draws_) draw(begin, n);
    if (u_.master == nullptr) round_with(param, master_, 0, n);
    for (size_t k = 0; k < rule_.state.size(); k++) {
      if (narrow[k] == nullptr) continue;
      if (u_.rounds_state_with_bits) {
        round_with(narrow[k], state_[k], k + 1, n);
      } else {
        kernels_.casts->cast[storage_index(DType::bf16)][storage_index(DType::f32)](narrow[k], state_[k], n);
      }
    }
  }

  // Runs of neighbours, none across a number that the lower half of a counter cannot hold.
  void draw(uint64_t begin, size_t n) {
    for (size_t at = 0; at < n;) {
      const uint64_t counter = u_.random.element(begin + at);
      const uint64_t together = std::min(u_.random.neighbours(begin + at), (uint64_t{1} << 32) - (counter & UINT32_MAX));
      const size_t count = std::min<uint64_t>(n - at, together);
      kernels_.casts->random_words(random_[0] + at, random_[1] + at, key_, counter, count);
      at += count;
    }
  }

  void round_with(void* to, const float* from, size_t array, size_t n) {
    kernels_.casts->round_with(static_cast<Bf16*>(to), from, random_[array / 2], static_cast<int>(16 * (array % 2)), n);
  }

  const Update& u_;
  const Kernels& kernels_;
  const UpdateRule& rule_;
  const bool draws_;
  uint64_t key_ = 0;
  UpdateFn update_;
  alignas(64) float master_[kElementsAtOnce];
  alignas(64) float state_[kRandomArrays - 1][kElementsAtOnce];
  alignas(64) uint32_t random_[2][kElementsAtOnce];
};

}  // namespace

Update part_of(const Update& u, uint64_t begin, uint64_t count) {
  Update part = u;
  part.count = count;
  part.grad = forward(u.grad, begin, u.grad_type);
  if (u.master != nullptr) part.master = u.master + begin;
  for (size_t k = 0; k < rule(u.rule).state.size(); k++) part.state[k] = forward(u.state[k], begin, state_type(u, k));
  part.param = forward(u.param, begin, u.param_type);
  part.random.begin += begin;
  return part;
}

void update_in_blocks(const Update& u, const Kernels& kernels) {
  Blocks(u, kernels).run();
}

}  // namespace megadp::host
