// SPDX-License-Identifier: Apache-2.0
#include "host/exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "control/agreement.h"
#include "host/collective.h"

namespace megadp::host {
namespace {

constexpr const char* kWhat = "an exchange with neighbours";
constexpr size_t kLine = 64;

size_t to_line(size_t bytes) noexcept {
  return (bytes + kLine - 1) / kLine * kLine;
}

uint64_t total(const Counts& counts) noexcept {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

// Of pieces that lie one after another.
Counts begins(const Counts& counts) {
  Counts at(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), at.begin(), uint64_t{0});
  return at;
}

}  // namespace

// ── what a group lends it ──

std::byte* HostGroup::part_of(const Window& window, int rank) const noexcept {
  const auto& parts = static_cast<const HostWindow&>(window).parts();
  const auto local = std::find(local_.begin(), local_.end(), members_[static_cast<size_t>(rank)]);
  return local == local_.end() ? nullptr : parts->of(static_cast<int>(local - local_.begin()));
}

Status HostGroup::await(const std::vector<int>& ranks, const std::function<bool(int)>& has_come, const Describe& during) {
  if (std::all_of(ranks.begin(), ranks.end(), has_come)) return {};
  std::vector<int> here(members_.size(), -1), waited;  // rank of the group, by rank on the node
  for (const int rank : ranks) {
    const auto local = std::find(local_.begin(), local_.end(), members_[static_cast<size_t>(rank)]) - local_.begin();
    here[static_cast<size_t>(local)] = rank;
    waited.push_back(static_cast<int>(local));
  }
  Status come = sync_->await(
      waited, [&](int local) { return has_come(here[static_cast<size_t>(local)]); }, during);
  if (!come.ok()) world_->fail(come);
  return come;
}

void HostGroup::ring(const std::vector<int>& ranks) noexcept {
  for (const int rank : ranks) {
    sync_->ring(static_cast<int>(std::find(local_.begin(), local_.end(), members_[static_cast<size_t>(rank)]) - local_.begin()));
  }
}

Status HostGroup::pass(Stream& stream, std::vector<Piece> pieces, std::shared_ptr<void> memory, const char* what) {
  const std::lock_guard lock(submitting_);
  Status submitted = static_cast<HostStream&>(stream).submit(
      [self = shared_from_this(), place = calls_ + 1, pieces = std::move(pieces), memory = std::move(memory), what](const Stop& stop) {
        const Describe during = [what] { return std::string(what); };
        return self->perform(place, {}, during, stop, [&]() -> Status {
          for (const Piece& piece : pieces) {
            const int member = self->members_[static_cast<size_t>(piece.rank)];
            const Status posted = piece.sends ? self->transport_->send(member, piece.data, piece.bytes)
                                              : self->transport_->receive(member, piece.data, piece.bytes);
            if (!posted.ok()) {
              self->transport_->give_up();
              return posted;
            }
          }
          return self->transport_->wait(stop, during);
        });
      });
  if (submitted.ok()) calls_ += 1;
  return submitted;
}

Result<std::unique_ptr<Exchange>> HostGroup::create_exchange(const Counts& out, const Counts& in, uint64_t lent) {
  if (Status checked = check(out, Collective::all_to_all_v, "out"); !checked) return checked;
  if (Status checked = check(in, Collective::all_to_all_v, "in"); !checked) return checked;
  return HostExchange::create(*this, world_, out, in, lent);
}

// ── the exchange ──

Result<std::unique_ptr<Exchange>> HostExchange::create(HostGroup& group, const std::shared_ptr<World>& world, const Counts& out,
                                                       const Counts& in, uint64_t lent) {
  std::unique_ptr<HostExchange> made(new HostExchange(group));
  // A window has as much on each rank: what the one with the most pieces needs.
  const auto size = static_cast<size_t>(group.size());
  struct Needs {
    uint64_t half, lent;
  };
  const Needs needs{std::max(total(out), total(in)), lent};
  auto all = exchange_as(*world, group.members(), kWhat, needs);
  if (!all) return all.status();
  Needs most{0, 0};
  for (const Needs& one : *all) most = {std::max(most.half, one.half), std::max(most.lent, one.lent)};
  constexpr uint64_t limit = uint64_t{1} << 60;
  if (most.half > limit || most.lent > limit) return Status::out_of_memory();
  made->half_bytes_ = to_line(most.half);
  made->halves_at_ = to_line(sizeof(Words) + 2 * size * sizeof(uint64_t));
  auto window = group.allocate_window(made->halves_at_ + 2 * made->half_bytes_ + most.lent);
  if (!window) return window.status();
  made->buffers_->window = *std::move(window);
  for (int rank = 0; rank < group.size(); ++rank) made->parts_.push_back(group.part_of(*made->buffers_->window, rank));
  made->ways_[0] = {out, in, begins(out), begins(in)};
  made->ways_[1] = {in, out, begins(in), begins(out)};
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    if (out[r] + in[r] > 0) (made->is_local(rank) ? made->here_ : made->elsewhere_).push_back(rank);
    for (const bool back : {false, true}) made->offset(group.rank(), rank, back) = made->ways_[back ? 1 : 0].out_at[r];
  }
  Status mine;
  if (group.spans_nodes()) {
    made->buffers_->stamps.resize(size);
    auto memory = HostMemory::create(needs.half);
    if (memory) made->buffers_->remote = *std::move(memory);
    mine = memory.status();
  }
  // The others read the offsets after all have written theirs.
  if (Status agreed = agree(*world, group.members(), {kWhat}, mine); !agreed) return agreed;
  return std::unique_ptr<Exchange>(std::move(made));
}

uint64_t& HostExchange::offset(int rank, int reader, bool back) const noexcept {
  auto* const table = reinterpret_cast<uint64_t*>(parts_[static_cast<size_t>(rank)] + sizeof(Words));
  return table[static_cast<size_t>(reader) * 2 + (back ? 1 : 0)];
}

std::byte* HostExchange::half(int rank) const noexcept {
  return parts_[static_cast<size_t>(rank)] + halves_at_ + (number_ & 1) * half_bytes_;
}

Status HostExchange::begin(bool back) {
  back_ = back;
  number_ += 1;
  const auto has_taken = [&](int rank) { return words(rank).taken.load(std::memory_order_acquire) + 2 >= number_; };
  return group_.await(here_, has_taken, [] { return std::string(kWhat); });
}

std::byte* HostExchange::outgoing(int rank) noexcept {
  return half(group_.rank()) + way().out_at[static_cast<size_t>(rank)];
}

Status HostExchange::start(Stream& stream, void* /*caller*/, uint64_t lends) {
  Words& own = words(group_.rank());
  own.lends[number_ & 1].store(lends, std::memory_order_relaxed);
  own.stamps[number_ & 1].store(stamp(), std::memory_order_relaxed);
  buffers_->stamp = stamp();
  own.packed.store(number_, std::memory_order_release);
  group_.ring(here_);
  std::vector<HostGroup::Piece> pieces;
  for (const int rank : elsewhere_) {
    const auto r = static_cast<size_t>(rank);
    pieces.push_back({rank, reinterpret_cast<std::byte*>(&buffers_->stamp), sizeof(uint64_t), true});
    pieces.push_back({rank, reinterpret_cast<std::byte*>(&buffers_->stamps[r]), sizeof(uint64_t), false});
    if (way().out[r] > 0) pieces.push_back({rank, outgoing(rank), way().out[r], true});
    if (way().in[r] > 0) pieces.push_back({rank, remote(rank), way().in[r], false});
  }
  passed_ = nullptr;
  if (pieces.empty()) return {};
  if (Status submitted = group_.pass(stream, std::move(pieces), buffers_, kWhat); !submitted) return submitted;
  auto event = stream.record();
  if (!event) return event.status();
  passed_ = *std::move(event);
  return {};
}

Status HostExchange::finish(Stream& stream, void* caller) {
  const auto has_packed = [&](int rank) { return words(rank).packed.load(std::memory_order_acquire) >= number_; };
  if (Status packed = group_.await(here_, has_packed, [] { return std::string(kWhat); }); !packed) return packed;
  if (passed_ != nullptr) {
    if (Status passed = stream.make_caller_wait(caller, *passed_); !passed) return passed;
  }
  // Also of neighbours that have nothing for this rank: in the other way they have.
  for (const int rank : here_) {
    if (words(rank).stamps[number_ & 1].load(std::memory_order_relaxed) != stamp()) return differ(rank);
  }
  for (const int rank : elsewhere_) {
    if (buffers_->stamps[static_cast<size_t>(rank)] != stamp()) return differ(rank);
  }
  return {};
}

// Both went on from here differently, so that the other one finds it as well.
Status HostExchange::differ(int rank) const {
  const std::vector<int>& members = group_.members();
  const int own = members[static_cast<size_t>(group_.rank())], other = members[static_cast<size_t>(rank)];
  const char* const names[] = {"forward", "backward"};
  return {Code::desync,
          text(kWhat, ": its number ", number_, " goes ", names[back_ ? 1 : 0], " on rank ", own, " and ", names[back_ ? 0 : 1],
               " on rank ", other),
          Blame{.rank = other}};
}

const std::byte* HostExchange::incoming(int rank) noexcept {
  if (is_local(rank)) return half(rank) + offset(rank, group_.rank(), back_);
  return remote(rank);
}

const std::byte* HostExchange::lent_by(int rank, uint64_t* lends) noexcept {
  *lends = is_local(rank) ? words(rank).lends[number_ & 1].load(std::memory_order_relaxed) : 0;
  return *lends == 0 ? nullptr : lent_of(rank);
}

void HostExchange::end() noexcept {
  words(group_.rank()).taken.store(number_, std::memory_order_release);
  group_.ring(here_);
}

Status HostExchange::await_readers() {
  const auto has_taken = [&](int rank) { return words(rank).taken.load(std::memory_order_acquire) >= number_; };
  return group_.await(here_, has_taken, [] { return std::string(kWhat); });
}

}  // namespace megadp::host
