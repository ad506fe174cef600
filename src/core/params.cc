// SPDX-License-Identifier: Apache-2.0
#include "core/params.h"

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "core/replicas.h"
#include "files/checksum.h"

namespace megadp {

Params::Params(std::shared_ptr<Arenas> arenas)
    : arenas_(std::move(arenas)),
      versions_(arenas_->plan().params.size(), 1),
      replacements_(versions_),
      gathers_(arenas_->plan().launch_order.size()),
      swapped_(versions_.size()) {}

Status Params::wait(size_t param, void* consumer) {
  const Plan& plan = arenas_->plan();
  if (param != SIZE_MAX && param >= plan.params.size()) {
    return invalid("param is ", param, "; this buffer has ", plan.params.size(), " parameters, or (size_t)-1 for all");
  }
  std::vector<std::shared_ptr<Event>> pending;
  {
    const std::lock_guard lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    const auto add = [&pending](const std::shared_ptr<Transfer>& gather) {
      if (gather && !gather->end->done()) pending.push_back(gather->end);
    };
    if (written_ && !written_->done()) pending.push_back(written_);
    if (param == SIZE_MAX) {
      for (const auto& gather : gathers_) add(gather);
    } else if (!plan.params[param].frozen) {
      add(gathers_[arenas_->place(param).bucket]);
    }
  }
  if (pending.empty()) return {};
  const uint64_t begin = now_ns();
  Status first;
  for (const auto& event : pending) {
    Status status = arenas_->gathers().stream().make_caller_wait(consumer, *event);
    if (first.ok()) first = status;
  }
  const std::lock_guard lock(mutex_);
  traffic_.exposed_ns += now_ns() - begin;
  return first;
}

// The parameter as an array, once its gather has ended and `shape` is known to be its own.
Result<StridedArray> Params::whole(const char* call, size_t param, const std::vector<int64_t>& shape, void* caller) {
  if (Status status = arenas_->check_param(param); !status) return status;
  const ParamSpec& spec = arenas_->plan().params[param];
  if (shape != spec.shape) {
    return Status(
        Code::invalid,
        text(call, ": the array has shape ", shape_text(shape), "; ", param_label(param, spec.name), " has ", shape_text(spec.shape)),
        Blame{.param = static_cast<int64_t>(param)});
  }
  if (Status whole = wait(param, caller); !whole) return whole;
  return arenas_->param_array(param);
}

Status Params::read(size_t param, const StridedArray& to, void* caller) {
  auto slot = whole("mdp_param_read", param, to.shape, caller);
  return slot ? arenas_->backend().copy(to, *slot, false, caller) : slot.status();
}

Status Params::write(size_t param, const StridedArray& from, void* caller) {
  if (Status own = check_swapped_back("mdp_param_write"); !own) return own;
  auto slot = whole("mdp_param_write", param, from.shape, caller);
  if (!slot) return slot.status();
  if (Status copied = arenas_->backend().copy(*slot, from, false, caller); !copied) return copied;
  if (Status ordered = follow_write(caller); !ordered) return ordered;
  (void)count_change(param);  // of this one only: the masters of the others hold more than their parameters show
  return {};
}

// Both channels follow it, and what waits for a parameter on other streams of the caller's. No event of one channel will do for the other,
// since it may come behind gradients under way. The last write stands for those before it, which it follows.
Status Params::follow_write(void* caller) {
  auto written = arenas_->grads().stream().follow_caller(caller);
  if (!written) return written.status();
  if (Status ordered = arenas_->gathers().stream().wait_for_caller(caller); !ordered) return ordered;
  const std::lock_guard lock(mutex_);
  written_ = *std::move(written);
  return {};
}

Status Params::changed() {
  if (Status own = check_swapped_back("mdp_param_changed"); !own) return own;
  std::shared_ptr<Event> before;
  {
    const std::lock_guard lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    before = written_;
  }
  if (before) {
    if (Status ordered = arenas_->gathers().stream().make_caller_wait(nullptr, *before); !ordered) return ordered;
  }
  if (Status ordered = follow_write(nullptr); !ordered) return ordered;
  const std::lock_guard lock(mutex_);
  for (uint64_t& version : versions_) ++version;
  return {};
}

Result<std::shared_ptr<Request>> Params::broadcast(int root, bool want_request) {
  if (Status own = check_swapped_back("mdp_buffer_broadcast"); !own) return own;
  const Plan& plan = arenas_->plan();
  Stream& stream = arenas_->gathers().stream();
  std::shared_ptr<Event> done;
  {
    const std::lock_guard lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    for (const bool expert : {false, true}) {  // also if this rank has no experts: all refuse it, or none
      const int size = plan.grid.size(Grid::replica_axes(expert));
      if (root >= 0 && root < size) continue;
      return invalid("root is ", root, "; the ", expert ? "expert " : "", "data-parallel group has ranks 0 to ", size - 1);
    }
    if (Status ordered = stream.wait_for_caller(nullptr); !ordered) return ordered;  // views may have been written there
    if (updated_) {
      if (Status ordered = stream.wait_for(updated_); !ordered) return ordered;
    }
    for (const Arena& arena : arenas_->all()) {
      Group& group = arena.comms.all_for_params->group();
      const Tag tag{-1, "mdp_buffer_broadcast"};
      const DType type = arena.plan->param_type;
      const uint64_t count = arena.plan->layout.numel;
      // The window is that of an instance.
      const Status submitted = arena.has_instances() ? group.broadcast(stream, arena.params->data(), count, type, root, tag)
                                                     : group.broadcast(stream, *arena.params, type, 0, count, root, tag);
      if (!submitted) return submitted;
    }
    if (Status submitted = broadcast_ties(); !submitted) return submitted;
    auto recorded = stream.record();
    if (!recorded) return recorded.status();
    done = passed_ = *recorded;
    count_broadcast();
  }
  if (want_request) return arenas_->gathers().request(arenas_->shared_context());
  if (Status passed = done->await(); !passed) return passed;
  return std::shared_ptr<Request>();
}

// A master that several ranks have follows with all its digits: theirs may differ, where the parameters did.
void Params::count_broadcast() {
  const Plan& plan = arenas_->plan();
  for (const Arena& arena : arenas_->all()) {
    const bool is_anothers_too = arena.plan->shards < plan.grid.size(Grid::replica_axes(arena.plan->expert));
    const bool is_cut = plan.grid.size(Grid::tp_axes(arena.plan->expert)) > 1;
    for (const Slot& slot : arena.plan->layout.slots) {
      const uint64_t version = ++versions_[slot.param];
      const bool is_replica = is_cut && plan.params[slot.param].placement != Placement::sharded;
      if (is_anothers_too || is_replica || plan.is_tied(slot.param)) replacements_[slot.param] = version;
    }
  }
}

// From the first stage that holds a copy to the others, on the channel of gradients, where the stages have a group.
Status Params::broadcast_ties() {
  if (arenas_->tie_groups().empty()) return {};
  Stream &stream = arenas_->grads().stream(), &gathers = arenas_->gathers().stream();
  const auto follow = [](Stream& later, Stream& earlier) -> Status {
    auto recorded = earlier.record();
    return recorded ? later.wait_for(*recorded) : recorded.status();
  };
  if (Status ordered = follow(stream, gathers); !ordered) return ordered;
  for (const Arenas::TieGroup& tied : arenas_->tie_groups()) {
    for (const size_t param : tied.params) {
      const Arena& arena = arenas_->arena_of(param);
      const Status submitted =
          tied.comm->group().broadcast(stream, arena.param_at(arenas_->place(param).begin), arenas_->plan().params[param].numel,
                                       arena.plan->param_type, 0, Tag{-1, "mdp_buffer_broadcast"});
      if (!submitted) return submitted;
    }
  }
  return follow(gathers, stream);
}

Result<uint64_t> digest_memory(const Arenas& arenas, const std::byte* values, size_t bytes) {
  constexpr size_t kAtOnce = size_t{1} << 20;  // bytes; on a device they come to the host
  std::vector<std::byte> staging(arenas.context().on_device() ? std::min(bytes, kAtOnce) : 0);
  uint64_t digest = 0;
  for (size_t at = 0; at < bytes; at += kAtOnce) {
    const size_t count = std::min(kAtOnce, bytes - at);
    if (!staging.empty()) {
      if (Status read = arenas.backend().read(staging.data(), values + at, count); !read) return read;
    }
    const uint64_t of_these = checksum(staging.empty() ? values + at : staging.data(), count);
    digest = hash_bytes(&of_these, sizeof of_these, digest);
  }
  return digest;
}

Result<uint64_t> Params::digest_value(size_t param) {
  const Arena& arena = arenas_->arena_of(param);
  return digest_memory(*arenas_, arena.param_at(arenas_->place(param).begin),
                       arenas_->plan().params[param].numel * size_of(arena.plan->param_type));
}

// The digests of one part's parameters, in the order of arenas and in these of registration: the same on all that share the part.
Result<std::vector<uint64_t>> Params::digest_values(bool expert) {
  std::vector<uint64_t> digests;
  for (const Arena& arena : arenas_->all()) {
    if (arena.plan->expert != expert) continue;
    for (const size_t param : arena.plan->params) {
      auto digest = digest_value(param);
      if (!digest) return digest.status();
      digests.push_back(*digest);
    }
  }
  return digests;
}

// The parameter that has number `position` among those of digest_values().
size_t Params::digested_param(bool expert, size_t position) const {
  for (const Arena& arena : arenas_->all()) {
    if (arena.plan->expert != expert) continue;
    if (position < arena.plan->params.size()) return arena.plan->params[position];
    position -= arena.plan->params.size();
  }
  return SIZE_MAX;
}

Status Params::settle() {
  std::vector<std::shared_ptr<Event>> ends;
  {
    const std::lock_guard lock(mutex_);
    ends = {updated_, passed_};
    if (Status ordered = arenas_->gathers().stream().wait_for_caller(nullptr); !ordered) return ordered;
    auto gathered = arenas_->gathers().stream().record();  // of a step in one pass, the updates too
    if (!gathered) return gathered.status();
    ends.push_back(*std::move(gathered));
  }
  for (const std::shared_ptr<Event>& end : ends) {
    if (!end) continue;
    if (Status reached = end->await(); !reached) return reached;
  }
  return {};
}

Status Params::verify() {
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  // On the host's thread, whatever the backend: what is read here is not read on its streams.
  if (Status settled = settle(); !settled) return settled;
  std::array<std::string, 2> bytes;  // of the digests, dense and expert
  Replica held{.call = "mdp_buffer_verify", .digests = {}, .detail = {}};
  for (const bool expert : {false, true}) {
    auto digests = digest_values(expert);
    if (!digests) return digests.status();
    std::string& part = bytes[expert ? 1 : 0];
    part.assign(reinterpret_cast<const char*>(digests->data()), digests->size() * sizeof(uint64_t));
    held.digests[expert ? 1 : 0] = hash_bytes(part);
  }
  held.detail = [&](bool expert) { return bytes[expert ? 1 : 0]; };
  return compare_replicas(*arenas_->grid(), held, [this](const ReplicaPair& pair) {
    const std::string &a = pair.first_detail, &b = pair.other_detail;
    const size_t same = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    const size_t param = same < std::min(a.size(), b.size()) ? digested_param(pair.expert, same / sizeof(uint64_t)) : SIZE_MAX;
    if (param == SIZE_MAX) return Explanation{text("mdp_buffer_verify: ranks ", pair.first, " and ", pair.other, " differ")};
    return Explanation{text("mdp_buffer_verify: ", param_label(param, arenas_->plan().params[param].name), " differs between ranks ",
                            pair.first, " and ", pair.other),
                       static_cast<int32_t>(arenas_->place(param).bucket), static_cast<int64_t>(param)};
  });
}

Status Params::order_writes(void* caller) {
  Stream& stream = arenas_->grads().stream();
  if (Status ordered = stream.wait_for_caller(caller); !ordered) return ordered;
  const std::lock_guard lock(mutex_);
  return passed_ ? stream.wait_for(passed_) : Status();
}

Status Params::gather(std::span<const uint32_t> buckets, const std::shared_ptr<Event>& updated,
                      std::span<const std::shared_ptr<const PieceUpdates>> updates) {
  const std::vector<BucketRef>& order = arenas_->plan().launch_order;
  const Arena& first = arenas_->arena_of(order[buckets.front()]);
  const std::lock_guard lock(mutex_);
  updated_ = updated;
  std::vector<WindowOp> calls;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const uint32_t bucket = buckets[i];
    traffic_.count(gathers_[bucket].get());
    const Arena& arena = arenas_->arena_of(order[bucket]);
    if (!arena.is_sharded()) continue;
    calls.push_back(arena.gather(order[bucket].bucket, static_cast<int32_t>(bucket)));
    if (updates.empty()) continue;
    calls.back().updates = updates[i];
    calls.back().tag.what = "gradients, and parameters updated by them";
  }
  const Channel& last = arenas_->last();
  if (&last != &arenas_->grads()) {
    if (Status ordered = last.stream().wait_for(updated); !ordered) return ordered;
  }
  auto gather = traffic_.submit(&last == &arenas_->grads() ? *first.comms.grads : *first.comms.params, calls);
  if (!gather) return gather.status();
  for (const uint32_t bucket : buckets) gathers_[bucket] = *gather;
  return {};
}

Result<std::shared_ptr<Event>> Params::record() {
  const std::lock_guard lock(mutex_);
  auto end = arenas_->last().stream().record();
  if (end) passed_ = *end;
  return end;
}

Result<Stream*> Params::apart() {
  const std::lock_guard lock(mutex_);
  Stream& stream = arenas_->gathers().stream();
  if (updated_) {
    if (Status ordered = stream.wait_for(updated_); !ordered) return ordered;
  }
  return &stream;
}

Result<std::shared_ptr<Event>> Params::record_apart() {
  const std::lock_guard lock(mutex_);
  auto end = arenas_->gathers().stream().record();
  if (end) passed_ = *end;
  return end;
}

uint64_t Params::version(size_t param) {
  const std::lock_guard lock(mutex_);
  return versions_[param];
}

uint64_t Params::count_change(size_t param) {
  const std::lock_guard lock(mutex_);
  return ++versions_[param];
}

uint64_t Params::count_replacement(size_t param) {
  const std::lock_guard lock(mutex_);
  return replacements_[param] = ++versions_[param];
}

uint64_t Params::last_replacement(size_t param) {
  const std::lock_guard lock(mutex_);
  return replacements_[param];
}

Status Params::check_swapped_back(const char* call) const {
  if (swaps_.load(std::memory_order_acquire) == 0) return {};
  return bad_state(call, ": parameters are an optimizer's averages; swap them back first, by mdp_optimizer_swap_average");
}

Status Params::check_none_swapped(std::span<const size_t> params) {
  const std::lock_guard lock(mutex_);
  const auto swapped = std::find_if(params.begin(), params.end(), [this](size_t param) { return swapped_[param]; });
  if (swapped == params.end()) return {};
  return Status(Code::state,
                text("mdp_optimizer_swap_average: ", param_label(*swapped, arenas_->plan().params[*swapped].name),
                     " is another optimizer's average; swap that one back first"),
                Blame{.param = static_cast<int64_t>(*swapped)});
}

void Params::set_swapped(std::span<const size_t> params, bool swapped) {
  const std::lock_guard lock(mutex_);
  for (const size_t param : params) swapped_[param] = swapped;
  swaps_.fetch_add(swapped ? 1 : SIZE_MAX, std::memory_order_acq_rel);
}

std::shared_ptr<Transfer> Params::last_gather(uint32_t bucket) {
  const std::lock_guard lock(mutex_);
  return gathers_[bucket];
}

Traffic Params::traffic() {
  const std::lock_guard lock(mutex_);
  for (const auto& gather : gathers_) traffic_.count(gather.get());
  return traffic_;
}

}  // namespace megadp
