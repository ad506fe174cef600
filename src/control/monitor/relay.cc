// SPDX-License-Identifier: Apache-2.0
// The bookkeeping of small collectives.
#include "control/monitor/relay.h"

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "control/wording.h"

namespace megadp {
namespace {

size_t place_of(const OperationKey& key, int rank) {
  return static_cast<size_t>(std::find(key.members.begin(), key.members.end(), rank) - key.members.begin());
}

}  // namespace

bool OperationKey::has(int rank) const {
  return std::find(members.begin(), members.end(), rank) != members.end();
}

uint64_t MemberLists::digest(const std::vector<int32_t>& members) noexcept {
  return hash_bytes(members.data(), members.size() * sizeof(int32_t));
}

bool MemberLists::add(const std::vector<int32_t>& members) {
  return lists_.try_emplace(digest(members), members).first->second == members;
}

const std::vector<int32_t>* MemberLists::find(uint64_t digest) const {
  const auto at = lists_.find(digest);
  return at == lists_.end() ? nullptr : &at->second;
}

void write_key(FrameWriter* writer, const OperationKey& key, bool with_members) {
  writer->u32(static_cast<uint32_t>(key.kind));
  writer->u64(key.sequence);
  writer->u64(MemberLists::digest(key.members));
  writer->u32(with_members ? static_cast<uint32_t>(key.members.size()) : 0);
  for (size_t i = 0; with_members && i < key.members.size(); ++i) writer->i32(key.members[i]);
}

bool read_key(FrameReader* reader, int nranks, MemberLists* lists, OperationKey* key) {
  const uint32_t kind = reader->u32();
  key->kind = static_cast<OperationKind>(kind);
  key->sequence = reader->u64();
  const uint64_t digest = reader->u64();
  const uint32_t count = reader->u32();
  if (!reader->ok() || count == 1 || count > static_cast<uint32_t>(nranks)) return false;
  if (kind < static_cast<uint32_t>(OperationKind::exchange) || kind > static_cast<uint32_t>(OperationKind::broadcast)) return false;
  if (count == 0) {
    const std::vector<int32_t>* const known = lists->find(digest);
    if (known != nullptr) key->members = *known;
    return known != nullptr;
  }
  std::vector<bool> seen(static_cast<size_t>(nranks));
  for (uint32_t i = 0; i < count; ++i) {
    const int32_t member = reader->i32();
    if (!reader->ok() || member < 0 || member >= nranks || seen[static_cast<size_t>(member)]) return false;
    seen[static_cast<size_t>(member)] = true;
    key->members.push_back(member);
  }
  return MemberLists::digest(key->members) == digest && lists->add(key->members);
}

Relay::Operations::iterator Relay::find_or_begin(const OperationKey& key) {
  const auto known = operations_.find(key);
  if (known != operations_.end()) return known;
  Operation begun;  // whole before it is known: memory may run out
  begun.parts.resize(key.members.size());
  begun.answered.resize(key.members.size());
  return operations_.emplace(key, std::move(begun)).first;
}

bool Relay::give(int rank, const OperationKey& key, Contribution part) {
  if (!key.has(rank)) return false;
  const auto at = find_or_begin(key);
  Operation& operation = at->second;
  const size_t place = place_of(key, rank);
  if (operation.parts[place] || operation.answered[place]) return false;
  if (operation.what.empty()) operation.what = part.what;
  operation.parts[place] = std::make_shared<const Contribution>(std::move(part));
  operation.given += 1;
  if (operation.failure) {
    answer_failure(at, place);
    return true;
  }
  for (size_t i = 0; i < key.members.size() && !gone_.empty(); ++i) {
    if (operation.parts[i] || std::find(gone_.begin(), gone_.end(), key.members[i]) == gone_.end()) continue;
    const int missing = key.members[i];
    fail(at, Status(Code::peer, text("rank ", missing, " has left and will not come to ", operation.what), Blame{missing}));
    return true;
  }
  if (operation.given == key.members.size()) complete(at);
  return true;
}

void Relay::complete(Operations::iterator at) {
  const std::vector<int32_t>& members = at->first.members;
  const auto& parts = at->second.parts;
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i]->what == parts[0]->what) continue;
    return fail(at, Status(Code::desync,
                           text("rank ", members[0], " called ", parts[0]->what, ", rank ", members[i], " called ", parts[i]->what,
                                "; all ranks must make the same calls in the same order"),
                           Blame{members[i]}));
  }
  for (size_t i = 0; at->first.kind == OperationKind::share && i < parts.size(); ++i) {
    if (parts[i]->fd) continue;
    return fail(at, Status(Code::system, text("rank ", members[i], " has no descriptor to share: ", parts[i]->bytes), Blame{members[i]}));
  }
  const OperationKey key = at->first;
  const auto answer = std::make_shared<const Answer>(result_of(key.kind, at->second.parts));
  operations_.erase(at);
  for (const int32_t member : key.members) emit_(member, key, answer);
}

Relay::Answer Relay::result_of(OperationKind kind, std::vector<std::shared_ptr<const Contribution>> parts) {
  switch (kind) {
    case OperationKind::exchange:
    case OperationKind::share:
      return {{}, std::move(parts)};
    case OperationKind::broadcast:
      return {{}, {parts.front()}};
    case OperationKind::compare:
      break;
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i]->bytes != parts[0]->bytes) return {{}, {parts[0], parts[i]}, static_cast<uint32_t>(i)};
  }
  return {};
}

bool Relay::withdraw(int rank, const OperationKey& key, uint64_t waited_ns) {
  if (!key.has(rank)) return false;
  const auto at = operations_.find(key);
  // It has been answered in the meantime; the answer is on its way.
  if (at == operations_.end() || at->second.failure) return true;
  std::vector<int> missing;
  std::string states;
  for (size_t i = 0; i < key.members.size(); ++i) {
    if (at->second.parts[i]) continue;
    missing.push_back(key.members[i]);
    if (missing.size() <= 8) states += text("; ", describe_(key.members[i]));
  }
  const Blame blame{missing.empty() ? -1 : missing.front()};
  fail(at, Status(Code::timeout,
                  text(list_ranks(missing), " did not come to ", at->second.what, " among ",
                       list_ranks({key.members.begin(), key.members.end()}), " (rank ", rank, " gave up after waiting ", seconds(waited_ns),
                       ")", states),
                  blame));
  return true;
}

void Relay::leave(int rank) {
  if (std::find(gone_.begin(), gone_.end(), rank) != gone_.end()) return;
  gone_.push_back(rank);
  for (auto at = operations_.begin(); at != operations_.end();) {
    const auto next = std::next(at);
    if (at->first.has(rank)) {
      const size_t place = place_of(at->first, rank);
      if (at->second.failure) {
        answer_failure(at, place);
      } else if (!at->second.parts[place]) {
        fail(at, Status(Code::peer, text("rank ", rank, " has left and will not come to ", at->second.what), Blame{rank}));
      }
    }
    at = next;
  }
}

void Relay::fail(Operations::iterator at, Status why) {
  at->second.failure = std::make_shared<const Answer>(Answer{std::move(why), {}});
  std::vector<size_t> present;
  for (size_t i = 0; i < at->second.parts.size(); ++i) {
    const bool gone = std::find(gone_.begin(), gone_.end(), at->first.members[i]) != gone_.end();
    if (at->second.parts[i] || gone) present.push_back(i);
  }
  // The last of these may end the operation, not an earlier one: none is answered twice.
  for (const size_t place : present) answer_failure(at, place);
}

// Forgets the operation once every member knows. `at` is then invalid.
void Relay::answer_failure(Operations::iterator at, size_t place) {
  Operation& operation = at->second;
  if (operation.answered[place]) return;
  operation.answered[place] = true;
  const bool all = std::all_of(operation.answered.begin(), operation.answered.end(), [](bool b) { return b; });
  const OperationKey key = at->first;
  const auto answer = operation.failure;
  operation.parts[place].reset();
  if (all) operations_.erase(at);
  emit_(key.members[place], key, answer);
}

}  // namespace megadp
