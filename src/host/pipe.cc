// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks of a node (see messages.h): the sender writes pieces into its staging memory as long as there is room, the
// receiver takes them out, both at once. An exchange is a send and a receive that one thread moves by turns; it sleeps on one word, its
// bell, whichever of the two it waits for.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/deadline.h"
#include "control/interrupt.h"
#include "control/wording.h"
#include "host/collective.h"
#include "host/copy_past.h"
#include "host/futex.h"
#include "host/short_wait.h"
#include "host/sync.h"

namespace megadp::host {
namespace {

constexpr size_t kPieceBytes = 128 << 10;
constexpr uint64_t kPieces = kStagingHalfBytes / kPieceBytes;  // that fit in at a time

// Also a message of nothing is one piece: its receiver has to say that it came.
uint64_t pieces_of(const MessageHalf& half) {
  return std::max<uint64_t>(1, (half.bytes + kPieceBytes - 1) / kPieceBytes);
}

// Piece k: where it is in the caller's memory and how long, and where in the staging memory.
struct Piece {
  std::byte* data;
  std::byte* staging;
  size_t bytes;
};
Piece piece(const MessageHalf& half, uint64_t k) {
  const size_t begin = k * kPieceBytes;
  return {half.data + begin, half.staging + k % kPieces * kPieceBytes, std::min(kPieceBytes, half.bytes - begin)};
}

// Which message of those between two ranks in one direction; `peer` is the other one's rank on the node.
uint64_t message_key(int peer, uint64_t number) {
  return (static_cast<uint64_t>(peer) + 1) << 32 | (number & UINT32_MAX);
}

// Nothing, if its owner has gone on from `posted` meanwhile. The fields are read and written in order with `posted`: whoever reads a
// field of a later message also sees that `posted` has changed.
std::optional<Operation> read_notice(const MessagePage::Notice& notice, uint64_t posted, Collective kind) {
  const auto type = static_cast<DType>(notice.type.load(std::memory_order_acquire));
  Operation message = make_operation(kind, type, notice.count.load(std::memory_order_acquire), {});
  message.root = notice.root.load(std::memory_order_acquire);
  if (notice.posted.load(std::memory_order_relaxed) != posted) return {};
  return message;
}

}  // namespace

Status messages_differ(int sender, const Operation& sent, int receiver, const Operation& expected) {
  return {Code::desync,
          text("ranks ", sender, " and ", receiver, " do not agree on a message: ", describe(sent), " and ", describe(expected)),
          Blame{.rank = receiver}};
}

void Sync::ring(int rank) const noexcept {
  MessagePage::Bell& bell = page(rank).messages.bell;
  // Sequentially consistent, as is what a sleeper says: either this rank sees that it sleeps, or it sees that the bell was rung.
  bell.rung.fetch_add(1);
  if (bell.asleep.load() != 0) futex_wake_all(bell.rung, FutexScope::shared);
}

// Until the bell is rung or a slice of time is over. False: it was not rung.
bool Sync::listen(uint32_t heard, Deadline deadline) const noexcept {
  MessagePage::Bell& bell = page(control_->rank()).messages.bell;
  for (ShortWait wait(crowded_); wait.goes_on();) {
    if (bell.rung.load(std::memory_order_acquire) != heard) return true;
  }
  bell.asleep.store(1);
  if (bell.rung.load() == heard) futex_wait(bell.rung, heard, std::min(kWaitSliceNs, deadline.left_ns()), FutexScope::shared);
  bell.asleep.store(0);
  return bell.rung.load() != heard;
}

void Sync::announce(MessagePage::Notice* notice, const MessageHalf& half) {
  notice->count.store(half.message.count, std::memory_order_release);
  notice->type.store(static_cast<uint32_t>(half.message.type), std::memory_order_release);
  notice->root.store(half.message.root, std::memory_order_release);
  notice->posted.store(message_key(half.peer, half.message.number), std::memory_order_release);
  ring(half.peer);
}

// Whether the peer has come for this message, and for the same. A receiver that has gone on meanwhile had come for the same.
Status Sync::match(MessageHalf* half, const MessagePage::Notice& theirs) const {
  const uint64_t key = message_key(control_->rank(), half->message.number);
  if (half->matched || theirs.posted.load(std::memory_order_acquire) != key) return {};
  const bool sends = half->message.kind == Collective::send;
  const std::optional<Operation> other = read_notice(theirs, key, sends ? Collective::recv : Collective::send);
  if (!other) return {};
  half->matched = true;
  if (same_message(half->message, *other)) return {};
  const int own = members_[static_cast<size_t>(control_->rank())], peer = members_[static_cast<size_t>(half->peer)];
  return sends ? messages_differ(own, half->message, peer, *other) : messages_differ(peer, *other, own, half->message);
}

// Fills one piece, if there is room.
Status Sync::push(MessageHalf* half, bool* moved) {
  MessagePage& own = page(control_->rank()).messages;
  const uint64_t taken = own.taken.load(std::memory_order_acquire);
  if (taken == pieces_of(*half)) {
    own.out.posted.store(0, std::memory_order_relaxed);
    half->ended = *moved = true;
    return {};
  }
  if (Status same = match(half, page(half->peer).messages.in); !same) return same;
  if (half->moved == pieces_of(*half) || half->moved - taken == kPieces) return {};
  const Piece next = piece(*half, half->moved);
  copy_past_caches(next.staging, next.data, next.bytes);
  own.filled.store(++half->moved, std::memory_order_release);
  ring(half->peer);
  *moved = true;
  return {};
}

// Takes one piece, if there is one.
Status Sync::pull(MessageHalf* half, bool* moved) {
  MessagePage& theirs = page(half->peer).messages;
  if (Status same = match(half, theirs.out); !same) return same;
  if (!half->matched || theirs.filled.load(std::memory_order_acquire) == half->moved) return {};
  const Piece next = piece(*half, half->moved);
  if (half->bytes >= kBeyondCaches) {
    copy_past_caches(next.data, next.staging, next.bytes);
  } else if (next.bytes > 0) {
    std::memcpy(next.data, next.staging, next.bytes);
  }
  half->moved += 1;
  half->ended = half->moved == pieces_of(*half);
  if (half->ended) page(control_->rank()).messages.in.posted.store(0, std::memory_order_relaxed);
  theirs.taken.store(half->moved, std::memory_order_release);
  ring(half->peer);
  *moved = true;
  return {};
}

Status Sync::exchange(MessageHalf* send, MessageHalf* recv, const Stop& stop, const Describe& during) {
  MessagePage& own = page(control_->rank()).messages;
  if (send != nullptr) {
    own.filled.store(0, std::memory_order_relaxed);
    own.taken.store(0, std::memory_order_relaxed);
    announce(&own.out, *send);
  }
  if (recv != nullptr) announce(&own.in, *recv);
  const uint64_t patience_ns = world_->timeout_ns() + std::min(kVerdictNs, UINT64_MAX - world_->timeout_ns());
  Deadline deadline = Deadline::after_ns(patience_ns);
  Status around;
  for (bool waited = false;;) {
    const uint32_t heard = own.bell.rung.load();
    bool moved = false;
    if (send != nullptr && !send->ended) {
      if (Status pushed = push(send, &moved); !pushed) return pushed;
    }
    if (recv != nullptr && !recv->ended) {
      if (Status pulled = pull(recv, &moved); !pulled) return pulled;
    }
    if ((send == nullptr || send->ended) && (recv == nullptr || recv->ended)) return {};
    if (moved) {
      if (waited) deadline = Deadline::after_ns(patience_ns);
      waited = false;
      around = Status();
      continue;
    }
    if (!around.ok()) return around;  // what a peer did just before it left has been seen now
    waited = true;
    if (listen(heard, ask_by(deadline))) continue;
    (void)interrupted();  // on a caller's thread: then the World fails
    around = look_around(send, recv, stop, during);
    if (around.ok() && deadline.passed()) return timed_out(send, recv, during);
  }
}

Status Sync::await(const std::vector<int>& ranks, const std::function<bool(int)>& has_come, const Describe& during) {
  const MessagePage::Bell& bell = page(control_->rank()).messages.bell;
  const uint64_t patience_ns = world_->timeout_ns() + std::min(kVerdictNs, UINT64_MAX - world_->timeout_ns());
  const Deadline deadline = Deadline::after_ns(patience_ns);
  std::vector<int> missing = ranks;
  Status around;
  for (;;) {
    const uint32_t heard = bell.rung.load();
    std::erase_if(missing, has_come);
    if (missing.empty()) return {};
    if (!around.ok()) return around;  // what one did just before it left has been seen now
    if (listen(heard, ask_by(deadline))) continue;
    (void)interrupted();  // the call is collective: it is the World that fails
    around = look_around(missing, during);
    if (around.ok() && deadline.passed()) return timed_out(missing, during);
  }
}

Status Sync::look_around(const std::vector<int>& missing, const Describe& during) const {
  if (world_->failed()) return world_->failure();
  for (const int rank : missing) {
    const int member = members_[static_cast<size_t>(rank)];
    if (!has_gone(rank)) continue;
    wait_for_own_end(member, Stop());
    if (world_->failed()) return world_->failure();
    return {Code::peer, text(during(), ": rank ", member, " has left and will not take part"), Blame{.rank = member}};
  }
  return {};
}

Status Sync::timed_out(const std::vector<int>& missing, const Describe& during) const {
  std::string sentence = text(during(), ": timed out after ", seconds(world_->timeout_ns()), ", waiting for ",
                              missing.size() == 1 ? "a rank that did not come" : "ranks that did not come");
  for (const int rank : missing) sentence += text("; ", world_->describe(members_[static_cast<size_t>(rank)]));
  return {Code::timeout, std::move(sentence), Blame{.rank = members_[static_cast<size_t>(missing.front())]}};
}

Status Sync::look_around(const MessageHalf* send, const MessageHalf* recv, const Stop& stop, const Describe& during) const {
  if (world_->failed()) return world_->failure();
  for (const MessageHalf* half : {send, recv}) {
    if (half == nullptr || half->ended) continue;
    const int member = members_[static_cast<size_t>(half->peer)];
    if (!has_gone(half->peer)) continue;
    wait_for_own_end(member, stop);
    if (world_->failed()) return world_->failure();
    if (stop.requested()) break;
    return {Code::peer, text(during(), ": rank ", member, " has left and will not take part"), Blame{.rank = member}};
  }
  return stop.requested() && stop.passed() ? Status(Code::aborted, text(during(), ": its stream was destroyed")) : Status();
}

Status Sync::timed_out(const MessageHalf* send, const MessageHalf* recv, const Describe& during) const {
  std::string sentence = text(during(), ": timed out after ", seconds(world_->timeout_ns()));
  int blamed = -1;
  for (const MessageHalf* half : {send, recv}) {
    if (half == nullptr || half->ended) continue;
    const int member = members_[static_cast<size_t>(half->peer)];
    sentence += text(blamed < 0 ? ": " : "; ", world_->describe(member), doing(half->peer));
    if (blamed < 0) blamed = member;
  }
  return {Code::timeout, std::move(sentence), Blame{.rank = blamed}};
}

std::string Sync::doing(int rank) const {
  const ControlPage& other = page(rank);
  std::string what;
  for (const auto& [notice, kind] : {std::pair{&other.messages.out, Collective::send}, std::pair{&other.messages.in, Collective::recv}}) {
    const uint64_t posted = notice->posted.load(std::memory_order_acquire);
    const std::optional<Operation> message = posted == 0 ? std::nullopt : read_notice(*notice, posted, kind);
    if (message) what += (what.empty() ? ", and waits in " : " with ") + describe(*message);
  }
  if (what.empty() && other.reason.inside.load(std::memory_order_relaxed) != 0) {
    what = text(", and waits in operation ", other.reason.number.load(std::memory_order_relaxed), " of the group");
  }
  return what;
}

}  // namespace megadp::host
