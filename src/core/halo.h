// SPDX-License-Identifier: Apache-2.0
// Halo: the edges of arrays that are cut over a grid of ranks, brought from the neighbours that have them; backward, the gradients of these
// copies added to where they came from. Every element arrives from its owner in one round, corners too.
#pragma once

#include <memory>
#include <vector>

#include "core/comm.h"
#include "core/halo_plan.h"

namespace megadp {

class Halo {
 public:
  // Collective over the communicator, blocking. part: the shape of this rank's, without halo.
  static Result<std::shared_ptr<Halo>> create(const std::shared_ptr<Comm>& comm, HaloShape shape, std::vector<int64_t> part);

  // Of shape.arrays, padded, dense, zero at first; what neighbours of the node need of these they read there, if it is much.
  const std::vector<StridedArray>& arrays() const noexcept { return own_; }

  // Padded arrays, as many as shape.fields. Until finish() they are not to be written, nor is their halo read.
  Status start(std::vector<StridedArray> fields, bool backward, void* caller);
  Status finish(void* caller);

  const HaloShape& shape() const noexcept { return shape_; }
  const std::vector<HaloCut>& cuts() const noexcept { return cuts_; }
  std::vector<int64_t> coords() const { return shape_.coords_of(comm_->rank()); }

 private:
  // Boxes that one rank has in its halo and the other in its part.
  struct Shared {
    int rank;                   // the other
    std::vector<HaloBox> halo;  // of this rank
    std::vector<HaloBox> lent;  // of the other's halo, whose `from` is here
  };

  Halo(std::shared_ptr<Comm> comm, HaloShape shape) : comm_(std::move(comm)), shape_(std::move(shape)) {}
  Status plan(const std::vector<std::vector<int64_t>>& parts);
  Backend& backend() const noexcept { return *comm_->context().backend; }
  Status check(const std::vector<StridedArray>& fields) const;
  Status forward(void* caller);
  Status clear(const HaloBox& box, const StridedArray& field, void* caller) const;
  // `packed`: memory in which the boxes lie one after another, of each field.
  enum class Move {
    pack_part,  // from where it is lent
    pack_halo,
    unpack_halo,
    add_to_part
  };
  Status move(Move what, const std::vector<HaloBox>& boxes, std::byte* packed, void* caller) const;
  // Of arrays that are lent: 1 and the number of the first, so that fields are neighbours among them; 0: they are not, or little is sent.
  uint64_t lends() const;
  // What another rank has lent: its fields, as they lie there.
  std::vector<StridedArray> fields_of(int rank, const std::byte* lent, uint64_t lends) const;
  std::vector<int64_t> padded_of(int rank) const;
  // Brings it to the halo here, or, backward, adds it to the part.
  Status read_lent(const Shared& shared, const std::vector<StridedArray>& theirs, void* caller) const;
  Status take(const Shared& shared, void* caller) const;
  Status add_own(const Shared& shared, void* caller) const;
  Status take_all(void* caller);
  Status clear_halos(void* caller) const;

  const std::shared_ptr<Comm> comm_;  // a channel of its own
  const HaloShape shape_;
  std::vector<int64_t> padded_;
  std::vector<HaloCut> cuts_;
  std::vector<HaloBox> boxes_;     // of this rank
  std::vector<Shared> shared_;     // by rank, this one among them if it has boxes of its own
  std::unique_ptr<Memory> alone_;  // of own_, without neighbours
  std::vector<StridedArray> own_;
  uint64_t near_bytes_ = 0;             // that go to neighbours that see own_
  std::unique_ptr<Memory> zero_;        // one element
  std::unique_ptr<Exchange> exchange_;  // null: no neighbours; goes before the communicator
  std::vector<StridedArray> fields_;    // since start()
  bool backward_ = false;
};

}  // namespace megadp
