// SPDX-License-Identifier: Apache-2.0
// Puts the stand-in in the plugin's place before main(), for programs in C.
#include "cuda/plugin_library.h"
#include "standin.h"

namespace {

[[maybe_unused]] const bool in_place = (megadp::cuda::use_plugin(*megadp_cuda_plugin()), true);

}  // namespace
