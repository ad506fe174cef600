// SPDX-License-Identifier: Apache-2.0
// The list of drivers and how each is opened.
#include "backend/registry.h"

#include <utility>

#include "host/backend.h"
#include "host/kernels.h"
#include "host/transport.h"

namespace megadp {
namespace {

constexpr const char* kNoCuda = "this build has no CUDA backend";

}  // namespace

Result<std::shared_ptr<Backend>> open_backend(BackendKind kind, std::shared_ptr<World> world) {
  switch (kind) {
    case BackendKind::automatic:
    case BackendKind::host:
      return host::HostBackend::open(std::move(world));
    case BackendKind::cuda:
      return unsupported("backend is cuda; ", kNoCuda);
  }
  return invalid("backend is ", static_cast<uint32_t>(kind), "; 0 (automatic), 1 (host) and 2 (cuda) are known");
}

std::vector<BackendInfo> list_backends() {
  return {{"host", true, text("SIMD ", host::simd_target(), " of ", host::simd_targets())}, {"cuda", false, kNoCuda}};
}

BackendInfo transport_between_hosts() {
  const host::TransportInfo info = host::transport_info();
  return {"UCX", info.available, info.detail};
}

}  // namespace megadp
