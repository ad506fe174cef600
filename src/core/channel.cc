// SPDX-License-Identifier: Apache-2.0
#include "core/channel.h"

#include <algorithm>
#include <new>

#include "core/comm.h"
#include "core/request.h"

namespace megadp {

Result<std::shared_ptr<Channel>> Channel::create(std::shared_ptr<Context> context, const char* name) {
  context->drop_passed();
  std::unique_ptr<Channel> channel(new Channel);
  auto stream = context->backend->create_stream(name);
  if (!stream) return stream.status();
  channel->stream_ = *std::move(stream);
  if (Backend& control = context->backend->control(); &control != context->backend.get()) {
    auto beside = control.create_stream("mdp-control");
    if (!beside) return beside.status();
    channel->control_ = *std::move(beside);
  }
  return std::shared_ptr<Channel>(channel.release(),
                                  [context = std::move(context)](Channel* last) { context->retire(std::unique_ptr<Channel>(last)); });
}

Status Channel::order_control_after(const std::shared_ptr<Event>& event) const {
  return control_ ? control_->wait_for(event) : Status();
}

Result<std::shared_ptr<Request>> Channel::request(const std::shared_ptr<Context>& context, std::function<Status()> complete) const {
  if (control_) {
    auto end = stream_->record();
    if (!end) return end.status();
    if (Status ordered = order_control_after(*end); !ordered) return ordered;
  }
  std::shared_ptr<Notice> notice = context->notice();
  auto event = control().record(notice);
  if (!event) return event.status();
  return std::make_shared<Request>(context, *event, std::move(notice), std::move(complete));
}

void Channel::retain(const std::shared_ptr<void>& object) const {
  if (control_) control_->retain(object);
  stream_->retain(object);
}

// Mostly nothing is in flight, and the streams only have to say so.
constexpr uint64_t kPassNs = 20'000'000;

void Context::retire(std::unique_ptr<Channel> channel) noexcept {
  if (world->in_forked_child()) return;  // its threads are the parent's, and a lock of theirs may be held for ever
  try {
    Passing one;
    if (channel->control_) {
      auto end = channel->control_->record();
      if (end) one.ends.push_back(*std::move(end));
    }
    auto end = channel->stream_->record();
    if (end) one.ends.push_back(*std::move(end));
    one.channel = std::move(channel);
    const Deadline soon = Deadline::after_ns(kPassNs);
    for (const auto& last : one.ends) (void)last->wait(soon);
    const std::lock_guard lock(mutex);
    passing.push_back(std::move(one));
  } catch (const std::bad_alloc&) {  // it ends here, and its work after the streams' grace
  }
  drop_passed();
}

void Context::drop_passed() noexcept {
  std::vector<Passing> passed;  // destroyed without the lock: their threads are joined
  const std::lock_guard lock(mutex);
  const auto done = [](const std::shared_ptr<Event>& end) { return end->done(); };
  const auto first = std::partition(passing.begin(), passing.end(),
                                    [&](const Passing& one) { return !std::all_of(one.ends.begin(), one.ends.end(), done); });
  try {
    passed.assign(std::make_move_iterator(first), std::make_move_iterator(passing.end()));
  } catch (const std::bad_alloc&) {
    return;
  }
  passing.erase(first, passing.end());
}

}  // namespace megadp
