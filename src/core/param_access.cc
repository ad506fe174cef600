// SPDX-License-Identifier: Apache-2.0
// Parameters: waiting for their gather, copying them in and out, spreading one rank's, comparing replicas; and what the buffer has counted.
#include <algorithm>

#include "base/hash.h"
#include "core/buffer_impl.h"
#include "core/replicas.h"

namespace megadp {

Status Buffer::param_wait(size_t param, void* consumer) {
  if (param != SIZE_MAX && param >= plan_.params.size()) {
    return invalid("param is ", param, "; this buffer has ", plan_.params.size(), " parameters, or (size_t)-1 for all");
  }
  Impl& s = *impl_;
  std::vector<std::shared_ptr<Event>> pending;
  {
    std::lock_guard lock(s.mutex);
    if (Status usable = tree().usable(); !usable) return usable;
    const auto add = [&pending](const Bucket& bucket) {
      if (bucket.gather && !bucket.gather->end->done()) pending.push_back(bucket.gather->end);
    };
    if (param == SIZE_MAX) {
      for (const Bucket& bucket : s.buckets) add(bucket);
    } else if (!plan_.params[param].frozen) {
      add(s.buckets[s.params[param].bucket]);
    }
  }
  if (pending.empty()) return {};
  const uint64_t begin = now_ns();
  Status first;
  for (const auto& event : pending) {
    Status status = s.gathers->stream().make_caller_wait(consumer, *event);
    if (first.ok()) first = status;
  }
  std::lock_guard lock(s.mutex);
  s.stats.exposed_ns += now_ns() - begin;
  return first;
}

// The parameter's slot as an array, once it is whole and `array` is known to have its shape.
Result<StridedArray> Buffer::whole_slot(const char* call, size_t param, const std::vector<int64_t>& shape, void* caller) {
  if (Status status = check_param(param); !status) return status;
  const ParamSpec& spec = plan_.params[param];
  if (shape != spec.shape) {
    return Status(
        Code::invalid,
        text(call, ": the array has shape ", shape_text(shape), "; ", param_label(param, spec.name), " has ", shape_text(spec.shape)),
        Blame{.param = static_cast<int64_t>(param)});
  }
  if (Status whole = param_wait(param, caller); !whole) return whole;
  const ParamState& state = impl_->params[param];
  const Arena& arena = impl_->arenas[state.arena];
  return StridedArray{arena.param_at(state.begin), arena.plan->param_type, spec.shape, state.strides};
}

Status Buffer::param_read(size_t param, const StridedArray& to, void* caller) {
  auto slot = whole_slot("mdp_param_read", param, to.shape, caller);
  return slot ? tree().backend->copy(to, *slot, false, caller) : slot.status();
}

Status Buffer::param_write(size_t param, const StridedArray& from, void* caller) {
  auto slot = whole_slot("mdp_param_write", param, from.shape, caller);
  if (!slot) return slot.status();
  if (Status copied = tree().backend->copy(*slot, from, false, caller); !copied) return copied;
  if (Status ordered = impl_->grads->stream().wait_for_caller(caller); !ordered) return ordered;
  std::lock_guard lock(impl_->mutex);
  ++impl_->params[param].version;  // of this one only: the masters of the others hold more than their parameters show
  return {};
}

void Buffer::Impl::all_params_changed() {
  for (ParamState& state : params) ++state.version;
}

Status Buffer::param_changed() {
  std::lock_guard lock(impl_->mutex);
  if (Status usable = tree().usable(); !usable) return usable;
  impl_->all_params_changed();
  return {};
}

Status Buffer::broadcast(int root) {
  Impl& s = *impl_;
  Stream& stream = s.gathers->stream();
  std::shared_ptr<Event> done;
  {
    std::lock_guard lock(s.mutex);
    if (Status usable = tree().usable(); !usable) return usable;
    for (const bool expert : {false, true}) {  // also where this rank has no experts: all refuse it, or none
      const int size = plan_.grid.size(Grid::shard_axes(expert));
      if (root >= 0 && root < size) continue;
      return invalid("root is ", root, "; the ", expert ? "expert " : "", "data-parallel group has ranks 0 to ", size - 1);
    }
    auto written = s.grads->stream().record();  // by a step, or by the caller
    if (!written) return written.status();
    if (Status ordered = stream.wait_for(*written); !ordered) return ordered;
    for (Arena& arena : s.arenas) {
      const Status submitted = arena.params_comm->group().broadcast(stream, *arena.params, arena.plan->param_type, 0,
                                                                    arena.plan->layout.numel, root, Tag{-1, "mdp_buffer_broadcast"});
      if (!submitted) return submitted;
    }
    auto recorded = stream.record();
    if (!recorded) return recorded.status();
    done = s.gathered = *recorded;
    s.all_params_changed();
  }
  return done->wait(Deadline::never());
}

// The digests of one part's parameters, in the order of arenas and in these of registration: the same on all that share the part.
Result<std::vector<uint64_t>> Buffer::digest_values(bool expert) {
  std::vector<uint64_t> digests;
  std::vector<std::byte> values;
  for (const Arena& arena : impl_->arenas) {
    if (arena.plan->expert != expert) continue;
    for (const size_t param : arena.plan->params) {
      values.resize(plan_.params[param].numel * size_of(arena.plan->param_type));
      if (Status read = tree().backend->read(values.data(), arena.param_at(impl_->params[param].begin), values.size()); !read) return read;
      digests.push_back(hash_bytes(values.data(), values.size()));
    }
  }
  return digests;
}

// The parameter that has number `position` among those of digest_values().
size_t Buffer::digested_param(bool expert, size_t position) const {
  for (const Arena& arena : impl_->arenas) {
    if (arena.plan->expert != expert) continue;
    if (position < arena.plan->params.size()) return arena.plan->params[position];
    position -= arena.plan->params.size();
  }
  return SIZE_MAX;
}

Status Buffer::verify() {
  if (Status usable = tree().usable(); !usable) return usable;
  // On the host's thread, whatever the backend: what is read here is not read on its streams.
  for (const auto& channel : {impl_->grads, impl_->gathers}) {
    auto settled = channel->stream().record();
    if (!settled) return settled.status();
    if (Status reached = (*settled)->wait(Deadline::never()); !reached) return reached;
  }
  std::array<std::string, 2> bytes;  // of the digests, dense and expert
  Held held{.call = "mdp_buffer_verify", .digests = {}, .detail = {}};
  for (const bool expert : {false, true}) {
    auto digests = digest_values(expert);
    if (!digests) return digests.status();
    std::string& part = bytes[expert ? 1 : 0];
    part.assign(reinterpret_cast<const char*>(digests->data()), digests->size() * sizeof(uint64_t));
    held.digests[expert ? 1 : 0] = hash_bytes(part.data(), part.size());
  }
  held.detail = [&](bool expert) { return bytes[expert ? 1 : 0]; };
  return compare_replicas(*grid_, held, [this](const Pair& pair) {
    const std::string &a = pair.first_detail, &b = pair.other_detail;
    const size_t same = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    const size_t param = same < std::min(a.size(), b.size()) ? digested_param(pair.expert, same / sizeof(uint64_t)) : SIZE_MAX;
    if (param == SIZE_MAX) return Finding{text("mdp_buffer_verify: ranks ", pair.first, " and ", pair.other, " differ")};
    return Finding{text("mdp_buffer_verify: ", param_label(param, plan_.params[param].name), " differs between ranks ", pair.first, " and ",
                        pair.other),
                   static_cast<int32_t>(impl_->params[param].bucket), static_cast<int64_t>(param)};
  });
}

Stats Buffer::stats() {
  std::lock_guard lock(impl_->mutex);
  for (const Bucket& bucket : impl_->buckets) impl_->count_times(bucket);
  Stats stats = impl_->stats;
  stats.host_syncs = tree().backend->host_syncs();
  return stats;
}

Result<BucketReport> Buffer::bucket(size_t number) {
  std::lock_guard lock(impl_->mutex);
  if (number >= impl_->buckets.size()) {
    return invalid("bucket is ", number, "; this buffer has ", impl_->buckets.size(), ", counted from 0 in launch order");
  }
  const Bucket& bucket = impl_->buckets[number];
  BucketReport report;
  report.state = impl_->state_of(bucket);
  report.ready_ns = bucket.ready_ns;
  if (bucket.reduction) {
    report.reduce_begin_ns = bucket.reduction->begin->time_ns();
    report.reduce_end_ns = bucket.reduction->end->time_ns();
  }
  if (bucket.gather) {
    report.gather_begin_ns = bucket.gather->begin->time_ns();
    report.gather_end_ns = bucket.gather->end->time_ns();
  }
  report.sync_ns = impl_->sync_ns;
  return report;
}

}  // namespace megadp
