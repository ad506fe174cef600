// SPDX-License-Identifier: Apache-2.0
// Refuses a compiler that takes liberties with numbers. With -ffast-math every test for NaN is false, and sums have no fixed order.
// src/CMakeLists.txt turns such options off wherever they came from; this is for a build of another kind.
#pragma once

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "megadp must be compiled without -ffast-math, -Ofast and their parts: NaN gradients would pass, and results would not repeat"
#endif
