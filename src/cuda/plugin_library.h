// SPDX-License-Identifier: Apache-2.0
// Difference and loading libmegadp_cuda.so: beside the file that holds this code, then by name.
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/plugin.h"

namespace megadp::cuda {

// Loads on the first call; the outcome is kept for the life of the process, as the plugin is: its driver has threads of its own. Any
// thread. Code::unsupported with a sentence if there is no plugin, or one of another build.
Result<const PluginTable*> load_plugin();

// For tests, before anything is loaded: this table is the plugin.
void use_plugin(const PluginTable& table);

// A plugin with its devices, for `megadp info`: "NVIDIA H200 (139 GiB, sm_90); NCCL 2.28.9; cuBLASLt 13.1.0", or why there is none.
struct PluginInfo {
  bool available;
  std::string detail;
};
PluginInfo plugin_info();

}  // namespace megadp::cuda
