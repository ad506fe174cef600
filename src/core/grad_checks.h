// SPDX-License-Identifier: Apache-2.0
// GradChecks: what a buffer looks for in gradients before they are reduced, if it was asked to; otherwise every call does nothing.
//
//   finite   a gradient that has come is searched on its caller's stream; the first element that is not finite raises its parameter's
//            number (base/finding.h). At mdp_grad_sync the numbers go to the host, and the agreement tells all ranks.
//   large    a bucket's gradients are measured as it is launched. What is known of earlier ones stays on this rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/finding.h"
#include "core/arenas.h"

namespace megadp {

class GradChecks {
 public:
  explicit GradChecks(std::shared_ptr<Arenas> arenas) : arenas_(std::move(arenas)) {}
  // The arenas have been allocated.
  Status allocate();
  bool finite() const { return found_ != nullptr; }
  bool large() const { return sums_ != nullptr; }

  Status forget(Stream& stream);  // what has been found in this step

  // `data`: where the parameter's gradient of this microbatch lies. Any thread, one at a time for a parameter.
  Status search(size_t param, const void* data, DType type, uint32_t microbatch, void* caller);
  // A gradient that is sent now.
  Status measure(Stream& stream, size_t param, const void* data, DType type);
  // What has been measured goes to the host: with ZeRO-2 after each microbatch, each to a place of its own.
  Status fetch_norms(Stream& stream);
  // All that has been found goes to the host, and is forgotten here.
  Status fetch(Stream& stream);

  // Outlives the buffer, if work on a stream holds it.
  struct Checked {
    size_t param;
    int32_t bucket;
    std::string label;
  };
  struct Names {
    const uint64_t* fetched;  // memory that the arenas keep
    std::vector<Checked> params;
    // Once fetch() has passed: the first one of the earliest microbatch; null if all were finite.
    const Checked* first(NonfiniteElement* found) const;
  };
  const std::shared_ptr<const Names>& names() const { return names_; }

  // Warns of gradients that are large, once fetch() has passed: how many there are.
  uint64_t judge();

 private:
  Memory* norm_place();

  const std::shared_ptr<Arenas> arenas_;
  std::vector<size_t> numbers_;  // by registration index: among those that are trained
  std::shared_ptr<const Names> names_;
  Memory *found_ = nullptr, *fetched_ = nullptr;  // of each a number; kept by the arenas, as all of these
  Memory* sums_ = nullptr;                        // of each the sum of squares, and how many elements are not finite
  std::vector<Memory*> norm_places_;              // the same of each microbatch, on the host: as many as a step has had
  size_t norm_places_taken_ = 0;
  struct Known {
    uint32_t samples = 0;
    double largest = 0;  // of the first kOrdinarySamples
  };
  std::vector<Known> known_;
};

}  // namespace megadp
