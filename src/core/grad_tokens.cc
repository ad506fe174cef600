// SPDX-License-Identifier: Apache-2.0
// MDP_SCALING_TOKENS: gradients are divided by the number of tokens that all batches of the step have. f32 gradients stay sums; how many
// there are is told at the sync, and divided by in the step and in norms. Half-width ones would lose range, or overflow, as sums: there the
// ranks tell each other before the first gradient, and reductions divide.
#include <cmath>

#include "core/gradients.h"

namespace megadp {

float Gradients::reduction_divisor() const {
  const Plan& plan = arenas_->plan();
  if (plan.config.scaling == Scaling::mean) return static_cast<float>(plan.grid.size(kDp | kCp));
  return at_once_ && !lacks_tokens() ? static_cast<float>(total_tokens_) : 1;  // while they are lacking, of zeros
}

double Gradients::step_divisor() const {
  return arenas_->plan().config.scaling == Scaling::tokens && !at_once_ ? total_tokens_ : 1;
}

Status Gradients::tokens(double count) {
  std::shared_ptr<Event> told;
  {
    std::unique_lock lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    if (Status own = params_->check_swapped_back("mdp_grad_tokens"); !own) return own;
    if (arenas_->plan().config.scaling != Scaling::tokens) {
      return bad_state("mdp_grad_tokens: the buffer was registered with another mdp_buffer_config.scaling than MDP_SCALING_TOKENS (2)");
    }
    if (phase_ != Phase::open) return bad_state("mdp_grad_tokens comes after mdp_grad_sync; the step's tokens are to be told before");
    if (tokens_)
      return bad_state("mdp_grad_tokens was called already in this step, with ", *tokens_, "; give all of the step's tokens at once");
    if (at_once_ && touched_) {
      return bad_state("mdp_grad_tokens comes after gradients of the step; where some are half-width it is to be called before the first");
    }
    tokens_ = count;
    if (!at_once_) return {};
    total_tokens_ = 0;
    Backend& control = arenas_->backend().control();
    if (Status written = control.write(told_tokens_->data(), &count, sizeof count); !written) return written;
    Stream& stream = arenas_->grads().control();
    auto* const all = static_cast<double*>(told_tokens_->data()) + 1;
    Status submitted = arenas_->world()->group().control().all_gather(stream, told_tokens_->data(), all, sizeof count, DType::u8,
                                                                      Tag{-1, "mdp_grad_tokens"});
    if (!submitted) return submitted;
    auto end = stream.record();
    if (!end) return end.status();
    told = *std::move(end);
  }
  if (Status reached = told->await(); !reached) return reached;
  const std::lock_guard lock(mutex_);
  const auto* const all = static_cast<const double*>(told_tokens_->data()) + 1;
  Status agreed = add_tokens(std::vector<double>(all, all + arenas_->plan().grid.world()));
  if (!agreed) tokens_.reset();
  return agreed.with_context("mdp_grad_tokens");
}

// given: by rank of the grid, not a number where none was. The sum over the batches, in one order on all ranks.
Status Gradients::add_tokens(const std::vector<double>& given) {
  const std::vector<int>& world_ranks = arenas_->grid()->world()->group().members();
  const auto named = [&](int rank) { return world_ranks[static_cast<size_t>(rank)]; };
  double total = 0;
  for (const std::vector<int>& ranks : arenas_->plan().grid.groups(kTp | kPp)) {  // that share a batch
    int first = -1;
    for (const int rank : ranks) {
      const double count = given[static_cast<size_t>(rank)];
      if (std::isnan(count)) continue;
      if (first < 0) first = rank;
      const double before = given[static_cast<size_t>(first)];
      if (count == before) continue;
      return bad_state("rank ", named(first), " has ", before, " tokens in this step, rank ", named(rank), ", which shares its batch, ",
                       count)
          .with_blame({.rank = named(rank)});
    }
    if (first < 0) {
      return bad_state("neither rank ", named(ranks.front()),
                       " nor any that shares its batch has said how many tokens this step has; call mdp_grad_tokens before mdp_grad_sync")
          .with_blame({.rank = named(ranks.front())});
    }
    total += given[static_cast<size_t>(first)];
  }
  total_tokens_ = total == 0 ? 1 : total;
  return {};
}

}  // namespace megadp
