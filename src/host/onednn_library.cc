// SPDX-License-Identifier: Apache-2.0
#include "host/onednn_library.h"

namespace megadp::host {

Result<std::unique_ptr<GemmLibrary>> open_onednn(void* /*handle*/, const std::string& file, int /*threads*/) {
  return unsupported(file, " is oneDNN, which is not called yet");
}

}  // namespace megadp::host
