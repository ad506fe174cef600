// SPDX-License-Identifier: Apache-2.0
// What the frames that reach a Monitor mean. Every one is checked for whether its sender may send it: a rank that sends nonsense is
// failed, the others live on to hear of it.
#include "base/text.h"
#include "control/monitor/monitor.h"

namespace megadp {

bool Monitor::handle(Connection& from, Frame& frame) {
  const FrameReader reader(frame.payload);
  if (!frame.fds.empty() && frame.type != FrameType::give && frame.type != FrameType::result) return false;
  switch (frame.type) {
    case FrameType::heartbeat:
      return from.serving ? frame.payload.empty() : handle_heartbeat(reader);
    case FrameType::failure:
      return handle_failure(from, reader);
    case FrameType::goodbye:
      return handle_goodbye(from, reader);
    case FrameType::give:
    case FrameType::withdraw:
      return from.serving && handle_give(from, frame);
    case FrameType::result:
    case FrameType::undone:
      return !from.serving && handle_answer(frame);
    case FrameType::give_up:
      return true;  // of a rank whose deadline passed just as the table was on its way
    default:
      return false;
  }
}

bool Monitor::handle_heartbeat(FrameReader reader) {
  std::map<int, uint64_t> silence;
  const uint32_t count = reader.u32();
  if (count > table_.size()) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const int rank = reader.i32();
    silence[rank] = reader.u64();
  }
  if (!reader.finished()) return false;
  reported_silence_ = std::move(silence);
  return true;
}

bool Monitor::handle_failure(const Connection& from, FrameReader reader) {
  const int reporter = reader.i32();
  const Status why = reader.status();
  if (!reader.finished() || reporter < -1 || reporter >= size()) return false;
  if (from.serving && reporter != from.rank) return false;
  if (!failure_.ok()) return true;  // the first one counts
  // What the hub itself has seen needs no witness.
  set_failure(reporter < 0 ? why : why.with_context(text("rank ", reporter, " reported")));
  spread_failure(reporter, why);
  return true;
}

bool Monitor::handle_goodbye(const Connection& from, FrameReader reader) {
  const int rank = reader.i32();
  if (!reader.finished() || rank < 0 || rank >= size()) return false;
  // The hub passes on goodbyes; everyone else speaks for itself.
  if (rank != from.rank && (from.serving || !from.control)) return false;
  if (rank == rank_) return false;
  mark_left(rank);
  return true;
}

bool Monitor::handle_give(const Connection& from, Frame& frame) {
  FrameReader reader(frame.payload);
  OperationKey key;
  if (!read_key(&reader, size(), &lists_, &key)) return false;
  if (!(key.kind == OperationKind::share ? from.descriptors : from.control)) return false;
  if (frame.type == FrameType::withdraw) {
    const uint64_t waited_ns = reader.u64();
    return reader.finished() && relay_->withdraw(from.rank, key, waited_ns);
  }
  Contribution part;
  part.what = reader.bytes();
  part.bytes = reader.bytes();
  if (part.what.size() > kMaxWhatBytes) return false;
  if (!reader.finished() || frame.fds.size() > (key.kind == OperationKind::share ? 1 : 0)) return false;
  if (part.bytes.size() > (key.kind == OperationKind::share ? kMaxReasonBytes : kMaxExchangeBytes)) return false;
  if (!frame.fds.empty()) part.fd = std::make_shared<Fd>(std::move(frame.fds.front()));
  return relay_->give(from.rank, key, std::move(part));
}

bool Monitor::handle_answer(Frame& frame) {
  FrameReader reader(frame.payload);
  OperationKey key;
  if (!read_key(&reader, size(), &lists_, &key) || !key.has(rank_)) return false;
  Relay::Answer answer;
  if (frame.type == FrameType::undone) {
    answer.status = reader.status();
  } else {
    const bool share = key.kind == OperationKind::share;
    size_t parts = key.members.size();
    if (key.kind == OperationKind::broadcast) parts = 1;
    if (key.kind == OperationKind::compare) {
      answer.other = reader.u32();
      parts = answer.other == 0 ? 0 : 2;
      if (answer.other >= key.members.size()) return false;
    }
    if (frame.fds.size() != (share ? parts : 0)) return false;
    for (size_t i = 0; i < parts; ++i) {
      Contribution part;
      part.bytes = reader.bytes();
      if (share) part.fd = std::make_shared<Fd>(std::move(frame.fds[i]));
      answer.parts.push_back(std::make_shared<const Contribution>(std::move(part)));
    }
  }
  if (!reader.finished()) return false;
  answer_pending(key, std::make_shared<const Relay::Answer>(std::move(answer)));
  return true;
}

}  // namespace megadp
