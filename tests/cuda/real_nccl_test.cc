// SPDX-License-Identifier: Apache-2.0
// NCCL itself, where it lies beside the header that the plugin was built with: it is taken, and has all the functions that its version
// promises. What it does without a device is a failure with a name, or works.
#include "plugin_test.h"

using namespace megadp;
using namespace megadp::cuda;
using namespace megadp::test;

int main(int, char** arguments) {
  const PluginTable* const plugin = load_plugin(arguments[1]);
  if (plugin == nullptr) return finish();
  Nccl* nccl = nullptr;
  char why[512] = "";
  if (!check(plugin->nccl_open(arguments[2], &nccl, why, sizeof why) == 0, why)) return finish();
  const int32_t version = plugin->nccl_version(nccl);
  std::cerr << "NCCL " << version << "\n";
  check(version >= 21900 && version < 30000, text("the version is ", version));
  uint8_t id[128] = {};
  const int32_t made = plugin->nccl_unique_id(nccl, id);
  if (made != 0) names(*plugin, made, kNcclFailure, "nccl", "nccl_unique_id", nccl);
  int32_t count = 0;
  if (plugin->device_count(&count) != 0 || count == 0) {
    NcclComm* comm = nullptr;
    int32_t result = plugin->comm_create(nccl, nullptr, id, 0, 1, &comm);
    if (result == kPending) {
      // It may first notice in the background that there is no device: asked until it has, or aborted.
      for (int i = 0; i < 1'000'000 && result == kPending; i++) result = plugin->comm_state(comm);
    }
    names(*plugin, result, kNcclFailure, "nccl", "a communicator without a device", nccl);
    if (comm != nullptr) plugin->comm_destroy(comm);
  }
  plugin->nccl_close(nccl);
  return finish();
}
