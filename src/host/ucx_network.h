// SPDX-License-Identifier: Apache-2.0
// UcxNetwork: what the UCX transports of a World share: one context, with the devices and settings that were chosen once. Each transport
// has a worker of its own in it, and so may be driven by a thread of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/transport.h"
#include "host/ucx_library.h"

#ifdef MEGADP_HAVE_UCX

namespace megadp::host {

class UcxNetwork final : public Network, public std::enable_shared_from_this<UcxNetwork> {
 public:
  UcxNetwork(const UcxLibrary& ucx, std::shared_ptr<World> world) : ucx_(ucx), world_(std::move(world)) {}
  ~UcxNetwork() override;

  // Whether the system has ports for the workers of so many ranks of this node. Local.
  Status check_ports(size_t count) const;
  // Local.
  Status start(const NodeAddresses& nodes);
  Result<std::unique_ptr<Transport>> connect(const std::vector<int>& members,
                                             std::shared_ptr<const ThreadPool> pool) override;  // in ucx_transport.cc

  const UcxLibrary& ucx() const noexcept { return ucx_; }
  const std::shared_ptr<World>& world() const noexcept { return world_; }
  ucp_context_h context() const noexcept { return context_; }

 private:
  const UcxLibrary& ucx_;
  const std::shared_ptr<World> world_;
  std::string devices_;  // that UCX was told to use, with commas; empty: the user has chosen
  ucp_context_h context_ = nullptr;
};

// " (UCX_TLS=rc is set)": what the user has chosen for UCX himself, for the sentences of what does not work then.
std::string user_choices();
Status ucx_failed(const UcxLibrary& ucx, const std::string& what, ucs_status_t status);

}  // namespace megadp::host

#endif
