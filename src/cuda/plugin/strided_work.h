// SPDX-License-Identifier: Apache-2.0
// Copies between arrays of any strides, as thread_work.h: what one thread does. Two ways, chosen after the walk was simplified:
//   StridedCopy  element by element in the order of `to`, each found by dividing its number by the sizes
//   TurnedCopy   where `from` runs on along another dimension than `to`: square tiles turned in shared memory, so that both sides are
//                touched by whole sectors
// Types are looked at as it runs: the memory is slower than the choice, and one kernel serves all pairs.
#pragma once

#include "base/dtype.h"
#include "base/math.h"
#include "base/strided.h"
#include "cuda/plugin.h"
#include "cuda/plugin/thread_work.h"

namespace megadp::cuda {

// ── one element as the bits it has in memory ──

MEGADP_HOST_DEVICE inline uint64_t load_bits(const void* array, int64_t i, int size) {
  if (size == 1) return static_cast<const uint8_t*>(array)[i];
  if (size == 2) return static_cast<const uint16_t*>(array)[i];
  if (size == 4) return static_cast<const uint32_t*>(array)[i];
  return static_cast<const uint64_t*>(array)[i];
}
MEGADP_HOST_DEVICE inline void store_bits(void* array, int64_t i, int size, uint64_t bits) {
  if (size == 1) {
    static_cast<uint8_t*>(array)[i] = static_cast<uint8_t>(bits);
  } else if (size == 2) {
    static_cast<uint16_t*>(array)[i] = static_cast<uint16_t>(bits);
  } else if (size == 4) {
    static_cast<uint32_t*>(array)[i] = static_cast<uint32_t>(bits);
  } else {
    static_cast<uint64_t*>(array)[i] = bits;
  }
}
MEGADP_HOST_DEVICE inline float half_or_float(uint64_t bits, DType type) {
  if (type == DType::bf16) return to_f32(Bf16{static_cast<uint16_t>(bits)});
  if (type == DType::f16) return to_f32(F16{static_cast<uint16_t>(bits)});
  return as_float(static_cast<uint32_t>(bits));
}
MEGADP_HOST_DEVICE inline double double_of(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Side {
  void* data;
  DType type;
  int size;  // of an element
};

template <class To, class Value>
MEGADP_HOST_DEVICE inline void put(void* data, int64_t i, Value value, bool adds) {
  To* const to = static_cast<To*>(data) + i;
  if (adds) {
    add_to(to, value);
  } else {
    convert(to, value);
  }
}
template <class Value>
MEGADP_HOST_DEVICE inline void put_by_type(const Side& to, int64_t i, Value value, bool adds) {
  if (to.type == DType::f32) put<float>(to.data, i, value, adds);
  if (to.type == DType::bf16) put<Bf16>(to.data, i, value, adds);
  if (to.type == DType::f16) put<F16>(to.data, i, value, adds);
  if (to.type == DType::f64) put<double>(to.data, i, value, adds);
}
// to[i] = or += the element with these bits.
MEGADP_HOST_DEVICE inline void put_element(const Side& to, int64_t i, uint64_t bits, DType from_type, bool adds) {
  if (!adds && to.type == from_type) {
    store_bits(to.data, i, to.size, bits);
  } else if (to.type == DType::i64) {
    add_to(static_cast<int64_t*>(to.data) + i, static_cast<int64_t>(bits));
  } else if (to.type == DType::u8) {
    add_to(static_cast<uint8_t*>(to.data) + i, bits);
  } else if (from_type == DType::f64) {
    put_by_type(to, i, double_of(bits), adds);
  } else {
    put_by_type(to, i, half_or_float(bits, from_type), adds);
  }
}

// ── places ──

struct Walk {
  Side to, from;
  bool adds;
  int count;  // of dimensions, at least 1
  StridedDim dims[kMaxDimensions];
};
struct Place {
  int64_t to, from;
};

// Where element `number`, counted over the first `count` dimensions, lies. In 32 bits if that is enough: division in 64 takes several
// times as long.
template <class Index>
MEGADP_HOST_DEVICE inline Place place_of(const Walk& walk, int count, Index number) {
  Place place{0, 0};
  for (int d = count - 1; d > 0; d--) {
    const Index size = static_cast<Index>(walk.dims[d].size), rest = number / size;
    const int64_t at = static_cast<int64_t>(number - rest * size);
    place.to += at * walk.dims[d].to;
    place.from += at * walk.dims[d].from;
    number = rest;
  }
  if (count > 0) {
    place.to += static_cast<int64_t>(number) * walk.dims[0].to;
    place.from += static_cast<int64_t>(number) * walk.dims[0].from;
  }
  return place;
}
MEGADP_HOST_DEVICE inline Place place_of(const Walk& walk, int count, uint64_t number, bool few) {
  return few ? place_of(walk, count, static_cast<uint32_t>(number)) : place_of(walk, count, number);
}

// The f32, bf16, f16 and f64 among each other; what else there is only to itself.
inline bool converts(DType type) {
  return is_trainable(type) || type == DType::f64;
}

// The simplest walk over both arrays, and how many elements it visits. With no elements, there is no walk.
inline int32_t plan_walk(const Strided& to, const Strided& from, bool adds, Walk* out, uint64_t* count) {
  const DType to_type = static_cast<DType>(to.type), from_type = static_cast<DType>(from.type);
  if (size_of(to_type) == 0 || (to_type != from_type && !(converts(to_type) && converts(from_type)))) return kBadArgument;
  if (to.dimensions < 0 || to.dimensions > kMaxDimensions || to.dimensions != from.dimensions) return kBadArgument;
  *out = {
      {to.data, to_type, static_cast<int>(size_of(to_type))}, {from.data, from_type, static_cast<int>(size_of(from_type))}, adds, 0, {}};
  *count = 1;
  for (int d = 0; d < to.dimensions; d++) {
    const int64_t size = to.shape[d];
    if (size != from.shape[d] || size < 0 || (size > 1 && to.strides[d] == 0)) return kBadArgument;
    out->dims[d] = {size, to.strides[d], from.strides[d]};
    *count *= static_cast<uint64_t>(size);
  }
  if (*count == 0) return 0;
  const WalkStart start = simplify_walk(out->dims, to.dimensions);
  out->count = start.count;
  out->to.data = static_cast<std::byte*>(out->to.data) + start.to * out->to.size;
  out->from.data = static_cast<std::byte*>(out->from.data) + start.from * out->from.size;
  return 0;
}
inline bool is_dense(const Walk& walk) {
  return walk.count == 0 || (walk.count == 1 && walk.dims[0].to == 1 && walk.dims[0].from == 1);
}

// ── element by element ──

struct StridedCopy {
  static constexpr int kDepth = 4;
  Walk walk;
  uint64_t count;

  MEGADP_HOST_DEVICE void operator()(uint64_t thread, uint64_t threads) const {
    const bool few = count <= 0xffffffffU;
    for (uint64_t first = thread; first < count; first += kDepth * threads) {
      int64_t to[kDepth];
      uint64_t bits[kDepth];
      MEGADP_UNROLL
      for (int d = 0; d < kDepth; d++) {
        const uint64_t i = first + d * threads;
        if (i >= count) break;
        const Place place = place_of(walk, walk.count, i, few);
        to[d] = place.to;
        bits[d] = load_bits(walk.from.data, place.from, walk.from.size);
      }
      MEGADP_UNROLL
      for (int d = 0; d < kDepth; d++) {
        if (first + d * threads < count) put_element(walk.to, to[d], bits[d], walk.from.type, walk.adds);
      }
    }
  }
};

// ── by turned tiles: 32 x 8 threads, each with 4 elements ──

constexpr int kTile = 32, kTileRows = 8;

// The last dimension is the row, along which `to` runs on; the one before it the column, along which `from` does.
struct TurnedCopy {
  Walk walk;
  uint64_t row_tiles, column_tiles, tiles;

  using Tile = uint64_t[kTile][kTile + 1];  // the odd length keeps a column's elements in different banks

  struct Corner {
    Place outer;
    int64_t row, column;
  };
  MEGADP_HOST_DEVICE Corner corner_of(uint64_t tile) const {
    const uint64_t line = tile / row_tiles;
    const Place outer = place_of(walk, walk.count - 2, line / column_tiles, false);
    return {outer, static_cast<int64_t>(tile % row_tiles) * kTile, static_cast<int64_t>(line % column_tiles) * kTile};
  }
  // Thread (x, y) takes along the column, then puts along the row. Between the two all threads meet.
  MEGADP_HOST_DEVICE void take(const Corner& corner, int x, int y, Tile& tile) const {
    const StridedDim &column = walk.dims[walk.count - 2], &row = walk.dims[walk.count - 1];
    if (corner.column + x >= column.size) return;
    MEGADP_UNROLL
    for (int k = y; k < kTile; k += kTileRows) {
      const int64_t r = corner.row + k;
      if (r < row.size) tile[k][x] = load_bits(walk.from.data, corner.outer.from + corner.column + x + r * row.from, walk.from.size);
    }
  }
  MEGADP_HOST_DEVICE void put(const Corner& corner, int x, int y, const Tile& tile) const {
    const StridedDim &column = walk.dims[walk.count - 2], &row = walk.dims[walk.count - 1];
    if (corner.row + x >= row.size) return;
    MEGADP_UNROLL
    for (int k = y; k < kTile; k += kTileRows) {
      const int64_t c = corner.column + k;
      if (c < column.size) put_element(walk.to, corner.outer.to + c * column.to + corner.row + x, tile[x][k], walk.from.type, walk.adds);
    }
  }
};

// `turned` is what transposed_dim() found.
inline TurnedCopy turned_copy(const Walk& walk, int turned, uint64_t count) {
  TurnedCopy work{walk, 0, 0, 0};
  StridedDim* const dims = work.walk.dims;
  const StridedDim column = dims[turned];
  for (int d = turned; d + 2 < walk.count; d++) dims[d] = dims[d + 1];
  dims[walk.count - 2] = column;
  const auto columns = static_cast<uint64_t>(column.size), rows = static_cast<uint64_t>(dims[walk.count - 1].size);
  work.row_tiles = (rows + kTile - 1) / kTile;
  work.column_tiles = (columns + kTile - 1) / kTile;
  work.tiles = count / columns / rows * work.row_tiles * work.column_tiles;
  return work;
}

}  // namespace megadp::cuda
