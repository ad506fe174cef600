// SPDX-License-Identifier: Apache-2.0
// Stream sockets: where ranks listen and how they connect. Every descriptor is close-on-exec and non-blocking.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "control/world.h"

namespace megadp {

// Where a rank listens: an abstract UNIX socket (its name has no file, so nothing is left behind), or host:port.
struct Endpoint {
  std::string unix_name;
  std::string host;
  uint16_t port = 0;

  bool is_unix() const noexcept { return port == 0; }
  std::string describe() const;
};

// A host given as a number is bound as it is; a name is bound on all interfaces, because /etc/hosts often maps a machine's own name to
// its loopback, where no other node could reach it. A number that is no address of this machine is Code::invalid. Two sockets where IPv6
// and IPv4 cannot share one.
Result<std::vector<Fd>> listen_at(const Endpoint& endpoint);

// One attempt. Fails with Code::system and the reason; every reason may pass with time, so callers try again until their own deadline.
Result<Fd> connect_to(const Endpoint& endpoint, Deadline deadline);

// A waiting connection; an invalid Fd when there is none. Code::system when descriptors or memory have run out.
Result<Fd> accept_from(const Fd& listener);

struct PeerCredentials {
  pid_t pid = 0;  // 0: of another pid namespace
  uid_t uid = 0;
};
std::string describe(const PeerCredentials& process);  // "process 71 of user 1000"
// Of the process that connected, or that listened; nothing on TCP.
std::optional<PeerCredentials> peer_credentials(int fd);
// Of the process that listens at an abstract UNIX socket of this name, if there is one.
std::optional<PeerCredentials> who_listens_at(const std::string& unix_name);

// A TCP socket's own end, and the other: a number, as getaddrinfo takes it, and the port. The host is empty if there is no such end.
struct SocketAddress {
  std::string host;
  uint16_t port = 0;
  bool loopback = false;
};
SocketAddress own_end(int fd);
SocketAddress other_end(int fd);

// Listens at this address (a number) and a port that the system chooses, which own_end() tells.
Result<Fd> listen_at_free_port(const std::string& address);
// What is said where it has none left to choose.
Status no_free_port(const std::string& address);

}  // namespace megadp
