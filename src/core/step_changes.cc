// SPDX-License-Identifier: Apache-2.0
#include "core/step_changes.h"

#include <algorithm>

#include "base/step.h"
#include "core/params.h"

namespace megadp {

void StepChanges::leave(const Versions* optimizer) noexcept {
  std::erase(optimizers_, optimizer);
  for (Change& change : open_) {
    if (change.optimizer == optimizer) change.optimizer = nullptr;
  }
}

void StepChanges::add(Change change) {
  std::erase_if(open_, [&](const Change& before) {
    if (!before.known->done()) return false;
    count(before);
    return true;
  });
  open_.push_back(std::move(change));
}

void StepChanges::settle(std::span<const Versions* const> but) {
  std::erase_if(open_, [&](const Change& change) {
    if (change.optimizer != nullptr && std::find(but.begin(), but.end(), change.optimizer) != but.end()) return false;
    (void)change.known->await();
    count(change);
    return true;
  });
}

// A step that has failed, or is not waited for to its end, counts as one that has changed them.
void StepChanges::count(const Change& change) {
  const bool is_known = change.known->done() && change.known->status().ok();
  if (is_known && static_cast<const StepScalars*>(change.outcome->data())->skip != 0) return;
  for (const size_t param : change.params) {
    const uint64_t version = params_.count_change(param);
    // Unless its own master has something to take over as well.
    if (change.optimizer != nullptr && (*change.optimizer)[param] == version - 1) (*change.optimizer)[param] = version;
  }
}

}  // namespace megadp
