// SPDX-License-Identifier: Apache-2.0
#include "core/grad_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "base/utf8.h"
#include "core/gradients.h"

namespace megadp {
namespace {

constexpr size_t kShownLabel = 130;         // bytes of it, so that all the rest has room in SyncHeader::text
constexpr uint32_t kOrdinarySamples = 100;  // that are taken for ordinary
constexpr double kLargeTimes = 10;          // times the largest of them

struct NormSum {  // as Backend::square_sum leaves it
  double sum, nonfinite;
};

}  // namespace

Status GradChecks::allocate() {
  const Plan& plan = arenas_->plan();
  if (!plan.config.check_finite && !plan.config.check_large) return {};
  Backend& backend = arenas_->backend();
  auto names = std::make_shared<Names>();
  numbers_.resize(plan.params.size());
  for (size_t param = 0; param < plan.params.size(); ++param) {
    if (plan.params[param].frozen) continue;
    numbers_[param] = names->params.size();
    names->params.push_back({param, static_cast<int32_t>(arenas_->place(param).bucket), param_label(param, plan.params[param].name)});
  }
  const auto keep = [this](Memory** memory, Result<std::unique_ptr<Memory>> allocated) {
    if (allocated) *memory = arenas_->kept().keep(*std::move(allocated));
    return allocated.status();
  };
  const size_t count = names->params.size();
  if (plan.config.check_finite) {
    if (Status have = keep(&found_, backend.allocate(count * sizeof(uint64_t))); !have) return have;
    if (Status have = keep(&fetched_, backend.allocate_host(count * sizeof(uint64_t))); !have) return have;
    names->fetched = static_cast<const uint64_t*>(fetched_->data());
  }
  if (plan.config.check_large) {
    known_.resize(count);
    if (Status have = keep(&sums_, backend.allocate(count * sizeof(NormSum))); !have) return have;
    Memory* first = nullptr;
    if (Status have = keep(&first, backend.allocate_host(sums_->bytes())); !have) return have;
    norm_places_.push_back(first);
  }
  names_ = std::move(names);
  return {};
}

Status GradChecks::forget(Stream& stream) {
  return finite() ? arenas_->backend().zero(stream, found_->data(), found_->bytes()) : Status();
}

Status GradChecks::search(size_t param, const void* data, DType type, uint32_t microbatch, void* caller) {
  const uint64_t count = arenas_->plan().params[param].numel;
  if (!finite() || count == 0) return {};
  uint64_t* const found = static_cast<uint64_t*>(found_->data()) + numbers_[param];
  return arenas_->backend().find_nonfinite(data, type, count, first_finding(microbatch), found, caller);
}

Status GradChecks::measure(Stream& stream, size_t param, const void* data, DType type) {
  const uint64_t count = arenas_->plan().params[param].numel;
  if (!large() || count == 0) return {};
  return arenas_->backend().square_sum(stream, data, type, count, static_cast<double*>(sums_->data()) + 2 * numbers_[param]);
}

// Null if there is no memory for one more. A sync that failed here would leave the other ranks waiting.
Memory* GradChecks::norm_place() {
  if (norm_places_taken_ == norm_places_.size()) {
    auto place = arenas_->backend().allocate_host(sums_->bytes());
    if (!place) return nullptr;
    norm_places_.push_back(arenas_->kept().keep(*std::move(place)));
  }
  return norm_places_[norm_places_taken_++];
}

Status GradChecks::fetch_norms(Stream& stream) {
  if (!large()) return {};
  Backend& backend = arenas_->backend();
  if (Memory* const place = norm_place()) {
    if (Status fetched = backend.fetch(stream, place->data(), sums_->data(), sums_->bytes()); !fetched) return fetched;
  }
  return backend.zero(stream, sums_->data(), sums_->bytes());
}

Status GradChecks::fetch(Stream& stream) {
  if (Status fetched = fetch_norms(stream); !fetched) return fetched;
  if (!finite()) return {};
  if (Status fetched = arenas_->backend().fetch(stream, fetched_->data(), found_->data(), found_->bytes()); !fetched) return fetched;
  return forget(stream);
}

const GradChecks::Checked* GradChecks::Names::first(NonfiniteElement* found) const {
  const Checked* where = nullptr;
  for (size_t i = 0; i < params.size(); ++i) {
    if (fetched[i] == 0) continue;
    const NonfiniteElement one = read_finding(fetched[i]);
    if (where != nullptr && found->microbatch <= one.microbatch) continue;
    where = &params[i];
    *found = one;
  }
  return where;
}

// Norms as they are sent, with whatever loss scale is in them; of each microbatch that is reduced by itself one. What has none tells
// nothing: neither a gradient that is not finite, nor one of nothing but zeros, of which any other would be the ten-fold.
uint64_t GradChecks::judge() {
  uint64_t flagged = 0;
  for (size_t place = 0; place < norm_places_taken_; ++place) {
    const auto* const sums = static_cast<const NormSum*>(norm_places_[place]->data());
    for (size_t i = 0; i < known_.size(); ++i) {
      const double norm = std::sqrt(sums[i].sum);
      if (sums[i].nonfinite > 0 || !std::isfinite(norm) || norm == 0) continue;
      Known& known = known_[i];
      if (known.samples < kOrdinarySamples) {
        ++known.samples;
        known.largest = std::max(known.largest, norm);
      } else if (norm >= kLargeTimes * known.largest) {
        ++flagged;
        log(LogLevel::warning, text("on rank ", arenas_->context().world->rank(), " the gradient of ", names_->params[i].label,
                                    " has the norm ", norm, norm_places_taken_ > 1 ? text(" in microbatch ", place + 1) : "",
                                    "; the largest of its first ", kOrdinarySamples, " was ", known.largest, " (MDP_BUFFER_CHECK_LARGE)"));
      }
    }
  }
  norm_places_taken_ = 0;
  return flagged;
}

// ── what gradients do with them ──

// What of a bucket has a gradient here.
Status Gradients::measure(uint32_t number) {
  if (!checks_.large()) return {};
  const BucketRef ref = arenas_->plan().launch_order[number];
  const Arena& arena = arenas_->arena_of(ref);
  const BucketRange& range = arena.range(ref.bucket);
  for (uint32_t i = range.first_slot; i < range.end_slot; ++i) {
    const Slot& slot = arena.plan->layout.slots[i];
    if (!states_[slot.param].has_gradient) continue;
    const void* const data = arena.grad_at(ref.bucket, slot.begin);
    if (Status measured = checks_.measure(arenas_->grads().stream(), slot.param, data, arena.plan->grad_type); !measured) return measured;
  }
  return {};
}

// Before the agreement is submitted, which then waits for it also where gradients are on a device.
Status Gradients::fetch_checks() {
  if (!checks_.finite() && !checks_.large()) return {};
  Stream& stream = arenas_->grads().stream();
  if (Status fetched = checks_.fetch(stream); !fetched) return fetched;
  auto end = stream.record();
  return end ? arenas_->grads().order_control_after(*end) : end.status();
}

// What has been found goes into the headers that are to be sent, unless these tell of something worse.
Status Gradients::tell_finding() {
  if (!checks_.finite()) return {};
  std::vector<void*> sends;
  for (const Agreement& agreement : agreements_) sends.push_back(agreement.send->data());
  return arenas_->backend().control().run(arenas_->grads().control(), [names = checks_.names(), sends] {
    SyncHeader header;
    std::memcpy(&header, sends.front(), sizeof header);  // the same in all
    NonfiniteElement found{};
    const GradChecks::Checked* const where = header.problem == 0 ? names->first(&found) : nullptr;
    if (where == nullptr) return;
    const std::string_view label = utf8_prefix(where->label, kShownLabel);
    header.set_problem(kSyncNonfinite,
                       text("the gradient of ", label, label.size() < where->label.size() ? "...'" : "", " is ", name_of(found.value),
                            " at element ", found.element, " in microbatch ", found.microbatch),
                       static_cast<int64_t>(where->param), where->bucket);
    for (void* const send : sends) std::memcpy(send, &header, sizeof header);
  });
}

}  // namespace megadp
