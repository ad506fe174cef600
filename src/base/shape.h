// SPDX-License-Identifier: Apache-2.0
// Arithmetic of array shapes; sizes are 0 or more, strides count elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/text.h"

namespace megadp {

// The number of elements; false, with the dimension at which it came about, if it would be more than `most`. Zero sizes are left out of
// that check, so that what is computed from the shape of an empty array (its strides) stays in range too.
[[nodiscard]] inline bool count_elements(std::span<const int64_t> shape, uint64_t most, uint64_t* count, size_t* dimension) noexcept {
  uint64_t product = 1;
  bool empty = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    *dimension = d;
    empty |= shape[d] == 0;
    if (!checked_mul(product, static_cast<uint64_t>(std::max<int64_t>(shape[d], 1)), &product) || product > most) return false;
  }
  *count = empty ? 0 : product;
  return true;
}

// Of a shape that has been checked.
inline uint64_t elements_of(const std::vector<int64_t>& shape) noexcept {
  uint64_t product = 1;
  for (const int64_t size : shape) product *= static_cast<uint64_t>(size);
  return product;
}

// Row-major and without gaps: as many as the shape has sizes.
inline void fill_dense_strides(const std::vector<int64_t>& shape, int64_t* strides) {
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
}
inline std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  fill_dense_strides(shape, strides.data());
  return strides;
}

// "[4,8]"
inline void append_shape(std::string* out, std::span<const int64_t> shape) {
  *out += '[';
  for (size_t d = 0; d < shape.size(); ++d) append_all(out, d == 0 ? "" : ",", shape[d]);
  *out += ']';
}
inline std::string shape_text(std::span<const int64_t> shape) {
  std::string out;
  append_shape(&out, shape);
  return out;
}

}  // namespace megadp
