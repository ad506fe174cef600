// SPDX-License-Identifier: Apache-2.0
// Collectives on arrays of any strides that are replicated, or cut along a dimension, over the ranks of a communicator. An array that is
// dense, and cut along its outermost dimension, goes to the collective as it is; anything else is packed, piece after piece in the order of
// ranks, and unpacked:
//
//   array, cut along dim   ──copy──►  pieces of all ranks, one after another  ──collective──►  pieces  ──copy──►  array
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm.h"

namespace megadp {

// An array, and what the caller knows it as.
struct NamedArray {
  const StridedArray& array;
  const char* name;
};

// A dimension that is cut over the ranks, and the sizes of their parts in its order.
struct DimCut {
  size_t dim = 0;
  Counts parts;
  uint64_t whole() const;
  uint64_t before(size_t rank) const;  // where its part begins
  bool is_even() const;
};

// Elements [begin, begin + count) along a dimension.
StridedArray slice_of(const StridedArray& array, size_t dim, uint64_t begin, uint64_t count);
StridedArray part_of(const StridedArray& array, const DimCut& cut, size_t rank);
StridedArray dense_array(void* data, DType type, const std::vector<int64_t>& shape);
bool is_dense(const StridedArray& array);

// One call on a communicator, whose collectives are this object's operations. Arrays have the same type, shapes fit, and outputs do not
// overlap inputs. Blocking where the caller's stream is the host's; otherwise that is ordered after the work.
class TpCollectives {
 public:
  // what: for the sentences of failures, a literal.
  TpCollectives(Comm& comm, void* caller, const char* what) : comm_(comm), caller_(caller), tag_{-1, what} {}

  // A call begins with enter(), and what it leaves on the caller's stream ends with begin(): so the scratch memory that calls share is
  // theirs one after another, whatever streams they are given. On the host they are over when they return.
  Status enter();

  Status copy(const StridedArray& to, const StridedArray& from) { return backend().copy(to, from, false, caller_); }
  Status all_reduce(const StridedArray& to, const StridedArray& from);
  Status gather(const StridedArray& to, const StridedArray& from, const DimCut& cut);
  Status reduce_scatter(const StridedArray& to, const StridedArray& from, const DimCut& cut);
  // from is cut along from_cut, to along to_cut.
  Status exchange(const StridedArray& to, const DimCut& to_cut, const StridedArray& from, const DimCut& from_cut);
  // ok, or on all ranks Code::invalid, if the array, named `argument`, is not the same on all of them.
  Status check_replicated(const StridedArray& array, const char* argument);

  // ── parts of these, for who computes meanwhile: dense memory; begin() comes after the caller's work, end() orders it after all ──
  Status begin() { return stream().wait_for_caller(caller_); }
  Result<std::shared_ptr<Event>> mark() { return stream().record(); }
  Status wait_for(Event& event) { return stream().make_caller_wait(caller_, event); }
  Status submit_all_reduce(void* to, const void* from, uint64_t count, DType type);
  Status submit_gather(void* to, const void* from, const Counts& counts, DType type);
  Status submit_reduce_scatter(void* to, const void* from, const Counts& counts, DType type);
  Status end();

 private:
  Backend& backend() const noexcept { return *comm_.context().backend; }
  Stream& stream() const noexcept { return comm_.channel().stream(); }
  size_t rank() const noexcept { return static_cast<size_t>(comm_.rank()); }
  size_t size() const noexcept { return static_cast<size_t>(comm_.size()); }
  Result<std::byte*> take(ScratchPiece piece, const StridedArray& for_array);

  Comm& comm_;
  void* const caller_;
  const Tag tag_;
};

}  // namespace megadp
