// SPDX-License-Identifier: Apache-2.0
// What collectives must give, computed one element at a time from the meaning of the types, with nothing of the library: input that every
// rank can make for itself and for all others, and the reduction of one element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace megadp::test {

using Bytes = std::vector<std::byte>;

// `count` elements of rank `rank`: finite, of both signs and many sizes, so that sums are rounded and depend on their order; integers
// large enough to leave their range.
Bytes make_input(DType type, size_t count, uint64_t seed, int rank);

// to = the reduction of the elements `from`, summed as a balanced binary tree over their order, divided by divisor (and by their number for
// Op::avg).
void reduce_element(DType type, Op op, double divisor, const std::vector<const std::byte*>& from, std::byte* to);

// The reduction of whole arrays.
Bytes reduce_arrays(DType type, Op op, double divisor, const std::vector<Bytes>& from);

}  // namespace megadp::test
