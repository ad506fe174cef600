// SPDX-License-Identifier: Apache-2.0
// A step whose updates are the caller's. It is cut open between the norm and the gathering of parameters: the host waits for the norm,
// since it must know whether the step is skipped; each piece's gradient is divided, clipped and widened by the launch that does so for
// every rule (GradientRule); the caller updates master and state; when all ranks agree that this is done, masters are rounded (CallerRule)
// and parameters gathered as ever. Device work of the caller's is ordered by his stream, as everywhere.
#include <algorithm>

#include "base/deadline.h"
#include "control/agreement.h"
#include "control/interrupt.h"
#include "core/optimizer_impl.h"

namespace megadp {
namespace {

constexpr const char* kNoFunction = "no update function; mdp_optimizer_set_update gives one";

}  // namespace

uint64_t Optimizer::Impl::gradient_elements() const {
  uint64_t most = 0;
  for (const Shard& shard : shards) {
    for (const std::vector<Owned>& bucket : shard.buckets) {
      PackedPieces packed;
      for (const Owned& owned : bucket) packed.add(owned.begin, owned.end);
      most = std::max(most, packed.elements());
    }
  }
  return most;
}

bool Optimizer::has_callers_rule() const {
  return impl_->is_callers();
}

Status Optimizer::set_update(UpdateFunction update) {
  if (!has_callers_rule()) return bad_state("the optimizer's rule is ", rule().name, "; only MDP_RULE_CALLER (6) takes an update function");
  if (pieces_) return bad_state("a step is under way; finish it first, by mdp_optimizer_step_finish");
  update_ = std::move(update);
  return {};
}

std::vector<std::shared_ptr<Optimizer>> Optimizer::together() const {
  std::vector<std::shared_ptr<Optimizer>> all{std::const_pointer_cast<Optimizer>(shared_from_this())};
  all.insert(all.end(), pieces_->others.begin(), pieces_->others.end());
  return all;
}

Optimizer& Optimizer::whose_turn() {
  return pieces_->optimizer == 0 ? *this : *pieces_->others[pieces_->optimizer - 1];
}

Status Optimizer::begin(Together optimizers, const StepOptions& options) {
  if (Status possible = optimizers.front()->check_unchecked(optimizers, options); !possible) return possible;
  return optimizers.front()->begin_pieces(optimizers, options, {});
}

Status Optimizer::begin_pieces(Together optimizers, const StepOptions& options, const Status& mine) {
  Gradients& gradients = buffer_->gradients();
  std::unique_ptr<Pieces> pieces(new Pieces{
      {options, scaled(options)}, {optimizers.begin() + 1, optimizers.end()}, {}, false, 0, buffer_->plan().launch_order.size()});
  for (const auto& each : optimizers) {
    pieces->groups.push_back(std::make_shared<const std::vector<ParamGroup>>(each->impl_->config.groups));
    each->impl_->stepping = pieces->groups.back();
  }
  if (Status ready = make_ready(optimizers, options, mine); !ready) return ready;
  Step& step = pieces->step;
  {
    std::unique_lock lock = gradients.lock();
    if (Status begun = submit_begin(optimizers, &lock, &step); !begun) {
      lock.unlock();
      return step.refused(begun);
    }
    gradients.hold_for_step();
  }
  Status known = await(*step.normed, step.outcome, step.scaled, nullptr);
  if (!known) {
    const std::unique_lock lock = gradients.lock();
    gradients.start_step();
    if (known.code() == Code::numeric && options.lr) impl_->config.hyper.lr = *options.lr;  // as with a rule of the library's
    return known.code() == Code::numeric && !step.nonfinite.ok() ? step.nonfinite : known;
  }
  pieces->skipped = static_cast<const StepScalars*>(step.outcome->data())->skip != 0;
  pieces_ = std::move(pieces);
  return {};
}

Result<const UpdatePiece*> Optimizer::next() {
  if (!pieces_) return bad_state("no step is under way; mdp_optimizer_step_begin begins one");
  Pieces& pieces = *pieces_;
  if (pieces.check) {
    if (const UpdatePiece* const half = pieces.check->next(); half != nullptr) return half;
    if (Status done = await_callers_work(); !done) return done;
    if (Status same = pieces.check->compare(); !same) return same;
    pieces.check.reset();
  }
  while (pieces.next == pieces.ready.size()) {
    if (pieces.skipped || pieces.optimizer > pieces.others.size()) return nullptr;
    if (pieces.buckets_left == 0 || !whose_turn().has_callers_rule()) {
      ++pieces.optimizer;
      pieces.buckets_left = buffer_->plan().launch_order.size();
      pieces.steps.clear();
      continue;
    }
    if (Status prepared = prepare_pieces(static_cast<uint32_t>(pieces.buckets_left - 1)); !prepared) return prepared;
    --pieces.buckets_left;
  }
  const UpdatePiece& piece = pieces.ready[pieces.next];
  const Impl& impl = *whose_turn().impl_;
  if (impl.config.check_update && piece.count > 1) {
    std::vector<std::string> names{"master"};
    names.insert(names.end(), impl.config.state.begin(), impl.config.state.end());
    if (Status ready = await_callers_work(); !ready) return ready;
    auto check = UpdateCheck::begin(buffer_->arenas().backend(), piece, std::move(names));
    if (!check) return check.status();
    pieces.check = *std::move(check);
  }
  ++pieces.next;
  return &piece;
}

// What the caller has given his stream so far has been done.
Status Optimizer::await_callers_work() {
  Stream& stream = buffer_->arenas().grads().stream();
  if (Status ordered = stream.wait_for_caller(pieces_->step.options.caller); !ordered) return ordered;
  auto done = stream.record();
  return done ? (*done)->await() : done.status();
}

// The gradients of what the optimizer whose turn it is owns of a bucket. Their place was the one of the bucket before, which the caller's
// work may still read.
Status Optimizer::prepare_pieces(uint32_t number) {
  Pieces& pieces = *pieces_;
  const Optimizer& owner = whose_turn();
  Impl& impl = *owner.impl_;
  const Arenas& arenas = buffer_->arenas();
  const BucketRef bucket = arenas.plan().launch_order[number];
  const Arena& arena = arenas.arena_of(bucket);
  const Impl::Shard& shard = impl.shards[bucket.arena];
  Stream& stream = arenas.grads().stream();
  pieces.ready.clear();
  pieces.next = 0;
  if (shard.buckets[bucket.bucket].empty()) return {};
  if (pieces.steps.empty()) {
    auto steps = owner.read_steps();
    if (!steps) return steps.status();
    pieces.steps = *std::move(steps);
  }
  const std::unique_lock lock = buffer_->gradients().lock();
  if (Status ordered = stream.wait_for_caller(pieces.step.options.caller); !ordered) return ordered;
  PackedPieces packed;
  for (const Impl::Owned& owned : shard.buckets[bucket.bucket]) {
    auto* const gradient = static_cast<float*>(impl.gradient->data()) + packed.add(owned.begin, owned.end);
    if (buffer_->gradients().skipped_everywhere(owned.param)) continue;
    Update update = impl.update(arena, shard, owned, pieces.step.options.lr);
    UpdatePiece piece{.optimizer = pieces.optimizer,
                      .param = owned.param,
                      .begin = owned.param_begin,
                      .count = update.count,
                      .master = update.master,
                      .grad = gradient,
                      .state = {},
                      .states = impl.states.size(),
                      .param_states = {},
                      .param_state_bytes = {},
                      .param_state_count = impl.param_states.size(),
                      .hyper = update.hyper,
                      .step = pieces.steps[owned.param],
                      .stream = pieces.step.options.caller};
    std::transform(update.state, update.state + kMostStates, piece.state.begin(), [](void* state) { return static_cast<float*>(state); });
    for (size_t k = 0; k < impl.param_states.size(); ++k) {
      const Slice bytes = impl.param_state(k, owned.param);
      piece.param_states[k] = bytes.data;
      piece.param_state_bytes[k] = static_cast<uint64_t>(bytes.shape->front());
    }
    update.rule = kGradientRule;
    update.master = gradient;
    update.param = gradient;
    update.param_type = DType::f32;
    if (Status submitted = arenas.backend().update(stream, update); !submitted) return submitted;
    pieces.ready.push_back(piece);
  }
  auto done = stream.record();
  return done ? stream.make_caller_wait(pieces.step.options.caller, **done) : done.status();
}

// A step that is not finished. The caller's may have changed anything; of the library's only the counts are as if it had been taken, which
// they take back, and the loss scale has followed its norm. Before the next step begins; without the gradients' lock.
void Optimizer::give_up(Together optimizers, bool skipped) {
  const Uninterrupted to_the_end;
  for (const auto& each : optimizers) {
    const Status taken_back = skipped || each->has_callers_rule() ? Status() : attempt([&]() -> Status {
      const auto scalars = each->read_scalars();
      if (!scalars) return scalars.status();
      const auto steps = each->read_steps();
      if (!steps) return steps.status();
      const Gradients& gradients = each->buffer_->gradients();
      return each->write_steps(scalars->step - 1,
                               [&](size_t param) { return (*steps)[param] - (gradients.skipped_everywhere(param) ? 0 : 1); });
    });
    each->impl_->broken = each->has_callers_rule() || !taken_back.ok();
  }
}

Result<std::shared_ptr<Request>> Optimizer::finish(const Status& mine, StepReport* report, bool want_request) {
  if (!pieces_) return bad_state("no step is under way; mdp_optimizer_step_begin begins one");
  Gradients& gradients = buffer_->gradients();
  Status updated = mine;
  if (!updated.ok() && pieces_->next > 0) {  // in the last that was handed out
    const size_t param = pieces_->ready[pieces_->next - 1].param;
    const Blame blame{.bucket = static_cast<int32_t>(buffer_->arenas().place(param).bucket), .param = static_cast<int64_t>(param)};
    updated = updated.with_context(text("mdp_optimizer_step: ", param_label(param, buffer_->plan().params[param].name))).with_blame(blame);
  }
  if (updated.ok()) {
    const auto left = next();
    if (!left) updated = left.status();
    if (left && *left != nullptr) {
      updated = bad_state("mdp_optimizer_step_finish: ", param_label((*left)->param, buffer_->plan().params[(*left)->param].name),
                          " has a piece that was not asked for; call mdp_optimizer_step_next until there is none");
    }
  }
  if (pieces_->check) (void)await_callers_work();  // the halves may still be being updated
  const std::vector<std::shared_ptr<Optimizer>> optimizers = together();
  const std::unique_ptr<Pieces> pieces = std::move(pieces_);
  Status agreed = agree(*buffer_->context().world, buffer_->arenas().grid()->world()->group().members(), {"mdp_optimizer_step"}, updated);
  if (agreed.ok()) {
    const std::unique_lock lock = gradients.lock();
    agreed = buffer_->arenas().grads().stream().wait_for_caller(pieces->step.options.caller);
  }
  if (!agreed) {
    give_up(optimizers, pieces->skipped);
    const std::unique_lock lock = gradients.lock();
    gradients.start_step();
    return agreed.with_context("masters and state may have changed, parameters were not gathered; load a checkpoint to go on");
  }
  std::shared_ptr<Event> end;
  {
    const std::unique_lock lock = gradients.lock();
    auto submitted = buffer_->context().commit([&] { return submit_end(optimizers, pieces->step); });
    if (!submitted) return submitted.status();
    end = *std::move(submitted);
  }
  return conclude(pieces->step, end, report, want_request);
}

// Until one fails; the others learn of it at the end.
Result<std::shared_ptr<Request>> Optimizer::call_updates(Together optimizers, const StepOptions& options, StepReport* report,
                                                         bool want_request) {
  Status mine;
  for (const auto& each : optimizers) {
    if (each->has_callers_rule() && !each->update_) mine = bad_state("mdp_optimizer_step: the optimizer has ", kNoFunction);
  }
  if (Status begun = begin_pieces(optimizers, options, mine); !begun) return begun;
  Status updated;
  while (updated.ok()) {
    auto piece = next();
    if (!piece) updated = piece.status();
    if (!piece || *piece == nullptr) break;
    const UpdateFunction& update = optimizers[(*piece)->optimizer]->update_;
    updated = update ? update(**piece) : bad_state("it has ", kNoFunction);
  }
  return finish(updated, report, want_request);
}

}  // namespace megadp
