// SPDX-License-Identifier: Apache-2.0
// StepClasses: which parameters share a step count. Whether a step is taken is known on the device only, which parameters it leaves out on
// the host. So parameters that were left out of the same steps so far, or given the same count, form a class; the host knows the classes,
// and the backend's memory holds one count for each. Most models have one class for ever.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace megadp {

class StepClasses {
 public:
  // Of `params` parameters, by index; all begin in class 0. Never more classes than there are parameters that take part in steps.
  explicit StepClasses(size_t params = 0) : of_(params, 0), seen_(params + 1, 0), split_(params + 1, 0) {}

  uint32_t of(size_t param) const { return of_[param]; }
  uint32_t count() const { return classes_; }

  // Parameters of equal counts become one class; count_of(param) is none for one that never takes part. The counts, by class.
  template <class CountOf>
  std::vector<uint64_t> assign(const CountOf& count_of) {
    std::vector<uint64_t> counts;
    std::unordered_map<uint64_t, uint32_t> known;
    std::fill(of_.begin(), of_.end(), 0);
    for (size_t param = 0; param < of_.size(); ++param) {
      const auto count = count_of(param);
      if (!count) continue;
      const auto [at, is_new] = known.emplace(*count, static_cast<uint32_t>(counts.size()));
      if (is_new) counts.push_back(*count);
      of_[param] = at->second;
    }
    classes_ = std::max(static_cast<uint32_t>(counts.size()), 1U);
    return counts;
  }

  // A step that leaves some parameters out; taking(param) is true, false, or none for one that never takes part. Where a class has
  // parameters of both kinds, those left out become a class of their own, whose count copy(from, to) takes over. Then count(first, n) for
  // each run of n neighbouring classes that take part.
  template <class Taking, class Copy, class Count>
  Status step(const Taking& taking, const Copy& copy, const Count& count) {
    look(taking);
    if (Status split = split_mixed(taking, copy); !split) return split;
    for (uint32_t first = 0, end; first < classes_; first = end + 1) {
      for (end = first; end < classes_ && seen_[end] == kTaking; ++end) continue;
      if (end == first) continue;
      if (Status counted = count(first, end - first); !counted) return counted;
    }
    return {};
  }

 private:
  static constexpr uint8_t kTaking = 1, kLeftOut = 2;

  template <class Taking>
  void look(const Taking& taking) {
    std::fill_n(seen_.begin(), classes_, uint8_t{0});
    for (size_t param = 0; param < of_.size(); ++param) {
      if (const auto takes = taking(param)) seen_[of_[param]] |= *takes ? kTaking : kLeftOut;
    }
  }

  template <class Taking, class Copy>
  Status split_mixed(const Taking& taking, const Copy& copy) {
    const uint32_t before = classes_;
    for (uint32_t old = 0; old < before; ++old) {
      split_[old] = 0;
      if (seen_[old] != (kTaking | kLeftOut)) continue;
      if (Status copied = copy(old, classes_); !copied) {
        classes_ = before;
        return copied;
      }
      seen_[old] = kTaking;
      seen_[classes_] = kLeftOut;
      split_[old] = classes_++;
    }
    if (classes_ == before) return {};
    for (size_t param = 0; param < of_.size(); ++param) {
      const uint32_t made = of_[param] < before ? split_[of_[param]] : 0;
      if (made == 0) continue;
      if (const auto takes = taking(param); takes && !*takes) of_[param] = made;
    }
    return {};
  }

  std::vector<uint32_t> of_;  // by parameter
  uint32_t classes_ = 1;
  // Of one step, by class; kept so that a step allocates nothing.
  std::vector<uint8_t> seen_;
  std::vector<uint32_t> split_;  // the class made from this one, 0: none
};

}  // namespace megadp
