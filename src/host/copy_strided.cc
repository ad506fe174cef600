// SPDX-License-Identifier: Apache-2.0
// Copies between arrays of any strides. The dimensions are first brought into their simplest form (base/strided.h). What is left in the
// end is one of three inner jobs: a row (both sides walk one dimension); many rows of a few bytes (the edge of a field, a line of cache
// each); or, where `from` runs on along another dimension than `to` (a transposed matrix, which column-major callers hand in with every
// gradient), a square tile that is turned in the cache, so that both sides are touched a cache line at a time.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "backend/backend.h"
#include "base/strided.h"
#include "host/kernels.h"

namespace megadp::host {
namespace {

constexpr size_t kMaxDims = 16;
constexpr int64_t kRow = 512;       // elements that are gathered or scattered at a time
constexpr int64_t kShortRow = 128;  // bytes: up to so many a row is no job of its own
constexpr int64_t kRowsAhead = 16;  // that are fetched early
constexpr int64_t kTile = 64;       // edge of a tile, at most 64 x 64 x 8 bytes: several cache lines on each page that is touched

using Dim = StridedDim;

struct Walk {
  std::array<Dim, kMaxDims> dims;
  int count = 0;
  std::byte* to;
  const std::byte* from;
  DType to_type, from_type;
  bool add;
  bool is_turned = false;       // the last two dimensions are copied by tiles
  bool has_short_rows = false;  // they are copied as they are, a few bytes at a time
  const Kernels* kernels;

  int64_t to_bytes() const noexcept { return static_cast<int64_t>(size_of(to_type)); }
  int64_t from_bytes() const noexcept { return static_cast<int64_t>(size_of(from_type)); }
};

// `n` elements that lie side by side on both sides.
Status try_dense(const Walk& walk, void* to, const void* from, int64_t n) {
  const size_t count = static_cast<size_t>(n);
  return walk.add ? add_cast(to, walk.to_type, from, walk.from_type, count, *walk.kernels)
                  : cast(to, walk.to_type, from, walk.from_type, count, *walk.kernels);
}
void copy_dense(const Walk& walk, void* to, const void* from, int64_t n) {
  (void)try_dense(walk, to, from, n);  // the types were checked before: it cannot fail
}

// out[i * out_step] = in[i * in_step], steps in elements of `size` bytes.
template <class Word>
void pick_words(std::byte* out, int64_t out_step, const std::byte* in, int64_t in_step, int64_t n) {
  constexpr int64_t size = sizeof(Word);
  for (int64_t i = 0; i < n; i++) std::memcpy(out + i * out_step * size, in + i * in_step * size, sizeof(Word));
}
void pick(std::byte* out, int64_t out_step, const std::byte* in, int64_t in_step, int64_t n, int64_t size) {
  if (size == 1) return pick_words<uint8_t>(out, out_step, in, in_step, n);
  if (size == 2) return pick_words<uint16_t>(out, out_step, in, in_step, n);
  if (size == 4) return pick_words<uint32_t>(out, out_step, in, in_step, n);
  pick_words<uint64_t>(out, out_step, in, in_step, n);
}

void copy_row(const Walk& walk, std::byte* to, const std::byte* from, const Dim& dim) {
  if (dim.to == 1 && dim.from == 1) return copy_dense(walk, to, from, dim.size);
  if (!walk.add && walk.to_type == walk.from_type) return pick(to, dim.to, from, dim.from, dim.size, walk.to_bytes());
  alignas(64) std::byte in[kRow * 8], out[kRow * 8];
  for (int64_t begin = 0; begin < dim.size; begin += kRow) {
    const int64_t n = std::min(kRow, dim.size - begin);
    std::byte* const to_begin = to + begin * dim.to * walk.to_bytes();
    const std::byte* from_begin = from + begin * dim.from * walk.from_bytes();
    if (dim.from != 1) {
      pick(in, 1, from_begin, dim.from, n, walk.from_bytes());
      from_begin = in;
    }
    if (dim.to == 1) {
      copy_dense(walk, to_begin, from_begin, n);
      continue;
    }
    if (walk.add) pick(out, 1, to_begin, dim.to, n, walk.to_bytes());
    copy_dense(walk, out, from_begin, n);
    pick(to_begin, dim.to, out, 1, n, walk.to_bytes());
  }
}

void fetch_early(const std::byte* begin, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(begin + at);
}

// Small enough to be part of the loop over rows, so that the processor works on many of them at a time.
inline void copy_few(std::byte* to, const std::byte* from, int64_t bytes) {
  for (; bytes >= 32; bytes -= 32, to += 32, from += 32) std::memcpy(to, from, 32);
  for (const int64_t part : {16, 8, 4, 2, 1}) {
    if ((bytes & part) == 0) continue;
    std::memcpy(to, from, static_cast<size_t>(part));
    to += part;
    from += part;
  }
}

void copy_short_rows(const Walk& walk, std::byte* to, const std::byte* from, const Dim& rows, const Dim& row) {
  const int64_t bytes = row.size * walk.to_bytes(), to_step = rows.to * walk.to_bytes(), from_step = rows.from * walk.from_bytes();
  for (int64_t r = 0; r < rows.size; r++, to += to_step, from += from_step) {
    if (r + kRowsAhead < rows.size) {
      fetch_early(from + kRowsAhead * from_step, bytes);
      fetch_early(to + kRowsAhead * to_step, bytes);
    }
    copy_few(to, from, bytes);
  }
}

// `row` is the dimension along which `to` runs on (stride 1), `column` the one along which `from` does.
void copy_turned(const Walk& walk, std::byte* to, const std::byte* from, const Dim& column, const Dim& row) {
  alignas(64) std::byte tile[kTile * kTile * 8];
  const int64_t bytes = walk.from_bytes();
  for (int64_t c = 0; c < column.size; c += kTile) {
    const int64_t columns = std::min(kTile, column.size - c);
    for (int64_t r = 0; r < row.size; r += kTile) {
      const int64_t rows = std::min(kTile, row.size - r);
      // tile[j][i] is element (c + j, r + i).
      for (int64_t i = 0; i < rows; i++) {
        // What the next tile reads lies on other pages, which no hardware looks ahead to.
        if (r + i + kTile < row.size) fetch_early(from + (c + (r + i + kTile) * row.from) * bytes, columns * bytes);
        pick(tile + i * bytes, kTile, from + (c + (r + i) * row.from) * bytes, 1, columns, bytes);
      }
      for (int64_t j = 0; j < columns; j++) {
        std::byte* const out = to + ((c + j) * column.to + r) * walk.to_bytes();
        copy_dense(walk, out, tile + j * kTile * bytes, rows);
      }
    }
  }
}

bool has_short_rows(const Walk& walk) {
  const Dim& row = walk.dims[walk.count - 1];
  return walk.count > 1 && !walk.is_turned && !walk.add && walk.to_type == walk.from_type && row.to == 1 && row.from == 1 &&
         row.size * walk.to_bytes() <= kShortRow;
}

// Brings the dimension along which `from` runs on to the last place but one, if it is not the last.
void turn(Walk& walk) {
  const int turned = transposed_dim(walk.dims.data(), walk.count);
  walk.is_turned = turned >= 0;
  if (walk.is_turned) {
    std::rotate(walk.dims.begin() + turned, walk.dims.begin() + turned + 1, walk.dims.begin() + walk.count - 1);
  }
}

void copy_all(const Walk& walk) {
  const int outer = walk.count - (walk.is_turned || walk.has_short_rows ? 2 : 1);
  const Dim& row = walk.dims[walk.count - 1];
  std::array<int64_t, kMaxDims> at{};
  std::byte* to = walk.to;
  const std::byte* from = walk.from;
  for (;;) {
    if (walk.is_turned) {
      copy_turned(walk, to, from, walk.dims[outer], row);
    } else if (walk.has_short_rows) {
      copy_short_rows(walk, to, from, walk.dims[outer], row);
    } else {
      copy_row(walk, to, from, row);
    }
    int d = outer - 1;
    for (; d >= 0; d--) {  // the next place: like an odometer
      const Dim& dim = walk.dims[d];
      to += dim.to * walk.to_bytes();
      from += dim.from * walk.from_bytes();
      if (++at[d] < dim.size) break;
      at[d] = 0;
      to -= dim.size * dim.to * walk.to_bytes();
      from -= dim.size * dim.from * walk.from_bytes();
    }
    if (d < 0) return;
  }
}

// Cut along the longest of its dimensions but the last, or along the only one.
void copy_in_pieces(const Walk& walk, const Executor& on) {
  int cut = 0;
  for (int d = 1; d < walk.count - 1; d++) cut = walk.dims[d].size > walk.dims[cut].size ? d : cut;
  size_t bytes = size_of(walk.to_type) + size_of(walk.from_type);
  for (int d = 0; d < walk.count; d++) bytes *= d == cut ? 1 : static_cast<size_t>(walk.dims[d].size);
  const size_t unit = walk.count == 1 ? kSquareBlock : walk.is_turned && cut == walk.count - 2 ? kTile : 1;
  const Dim& dim = walk.dims[cut];
  const auto copy_piece = [&](size_t begin, size_t n) {
    const auto first = static_cast<int64_t>(begin);
    Walk piece = walk;
    piece.to += first * dim.to * walk.to_bytes();
    piece.from += first * dim.from * walk.from_bytes();
    piece.dims[cut].size = static_cast<int64_t>(n);
    copy_all(piece);
  };
  on.split(static_cast<size_t>(dim.size), bytes, copy_piece, unit);
}

Status check(const StridedArray& to, const StridedArray& from) {
  if (to.shape.size() > kMaxDims) return invalid("the array has ", to.shape.size(), " dimensions; at most ", kMaxDims, " are possible");
  if (to.shape != from.shape) return invalid("the shapes of the two arrays of a copy differ");
  if (to.strides.size() != to.shape.size() || from.strides.size() != from.shape.size()) {
    return invalid("an array with ", to.shape.size(), " dimensions has ", to.strides.size(), " strides, the other ", from.strides.size(),
                   "; it must be one for each dimension");
  }
  for (size_t d = 0; d < to.shape.size(); d++) {
    if (to.shape[d] < 0) return invalid("size ", to.shape[d], " of dimension ", d, " is negative");
    if (to.shape[d] > 1 && to.strides[d] == 0) {
      return invalid("the stride of dimension ", d, " is 0 in the array that is written: its ", to.shape[d], " elements are one");
    }
  }
  return {};
}

}  // namespace

Status copy_strided(const StridedArray& to, const StridedArray& from, bool add, const Executor& on) {
  if (Status s = check(to, from); !s) return s;
  Walk walk;
  walk.to = static_cast<std::byte*>(to.data);
  walk.from = static_cast<const std::byte*>(from.data);
  walk.to_type = to.type;
  walk.from_type = from.type;
  walk.add = add;
  walk.kernels = &on.kernels();
  // Also says whether the types convert.
  if (Status s = try_dense(walk, walk.to, walk.from, 0); !s) return s;
  for (size_t d = 0; d < to.shape.size(); d++) {
    if (to.shape[d] == 0) return {};
    walk.dims[d] = {to.shape[d], to.strides[d], from.strides[d]};
  }
  const WalkStart start = simplify_walk(walk.dims.data(), static_cast<int>(to.shape.size()));
  walk.count = start.count;
  walk.to += start.to * walk.to_bytes();
  walk.from += start.from * walk.from_bytes();
  if (walk.count == 0) return try_dense(walk, walk.to, walk.from, 1);
  turn(walk);
  walk.has_short_rows = has_short_rows(walk);
  copy_in_pieces(walk, on);
  return {};
}

}  // namespace megadp::host
