// SPDX-License-Identifier: Apache-2.0
// Direction: the messages from one rank of a group to another, as these two know them: their numbers, what each says of them on the host's
// list (Group::log_submission), and the sentences of what goes wrong.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/group.h"
#include "control/world.h"

namespace megadp::cuda {

struct Direction {
  // Launched so far between this rank and the other.
  struct Launched {
    std::atomic<uint64_t> sent{0}, received{0};
  };
  int from, to;  // ranks of the group
  std::shared_ptr<Launched> launched;

  // Of the k-th message, among all that is on the list; `size`: of the group.
  uint64_t number(int size, uint64_t k) const noexcept {
    const auto lane = static_cast<uint64_t>(from) * static_cast<uint64_t>(size) + static_cast<uint64_t>(to);
    return (1 + lane) * Group::kMessageNumbers + k;
  }
  Direction back() const { return {to, from, launched}; }
  // "5 f32": what both ends say.
  static std::string said(size_t count, DType type);
  // Each end gives what it said.
  Status differ(const Group& group, const std::string& sent, const std::string& expected) const;
  // On the host's group: the k-th, whose name is given, did not end within the timeout.
  Status timed_out(const Group& group, const World& world, uint64_t k, const std::string& name) const;

 private:
  std::string instead(const Group& group, int peer, uint64_t k) const;
};

}  // namespace megadp::cuda
