// SPDX-License-Identifier: Apache-2.0
// Halo: the edges of arrays that are cut over a grid of ranks, brought from the neighbours that have them; backward, the gradients of these
// copies added to where they came from. Every element arrives from its owner in one round, corners too.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/comm.h"
#include "core/halo_plan.h"

namespace megadp {

class Halo {
 public:
  // Collective over the communicator, blocking. part: the shape of this rank's, without halo.
  static Result<std::shared_ptr<Halo>> create(const std::shared_ptr<Comm>& comm, HaloShape shape, std::vector<int64_t> part);

  OneCall& one_call() const noexcept { return comm_->one_call(); }
  // Of shape.arrays, padded, dense, zero at first, shaped as the fields are in turn; what neighbours of the node need of these they read
  // there, if it is much.
  const std::vector<StridedArray>& arrays() const noexcept { return own_; }

  // Padded arrays, as many as shape.fields. Until finish() they are not to be written, nor is their halo read.
  Status start(std::vector<StridedArray> fields, bool backward, void* caller);
  Status finish(void* caller);

  const HaloShape& shape() const noexcept { return shape_; }
  const std::vector<HaloCut>& cuts() const noexcept { return kinds_.front().cuts; }
  std::vector<int64_t> coords() const { return shape_.coords_of(comm_->rank()); }

 private:
  using Boxes = std::vector<HaloBox>;
  // Fields that are staggered alike.
  struct Kind {
    std::vector<int64_t> staggered, padded;
    std::vector<HaloCut> cuts;
    Boxes boxes;  // of this rank
  };
  // Boxes that one rank has in its halo and the other in its part, by kind; and whether they are read where they lie, if the array is lent.
  struct Side {
    std::vector<Boxes> boxes;
    uint64_t bytes = 0;  // of all fields
    bool in_place = false;
  };
  struct Shared {
    int rank;   // the other
    Side halo;  // of this rank
    Side lent;  // of the other's halo, whose `from` is here
    const Side& sent(bool backward) const noexcept { return backward ? halo : lent; }
    const Side& taken(bool backward) const noexcept { return backward ? lent : halo; }
  };

  Halo(std::shared_ptr<Comm> comm, HaloShape shape) : comm_(std::move(comm)), shape_(std::move(shape)) {}
  Status plan(const std::vector<std::vector<int64_t>>& parts);
  Status add_kind(const std::vector<int64_t>& staggered, const std::vector<std::vector<int64_t>>& parts);
  // Of a field, or of an array of its own.
  const Kind& kind(size_t number) const noexcept { return kinds_[kind_of_[number % shape_.fields]]; }
  Shared shared_with(int rank) const;
  void measure(Side* side, bool is_own) const;
  Backend& backend() const noexcept { return *comm_->context().backend; }
  Status check(const std::vector<StridedArray>& fields) const;
  Status follow_last(void* caller) const;
  Status forward(void* caller);
  Status clear(const HaloBox& box, const StridedArray& field, void* caller) const;
  // `packed`: memory in which the boxes lie one after another, of each field.
  enum class Move {
    pack_part,  // from where it is lent
    pack_halo,
    unpack_halo,
    add_to_part
  };
  Status move(Move what, const Side& side, std::byte* packed, void* caller) const;
  // Of arrays that are lent: 1 and the number of the first, so that fields are neighbours among them; 0: they are not, or nobody would read
  // them where they lie.
  uint64_t lends() const;
  // Of each array of its own of a rank, where it lies.
  std::vector<StridedArray> arrays_of(int rank, std::byte* begin) const;
  std::vector<int64_t> padded_of(const Kind& kind, int rank) const;
  uint64_t own_bytes() const;
  // Brings it to the halo here, or, backward, adds it to the part.
  Status read_lent(const Shared& shared, std::span<const StridedArray> theirs, void* caller) const;
  Status take(const Shared& shared, void* caller) const;
  Status add_own(const Shared& shared, void* caller) const;
  Status take_all(void* caller);
  Status clear_halos(void* caller) const;

  const std::shared_ptr<Comm> comm_;  // a channel of its own
  const HaloShape shape_;
  std::vector<Kind> kinds_;        // the first is not staggered
  std::vector<size_t> kind_of_;    // of each field
  std::vector<Shared> shared_;     // by rank, this one among them if it has boxes of its own
  std::unique_ptr<Memory> alone_;  // of own_, without neighbours
  std::vector<StridedArray> own_;
  std::unique_ptr<Memory> zero_;        // one element
  std::unique_ptr<Exchange> exchange_;  // null: no neighbours; goes before the communicator
  std::shared_ptr<Event> taken_;        // on a device: where the last finish() is over on its caller's stream
  std::vector<StridedArray> fields_;    // since start()
  bool backward_ = false;
};

}  // namespace megadp
