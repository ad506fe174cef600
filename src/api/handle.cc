// SPDX-License-Identifier: Apache-2.0
#include "api/handle.h"

#include <utility>

#include "api/intake.h"

namespace megadp {

namespace {

thread_local bool in_update = false;

const char* known_kind(uint64_t mark) noexcept {
  for (const HandleKind* kind :
       {&kCommHandle, &kGridHandle, &kBufferHandle, &kOptimizerHandle, &kRequestHandle, &kTpLinearHandle, &kTpSavedHandle, &kHaloHandle}) {
    if (mark == kind->mark) return kind->name;
  }
  return nullptr;
}

}  // namespace

Status check_mark(const void* handle, const Argument& argument, const HandleKind& kind) {
  if (Status status = check_pointer(handle, argument, alignof(std::atomic<uint64_t>)); !status) return status;
  const uint64_t mark = static_cast<const std::atomic<uint64_t>*>(handle)->load(std::memory_order_relaxed);
  if (mark == kind.mark) return {};
  if (const char* other = known_kind(mark)) return invalid(argument, " is an ", other, "; this call takes an ", kind.name);
  return invalid(argument, " is ", handle, ", which is not a live ", kind.name, ": it was destroyed, or never was one");
}

bool has_mark(const void* handle, const HandleKind& kind) noexcept {
  return handle != nullptr && reinterpret_cast<uintptr_t>(handle) % alignof(std::atomic<uint64_t>) == 0 &&
         static_cast<const std::atomic<uint64_t>*>(handle)->load(std::memory_order_relaxed) == kind.mark;
}

InUpdate::InUpdate() noexcept {
  in_update = true;
}

InUpdate::~InUpdate() {
  in_update = false;
}

Status check_context(const Context& context, Need need) {
  if (in_update && need != Need::anywhere) {
    return bad_state(
        "this is within a function of the caller's that mdp_optimizer_step or an attention has called; in it only requests, errors and "
        "ranks may be asked for");
  }
  World* const lost = need >= Need::all_ranks ? context.world.get() : nullptr;
  ask_while_waiting(context.interrupt, context.world->rank(), lost);
  if (need >= Need::any_thread) return context.usable();
  if (!context.world->in_forked_child()) return {};
  return bad_state("this handle belongs to the parent process; a forked child must create its own communicator");
}

Status check_alone(OneCall& of, std::shared_ptr<void> owner, const Argument& argument) {
  const std::optional<OneCall::Holder> holder = of.take(std::move(owner));
  if (!holder) return {};
  return bad_state(argument, " is in use by ", holder->name != nullptr ? holder->name : "another call",
                   holder->on_this_thread ? ", which has called the function that makes this call" : " on another thread",
                   "; one call at a time uses it, so call again when that one has returned");
}

}  // namespace megadp
