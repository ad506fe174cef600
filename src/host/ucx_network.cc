// SPDX-License-Identifier: Apache-2.0
// UCX's context: settings and devices. See docs/ucx.md for what was measured and why each setting is as it is.
#include "host/ucx_network.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/fd.h"
#include "base/thread.h"
#include "control/agreement.h"
#include "host/network_devices.h"

namespace megadp::host {

#ifdef MEGADP_HAVE_UCX

Status ucx_failed(const UcxLibrary& ucx, const std::string& what, ucs_status_t status) {
  return {Code::backend, text("UCX: ", what, ": ", ucx.status_string(status))};
}

std::string user_choices() {
  std::string said;
  for (const char* const name : {"UCX_TLS", "UCX_NET_DEVICES"}) {
    if (const char* const value = std::getenv(name); value != nullptr)
      said += text(said.empty() ? " (" : ", ", name, "=", value, " is set");
  }
  return said.empty() ? said : said + ")";
}

namespace {

Status modify(const UcxLibrary& ucx, ucp_config_t* config, const char* name, const char* value) {
  const ucs_status_t status = ucx.config_modify(config, name, value);
  return status == UCS_OK ? Status()
                          : Status(Code::backend, text("UCX refused the setting ", name, "=", value, ": ", ucx.status_string(status)));
}

// UCX does its work on a thread, which a forked child does not have: a connection made there would never come about. What the parent has
// closed since makes no difference.
Status refuse_in_child() {
  static std::atomic<pid_t> user{0};
  pid_t first = 0;
  if (user.compare_exchange_strong(first, ::getpid()) || first == ::getpid()) return {};
  return bad_state("this process was forked from process ", first,
                   ", which had a communicator over several nodes by then: UCX, which carries data between nodes, does not work in such a "
                   "child. Fork earlier, or let the child execute a program of its own");
}

// The devices, as UCX's setting names them. A user who names transports or devices knows better.
std::string choose_devices(const World& world, const NodeAddresses& nodes) {
  const char* const transports = std::getenv("UCX_TLS");
  if (std::getenv("UCX_NET_DEVICES") != nullptr || (transports != nullptr && std::strcmp(transports, "tcp") != 0)) return "";
  std::vector<std::string> others;
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (node != static_cast<size_t>(world.node(world.rank()))) others.push_back(nodes[node]);
  }
  std::string list;
  for (const std::string& device : devices_towards(others)) list += (list.empty() ? "" : ",") + device;
  return list;
}

}  // namespace

Status UcxNetwork::start(const NodeAddresses& nodes) {
  if (Status alone = refuse_in_child(); !alone) return alone;
  occupy_standard_descriptors();
  const SignalsBlocked blocked;  // UCX starts a thread with the first context or worker
  devices_ = choose_devices(*world_, nodes);
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucx_.config_read(nullptr, nullptr, &config); status != UCS_OK)
    return ucx_failed(ucx_, "ucp_config_read", status);
  Status settings = modify(ucx_, config, "WARN_UNUSED_ENV_VARS", "n");
  if (settings.ok()) settings = modify(ucx_, config, "WARN_INVALID_CONFIG", "n");
  // A flush waits for what the worker holds alone. To flush endpoints takes the other side's part too, which may be busy in another group.
  if (settings.ok()) settings = modify(ucx_, config, "FLUSH_WORKER_EPS", "n");
  // Where a firewall drops what is sent, a connect that blocks takes two minutes, whatever the timeout is.
  if (settings.ok() && std::getenv("UCX_TCP_CONN_NB") == nullptr) settings = modify(ucx_, config, "CONN_NB", "y");
  // Only tcp tells of a killed peer and is everywhere; a user with other hardware names it. 512 KiB segments: twice the default's speed.
  if (settings.ok() && std::getenv("UCX_TLS") == nullptr) {
    settings = modify(ucx_, config, "TLS", "tcp");
    // What a turn sends needs no handshake, which would wait behind other ranks' data on a slow link.
    if (settings.ok() && std::getenv("UCX_RNDV_THRESH") == nullptr) settings = modify(ucx_, config, "RNDV_THRESH", "1m");
  }
  if (settings.ok() && std::getenv("UCX_TCP_RX_SEG_SIZE") == nullptr) settings = modify(ucx_, config, "RX_SEG_SIZE", "512K");
  if (settings.ok() && !devices_.empty()) settings = modify(ucx_, config, "NET_DEVICES", devices_.c_str());
  if (!settings) {
    ucx_.config_release(config);
    return settings;
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // every group's worker is driven by the thread of its stream
  params.estimated_num_eps = static_cast<size_t>(world_->size());
  const ucs_status_t status = ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.config_release(config);
  if (status == UCS_OK) return {};
  const std::string choices = user_choices();
  return ucx_failed(ucx_, "no usable network device" + (choices.empty() ? " for tcp (see UCX_NET_DEVICES)" : choices), status);
}

// UCX asks the system for a port again and again, for ever, as long as there is none. A range of the user's is not the system's to give.
Status UcxNetwork::check_ports(size_t count) const {
  if (std::getenv("UCX_TCP_PORT_RANGE") != nullptr) return {};
  const char* const chosen = std::getenv("UCX_NET_DEVICES");
  std::vector<std::string> devices;
  std::string_view rest = devices_.empty() && chosen != nullptr ? chosen : std::string_view(devices_);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    devices.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return check_free_ports(devices, count);
}

UcxNetwork::~UcxNetwork() {
  if (context_ != nullptr && !world_->in_forked_child()) ucx_.cleanup(context_);  // UCX does not work in a child
}

Result<std::shared_ptr<Network>> open_ucx(const std::shared_ptr<World>& world, const NodeAddresses& nodes) {
  std::shared_ptr<UcxNetwork> network;
  auto ucx = UcxLibrary::get();
  Status started = ucx.status();
  if (ucx.ok()) {
    network = std::make_shared<UcxNetwork>(**ucx, world);
    started = network->start(nodes);
  }
  if (Status all_started = agree(*world, all_ranks(world->size()), {kConnecting}, started); !all_started) return all_started;
  return std::shared_ptr<Network>(std::move(network));
}

#else

Result<std::shared_ptr<Network>> open_ucx(const std::shared_ptr<World>& world, const NodeAddresses&) {
  return agree(*world, all_ranks(world->size()), {kConnecting}, UcxLibrary::get().status());
}

#endif

}  // namespace megadp::host
