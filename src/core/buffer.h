// SPDX-License-Identifier: Apache-2.0
// Buffer: registered parameters and their gradients. Arenas are the memory, Params and Gradients what happens in it.
//
//   Arenas ◄── Params ◄── Gradients ◄── Optimizer
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/copies.h"
#include "core/gradients.h"

namespace megadp {

class Buffer {
 public:
  // Collective over the grid's world. Compares the registrations of each shard group; on a difference every rank gets Code::desync with
  // the first one.
  static Result<std::shared_ptr<Buffer>> create(std::shared_ptr<ProcessGrid> grid, const BufferConfig& config,
                                                std::vector<ParamSpec> params);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const Plan& plan() const noexcept { return arenas().plan(); }
  Context& context() const noexcept { return arenas().context(); }
  Arenas& arenas() const noexcept { return *components_->arenas; }
  Params& params() const noexcept { return *components_->params; }
  Gradients& gradients() const noexcept { return *components_->gradients; }
  // Its optimizers' too.
  OneCall& one_call() noexcept { return one_call_; }

  // Gives the owned ranges of all parameters, which have been written, to the ranks that hold replicas of them. Collective over the grid's
  // world, blocking.
  Status gather_params();

  // As Params::broadcast.
  Result<std::shared_ptr<Request>> broadcast(int root, bool want_request);

  // Compares what ranks should hold alike. Collective over the grid's world; the same outcome on all ranks. In verify.cc.
  Status verify();

 private:
  Buffer(std::shared_ptr<ProcessGrid> grid, Plan plan);
  Status agree_on_registration();
  Status agree_on_partial();
  Result<std::vector<Tie>> agree_on_ties();
  Result<bool> agree_on_tokens();
  Status check_room();
  Result<Copies> describe_copies(const std::function<bool(size_t)>& counts);
  Status verify_over_tp(bool expert);
  Status verify_over_stages();

  struct Components {
    std::shared_ptr<Arenas> arenas;
    std::shared_ptr<Params> params;
    std::shared_ptr<Gradients> gradients;
  };
  std::unique_ptr<Components> components_;
  OneCall one_call_;
};

}  // namespace megadp
