// SPDX-License-Identifier: Apache-2.0
// HostExchange: on a node a rank packs its pieces into a window, says so, and its neighbours read them there. Two halves take turns: what
// is read slowly is not overwritten by the next exchange.
//
//   a rank's part of the window:   [ Words | offsets of the pieces, each way | half 0 | half 1 | lent ]
//
//   packed    exchanges that lie in its halves      written by the owner, waited for by those who read
//   taken     exchanges that it has read            written by the owner, waited for by those who pack
//   stamps    of what lies in each half
//   lends     what the owner says of what it lends in that exchange
//
// Exchange k is packed when all neighbours have taken k - 2. So nobody waits for ranks that are none, and neighbours may be one exchange
// apart. Between nodes pieces go from the half to memory of the receiver, on the stream, behind a stamp, which goes also where there is no
// piece.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/exchange.h"
#include "host/group.h"

namespace megadp::host {

class HostExchange final : public Exchange {
 public:
  // Collective, blocking.
  static Result<std::unique_ptr<Exchange>> create(HostGroup& group, const std::shared_ptr<World>& world, const Counts& out,
                                                  const Counts& in, uint64_t lent);

  Status begin(bool back) override;
  std::byte* outgoing(int rank) noexcept override;
  Status start(Stream& stream, void* caller, uint64_t lends) override;
  Status finish(Stream& stream, void* caller) override;
  const std::byte* incoming(int rank) noexcept override;
  const std::byte* lent_by(int rank, uint64_t* lends) noexcept override;
  void end() noexcept override;
  Status await_readers() override;
  std::byte* lent() noexcept override { return lent_of(group_.rank()); }
  bool sees(int rank) const noexcept override { return is_local(rank); }

 private:
  struct Words {
    alignas(64) std::atomic<uint64_t> packed;
    alignas(64) std::atomic<uint64_t> taken;
    std::atomic<uint64_t> stamps[2], lends[2];
  };
  struct Way {             // one of the two
    Counts out, in;        // bytes
    Counts out_at, in_at;  // where the pieces lie in this rank's half; and those of other nodes in buffers_->remote
  };
  explicit HostExchange(HostGroup& group) : group_(group) {}
  bool is_local(int rank) const noexcept { return parts_[static_cast<size_t>(rank)] != nullptr; }
  Words& words(int rank) const noexcept { return *reinterpret_cast<Words*>(parts_[static_cast<size_t>(rank)]); }
  // Of a rank's pieces for rank `reader`, in each way.
  uint64_t& offset(int rank, int reader, bool back) const noexcept;
  std::byte* half(int rank) const noexcept;
  std::byte* lent_of(int rank) const noexcept { return parts_[static_cast<size_t>(rank)] + halves_at_ + 2 * half_bytes_; }
  const Way& way() const noexcept { return ways_[back_ ? 1 : 0]; }
  uint64_t stamp() const noexcept { return number_ << 1 | (back_ ? 1 : 0); }
  Status differ(int rank) const;
  std::byte* remote(int rank) const noexcept {
    return static_cast<std::byte*>(buffers_->remote->data()) + way().in_at[static_cast<size_t>(rank)];
  }

  // Kept until what is on its way to and from other nodes has come.
  struct Buffers {
    std::unique_ptr<Window> window;
    std::unique_ptr<Memory> remote;  // what comes from there
    uint64_t stamp = 0;              // that goes there
    std::vector<uint64_t> stamps;    // that come from there, by rank
  };

  HostGroup& group_;
  const std::shared_ptr<Buffers> buffers_ = std::make_shared<Buffers>();
  std::vector<std::byte*> parts_;  // by rank; null: on another node
  size_t halves_at_ = 0, half_bytes_ = 0;
  Way ways_[2];
  std::vector<int> here_, elsewhere_;  // neighbours on this node, and on others
  uint64_t number_ = 0;                // of the exchange
  bool back_ = false;
  std::shared_ptr<Event> passed_;  // between nodes
};

}  // namespace megadp::host
