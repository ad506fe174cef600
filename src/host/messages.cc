// SPDX-License-Identifier: Apache-2.0
// Messages (see messages.h) as a group exchanges them. Between nodes the two ends first tell each other what they came for, so
// that data is sent only when the memory it goes to is known; then it goes from memory to memory.
#include "host/messages.h"

#include <algorithm>
#include <exception>

#include "base/thread.h"
#include "host/collective.h"

namespace megadp::host {
namespace {

constexpr size_t kPostedBytes = size_t{64} << 20;  // at a time, so that a wait sees that something moves

}  // namespace

std::optional<MessageHalf> HostGroup::half_of(const Message& message, bool sends) {
  if (message.rank < 0) return {};
  const auto rank = static_cast<size_t>(message.rank);
  Operation operation = make_operation(message, sends);
  operation.number = ++(sends ? sent_ : received_)[message.rank];
  const auto local = std::find(local_.begin(), local_.end(), members_[rank]);
  const int peer = local == local_.end() ? members_[rank] : static_cast<int>(local - local_.begin());
  std::byte* const staging = staging_[turn_ & 1][sends ? static_cast<size_t>(rank_) : rank];
  return MessageHalf{operation, peer, static_cast<std::byte*>(message.data), message.count * size_of(message.type), staging};
}

bool HostGroup::is_local(const std::optional<MessageHalf>& half) const noexcept {
  return half.has_value() && std::find(remote_.begin(), remote_.end(), half->message.root) == remote_.end();
}

Status HostGroup::exchange(const Message& send, const Message& recv, const Stop& stop) {
  std::optional<MessageHalf> out = half_of(send, true), in = half_of(recv, false);
  MessageHalf* const sends = out ? &*out : nullptr;
  MessageHalf* const receives = in ? &*in : nullptr;
  const Describe during = [&] { return describe(send, recv); };
  const bool out_local = is_local(out), in_local = is_local(in);
  if ((out_local || !out) && (in_local || !in)) return sync_->exchange(sends, receives, stop, during);
  if (!out_local && !in_local) return exchange_between_nodes(sends, receives, stop, during);
  return exchange_both_ways(out_local ? sends : receives, out_local ? receives : sends, stop, during);
}

// One half on the node, the other between nodes: they wait in different ways, and neither may wait for the other.
Status HostGroup::exchange_both_ways(MessageHalf* local, MessageHalf* remote, const Stop& stop, const Describe& during) {
  const auto run = [this, &stop, &during](MessageHalf* half, bool here) -> Status {
    const bool sends = half->message.kind == Collective::send;
    MessageHalf *const send = sends ? half : nullptr, *const recv = sends ? nullptr : half;
    Status status = here ? sync_->exchange(send, recv, stop, during) : exchange_between_nodes(send, recv, stop, during);
    if (!status.ok() && !stop.requested()) world_->fail(status);  // ends the other half too
    return status;
  };
  Status of_local;
  auto thread = start_thread("mdp-message", [&] {
    try {
      of_local = run(local, true);
    } catch (const std::exception&) {
      of_local = Status(Code::memory, "out of memory");
      world_->fail(of_local);
    }
  });
  if (!thread) return thread.status();
  struct Joined {
    pthread_t thread;
    ~Joined() { pthread_join(thread, nullptr); }
  };
  Status of_remote;
  {
    const Joined joined{*thread};
    of_remote = run(remote, false);
  }
  return of_local.ok() ? of_remote : of_local;
}

Status HostGroup::post_data(const MessageHalf& half) {
  Status posted;
  for (size_t begin = 0; begin < half.bytes && posted.ok(); begin += kPostedBytes) {
    const size_t bytes = std::min(kPostedBytes, half.bytes - begin);
    posted = half.message.kind == Collective::send ? transport_->send(half.peer, half.data + begin, bytes, Lane::message)
                                                   : transport_->receive(half.peer, half.data + begin, bytes, Lane::message);
  }
  return posted;
}

Status HostGroup::exchange_between_nodes(MessageHalf* send, MessageHalf* recv, const Stop& stop, const Describe& during) {
  static_assert(sizeof(Operation) <= kEarlyBytes);
  const int own = members_[static_cast<size_t>(rank_)];
  Operation expected, sent;  // what the peers came for
  bool has_reply = false, has_notice = false, has_replied = false;
  struct Posted {  // whatever happens, the transport does not go on with what is not there any more
    Transport& transport;
    bool finished = false;
    ~Posted() {
      if (!finished) transport.give_up();
    }
  } posted{*transport_};
  Status status;
  if (send != nullptr) {
    status = transport_->send(send->peer, &send->message, sizeof send->message, Lane::message);
    if (status.ok()) status = transport_->receive(send->peer, &expected, sizeof expected, Lane::reply, &has_reply);
  }
  if (status.ok() && recv != nullptr) status = transport_->receive(recv->peer, &sent, sizeof sent, Lane::message, &has_notice);
  bool sends = send != nullptr, receives = recv != nullptr;  // not begun yet
  while (status.ok() && (sends || receives)) {
    status = transport_->wait(stop, during, [&] { return (sends && has_reply) || (receives && has_notice); });
    if (status.ok() && sends && has_reply) {
      sends = false;
      status = same_message(send->message, expected) ? post_data(*send) : messages_differ(own, send->message, send->peer, expected);
    }
    if (status.ok() && receives && has_notice) {
      receives = false;
      status = transport_->send(recv->peer, &recv->message, sizeof recv->message, Lane::reply, &has_replied);
      if (!status.ok()) break;
      if (same_message(sent, recv->message)) {
        status = post_data(*recv);
      } else {
        status = transport_->wait(stop, during, [&] { return has_replied; });  // the sender learns it too
        if (status.ok()) status = messages_differ(recv->peer, sent, own, recv->message);
      }
    }
  }
  if (status.ok()) status = transport_->wait(stop, during);
  posted.finished = status.ok();
  return status;
}

}  // namespace megadp::host
