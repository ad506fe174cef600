// SPDX-License-Identifier: Apache-2.0
// To be included first by every file that Highway compiles once per target: which targets those are.
#pragma once

// SVE's vectors have no size and cannot be members of a struct; SSSE3 and the finer steps of AVX-512 would only cost compile time. Those
// written as numbers are AVX3_SPR and AVX3_ZEN4, which Highway 1.0.3 has no names for.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_AVX3_DL | (1LL << 4) | (1LL << 6))
// Highway's checks call its library, which is not linked.
#define HWY_IS_DEBUG_BUILD 0
