// SPDX-License-Identifier: Apache-2.0
// Several optimizers of one buffer.
#pragma once

#include "optimizer.h"

namespace megadp {

/// Optimizers of one buffer, each with parameter groups of its own (OptimizerOptions.first_param_group), that step together.
class Optimizers {
 public:
  void add(const Optimizer& optimizer) { members_.push_back({optimizer.handle(), optimizer.leases()}); }
  long long size() const { return static_cast<long long>(members_.size()); }

  /// One step of all: one sync, norm, skip decision and report, which are the first one's, as is the scaler. They clip alike, and have
  /// their learning rates from set_param_group: options.lr is refused. INVALID too if none or two of them have a trained parameter's group.
  /// Otherwise as Optimizer.step. Collective, with the same list.
  StepReport step_many(const StepOptions& options, Failure& failure) const {
    mdp_step_report report{};
    report.struct_size = sizeof report;
    guarded(failure, [&] { start(options, &report, nullptr, failure); });
    return StepReport::of(report);
  }

  /// The same without a report, as Optimizer.start_step. Collective.
  Request* start_step_many(const StepOptions& options, Failure& failure) const {
    return guarded(failure, [&]() -> Request* {
      mdp_request* request = nullptr;
      return start(options, nullptr, &request, failure) ? new Request(request) : nullptr;
    });
  }

  /// Begins such a step, as Optimizer.begin_step: pieces are those of optimizers whose rule is CALLER. Collective.
  Step* begin_step_many(const StepOptions& options, Failure& failure) const {
    return guarded(failure, [&]() -> Step* {
      auto used = use(failure);
      if (failure.failed()) return nullptr;
      for (const Member& member : members_) member.leases->end_all();
      return Step::begin(std::move(used), members_.empty() ? nullptr : members_.front().optimizer, options.config(), failure);
    });
  }

#ifndef SWIG
  std::vector<std::shared_ptr<OptimizerHandle>> handles() const {
    std::vector<std::shared_ptr<OptimizerHandle>> handles;
    for (const Member& member : members_) handles.push_back(member.optimizer);
    return handles;
  }
  // Of all of them for one collective call; empty, and STATE, if one is closed.
  std::vector<std::shared_ptr<mdp_optimizer>> use(Failure& failure) const {
    std::vector<std::shared_ptr<mdp_optimizer>> used;
    for (const Member& member : members_) {
      used.push_back(member.optimizer->use_collectively(failure));
      if (failure.failed()) return {};
    }
    return used;
  }
#endif

 private:
  struct Member {
    std::shared_ptr<OptimizerHandle> optimizer;
    std::shared_ptr<Leases> leases;
  };

  bool start(const StepOptions& options, mdp_step_report* report, mdp_request** request, Failure& failure) const {
    const auto used = use(failure);
    if (failure.failed()) return false;
    std::vector<mdp_optimizer*> list;
    for (const auto& optimizer : used) list.push_back(optimizer.get());
    for (const Member& member : members_) member.leases->end_all();
    const mdp_step_config config = options.config();
    return failure.take(mdp_optimizer_step_many(list.data(), list.size(), &config, report, request));
  }

  std::vector<Member> members_;
};

}  // namespace megadp
