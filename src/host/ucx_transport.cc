// SPDX-License-Identifier: Apache-2.0
// Transport over UCP: a worker for every group, endpoints made from worker addresses (never a listener: bytes from a stranger abort the
// process there), tag matching with the sender and a running number as the tag, PEER error handling. See docs/ucx.md for what was measured
// and why each setting is as it is.
#include "host/ucx_network.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/thread.h"
#include "control/agreement.h"
#include "host/network_devices.h"

namespace megadp::host {

#ifdef MEGADP_HAVE_UCX

namespace {

// Progress calls before sleeping: 5 us instead of 30 for small messages. Each of them is a call of the kernel: while the caller computes,
// that cost it a processor for 50 us for each packet from a slow network.
constexpr int kSpins = 200, kSpinsBehindCaller = 1;
constexpr uint64_t kFlushNs = 250'000'000;
constexpr uint64_t kBreakNs = 2'000'000'000;
// A rank's goodbye goes another way and can overtake its data. Where packets are lost the system sends them again, 0.2, 0.6, 1.4 and 3.0 s
// later. Where nothing has moved for so long since the goodbye, what a rank sent before it left is taken for lost.
constexpr uint64_t kLeftNs = 3'500'000'000;

class UcxTransport final : public Transport {
 public:
  UcxTransport(std::shared_ptr<const UcxNetwork> network, const std::vector<int>& members, std::shared_ptr<const ThreadPool> pool)
      : Transport(network->world()), network_(std::move(network)), ucx_(network_->ucx()), pool_(std::move(pool)) {
    for (const int rank : on_other_nodes(*world_, members)) peers_[rank];
  }
  ~UcxTransport() override;

  Status start();
  Result<std::string> address();
  Status connect(const std::vector<int>& members, const std::vector<std::string>& addresses);
  Status greet();

  Status send(int to, const void* data, size_t bytes, Lane lane, bool* done) override;
  Status receive(int from, void* data, size_t bytes, Lane lane, bool* done) override;
  Status wait(const Stop& stop, const Describe& during, const Enough& enough) override;
  void give_up() override { break_off(); }

 private:
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    uint64_t sent[kLanes] = {}, received[kLanes] = {};
    ucs_status_t error = UCS_OK;  // set by UCX once the connection is lost
    uint64_t left_ns = 0;         // when it was first seen that the rank has left
  };
  enum class Kind {
    send,
    receive,
    flush
  };
  struct Transfer {
    void* request;
    int peer;
    Kind kind;
    bool* done;
  };

  static void on_error(void* peer, ucp_ep_h, ucs_status_t status) { static_cast<Peer*>(peer)->error = status; }
  Status failed(const std::string& what, ucs_status_t status) const { return ucx_failed(ucx_, what, status); }
  Status create_endpoint(int rank, Peer& peer, const std::string& address);
  Status post(ucs_status_ptr_t request, int peer, Kind kind, bool* done);
  bool flush();
  bool progress();
  Status finish_done();
  Status look_around(const Stop& stop, Deadline deadline, uint64_t moved_ns, const Describe& during);
  void sleep();
  void break_off();
  void close(Peer& peer, uint32_t flags, Deadline deadline);

  const std::shared_ptr<const UcxNetwork> network_;
  const UcxLibrary& ucx_;
  const std::shared_ptr<const ThreadPool> pool_;
  ucp_worker_h worker_ = nullptr;
  int efd_ = -1;               // the worker's
  std::map<int, Peer> peers_;  // by rank in the world: the members on other nodes. UCX holds pointers
  std::vector<Transfer> pending_;
  int sent_to_ = -1;  // something since the last flush, lastly to this rank
  bool broken_ = false;
};

constexpr const char* kGreeting =
    "the greeting of ranks on other nodes (over UCX, at ports that the system has chosen, which a firewall may close)";

// UCX ends the process if it can open no descriptor for a worker or one of its connections.
Status UcxTransport::start() {
  if (Status room = check_descriptors(16 + 4 * peers_.size()); !room) return room.with_context("UCX");
  const SignalsBlocked blocked;
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // opened on the caller's thread, used on the stream's, destroyed on either
  ucs_status_t status = ucx_.worker_create(network_->context(), &params, &worker_);
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

Status UcxTransport::connect(const std::vector<int>& members, const std::vector<std::string>& addresses) {
  for (size_t i = 0; i < members.size(); ++i) {
    const auto peer = peers_.find(members[i]);
    if (peer == peers_.end()) continue;
    if (Status created = create_endpoint(peer->first, peer->second, addresses[i]); !created) return created;
  }
  return {};
}

Status UcxTransport::create_endpoint(int rank, Peer& peer, const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &on_error;
  params.err_handler.arg = &peer;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status == UCS_OK) return {};
  const Stop never;
  wait_for_news_of(rank, never);
  if (world_->failed()) return world_->failure();
  return failed(text("no connection to rank ", rank, " on ", world_->host_name(rank), user_choices()), status).with_blame({.rank = rank});
}

Status UcxTransport::greet() {
  const int64_t mine = world_->rank();
  std::map<int, int64_t> theirs;
  for (const auto& [rank, peer] : peers_) {
    if (Status posted = send(rank, &mine, sizeof mine, Lane::collective, nullptr); !posted) return posted;
    if (Status posted = receive(rank, &theirs[rank], sizeof mine, Lane::collective, nullptr); !posted) return posted;
  }
  const Stop never;
  if (Status met = wait(never, [] { return std::string(kGreeting); }, {}); !met) return met;
  for (const auto& [rank, said] : theirs) {
    if (said == rank) continue;
    const Status wrong(Code::backend, text("UCX: rank ", said, " answered where rank ", rank, " was expected"));
    world_->fail(wrong);  // the others have a group
    return wrong;
  }
  return {};
}

UcxTransport::~UcxTransport() {
  if (world_->in_forked_child()) return;  // UCX does not work in a child, and tearing down would break the parent's connections
  if (!broken_) {
    // What was sent may still be on its way out; peers that are there take it within moments.
    const Deadline deadline = Deadline::after_ns(kFlushNs);
    const uint32_t flags = world_->failed() ? static_cast<uint32_t>(UCP_EP_CLOSE_FLAG_FORCE) : 0;  // then nobody waits for it
    for (auto& [rank, peer] : peers_) close(peer, flags, deadline);
  }
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
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
  ucx_.request_free(request);  // also if it is unfinished: destroying the worker would abort the process otherwise
}

Status UcxTransport::post(ucs_status_ptr_t request, int peer, Kind kind, bool* done) {
  if (request == nullptr) {
    if (done != nullptr) *done = true;
    return {};
  }
  if (UCS_PTR_IS_ERR(request)) {
    break_off();  // the caller will not wait for what it has posted
    const Stop never;
    return lost(
        peer, ucx_.status_string(UCS_PTR_STATUS(request)),
        [&] { return text(kind == Kind::receive ? "receiving from rank " : "sending to rank ", peer); }, never);
  }
  pending_.push_back({request, peer, kind, done});
  return {};
}

// Sender above, then the lane, running number below; a receive names all, so nothing else can match.
constexpr ucp_tag_t tag_of(int sender, Lane lane, uint64_t number) {
  return (static_cast<uint64_t>(sender) << 40) | (static_cast<uint64_t>(lane) << 38) | (number & ((uint64_t{1} << 38) - 1));
}

Status UcxTransport::send(int to, const void* data, size_t bytes, Lane lane, bool* done) {
  if (broken_) return {Code::backend, "UCX: the transport between nodes has failed before"};
  Peer& peer = peers_.at(to);
  sent_to_ = to;
  const ucp_request_param_t param{};
  const ucp_tag_t tag = tag_of(world_->rank(), lane, peer.sent[static_cast<size_t>(lane)]++);
  return post(ucx_.tag_send_nbx(peer.endpoint, data, bytes, tag, &param), to, Kind::send, done);
}

Status UcxTransport::receive(int from, void* data, size_t bytes, Lane lane, bool* done) {
  if (broken_) return {Code::backend, "UCX: the transport between nodes has failed before"};
  Peer& peer = peers_.at(from);
  const ucp_request_param_t param{};
  const ucp_tag_t tag = tag_of(from, lane, peer.received[static_cast<size_t>(lane)]++);
  return post(ucx_.tag_recv_nbx(worker_, data, bytes, tag, ~ucp_tag_t{0}, &param), from, Kind::receive, done);
}

// The memory of what was sent is the caller's again, but the last of it may still lie in the worker, which nobody drives before the group's
// next operation. True if that is to be waited for.
bool UcxTransport::flush() {
  if (sent_to_ < 0) return false;
  const ucp_request_param_t param{};
  const ucs_status_ptr_t request = ucx_.worker_flush_nbx(worker_, &param);
  if (UCS_PTR_IS_PTR(request)) pending_.push_back({request, sent_to_, Kind::flush, nullptr});
  sent_to_ = -1;
  return !pending_.empty();
}

bool UcxTransport::progress() {
  const int spins = pool_ == nullptr || pool_->may_help() ? kSpins : kSpinsBehindCaller;
  for (int i = 0; i < spins; ++i) {
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
    if (transfer.done != nullptr) *transfer.done = true;
    if (status != UCS_OK && first.ok() && transfer.kind != Kind::flush) {  // who lacks what was sent will say so
      first = failed(text(transfer.kind == Kind::receive ? "receiving from rank " : "sending to rank ", transfer.peer), status)
                  .with_blame({.rank = transfer.peer});
    }
    return true;
  });
  return first;
}

// `moved_ns`: when something last moved.
Status UcxTransport::look_around(const Stop& stop, Deadline deadline, uint64_t moved_ns, const Describe& during) {
  if (Status status = interrupted(stop, during); !status) return status;
  const uint64_t now = now_ns();
  std::vector<int> missing;
  for (const Transfer& transfer : pending_) {
    Peer& peer = peers_.at(transfer.peer);
    if (peer.left_ns == 0 && world_->has_left(transfer.peer)) peer.left_ns = now;
    const bool has_left = peer.left_ns != 0 && now - std::max(peer.left_ns, moved_ns) >= kLeftNs;
    if (transfer.kind != Kind::flush && (peer.error != UCS_OK || has_left)) {
      return lost(transfer.peer, peer.error != UCS_OK ? ucx_.status_string(peer.error) : "", during, stop);
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

Status UcxTransport::wait(const Stop& stop, const Describe& during, const Enough& enough) {
  Deadline deadline = deadline_of_wait();
  uint64_t moved_ns = now_ns();
  while (enough ? !pending_.empty() && !enough() : !pending_.empty() || (!broken_ && flush())) {
    const bool moved = progress();
    if (moved) moved_ns = now_ns();
    const size_t before = pending_.size();
    Status status = finish_done();
    if (pending_.size() < before) deadline = deadline_of_wait();  // what else moves may be UCX's own
    if (!status) {
      status = lost(status.blame().rank, status.text(), during, stop);
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
    if (transfer.kind == Kind::receive) ucx_.request_cancel(worker_, transfer.request);
  }
  for (auto& [rank, peer] : peers_) close(peer, UCP_EP_CLOSE_FLAG_FORCE, deadline);
  while (!pending_.empty() && !deadline.passed()) {
    ucx_.worker_progress(worker_);
    static_cast<void>(finish_done());
  }
  for (const Transfer& transfer : pending_) ucx_.request_free(transfer.request);
  pending_.clear();
}

}  // namespace

Result<std::unique_ptr<Transport>> UcxNetwork::connect(const std::vector<int>& members, std::shared_ptr<const ThreadPool> pool) {
  std::vector<int> here;
  for (const int rank : members) {
    if (world_->node(rank) == world_->node(world_->rank())) here.push_back(rank);
  }
  // One rank of a node looks for all of them, and none begins before it has: they would take the ports from each other.
  const Status ports = here.front() == world_->rank() ? check_ports(here.size()) : Status();
  if (Status agreed = agree(*world_, members, {kConnecting}, ports); !agreed) return agreed;
  auto transport = std::make_unique<UcxTransport>(shared_from_this(), members, std::move(pool));
  const std::vector<uint64_t> before = listening_sockets();
  Status started = transport->start();
  Result<std::string> mine = started.ok() ? transport->address() : Result<std::string>(started);
  const bool on_loopback = devices_ == "lo";  // nodes that a test plays
  if (mine.ok() && !on_loopback) refuse_own_machine(*mine, before);
  auto all = exchange_findings(*world_, members, mine);
  if (!all.ok()) return all.status();
  // If one has no endpoints, nobody must wait for its greeting.
  if (Status agreed = agree(*world_, members, {kConnecting}, transport->connect(members, *all)); !agreed) return agreed;
  if (Status greeted = transport->greet(); !greeted) return greeted;
  return std::unique_ptr<Transport>(std::move(transport));
}

#endif

}  // namespace megadp::host
