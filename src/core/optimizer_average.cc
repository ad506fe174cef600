// SPDX-License-Identifier: Apache-2.0
// The exponential moving average of what this rank owns, and its swap with the parameters. An average begins as the master is before the
// first step, or when it is first asked for; it follows each step that is taken, whatever the rule. A swap changes parameters without
// raising their versions, so that masters do not take the averages over; what the owned pieces were is kept aside.
#include <array>

#include "control/agreement.h"
#include "core/optimizer_impl.h"

namespace megadp {
namespace {

constexpr const char* kSwap = "mdp_optimizer_swap_average";

}  // namespace

bool Optimizer::averages() const {
  return impl_->averages();
}

std::vector<size_t> Optimizer::covered() const {
  std::vector<size_t> params;
  for (size_t param = 0; param < buffer_->plan().params.size(); ++param) {
    if (covers(param)) params.push_back(param);
  }
  return params;
}

void Optimizer::restart_average(size_t param) {
  const auto lock = buffer_->gradients().lock();
  impl_->average_begun[param] = false;
}

Status Optimizer::Impl::submit_first_average(const Arenas& arenas, Stream& stream, size_t a, const Owned& owned) {
  if (average_begun[owned.param]) return {};
  const Status submitted = arenas.backend().cast(stream, average_at(shards[a], owned), DType::f32,
                                                 master_at(arenas.all()[a], shards[a], owned), DType::f32, owned.end - owned.begin);
  if (submitted.ok()) average_begun[owned.param] = true;
  return submitted;
}

Status Optimizer::Impl::begin_average(Buffer& buffer, size_t arena, const Owned& owned) {
  std::shared_ptr<Event> begun;
  {
    const auto lock = buffer.gradients().lock();
    auto stream = buffer.params().apart();
    if (!stream) return stream.status();
    if (Status submitted = submit_first_average(buffer.arenas(), **stream, arena, owned); !submitted) return submitted;
    auto recorded = buffer.params().record_apart();
    if (!recorded) return recorded.status();
    begun = *std::move(recorded);
  }
  return begun->await();
}

// The masters have been refreshed.
Status Optimizer::submit_first_averages() {
  for (size_t a = 0; a < impl_->shards.size(); ++a) {
    for (const auto& bucket : impl_->shards[a].buckets) {
      for (const Impl::Owned& owned : bucket) {
        if (Status submitted = impl_->submit_first_average(buffer_->arenas(), buffer_->arenas().grads().stream(), a, owned); !submitted)
          return submitted;
      }
    }
  }
  return {};
}

// After the update of a bucket, and of all of it: what took no part in the step is averaged as it is.
Status Optimizer::submit_average(uint32_t number) {
  if (!impl_->averages()) return {};
  const Arenas& arenas = buffer_->arenas();
  const BucketRef bucket = arenas.plan().launch_order[number];
  const Arena& arena = arenas.arena_of(bucket);
  const Impl::Shard& shard = impl_->shards[bucket.arena];
  return submit_merged(
      shard.buckets[bucket.bucket], [](const Impl::Owned&) { return true; },
      [](const Impl::Owned&, const Impl::Owned& next) { return next.joined; },
      [&](const Impl::Owned& owned) {
        float* const master = impl_->master_at(arena, shard, owned);
        Update update{};
        update.hyper.momentum = impl_->config.average_decay;
        update.scalars = impl_->device_scalars();
        update.steps = impl_->device_steps(0);
        update.grad = master;  // the rule takes none
        update.master = master;
        update.state[0] = impl_->average_at(shard, owned);
        update.param = master;
        update.count = owned.end - owned.begin;
        update.grad_type = update.param_type = DType::f32;
        update.rule = kAverageRule;
        return arenas.backend().update(arenas.grads().stream(), update);
      });
}

Status Optimizer::settle_owned() {
  for (const size_t param : covered()) {
    if (!impl_->config.no_master) {
      if (auto fresh = state(param, kMasterState); !fresh) return fresh.status();
    }
    if (impl_->averages()) {
      if (auto begun = state(param, kAverageState); !begun) return begun.status();
    }
  }
  return {};
}

Status Optimizer::check_swap(const std::vector<Gradients::Launched>& launched) const {
  if (!impl_->averages()) return bad_state(kSwap, ": the optimizer keeps no average; mdp_optimizer_config.average_decay asks for one");
  if (Status loaded = buffer_->arenas().check_loaded(); !loaded) return loaded;
  if (Status whole = check_whole(kSwap); !whole) return whole;
  if (Status between = buffer_->gradients().check_between_steps(kSwap); !between) return between;
  if (Status alike = buffer_->gradients().check_launched_alike(kSwap, launched); !alike) return alike;
  return impl_->swapped ? Status() : buffer_->params().check_none_swapped(covered());
}

// What this rank owns of the bucket.
Status Optimizer::submit_swap(uint32_t number) {
  const Arenas& arenas = buffer_->arenas();
  const BucketRef bucket = arenas.plan().launch_order[number];
  const Arena& arena = arenas.arena_of(bucket);
  const Impl::Shard& shard = impl_->shards[bucket.arena];
  const DType type = arena.plan->param_type;
  return submit_merged(
      shard.buckets[bucket.bucket], [](const Impl::Owned&) { return true; },
      [](const Impl::Owned&, const Impl::Owned& next) { return next.joined; },
      [&](const Impl::Owned& owned) -> Status {
        const auto cast = [&](void* to, const void* from, DType from_type) {
          return arenas.backend().cast(arenas.grads().stream(), to, type, from, from_type, owned.end - owned.begin);
        };
        void* const param = arena.param_at(owned.begin);
        void* const aside = static_cast<std::byte*>(shard.aside->data()) + owned.place * size_of(type);
        if (impl_->swapped) return cast(param, aside, type);
        if (Status kept = cast(aside, param, type); !kept) return kept;
        return cast(param, impl_->average_at(shard, owned), DType::f32);
      });
}

Result<std::shared_ptr<Request>> Optimizer::swap_average(void* caller, bool want_request) {
  Context& context = buffer_->context();
  Params& params = buffer_->params();
  const std::vector<int>& members = buffer_->arenas().grid()->world()->group().members();
  // A swap follows the reductions that are under way, and must not wait for one that another rank has not come to.
  const auto launched = exchange_as<Gradients::Launched>(*context.world, members, kSwap, buffer_->gradients().launched_of_step());
  if (!launched) return launched.status();
  if (Status agreed = agree(*context.world, members, {kSwap}, check_swap(*launched)); !agreed) return agreed;
  {
    const auto lock = buffer_->gradients().lock();
    if (Status usable = context.usable(); !usable) return usable;
    if (Status ordered = params.order_writes(caller); !ordered) return ordered;
    if (!impl_->swapped) {
      params.step_changes().settle(std::array{&impl_->versions});
      if (Status fresh = submit_refresh(); !fresh) return fresh;
    }
    const std::vector<std::vector<uint32_t>>& launches = buffer_->gradients().launches();
    for (size_t number = launches.size(); number-- > 0;) {
      for (const uint32_t bucket : launches[number]) {
        if (Status submitted = submit_swap(bucket); !submitted) return submitted;
      }
      auto written = buffer_->arenas().grads().stream().record();
      if (!written) return written.status();
      if (Status submitted = params.gather(launches[number], *written); !submitted) return submitted;
    }
    auto end = params.record();
    if (!end) return end.status();
    last_step_ = *std::move(end);
    impl_->swapped = !impl_->swapped;
    params.set_swapped(covered(), impl_->swapped);
  }
  const Channel& last = buffer_->arenas().last();
  if (want_request) return last.request(buffer_->arenas().shared_context());
  if (Status ordered = last.stream().make_caller_wait(caller, *last_step_); !ordered) return ordered;
  return std::shared_ptr<Request>();
}

}  // namespace megadp
