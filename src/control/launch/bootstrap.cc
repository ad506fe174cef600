// SPDX-License-Identifier: Apache-2.0
// complete_launch: ranks that can gather bytes agree on where and under which secret they meet, by two all-gathers of a part from each.
//
//   offer     every rank its node; rank 0 a secret, of which the job's is made together with all offers
//   verdict   every rank whether it could read all offers, and a digest of them; rank 0 the address where it listens, if it is needed
//
// What a rank finds wrong after the first all-gather, the others hear in the second. A rank whose first all-gather fails gives its verdict
// nevertheless: those that still wait for its offer get the verdict in its place. What goes wrong in the second is known to that rank
// alone; the others then miss it at the rendezvous.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/text.h"
#include "control/interrupt.h"
#include "control/join/job_key.h"
#include "control/join/process.h"
#include "control/launch/launch.h"
#include "control/launch/variables.h"
#include "control/net/frame.h"
#include "control/net/socket.h"
#include "control/wording.h"

namespace megadp {
namespace {

constexpr size_t kPart = 1024;  // bytes of a rank in an all-gather; the last 32 are a checksum of the others
constexpr size_t kPartText = kPart - sizeof(Digest);
constexpr size_t kMaxReason = 400, kMaxHost = 255;
constexpr uint64_t kMagic = 0x31544f4f4250444d;  // "MDPBOOT1"
constexpr uint64_t kLastWordNs = 2'000'000'000;  // how long a rank that has failed waits to tell the others
constexpr uint64_t kMaxPauseNs = 2'000'000;      // between two questions whether an all-gather is done
constexpr uint32_t kOffer = 1, kVerdict = 2;

struct Part {
  uint32_t round = kOffer;
  int32_t rank = 0, nranks = 0;
  Status status;
  Digest digest{};  // offer: of the node. Verdict: of all offers
  Digest secret{};  // of rank 0's offer
  std::string root_host;
  uint16_t root_port = 0;  // of rank 0's verdict
};

std::string write_part(const Part& part) {
  FrameWriter writer;
  writer.u64(kMagic);
  writer.u32(part.round);
  writer.i32(part.rank);
  writer.i32(part.nranks);
  writer.bytes({reinterpret_cast<const char*>(part.digest.data()), part.digest.size()});
  writer.bytes({reinterpret_cast<const char*>(part.secret.data()), part.secret.size()});
  writer.bytes(part.root_host);
  writer.u32(part.root_port);
  writer.u32(part.status.ok() ? 0 : 1);
  if (!part.status.ok()) {
    writer.status(Status(part.status.code(), part.status.text().substr(0, kMaxReason), part.status.blame()));
  }
  std::string bytes = writer.take();
  bytes.resize(kPartText);
  const Digest sum = blake2s({}, bytes);
  return bytes.append(sum.begin(), sum.end());
}

bool read_digest(FrameReader* reader, Digest* out) {
  const std::string_view bytes = reader->bytes();
  if (bytes.size() != out->size()) return false;
  std::copy(bytes.begin(), bytes.end(), out->begin());
  return true;
}

bool read_part(std::string_view bytes, Part* part) {
  const Digest sum = blake2s({}, bytes.substr(0, kPartText));
  if (!std::equal(sum.begin(), sum.end(), bytes.begin() + kPartText, [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); })) {
    return false;
  }
  FrameReader reader(bytes.substr(0, kPartText));
  if (reader.u64() != kMagic) return false;
  part->round = reader.u32();
  part->rank = reader.i32();
  part->nranks = reader.i32();
  if (!read_digest(&reader, &part->digest) || !read_digest(&reader, &part->secret)) return false;
  part->root_host = reader.bytes();
  part->root_port = static_cast<uint16_t>(reader.u32());
  if (reader.u32() != 0) part->status = reader.status();
  return reader.ok();
}

// ── one all-gather ──

// An all-gather under way, which is freed once, whatever becomes of it.
struct Started {
  const AllGather& by;
  void* request = nullptr;
  ~Started() { by.free(by.context, request); }
};

Status callback_failed(const char* which, const char* should, int32_t returned) {
  return {Code::backend, text("config.bootstrap->", which, " returned ", returned, ", which is not ", should, ": the all-gather failed")};
}

Status wait_for(const Started& started, Deadline deadline) {
  const uint64_t begun = now_ns();
  for (uint64_t pause_ns = 20'000;; pause_ns = std::min(2 * pause_ns, kMaxPauseNs)) {
    const int32_t state = started.by.test(started.by.context, started.request);
    if (state == 1) return {};
    if (state != 0) return callback_failed("allgather_test", "0 (in progress) or 1 (done)", state);
    if (interrupted()) return interruption();
    if (deadline.passed()) {
      return {Code::timeout, text("config.bootstrap->allgather_test did not say within ", seconds(now_ns() - begun),
                                  " that the all-gather is done; all ranks must call mdp_comm_create, with a bootstrap")};
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, deadline.left_ns())));
  }
}

Status gather(const AllGather& by, const std::string& mine, std::string* all, Deadline deadline) {
  void* request = nullptr;
  const int32_t refused = by.start(by.context, mine.data(), mine.size(), all->data(), &request);
  if (refused != 0) return callback_failed("allgather_start", "0", refused);
  return wait_for(Started{by, request}, deadline);
}

std::string_view bytes_of_rank(const std::string& all, size_t rank) {
  return std::string_view(all).substr(rank * kPart, kPart);
}

// ── what came ──

Status read_rank(const std::string& all, const std::string& mine, const Part& own, int rank, Part* part) {
  const Blame blame{rank};
  const std::string_view bytes = bytes_of_rank(all, static_cast<size_t>(rank));
  if (rank == own.rank && bytes != mine) {
    return {Code::corrupt,
            text("the all-gather of config.bootstrap changed the bytes of rank ", rank, ", this one: they must come back as given"), blame};
  }
  if (!read_part(bytes, part)) {
    return {Code::corrupt,
            text("the all-gather of config.bootstrap gave rank ", own.rank, ", in the place of rank ", rank,
                 ", bytes that no rank has given: it must return ", kPart, " bytes of each rank, unchanged and in the order of ranks"),
            blame};
  }
  if (part->rank != rank) {
    return invalid("the all-gather of config.bootstrap has the bytes of rank ", part->rank, " in the place of rank ", rank,
                   ": config.rank must be the rank's place in it, and each rank's its own")
        .with_blame(blame);
  }
  if (part->nranks != own.nranks) {
    return invalid("rank ", rank, " has config.size ", part->nranks, ", and rank ", own.rank, " has ", own.nranks,
                   ": it must be the same on all ranks")
        .with_blame(blame);
  }
  return {};
}

// Everyone's part, or the first thing that is wrong with them, in the order of ranks. *final: another rank has given its verdict already,
// so that it will take part in no other all-gather.
Result<std::vector<Part>> read_all(const std::string& all, const std::string& mine, const Part& own, bool* final) {
  std::vector<Part> parts(static_cast<size_t>(own.nranks));
  for (int rank = 0; rank < own.nranks; ++rank) {
    Part& part = parts[static_cast<size_t>(rank)];
    if (Status status = read_rank(all, mine, own, rank, &part); !status) return own.status.ok() ? status : own.status;
    if (part.round == kVerdict && own.round == kOffer) *final = true;
    if (!part.status.ok() && rank == own.rank) return own.status;
    if (!part.status.ok()) return Status(part.status.code(), text("rank ", rank, ": ", part.status.text()), Blame{rank});
    if (part.round != own.round && !own.status.ok()) return own.status;
    if (part.round != own.round) {
      return Status(Code::desync, text("rank ", rank, " is in another all-gather of config.bootstrap than rank ", own.rank), Blame{rank});
    }
  }
  return parts;
}

// ── where rank 0 listens ──

// Bridges of containers and virtual machines lead nowhere another node could follow.
bool is_bridge(const char* name) {
  for (const char* prefix : {"docker", "br-", "virbr", "cni", "flannel", "podman", "lxc"}) {
    if (std::strncmp(name, prefix, std::strlen(prefix)) == 0) return true;
  }
  return false;
}

// An address of this node that other nodes are likely to reach: IPv4 before IPv6, in the order of the interfaces.
std::string own_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  std::string found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* a = list; a != nullptr && found.empty(); a = a->ifa_next) {
      if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != family) continue;
      if ((a->ifa_flags & IFF_UP) == 0 || (a->ifa_flags & IFF_LOOPBACK) != 0 || is_bridge(a->ifa_name)) continue;
      char words[INET6_ADDRSTRLEN] = {};
      const void* address = &reinterpret_cast<const sockaddr_in*>(a->ifa_addr)->sin_addr;
      if (family == AF_INET6) {
        const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(a->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&six)) continue;  // means something only together with an interface
        address = &six;
      }
      if (::inet_ntop(family, address, words, sizeof words) != nullptr) found = words;
    }
  }
  ::freeifaddrs(list);
  return found;
}

Status open_root(Part* verdict, std::vector<Fd>* listeners) {
  auto root = root_from_environment();
  if (!root.ok()) return root.status();
  if (root->port != 0) {  // the server listens there, and tries until it can
    if (root->host.size() > kMaxHost)
      return invalid("MEGADP_ROOT: the host \"", root->host, "\" has ", root->host.size(), " letters; at most ", kMaxHost, " are possible");
    verdict->root_host = root->host;
    verdict->root_port = root->port;
    return {};
  }
  const std::string hint = "; set MEGADP_ROOT=host:port on rank 0 to an address that the other nodes reach";
  verdict->root_host = own_address();
  if (verdict->root_host.empty()) return {Code::system, "this node has no network address but its loopback" + hint};
  auto listener = listen_at_free_port(verdict->root_host);
  if (!listener.ok()) return Status(listener.status().code(), listener.status().text() + hint);
  verdict->root_port = own_end(listener->get()).port;
  listeners->push_back(*std::move(listener));
  return {};
}

bool on_one_node(const std::vector<Part>& offers) {
  return std::all_of(offers.begin(), offers.end(), [&](const Part& part) { return part.digest == offers.front().digest; });
}

Result<Part> offer_of(const Launch& launch) {
  Part offer;
  offer.rank = launch.rank;
  offer.nranks = launch.nranks;
  offer.digest = blake2s({}, this_process().host_key);
  if (launch.rank == 0) {
    Status drawn = fill_random(offer.secret.data(), offer.secret.size());
    if (!drawn.ok()) return drawn;
  }
  return offer;
}

Result<std::vector<Fd>> gather_and_agree(Launch* launch, Deadline deadline) {
  auto offer = offer_of(*launch);
  if (!offer.ok()) return offer.status();
  const AllGather& by = *launch->bootstrap;
  const std::string mine = write_part(*offer);
  std::string all(static_cast<size_t>(launch->nranks) * kPart, '\0');
  Status status = gather(by, mine, &all, deadline);
  if (status.code() == Code::timeout || status.code() == Code::aborted) return status;
  bool final = false;
  auto offers = status.ok() ? read_all(all, mine, *offer, &final) : Result<std::vector<Part>>(status);
  if (final) return offers.status();

  Part verdict = *offer;
  verdict.round = kVerdict;
  verdict.secret = {};
  verdict.status = offers.status();
  verdict.digest = blake2s({}, all);
  std::vector<Fd> listeners;
  const bool one_node = offers.ok() && on_one_node(*offers);
  if (offers.ok() && !one_node && launch->rank == 0) verdict.status = open_root(&verdict, &listeners);
  const Digest digest = verdict.digest;
  const std::string said = write_part(verdict);
  if (!verdict.status.ok()) deadline = Deadline::after_ns(std::min(deadline.left_ns(), kLastWordNs));
  std::string verdicts_bytes(all.size(), '\0');
  status = gather(by, said, &verdicts_bytes, deadline);
  if (!status.ok()) return verdict.status.ok() ? status : verdict.status;
  auto verdicts = read_all(verdicts_bytes, said, verdict, &final);
  if (!verdicts.ok()) return verdicts.status();
  for (const Part& part : *verdicts) {
    if (part.digest == verdicts->front().digest) continue;
    return Status(Code::desync, text("the all-gather of config.bootstrap gave rank ", part.rank, " other bytes than rank 0"),
                  Blame{part.rank});
  }
  launch->job = "bootstrap/" + to_hex(digest.data(), 16);
  launch->secret = blake2s(offers->front().secret, all);
  launch->root_host = verdicts->front().root_host;
  launch->root_port = verdicts->front().root_port;
  return listeners;
}

}  // namespace

Result<std::vector<Fd>> complete_launch(Launch* launch, Deadline deadline) {
  if (!launch->bootstrap || launch->nranks == 1) return std::vector<Fd>();
  return gather_and_agree(launch, deadline);
}

}  // namespace megadp
