// SPDX-License-Identifier: Apache-2.0
// What a Member puts on the stream: NCCL's own collectives, and sums in the host's order for where those are wanted.
//
//   rank 0's memory | 0→0 | 0→1 | 0→2 |           an exchange           rank 1's scratch | 0→1 | 1→1 | 2→1 |
//   rank 1's memory | 1→0 | 1→1 | 1→2 |   ─────────────────────────►    added up (base/sum_order.h), divided, rounded once
//   rank 2's memory | 2→0 | 2→1 | 2→2 |
#include <algorithm>
#include <functional>
#include <numeric>

#include "base/checked.h"
#include "cuda/member.h"

namespace megadp::cuda {
namespace {

Transfer sent(const std::byte* data, uint64_t count, size_t rank) {
  return {const_cast<std::byte*>(data), count, static_cast<int32_t>(rank), 1};
}

Transfer received(std::byte* data, uint64_t count, size_t rank) {
  return {data, count, static_cast<int32_t>(rank), 0};
}

}  // namespace

bool Member::summed_here(const Sum& sum) const {
  if (sum.op == Op::max || sum.op == Op::min) return sum.type != DType::i64 && sum.type != DType::u8;
  if (sum.type == DType::u8) return true;
  return (exact_ || sum.exact) && sum.type != DType::i64;
}

Result<std::byte*> Member::scratch(size_t bytes) {
  if (scratch_ == nullptr || scratch_->bytes() < bytes) {
    // Not from the communicator: that may be collective, and whether scratch is needed may be this rank's own affair.
    auto memory = CudaMemory::allocate(gpu_, watch_, CudaMemory::Kind::device, bytes);
    if (!memory) return memory.status().with_context("scratch");
    scratch_ = *std::move(memory);  // what is replaced lives on in the collectives that use it
  }
  used_->push_back(scratch_);
  return static_cast<std::byte*>(scratch_->data());
}

// ── a group of one: what is left of a collective is the copy, or the division ──

Status Member::alone(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum) {
  if (count == 0) return {};
  const PluginTable& plugin = gpu_->plugin();
  if (sum.divisor == 1) {
    if (from == to) return {};
    return gpu_->check(plugin.copy(gpu_->device(), stream, to, from, count * size_of(sum.type)), "a copy");
  }
  return gpu_->check(plugin.reduce(gpu_->device(), stream, to, from, count, 1, count, sum.type, Op::sum, sum.divisor), "a division");
}

Status Member::gather(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, DType type) {
  if (size() == 1) return alone(stream, from, to, count_per_rank, {type, Op::sum, 1});
  return communicator_->call("an all-gather",
                             [&](NcclComm* comm) { return gpu_->plugin().comm_all_gather(comm, stream, from, to, count_per_rank, type); });
}

Status Member::spread(void* stream, std::byte* data, size_t count, DType type, int root) {
  if (size() == 1) return {};
  return communicator_->call("a broadcast",
                             [&](NcclComm* comm) { return gpu_->plugin().comm_broadcast(comm, stream, data, data, count, type, root); });
}

Status Member::exchange(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, DType type) {
  const Counts counts(static_cast<size_t>(size()), count_per_rank);
  if (from != to || size() == 1) return exchange(stream, from, counts, to, counts, type);
  // NCCL's may not be in place: what arrives would overwrite what is still to be sent.
  const size_t bytes = count_per_rank * static_cast<size_t>(size()) * size_of(type);
  auto copy = scratch(bytes);
  if (!copy) return copy.status();
  Status copied = gpu_->check(gpu_->plugin().copy(gpu_->device(), stream, *copy, from, bytes), "a copy");
  return copied.ok() ? exchange(stream, *copy, counts, to, counts, type) : copied;
}

Status Member::native_all_reduce(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum) {
  return communicator_->call("an all-reduce", [&](NcclComm* comm) {
    return gpu_->plugin().comm_all_reduce(comm, stream, from, to, count, sum.type, sum.op, sum.divisor);
  });
}

Status Member::barrier(void* stream) {
  if (size() == 1) return {};
  auto byte = scratch(1);
  return byte.ok() ? native_all_reduce(stream, *byte, *byte, 1, {DType::u8, Op::max, 1}) : byte.status();
}

// ── sums ──

Status Member::sum_pieces(void* stream, const std::byte* from, std::byte* to, size_t count_per_rank, const Sum& sum) {
  if (size() == 1) return alone(stream, from, to, count_per_rank, sum);
  if (!summed_here(sum)) {
    return communicator_->call("a reduce-scatter", [&](NcclComm* comm) {
      return gpu_->plugin().comm_reduce_scatter(comm, stream, from, to, count_per_rank, sum.type, sum.op, sum.divisor);
    });
  }
  return sum_here(stream, from, to, Counts(static_cast<size_t>(size()), count_per_rank), sum);
}

// One reduction to each owner, all at once.
Status Member::sum_pieces(void* stream, const std::byte* from, std::byte* to, const Counts& counts, const Sum& sum) {
  if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) {
    return sum_pieces(stream, from, to, counts.front(), sum);
  }
  if (summed_here(sum)) return sum_here(stream, from, to, counts, sum);
  return for_each_piece("reductions to the owners of pieces", counts, [&](NcclComm* comm, int32_t owner, uint64_t at) {
    const std::byte* const piece = from + at * size_of(sum.type);
    void* const result = owner == rank() ? to : nullptr;
    return gpu_->plugin().comm_reduce(comm, stream, piece, result, counts[static_cast<size_t>(owner)], sum.type, sum.op, sum.divisor,
                                      owner);
  });
}

Status Member::for_each_piece(std::string_view what, const Counts& counts,
                              const std::function<int32_t(NcclComm*, int32_t, uint64_t)>& call) {
  const Blame blame{.bucket = now_->tag.bucket, .operation = now_->operation};
  return communicator_->together(text(now_->name, ": ", what), blame, [&]() -> Status {
    uint64_t at = 0;
    for (size_t rank = 0; rank < counts.size(); at += counts[rank++]) {
      if (counts[rank] == 0) continue;
      const Status done = communicator_->call(what, [&](NcclComm* comm) { return call(comm, static_cast<int32_t>(rank), at); });
      if (!done) return done;
    }
    return {};
  });
}

Status Member::cast_to_f32(void* stream, std::byte* to, const std::byte* from, size_t count, DType type) {
  return gpu_->check(gpu_->plugin().cast(gpu_->device(), stream, to, DType::f32, from, type, count), "a cast");
}

Status Member::sum_pieces_in_f32(void* stream, std::byte* from, std::byte* to, const Counts& counts, Sum sum) {
  if (sum.type == DType::f32) return sum_pieces(stream, from, to, counts, sum);
  if (summed_here(sum) && size() > 1) {
    sum.in_f32 = true;
    return sum_here(stream, from, to, counts, sum);
  }
  const auto own = counts.begin() + rank();
  std::byte* const mine = from + std::accumulate(counts.begin(), own, uint64_t{0}) * size_of(sum.type);
  Status summed = size() > 1 ? sum_pieces(stream, from, mine, counts, sum) : Status();
  if (summed.ok() && *own > 0) summed = cast_to_f32(stream, to, mine, *own, sum.type);
  if (!summed || size() > 1) return summed;
  return alone(stream, to, to, *own, {DType::f32, sum.op, sum.divisor});
}

// In chunks of every piece. All ranks take as many steps: as the largest piece needs.
Status Member::sum_here(void* stream, const std::byte* from, std::byte* to, const Counts& counts, const Sum& sum) {
  const auto own = static_cast<size_t>(rank());
  if (size() == 1) return alone(stream, from, to, counts[0], sum);
  const size_t width = size_of(sum.type), to_width = sum.in_f32 ? sizeof(float) : width;
  const size_t part_width = sum.in_f32 ? width + sizeof(float) : width;  // as it comes, and as it is added
  const uint64_t chunk = std::max<uint64_t>(1, kSumBytes / (part_width * counts.size()));
  const uint64_t largest = *std::max_element(counts.begin(), counts.end());
  auto parts = scratch(std::min(chunk, largest) * part_width * counts.size() + alignof(float));
  if (!parts) return parts.status();
  for (uint64_t begin = 0; begin < largest; begin += chunk) {
    const auto now = [begin, chunk](uint64_t count) { return std::min(chunk, count - std::min(begin, count)); };
    const uint64_t mine = now(counts[own]);
    Transfers all;
    const std::byte* piece = from;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      all.push_back(sent(piece + begin * width, now(counts[rank]), rank));
      all.push_back(received(*parts + rank * mine * width, mine, rank));
      piece += counts[rank] * width;
    }
    Status done = exchange(stream, "sending the parts of a sum", all, sum.type);
    if (done.ok() && mine > 0) done = sum_parts(stream, *parts, to + begin * to_width, mine, sum);
    if (!done) return done;
  }
  return {};
}

Status Member::sum_parts(void* stream, std::byte* parts, std::byte* to, size_t count, const Sum& sum) {
  if (sum.in_f32 && sum.type != DType::f32) {
    const size_t all = count * static_cast<size_t>(size());
    std::byte* const wide = parts + round_up(all * size_of(sum.type), sizeof(float));
    Status widened = cast_to_f32(stream, wide, parts, all, sum.type);
    return widened.ok() ? sum_parts(stream, wide, to, count, {DType::f32, sum.op, sum.divisor}) : widened;
  }
  return gpu_->check(gpu_->plugin().reduce(gpu_->device(), stream, to, parts, count, size(), count, sum.type, sum.op, sum.divisor),
                     "adding up what the ranks sent");
}

Status Member::sum_all(void* stream, const std::byte* from, std::byte* to, size_t count, const Sum& sum) {
  if (size() == 1) return alone(stream, from, to, count, sum);
  if (!summed_here(sum)) return native_all_reduce(stream, from, to, count, sum);
  // Every rank sums one piece and all gather them; what does not divide by the ranks goes to everyone whole.
  const size_t width = size_of(sum.type);
  const size_t piece = count / static_cast<size_t>(size());
  const size_t even = piece * static_cast<size_t>(size());
  if (piece > 0) {
    std::byte* const mine = to + static_cast<size_t>(rank()) * piece * width;
    Status summed = sum_pieces(stream, from, mine, piece, sum);
    if (summed.ok()) summed = gather(stream, mine, to, piece, sum.type);
    if (!summed) return summed;
  }
  const size_t rest = count - even;
  if (rest == 0) return {};
  auto received = scratch(rest * width * static_cast<size_t>(size()));
  if (!received) return received.status();
  Status gathered = gather(stream, from + even * width, *received, rest, sum.type);
  return gathered.ok() ? sum_parts(stream, *received, to + even * width, rest, sum) : gathered;
}

// ── pieces of different sizes, and messages ──

Status Member::exchange(void* stream, const char* what, const Transfers& all, DType type) {
  return communicator_->call(what,
                             [&](NcclComm* comm) { return gpu_->plugin().comm_exchange(comm, stream, all.data(), all.size(), type); });
}

Status Member::exchange(void* stream, const std::byte* from, const Counts& from_counts, std::byte* to, const Counts& to_counts,
                        DType type) {
  if (size() == 1) return alone(stream, from, to, from_counts[0], {type, Op::sum, 1});
  Transfers all;
  for (size_t rank = 0; rank < from_counts.size(); ++rank) {
    all.push_back(sent(from, from_counts[rank], rank));
    all.push_back(received(to, to_counts[rank], rank));
    from += from_counts[rank] * size_of(type);
    to += to_counts[rank] * size_of(type);
  }
  return exchange(stream, "an all-to-all", all, type);
}

Status Member::gather(void* stream, const std::byte* from, std::byte* to, const Counts& counts, DType type) {
  const auto own = static_cast<size_t>(rank());
  if (size() == 1) return alone(stream, from, to, counts[0], {type, Op::sum, 1});
  Transfers all;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    if (rank != own || from != to) {  // in place it is there
      all.push_back(sent(from, counts[own], rank));
      all.push_back(received(to, counts[rank], rank));
    }
    to += counts[rank] * size_of(type);
  }
  return exchange(stream, "an all-gather", all, type);
}

// One broadcast of each owner, all at once.
Status Member::gather_in_place(void* stream, std::byte* data, const Counts& counts, DType type) {
  if (size() == 1) return {};
  return for_each_piece("broadcasts of pieces by their owners", counts, [&](NcclComm* comm, int32_t owner, uint64_t at) {
    std::byte* const piece = data + at * size_of(type);
    return gpu_->plugin().comm_broadcast(comm, stream, piece, piece, counts[static_cast<size_t>(owner)], type, owner);
  });
}

// Its two ends meet also where there is nothing to pass: a byte that nobody looks at.
Status Member::pass(void* stream, void* data, size_t count, DType type, bool sends) {
  if (count == 0) {
    auto byte = scratch(1);
    if (!byte) return byte.status();
    data = *byte;
    count = 1;
    type = DType::u8;
  }
  return exchange(stream, sends ? "sending a message" : "receiving a message", {{data, count, sends ? 1 : 0, sends ? 1 : 0}}, type);
}

}  // namespace megadp::cuda
