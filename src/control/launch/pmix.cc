// SPDX-License-Identifier: Apache-2.0
// The seven functions of PMIx that are used, with the few types they need, as in version 2 of its binary interface (libpmix.so.2; PMIx 4
// and 5).
#include "control/launch/pmix.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include "base/symbol.h"
#include "base/text.h"
#include "control/join/job_key.h"
#include "control/launch/variables.h"
#include "control/net/bounded_call.h"
#include "control/wording.h"

namespace megadp {
namespace {

// ── from pmix_common.h ──
using PmixStatus = int;
struct PmixProc {
  char name_space[256];
  uint32_t rank;
};
struct PmixValue {
  uint16_t type;
  union {
    bool flag;
    char* string;
    int integer;
    alignas(8) unsigned char room[24];  // the largest member is three words
  } data;
};
struct PmixInfo {
  char key[512];
  uint32_t flags;
  PmixValue value;
};
constexpr uint16_t kPmixBool = 1;
constexpr uint16_t kPmixString = 3;
constexpr uint16_t kPmixInt = 6;
constexpr uint8_t kPmixGlobal = 3;
constexpr PmixStatus kPmixSuccess = 0;
constexpr char kPmixCollectData[] = "pmix.collect";
constexpr char kPmixTimeout[] = "pmix.timeout";

struct Pmix {
  PmixStatus (*init)(PmixProc*, PmixInfo*, size_t) = nullptr;
  PmixStatus (*finalize)(const PmixInfo*, size_t) = nullptr;
  PmixStatus (*put)(uint8_t, const char*, PmixValue*) = nullptr;
  PmixStatus (*commit)() = nullptr;
  PmixStatus (*fence)(const PmixProc*, size_t, const PmixInfo*, size_t) = nullptr;
  PmixStatus (*get)(const PmixProc*, const char*, const PmixInfo*, size_t, PmixValue**) = nullptr;
  const char* (*error_text)(PmixStatus) = nullptr;

  Status failed(const char* what, PmixStatus status) const {
    return {Code::backend, text(what, " failed: ", error_text(status), " (", status, ")")};
  }
};

// Never unloaded: it leaves threads behind.
Result<Pmix> load_pmix() {
  void* const library = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return unsupported("libpmix.so.2 cannot be loaded: ", ::dlerror());
  Pmix pmix;
  std::string missing;
  find_symbol(library, "PMIx_Init", &pmix.init, &missing);
  find_symbol(library, "PMIx_Finalize", &pmix.finalize, &missing);
  find_symbol(library, "PMIx_Put", &pmix.put, &missing);
  find_symbol(library, "PMIx_Commit", &pmix.commit, &missing);
  find_symbol(library, "PMIx_Fence", &pmix.fence, &missing);
  find_symbol(library, "PMIx_Get", &pmix.get, &missing);
  find_symbol(library, "PMIx_Error_string", &pmix.error_text, &missing);
  if (!missing.empty()) return unsupported("libpmix.so.2 lacks ", missing);
  return pmix;
}

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

// "1.2.3.4:25000 <64 hexadecimal digits>"
Result<std::string> announcement(const Launch& launch) {
  const std::string host = own_address();
  if (host.empty()) return Status(Code::system, "this node has no network address but its loopback");
  std::array<uint8_t, 32> secret;
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    return system_error("reading random numbers", errno);
  }
  const bool six = host.find(':') != std::string::npos;
  return text(six ? "[" : "", host, six ? "]:" : ":", derived_port(launch.job, 0), " ", to_hex(secret.data(), secret.size()));
}

Status read_announcement(const std::string& words, Launch* launch) {
  const size_t blank = words.find(' ');
  auto root = parse_root(words.substr(0, blank));
  if (!root.ok()) return root.status();
  if (blank == std::string::npos || !from_hex(words.substr(blank + 1), launch->secret.data(), launch->secret.size())) {
    return {Code::corrupt, "what rank 0 published through PMIx cannot be read"};
  }
  launch->root_host = root->host;
  launch->root_port = root->port;
  return {};
}

// Seconds after which the server should give up. Not all servers do, so it is not relied on.
PmixInfo limit(Deadline deadline) {
  PmixInfo info{};
  std::memcpy(info.key, kPmixTimeout, sizeof kPmixTimeout);
  info.value.type = kPmixInt;
  info.value.data.integer = static_cast<int>(std::min<uint64_t>(deadline.left_ns() / 1'000'000'000 + 1, 1'000'000));
  return info;
}

Status publish_and_read(const Pmix& pmix, const PmixProc& self, Launch* launch, Deadline deadline) {
  constexpr char key[] = "megadp.root";
  std::string words;
  if (launch->rank == 0) {
    auto own = announcement(*launch);
    // The others wait at the fence; they are told by finding what cannot be read.
    words = own.ok() ? *own : own.status().text();
    PmixValue value{};
    value.type = kPmixString;
    value.data.string = words.data();
    PmixStatus status = pmix.put(kPmixGlobal, key, &value);
    if (status == kPmixSuccess) status = pmix.commit();
    if (status != kPmixSuccess) return pmix.failed("publishing an address through PMIx", status);
  }
  PmixInfo fence[2] = {{}, limit(deadline)};
  std::memcpy(fence[0].key, kPmixCollectData, sizeof kPmixCollectData);
  fence[0].value.type = kPmixBool;
  fence[0].value.data.flag = true;
  PmixStatus status = pmix.fence(nullptr, 0, fence, 2);
  if (status != kPmixSuccess) return pmix.failed("waiting for the other ranks in PMIx_Fence", status);
  if (launch->rank != 0) {
    PmixProc root = self;
    root.rank = 0;
    PmixValue* value = nullptr;
    const PmixInfo get = limit(deadline);
    status = pmix.get(&root, key, &get, 1, &value);
    if (status != kPmixSuccess || value == nullptr) return pmix.failed("reading the address of rank 0 through PMIx", status);
    if (value->type == kPmixString && value->data.string != nullptr) {
      words = value->data.string;
      std::free(value->data.string);
    }
    std::free(value);
  }
  return read_announcement(words, launch);
}

// PMIx cannot be started a second time, and the program may start MPI later, which uses it too; but mpirun takes a process that ends
// without ending PMIx for a failed one. So it is ended as the process exits; unless an agreement is still under way, which has failed by
// then, and which the end could wait for.
std::atomic<bool> under_way{false};

void end_at_exit(PmixStatus (*finalize)(const PmixInfo*, size_t)) {
  static PmixStatus (*end)(const PmixInfo*, size_t) = nullptr;
  static pid_t owner = 0;
  end = finalize;
  owner = ::getpid();
  std::atexit([] {
    if (::getpid() == owner && !under_way) end(nullptr, 0);  // not in a forked child: the connection to mpirun is the parent's
  });
}

// PMIx as this process has started it.
struct Session {
  Pmix pmix;
  PmixProc self{};
};

Result<const Session*> start_pmix() {
  static std::optional<Session> session;
  if (session) return &*session;
  auto pmix = load_pmix();
  if (!pmix.ok()) return pmix.status();
  Session fresh{*pmix, {}};
  const PmixStatus begun = fresh.pmix.init(&fresh.self, nullptr, 0);
  if (begun != kPmixSuccess) return fresh.pmix.failed("PMIx_Init", begun);
  end_at_exit(fresh.pmix.finalize);
  session = fresh;
  return &*session;
}

// Shared by the thread that talks to PMIx and those that wait for it.
struct Agreement {
  Launch launch;
  std::shared_ptr<BoundedCall> call;
};

// One at a time: another begins only after the last has ended.
Result<std::shared_ptr<Agreement>> begin_agreement(const Launch& launch, Deadline deadline) {
  auto agreement = std::make_shared<Agreement>();
  agreement->launch = launch;
  under_way = true;
  auto call = BoundedCall::start([launch = std::shared_ptr<Launch>(agreement, &agreement->launch), deadline] {
    const auto session = start_pmix();
    Status status = session.ok() ? publish_and_read((*session)->pmix, (*session)->self, launch.get(), deadline) : session.status();
    under_way = false;
    return status;
  });
  if (!call.ok()) {
    under_way = false;
    return call.status();
  }
  agreement->call = *call;
  return agreement;
}

}  // namespace

Status agree_on_root_by_pmix(Launch* launch, Deadline deadline) {
  static std::mutex mutex;
  static auto& last = *new std::shared_ptr<Agreement>;  // its thread may outlive main
  const uint64_t begun = now_ns();
  std::shared_ptr<Agreement> mine;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (last != nullptr) {
      const Status so_far = last->call->wait(Deadline::after_ns(0));
      if (!so_far.ok() && so_far.code() != Code::pending) last = nullptr;  // it failed: once more
    }
    if (last == nullptr) {
      auto fresh = begin_agreement(*launch, deadline);
      if (!fresh.ok()) return fresh.status();
      last = *std::move(fresh);
    }
    mine = last;
  }
  const Status status = mine->call->wait(deadline);
  if (status.code() == Code::pending) {
    return {Code::timeout,
            text("the other ranks did not come to PMIx_Fence within ", seconds(now_ns() - begun), "; all ranks must make a communicator")};
  }
  if (!status.ok()) return status;
  launch->root_host = mine->launch.root_host;
  launch->root_port = mine->launch.root_port;
  launch->secret = mine->launch.secret;
  return {};
}

}  // namespace megadp
