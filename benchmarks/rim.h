/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of a stencil writes before each exchange, for bench_halo and its peer: else neighbours would read what their caches hold. */
#ifndef BENCH_RIM_H
#define BENCH_RIM_H

#include <stddef.h>

/* Sets the outermost `width` rows and columns of a part of rows x columns, which lies within a halo of the same width. */
static void write_rim(float* padded, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t width, float value) {
  const ptrdiff_t row = columns + 2 * width;
  float* const part = padded + width * row + width;
  for (ptrdiff_t i = 0; i < rows; ++i) {
    const ptrdiff_t inside = i < width || i >= rows - width ? 0 : columns - 2 * width;
    for (ptrdiff_t j = 0; j < columns; ++j) {
      if (inside > 0 && j == width) j += inside;
      part[i * row + j] = value;
    }
  }
}

#endif
