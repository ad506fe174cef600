// SPDX-License-Identifier: Apache-2.0
// Transport over UCP: endpoints made from worker addresses (never a listener: bytes from a stranger abort the process there), tag matching
// with the sender and a running number as the tag, PEER error handling. See docs/ucx.md for what was measured and why each setting is as it
// is.
#include "host/ucx_library.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "host/network_devices.h"
#include "host/transport.h"

namespace megadp::host {

#ifdef MEGADP_HAVE_UCX

namespace {

constexpr int kSpins = 200;  // progress calls before sleeping: 5 us instead of 30 for small messages
constexpr uint64_t kFlushNs = 250'000'000;
constexpr uint64_t kBreakNs = 2'000'000'000;

// UCX starts a thread; it must not take the host program's signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

class UcxTransport final : public Transport {
 public:
  UcxTransport(const UcxLibrary& ucx, std::shared_ptr<World> world) : Transport(std::move(world)), ucx_(ucx) {}
  ~UcxTransport() override;

  Status start(const HostAddresses& hosts);
  Result<std::string> address();
  bool is_on_loopback() const noexcept { return devices_ == "lo"; }  // "hosts" of a test
  Status connect(int rank, const std::string& address);
  Status greet();

  Status send(int to, const void* data, size_t bytes) override;
  Status receive(int from, void* data, size_t bytes) override;
  Status wait(const Stop& stop, const std::string& during) override;

 private:
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    uint64_t sent = 0, received = 0;
    ucs_status_t error = UCS_OK;  // set by UCX once the connection is lost
  };
  struct Transfer {
    void* request;
    int peer;
    bool receive;
  };

  static void on_error(void* peer, ucp_ep_h, ucs_status_t status) { static_cast<Peer*>(peer)->error = status; }
  Status failed(const std::string& what, ucs_status_t status) const {
    return {Code::backend, text("UCX: ", what, ": ", ucx_.status_string(status))};
  }
  Status post(ucs_status_ptr_t request, int peer, bool receive);
  bool progress();
  Status finish_done();
  Status look_around(const Stop& stop, Deadline deadline, uint64_t moved_ns, const std::string& during);
  void sleep();
  void break_off();
  void close(Peer& peer, uint32_t flags, Deadline deadline);

  const UcxLibrary& ucx_;
  std::string devices_;  // that UCX was told to use, with commas; empty: the user has chosen
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int efd_ = -1;             // the worker's
  std::vector<Peer> peers_;  // by world rank; never resized once endpoints exist: UCX holds pointers
  std::vector<Transfer> pending_;
  bool broken_ = false;
};

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
                   ", which had a communicator over several hosts by then: UCX, which carries data between hosts, does not work in such a "
                   "child. Fork earlier, or let the child execute a program of its own");
}

// The devices, as UCX's setting names them. A user who names transports or devices knows better.
std::string choose_devices(const World& world, const HostAddresses& hosts) {
  const char* const transports = std::getenv("UCX_TLS");
  if (std::getenv("UCX_NET_DEVICES") != nullptr || (transports != nullptr && std::strcmp(transports, "tcp") != 0)) return "";
  std::vector<std::string> others;
  for (size_t host = 0; host < hosts.size(); ++host) {
    if (host != static_cast<size_t>(world.host(world.rank()))) others.push_back(hosts[host]);
  }
  std::string list;
  for (const std::string& device : devices_towards(others)) list += (list.empty() ? "" : ",") + device;
  return list;
}

Status UcxTransport::start(const HostAddresses& hosts) {
  if (Status alone = refuse_in_child(); !alone) return alone;
  const SignalsBlocked blocked;
  devices_ = choose_devices(*world_, hosts);
  peers_.resize(static_cast<size_t>(world_->size()));
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucx_.config_read(nullptr, nullptr, &config); status != UCS_OK) return failed("ucp_config_read", status);
  Status settings = modify(ucx_, config, "WARN_UNUSED_ENV_VARS", "n");
  if (settings.ok()) settings = modify(ucx_, config, "WARN_INVALID_CONFIG", "n");
  // Only tcp tells of a killed peer and is everywhere; a user with other hardware names it. 512 KiB segments: twice the default's speed.
  if (settings.ok() && std::getenv("UCX_TLS") == nullptr) settings = modify(ucx_, config, "TLS", "tcp");
  if (settings.ok() && std::getenv("UCX_TCP_RX_SEG_SIZE") == nullptr) settings = modify(ucx_, config, "RX_SEG_SIZE", "512K");
  if (settings.ok() && !devices_.empty()) settings = modify(ucx_, config, "NET_DEVICES", devices_.c_str());
  if (!settings) {
    ucx_.config_release(config);
    return settings;
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<size_t>(world_->size());
  ucs_status_t status = ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.config_release(config);
  if (status != UCS_OK) {
    return failed("no usable network device for tcp (see UCX_NET_DEVICES)", status);
  }
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // opened on the caller's thread, used on the queue's, destroyed on either
  status = ucx_.worker_create(context_, &worker, &worker_);
  if (status != UCS_OK) return failed("ucp_worker_create", status);
  status = ucx_.worker_get_efd(worker_, &efd_);
  return status == UCS_OK ? Status() : failed("ucp_worker_get_efd", status);
}

Result<std::string> UcxTransport::address() {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  if (const ucs_status_t status = ucx_.worker_get_address(worker_, &address, &length); status != UCS_OK) {
    return failed("ucp_worker_get_address", status);
  }
  std::string copy(reinterpret_cast<const char*>(address), length);
  ucx_.worker_release_address(worker_, address);
  return copy;
}

Status UcxTransport::connect(int rank, const std::string& address) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &on_error;
  params.err_handler.arg = &peer;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status == UCS_OK) return {};
  wait_for_news_of(rank);
  if (world_->failed()) return world_->failure();
  return failed(text("no connection to rank ", rank, " on ", world_->host_name(rank)), status).with_blame({.rank = rank});
}

Status UcxTransport::greet() {
  const int64_t mine = world_->rank();
  std::vector<int64_t> theirs(peers_.size(), -1);
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].endpoint == nullptr) continue;
    if (Status posted = send(static_cast<int>(rank), &mine, sizeof mine); !posted) return posted;
    if (Status posted = receive(static_cast<int>(rank), &theirs[rank], sizeof theirs[rank]); !posted) return posted;
  }
  const Stop never;
  if (Status met = wait(never, "the greeting of ranks on other hosts"); !met) return met;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].endpoint != nullptr && theirs[rank] != static_cast<int64_t>(rank)) {
      return {Code::backend, text("UCX: rank ", theirs[rank], " answered where rank ", rank, " was expected")};
    }
  }
  return {};
}

UcxTransport::~UcxTransport() {
  if (world_->in_forked_child()) return;  // UCX does not work in a child, and tearing down would break the parent's connections
  if (!broken_) {
    // What was sent may still be on its way out; peers that are there take it within moments.
    const Deadline deadline = Deadline::after_ns(kFlushNs);
    for (Peer& peer : peers_) close(peer, 0, deadline);
  }
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
  if (context_ != nullptr) ucx_.cleanup(context_);
}

void UcxTransport::close(Peer& peer, uint32_t flags, Deadline deadline) {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = peer.error == UCS_OK ? flags : static_cast<uint32_t>(UCP_EP_CLOSE_FLAG_FORCE);
  const ucs_status_ptr_t request = ucx_.ep_close_nbx(peer.endpoint, &param);
  peer.endpoint = nullptr;
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucx_.request_check_status(request) == UCS_INPROGRESS && !deadline.passed()) ucx_.worker_progress(worker_);
  ucx_.request_free(request);  // also where it is unfinished: destroying the worker would abort the process otherwise
}

Status UcxTransport::post(ucs_status_ptr_t request, int peer, bool receive) {
  if (request == nullptr) return {};
  if (UCS_PTR_IS_ERR(request)) {
    break_off();  // the caller will not wait for what it has posted
    return lost(peer, ucx_.status_string(UCS_PTR_STATUS(request)), text(receive ? "receiving from rank " : "sending to rank ", peer));
  }
  pending_.push_back({request, peer, receive});
  return {};
}

// Sender above, running number below; a receive names both, so nothing else can match.
constexpr ucp_tag_t tag_of(int sender, uint64_t number) {
  return (static_cast<uint64_t>(sender) << 40) | (number & ((uint64_t{1} << 40) - 1));
}

Status UcxTransport::send(int to, const void* data, size_t bytes) {
  if (broken_) return {Code::backend, "UCX: the transport between hosts has failed before"};
  Peer& peer = peers_[static_cast<size_t>(to)];
  const ucp_request_param_t param{};
  return post(ucx_.tag_send_nbx(peer.endpoint, data, bytes, tag_of(world_->rank(), peer.sent++), &param), to, false);
}

Status UcxTransport::receive(int from, void* data, size_t bytes) {
  if (broken_) return {Code::backend, "UCX: the transport between hosts has failed before"};
  Peer& peer = peers_[static_cast<size_t>(from)];
  const ucp_request_param_t param{};
  return post(ucx_.tag_recv_nbx(worker_, data, bytes, tag_of(from, peer.received++), ~ucp_tag_t{0}, &param), from, true);
}

bool UcxTransport::progress() {
  for (int i = 0; i < kSpins; ++i) {
    if (ucx_.worker_progress(worker_) != 0) return true;
  }
  return false;
}

// Frees what has finished; the first error among it.
Status UcxTransport::finish_done() {
  Status first;
  std::erase_if(pending_, [&](const Transfer& transfer) {
    const ucs_status_t status = ucx_.request_check_status(transfer.request);
    if (status == UCS_INPROGRESS) return false;
    ucx_.request_free(transfer.request);
    if (status != UCS_OK && first.ok()) {
      first = failed(text(transfer.receive ? "receiving from rank " : "sending to rank ", transfer.peer), status)
                  .with_blame({.rank = transfer.peer});
    }
    return true;
  });
  return first;
}

// `moved_ns`: when something last moved.
Status UcxTransport::look_around(const Stop& stop, Deadline deadline, uint64_t moved_ns, const std::string& during) {
  if (Status status = interrupted(stop, during); !status) return status;
  std::vector<int> missing;
  for (const Transfer& transfer : pending_) {
    const Peer& peer = peers_[static_cast<size_t>(transfer.peer)];
    if (peer.error != UCS_OK || left_for_good(transfer.peer, moved_ns)) {
      return lost(transfer.peer, peer.error != UCS_OK ? ucx_.status_string(peer.error) : "", during);
    }
    if (std::find(missing.begin(), missing.end(), transfer.peer) == missing.end()) missing.push_back(transfer.peer);
  }
  return deadline.passed() ? timed_out(missing, during) : Status();
}

void UcxTransport::sleep() {
  const ucs_status_t armed = ucx_.worker_arm(worker_);
  if (armed != UCS_OK) return;  // something has come in meanwhile
  pollfd wake{efd_, POLLIN, 0};
  poll(&wake, 1, static_cast<int>(kWaitSliceNs / 1'000'000));
}

Status UcxTransport::wait(const Stop& stop, const std::string& during) {
  const Deadline deadline = deadline_of_wait();
  uint64_t moved_ns = now_ns();
  while (!pending_.empty()) {
    const bool moved = progress();
    if (moved) moved_ns = now_ns();
    Status status = finish_done();
    if (!status) {
      status = lost(status.blame().rank, status.text(), during);
    } else if (!pending_.empty()) {
      status = look_around(stop, deadline, moved_ns, during);
    }
    if (!status) {
      break_off();
      return status;
    }
    if (!moved && !pending_.empty()) sleep();
  }
  return {};
}

// Ends everything in flight, so that the memory of the transfers is the caller's again. A send to a stopped peer ends only with its
// endpoint.
void UcxTransport::break_off() {
  broken_ = true;
  const Deadline deadline = Deadline::after_ns(kBreakNs);
  for (const Transfer& transfer : pending_) {
    if (transfer.receive) ucx_.request_cancel(worker_, transfer.request);
  }
  for (Peer& peer : peers_) close(peer, UCP_EP_CLOSE_FLAG_FORCE, deadline);
  while (!pending_.empty() && !deadline.passed()) {
    ucx_.worker_progress(worker_);
    static_cast<void>(finish_done());
  }
  for (const Transfer& transfer : pending_) ucx_.request_free(transfer.request);
  pending_.clear();
}

}  // namespace

Result<std::shared_ptr<Transport>> open_ucx(const std::shared_ptr<World>& world, const HostAddresses& hosts) {
  std::shared_ptr<UcxTransport> transport;
  auto ucx = UcxLibrary::get();
  Result<std::string> mine = ucx.status();
  if (ucx.ok()) {
    transport = std::make_shared<UcxTransport>(**ucx, world);
    Status started = transport->start(hosts);
    mine = started.ok() ? transport->address() : Result<std::string>(started);
    if (mine.ok() && !transport->is_on_loopback()) refuse_own_machine(*mine);
  }
  auto all = exchange_findings(*world, mine);
  if (!all.ok()) return all.status();
  for (const int rank : all_ranks(*world)) {
    if (world->host(rank) == world->host(world->rank())) continue;
    if (Status connected = transport->connect(rank, (*all)[static_cast<size_t>(rank)]); !connected) return connected;
  }
  if (Status greeted = transport->greet(); !greeted) return greeted;
  return std::shared_ptr<Transport>(std::move(transport));
}

#else

Result<std::shared_ptr<Transport>> open_ucx(const std::shared_ptr<World>& world, const HostAddresses&) {
  return exchange_findings(*world, UcxLibrary::get().status()).status();
}

#endif

}  // namespace megadp::host
