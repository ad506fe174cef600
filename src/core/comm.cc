// SPDX-License-Identifier: Apache-2.0
#include "core/comm.h"

#include <algorithm>

#include "control/agreement.h"
#include "core/request.h"

namespace megadp {

std::shared_ptr<Notice> Context::notice() const {
  const int fd = notified_fd;
  return fd >= 0 ? std::make_shared<Notice>(fd) : nullptr;
}

Status Context::usable() const {
  if (world->in_forked_child()) {
    return bad_state("this communicator belongs to the parent process; a forked child must create its own");
  }
  return world->failed() ? world->failure() : Status();
}

Result<std::shared_ptr<Comm>> Comm::create(std::shared_ptr<World> world, std::shared_ptr<Backend> backend, const Interrupt& interrupt) {
  auto context = std::make_shared<Context>();
  context->world = std::move(world);
  context->backend = std::move(backend);
  context->interrupt = interrupt;
  auto channel = Channel::create(context, "mdp-comm");
  if (!channel) return channel.status();

  auto group = context->backend->create_group(all_ranks(context->world->size()));
  if (!group) return group.status();
  return std::shared_ptr<Comm>(new Comm(std::move(context), *std::move(channel), *std::move(group)));
}

Result<std::shared_ptr<Comm>> Comm::split(int color, int key) {
  if (Status usable = context_->usable(); !usable) return usable;
  struct Choice {
    int32_t color, key;
  };
  const auto all = exchange_as(*context_->world, group_->members(), "mdp_comm_split", Choice{color, key});
  if (!all) return all.status();
  std::vector<std::pair<int, int>> chosen;  // (key, rank here): equal keys keep the order they had
  for (size_t r = 0; r < all->size(); ++r) {
    const Choice& choice = (*all)[r];
    if (color >= 0 && choice.color == color) chosen.emplace_back(choice.key, static_cast<int>(r));
  }
  std::sort(chosen.begin(), chosen.end());
  std::vector<int> members;
  for (const auto& [unused, rank] : chosen) members.push_back(group_->members()[static_cast<size_t>(rank)]);
  return subset(members);
}

Result<std::shared_ptr<Comm>> Comm::subset(const std::vector<int>& members) {
  if (Status usable = context_->usable(); !usable) return usable;
  auto channel = Channel::create(context_, "mdp-comm");
  auto group = group_->split(members);  // also without a channel: the others would wait for it
  if (!channel) return channel.status();
  if (!group) return group.status();
  if (*group == nullptr) return std::shared_ptr<Comm>();
  return std::shared_ptr<Comm>(new Comm(context_, *std::move(channel), *std::move(group)));
}

Result<std::shared_ptr<Comm>> Comm::subset(const std::vector<int>& members, std::shared_ptr<Channel> channel) {
  auto group = group_->split(members);
  if (!group) return group.status();
  return std::shared_ptr<Comm>(new Comm(context_, std::move(channel), *std::move(group)));
}

Result<std::shared_ptr<Request>> Comm::finish(Stream& used, void* consumer, bool want_request) {
  if (want_request) return channel_->request(context_);
  if (Status status = used.make_caller_wait_for_all(&used == &channel_->stream() ? consumer : nullptr); !status) return status;
  return std::shared_ptr<Request>();
}

Result<std::shared_ptr<Request>> Comm::barrier(bool want_request) {
  auto before = channel_->stream().record();
  if (!before) return before.status();
  if (Status ordered = channel_->order_control_after(*before); !ordered) return ordered;
  const CallerWaits here(channel_->control(), !want_request);
  if (Status submitted = group_->control().barrier(channel_->control(), Tag{-1, "barrier"}); !submitted) return submitted;
  return finish(channel_->control(), nullptr, want_request);
}

}  // namespace megadp
