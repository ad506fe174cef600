// SPDX-License-Identifier: Apache-2.0
// What an opaque handle of the C API is: a mark that says which kind it is, and shared ownership of a core object and of the context it
// lives in. Two handles never share anything but core objects, so they may be destroyed in any order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "api/argument.h"
#include "base/log.h"
#include "base/status.h"
#include "core/buffer.h"
#include "core/comm.h"
#include "core/halo.h"
#include "core/optimizer.h"
#include "core/request.h"
#include "core/tp_linear.h"
#include "megadp.h"

namespace megadp {

// Eight characters in memory, so that a debugger shows what a pointer points to.
constexpr uint64_t mark_of(const char (&word)[9]) {
  uint64_t mark = 0;
  for (int i = 7; i >= 0; --i) mark = mark << 8 | static_cast<uint8_t>(word[i]);
  return mark;
}

struct HandleKind {
  uint64_t mark;
  const char* name;
};
inline constexpr HandleKind kCommHandle{mark_of("mdp-comm"), "mdp_comm"};
inline constexpr HandleKind kGridHandle{mark_of("mdp-grid"), "mdp_grid"};
inline constexpr HandleKind kBufferHandle{mark_of("mdp-bufr"), "mdp_buffer"};
inline constexpr HandleKind kOptimizerHandle{mark_of("mdp-optm"), "mdp_optimizer"};
inline constexpr HandleKind kRequestHandle{mark_of("mdp-rqst"), "mdp_request"};
inline constexpr HandleKind kTpLinearHandle{mark_of("mdp-tpln"), "mdp_tp_linear"};
inline constexpr HandleKind kTpSavedHandle{mark_of("mdp-tpsv"), "mdp_tp_saved"};
inline constexpr HandleKind kHaloHandle{mark_of("mdp-halo"), "mdp_halo"};

template <class Object, const HandleKind& handle_kind>
struct Handle {
  static constexpr const HandleKind& kind = handle_kind;
  // First, so that any of our handles can be recognised. Atomic, so that the zero written as a handle dies is not optimised away: most
  // uses after a destroy are caught by it.
  std::atomic<uint64_t> mark{handle_kind.mark};
  std::shared_ptr<Context> context;  // before object, which may need it to the last
  std::shared_ptr<Object> object;

  Handle(std::shared_ptr<Context> its_context, std::shared_ptr<Object> its_object)
      : context(std::move(its_context)), object(std::move(its_object)) {}
};

}  // namespace megadp

struct mdp_comm : megadp::Handle<megadp::Comm, megadp::kCommHandle> {
  using Handle::Handle;
};

struct mdp_grid : megadp::Handle<megadp::ProcessGrid, megadp::kGridHandle> {
  using Handle::Handle;
};

struct mdp_buffer : megadp::Handle<megadp::Buffer, megadp::kBufferHandle> {
  using Handle::Handle;
};

struct mdp_optimizer : megadp::Handle<megadp::Optimizer, megadp::kOptimizerHandle> {
  using Handle::Handle;
  std::shared_ptr<megadp::Buffer> buffer;
};

struct mdp_request : megadp::Handle<megadp::Request, megadp::kRequestHandle> {
  using Handle::Handle;
  std::shared_ptr<void> owner;  // what the operation works on: stays alive with the request
};

struct mdp_tp_linear : megadp::Handle<megadp::TpLinear, megadp::kTpLinearHandle> {
  using Handle::Handle;
};

struct mdp_tp_saved : megadp::Handle<megadp::TpSaved, megadp::kTpSavedHandle> {
  using Handle::Handle;
  std::shared_ptr<megadp::TpLinear> layer;
};

struct mdp_halo : megadp::Handle<megadp::Halo, megadp::kHaloHandle> {
  using Handle::Handle;
};

namespace megadp {

// Where the memory of a handle's backend is.
template <class H>
Place place_of(const H& handle) {
  return handle.context->backend->place();
}

// What a call needs of the handle.
enum class Need {
  anywhere,         // as the next; also in an update function of the caller's (InUpdate)
  process,          // this process made it. Enough for what reads local memory: what is left after a failure can be saved
  one_call,         // and no other call has it (OneCall)
  any_thread,       // as process, and no rank is lost, nothing aborted
  usable,           // and no other call has it
  all_ranks,        // and the others make this call too: if it is interrupted, they are lost to each other
  alone_in_context  // and no other such call is under way in its context: ranks tell each other one thing after another there
};
constexpr bool takes_alone(Need need) {
  switch (need) {
    case Need::anywhere:
    case Need::process:
    case Need::any_thread:
      return false;
    case Need::one_call:
    case Need::usable:
    case Need::all_ranks:
    case Need::alone_in_context:
      return true;
  }
  return true;
}

// While it lives, this thread is in a function of the caller's that a step has called.
class InUpdate {
 public:
  InUpdate() noexcept;
  ~InUpdate();
  InUpdate(const InUpdate&) = delete;
  InUpdate& operator=(const InUpdate&) = delete;
};

Status check_mark(const void* handle, const Argument& argument, const HandleKind& kind);
bool has_mark(const void* handle, const HandleKind& kind) noexcept;
Status check_context(const Context& context, Need need);

// What has the OneCall of a handle, if there is one: an optimizer has its buffer's.
template <class H>
const auto& used_of(const H& handle) {
  return handle.object;
}
inline const auto& used_of(const mdp_optimizer& optimizer) {
  return optimizer.buffer;
}

// Code::state while another call has it.
Status check_alone(OneCall& of, std::shared_ptr<void> owner, const Argument& argument);

template <class H>
Status check_handle(const H* handle, const Argument& argument, Need need) {
  if (Status status = check_mark(handle, argument, H::kind); !status) return status;
  if (Status status = check_context(*handle->context, need); !status) return status;
  const auto& used = used_of(*handle);
  if constexpr (requires { used->one_call(); }) {
    Status alone = takes_alone(need) ? check_alone(used->one_call(), used, argument) : Status();
    if (!alone || need != Need::alone_in_context) return alone;
    return check_alone(handle->context->one_call, handle->context, {argument, "'s context"});
  }
  return {};
}

// NULL, a handle of another kind and a forked child's copy are left alone.
template <class H>
void destroy_handle(H* handle) noexcept {
  if (!has_mark(handle, H::kind)) return;
  if (handle->context->world->in_forked_child()) return;
  if (handle->mark.exchange(0) != H::kind.mark) return;
  delete handle;
  print_logs();
}

}  // namespace megadp
