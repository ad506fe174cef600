// SPDX-License-Identifier: Apache-2.0
// The list of backends and how each is opened.
#include "api/backends.h"

#include <utility>

#include "cuda/backend.h"
#include "cuda/plugin_library.h"
#include "host/backend.h"
#include "host/kernels.h"
#include "host/transport.h"

namespace megadp {

Result<std::shared_ptr<Backend>> open_backend(const BackendConfig& config, std::shared_ptr<World> world) {
  const host::HostSettings on_host{config.sockets ? host::TransportKind::sockets : host::TransportKind::automatic, config.host_threads,
                                   config.threads_always};
  switch (config.kind) {
    case BackendKind::automatic:
    case BackendKind::host:
      return host::HostBackend::open(std::move(world), on_host);
    case BackendKind::cuda: {
      auto plugin = cuda::load_plugin();
      if (!plugin) return plugin.status().with_context("backend is cuda");
      auto host = host::HostBackend::open(world, on_host);
      if (!host) return host.status();
      return cuda::CudaBackend::open(**plugin, std::move(world), *std::move(host), {config.device, config.exact_sums});
    }
  }
  return invalid("backend is ", static_cast<uint32_t>(config.kind), "; 0 (automatic), 1 (host) and 2 (cuda) are known");
}

std::vector<BackendInfo> list_backends() {
  const cuda::PluginInfo cuda = cuda::plugin_info();
  return {{"host", true, text("SIMD ", host::simd_target(), " of ", host::simd_targets())}, {"cuda", cuda.available, cuda.detail}};
}

BackendInfo transport_between_nodes() {
  const host::TransportInfo info = host::transport_info();
  return {info.name, info.available, info.detail};
}

}  // namespace megadp
