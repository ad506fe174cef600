// SPDX-License-Identifier: Apache-2.0
// cuBLASLt itself, where its library is found: it is taken, has all the functions that are used, and takes the descriptors of every
// product. What it does then without a device is a failure with a name. real_cublaslt_test PLUGIN LIBRARY
#include "plugin_test.h"
#include "product_oracle.h"

using namespace megadp;
using namespace megadp::cuda;
using namespace megadp::test;

int main(int, char** arguments) {
  const PluginTable* const plugin = load_plugin(arguments[1]);
  if (plugin == nullptr) return finish();
  Gemm* gemm = nullptr;
  char why[512] = "";
  if (!check(plugin->gemm_open(nullptr, arguments[2], &gemm, why, sizeof why) == 0, why)) return finish();
  const int32_t version = plugin->gemm_version(gemm);
  std::cerr << "cuBLASLt " << version << "\n";
  check(version >= 110000 && version < 140000, text("the version is ", version));
  int32_t count = 0;
  if (plugin->device_count(&count) == 0 && count > 0) {
    std::cerr << "there is a device here: cuda.device multiplies on it\n";
    plugin->gemm_close(gemm);
    return finish();
  }
  // The handle is the first thing that wants a device; descriptors are made before it, and would be refused as CUBLAS_STATUS_INVALID_VALUE.
  float memory[64];
  for (const ProductCase& one : product_cases()) {
    const Matrix c = one.c.view(memory), a = one.a.view(memory), b = one.b.view(memory);
    if (c.is_empty() || a.columns == 0) continue;
    names(*plugin, plugin->gemm(gemm, nullptr, &c, &a, &b, one.add), kCublasFailure, "CUBLAS_STATUS_NOT_INITIALIZED (1)", one.name());
  }
  plugin->gemm_close(gemm);
  return finish();
}
