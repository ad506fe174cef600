// SPDX-License-Identifier: Apache-2.0
// The build that this file was compiled in. The table that libmegadp and its plugin share is no ABI: both come from one build, and say so
// by the same text. MEGADP_VERSION_STRING and MEGADP_BUILD are given to both by src/CMakeLists.txt.
#pragma once

namespace megadp::cuda {

inline constexpr char kBuild[] = MEGADP_VERSION_STRING " (" MEGADP_BUILD ")";

}  // namespace megadp::cuda
