// SPDX-License-Identifier: Apache-2.0
// Sockets by way of the system calls.
#include "control/net/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/text.h"
#include "control/interrupt.h"
#include "control/net/bounded_call.h"

namespace megadp {

namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr int kBacklog = 4096;
constexpr uint64_t kAttemptNs = 3'000'000'000;  // one address that swallows packets must not use up the whole deadline

struct AddressList {
  struct Free {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  };
  std::unique_ptr<addrinfo, Free> head;
};

bool is_this_machine(const std::string& host) {
  utsname name{};
  return host == "localhost" || (::uname(&name) == 0 && host == name.nodename);
}

// Waits for name servers, however long they take, if the host is a name and not a number.
Status look_up_waiting(const Endpoint& endpoint, int flags, AddressList* out) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const bool any_own = (flags & AI_PASSIVE) != 0 && (flags & AI_NUMERICHOST) == 0;
  const std::string port = std::to_string(endpoint.port);
  int error = ::getaddrinfo(any_own ? nullptr : endpoint.host.c_str(), port.c_str(), &hints, &list);
  // Launchers name rank 0 by the name of its machine, and a container may know neither its own nor "localhost": loopback, by no name.
  if (error != 0 && (flags & AI_NUMERICHOST) == 0 && is_this_machine(endpoint.host)) {
    error = ::getaddrinfo(nullptr, port.c_str(), &hints, &list);
  }
  if (error == EAI_SYSTEM) return system_error(text("looking up ", endpoint.host), errno);
  if (error != 0) return {Code::system, text("looking up ", endpoint.host, ": ", ::gai_strerror(error))};
  out->head.reset(list);
  return {};
}

// For what needs no name server: numbers, and this machine's own addresses.
Result<AddressList> look_up_here(const Endpoint& endpoint, int flags) {
  AddressList list;
  Status status = look_up_waiting(endpoint, flags, &list);
  if (!status.ok()) return status;
  return list;
}

Result<AddressList> look_up(const Endpoint& endpoint, Deadline deadline) {
  auto number = look_up_here(endpoint, AI_NUMERICHOST);
  if (number.ok()) return number;
  auto list = std::make_shared<AddressList>();
  auto call = BoundedCall::start([endpoint, list] {
    Status status = look_up_waiting(endpoint, AI_ADDRCONFIG, list.get());
    // A machine whose only address is ::1 or 127.0.0.1 counts as having none for AI_ADDRCONFIG.
    return status.ok() ? status : look_up_waiting(endpoint, 0, list.get());
  });
  if (!call.ok()) return call.status();
  const uint64_t begun = now_ns();
  Status status = (*call)->wait(deadline);
  if (status.code() == Code::pending) {
    const uint64_t waited_ms = (now_ns() - begun) / 1'000'000;
    return Status(Code::system, text("looking up ", endpoint.host, ": the name servers have not answered for ", waited_ms, " ms"));
  }
  if (!status.ok()) return status;
  return std::move(*list);
}

sockaddr_un abstract_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

Result<Fd> listen_unix(const Endpoint& endpoint) {
  Fd fd(::socket(AF_UNIX, kSocketFlags, 0));
  if (!fd.valid()) return system_error("making a UNIX socket", errno);
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(endpoint.unix_name, &length);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return system_error(text("listening at ", endpoint.describe()), errno);
  }
  return fd;
}

// error: where it fails to listen, why.
Result<Fd> listen_address(const std::string& place, const addrinfo& address, bool both_families, int* error = nullptr) {
  Fd fd(::socket(address.ai_family, kSocketFlags, 0));
  if (!fd.valid()) return system_error("making a TCP socket", errno);
  const int on = 1;
  const int v6only = both_families ? 0 : 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.ai_family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only);
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const int why = errno;
    if (error != nullptr) *error = why;
    return system_error(text("listening at ", place), why);
  }
  return fd;
}

Result<std::vector<Fd>> listen_tcp(const Endpoint& endpoint) {
  auto literal = look_up_here(endpoint, AI_NUMERICHOST | AI_PASSIVE);
  if (literal.ok()) {
    int error = 0;
    auto fd = listen_address(endpoint.describe(), *literal->head, false, &error);
    if (fd.ok()) {
      std::vector<Fd> fds;
      fds.push_back(*std::move(fd));
      return fds;
    }
    if (error != EADDRNOTAVAIL) return fd.status();
    // Nobody would ever come, and all would wait for that. Names are not compared: they may mean different things elsewhere.
    return invalid("the root address ", endpoint.describe(),
                   " is no address of this machine, where rank 0 was started. It must be one that ",
                   "the other nodes reach this machine at; where a router translates it, give its name instead of the number");
  }
  auto any = look_up_here(endpoint, AI_PASSIVE);
  if (!any.ok()) return any.status();
  std::vector<Fd> fds;
  Status failure;
  // IPv6 first: one socket of it takes both families where the system allows that; then IPv4 reports "in use" and is not needed.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* a = any->head.get(); a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      auto fd = listen_address(endpoint.describe(), *a, true);
      if (fd.ok()) {
        fds.push_back(*std::move(fd));
      } else if (failure.ok()) {
        failure = fd.status();
      }
    }
    if (!fds.empty()) return fds;
  }
  if (failure.ok()) failure = Status(Code::system, text("listening at ", endpoint.describe(), ": this machine has no address"));
  return failure;
}

// Waits for a connection that is under way and returns its errno.
int finish_connect(int fd, Deadline deadline) {
  pollfd p{fd, POLLOUT, 0};
  for (;;) {
    const uint64_t left_ms = ask_by(deadline).left_ns() / 1'000'000 + 1;
    const int n = ::poll(&p, 1, static_cast<int>(std::min<uint64_t>(left_ms, 1000)));
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) break;
    if (interrupted()) return ECANCELED;
    if (deadline.passed()) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

// A client that connects to a free port of its own machine may be given that very port and so reach itself.
bool connected_to_itself(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof own, peer_length = sizeof peer;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) return false;
  return own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

void set_no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Result<Fd> connect_unix(const Endpoint& endpoint) {
  Fd fd(::socket(AF_UNIX, kSocketFlags, 0));
  if (!fd.valid()) return system_error("making a UNIX socket", errno);
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(endpoint.unix_name, &length);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return system_error(text("connecting to ", endpoint.describe()), errno);
  }
  return fd;
}

Result<Fd> connect_tcp(const Endpoint& endpoint, Deadline deadline) {
  auto addresses = look_up(endpoint, deadline);
  if (!addresses.ok()) return addresses.status();
  Status failure;
  for (const addrinfo* a = addresses->head.get(); a != nullptr; a = a->ai_next) {
    Fd fd(::socket(a->ai_family, kSocketFlags, 0));
    if (!fd.valid()) {
      failure = system_error("making a TCP socket", errno);
      continue;
    }
    int error = 0;
    if (::connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0) {
      error = errno;
      const uint64_t left = std::min(deadline.left_ns(), kAttemptNs);
      if (error == EINPROGRESS) error = finish_connect(fd.get(), Deadline::after_ns(left));
    }
    if (error == 0 && connected_to_itself(fd.get())) error = ECONNREFUSED;
    if (error == 0) {
      set_no_delay(fd.get());
      return fd;
    }
    failure = system_error(text("connecting to ", endpoint.describe()), error);
  }
  return failure;
}

}  // namespace

std::string Endpoint::describe() const {
  if (is_unix()) return text("the UNIX socket @", unix_name);
  if (host.find(':') != std::string::npos) return text("[", host, "]:", port);
  return text(host, ":", port);
}

Result<std::vector<Fd>> listen_at(const Endpoint& endpoint) {
  if (!endpoint.is_unix()) return listen_tcp(endpoint);
  auto fd = listen_unix(endpoint);
  if (!fd.ok()) return fd.status();
  std::vector<Fd> fds;
  fds.push_back(*std::move(fd));
  return fds;
}

Result<Fd> connect_to(const Endpoint& endpoint, Deadline deadline) {
  return endpoint.is_unix() ? connect_unix(endpoint) : connect_tcp(endpoint, deadline);
}

Result<Fd> accept_from(const Fd& listener) {
  for (;;) {
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      set_no_delay(fd.get());  // refused by UNIX sockets, which have no delay
      return fd;
    }
    switch (errno) {
      case EINTR:
      case ECONNABORTED:
        continue;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return system_error("accepting a connection", errno);
      default:
        return Fd();  // EAGAIN, or an error of the network that belongs to a connection which is gone already
    }
  }
}

std::optional<PeerCredentials> peer_credentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || length != sizeof credentials) return std::nullopt;
  // TCP sockets answer too, with nobody.
  if (credentials.uid == static_cast<uid_t>(-1)) return std::nullopt;
  return PeerCredentials{credentials.pid, credentials.uid};
}

std::string describe(const PeerCredentials& process) {
  if (process.pid == 0) return text("a process of another container, of user ", process.uid);
  return text("process ", process.pid, " of user ", process.uid);
}

std::optional<PeerCredentials> who_listens_at(const std::string& unix_name) {
  const auto socket = connect_unix({unix_name, "", 0});
  return socket.ok() ? peer_credentials(socket->get()) : std::nullopt;
}

namespace {

SocketAddress readable(const sockaddr_storage& address, socklen_t length) {
  SocketAddress end;
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return end;
  if (::getnameinfo(any, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) return end;
  end.host = host;
  end.port = static_cast<uint16_t>(std::atoi(port));
  constexpr std::string_view kMapped = "::ffff:";  // of IPv4, on a socket that takes both families
  if (end.host.rfind(kMapped, 0) == 0 && end.host.find('.') != std::string::npos) end.host.erase(0, kMapped.size());
  end.loopback = end.host == "::1" || end.host.rfind("127.", 0) == 0;
  return end;
}

}  // namespace

SocketAddress own_end(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? readable(address, length) : SocketAddress();
}

SocketAddress other_end(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  return ::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? readable(address, length) : SocketAddress();
}

Result<Fd> listen_at_free_port(const std::string& address) {
  auto own = look_up_here({"", address, 0}, AI_NUMERICHOST | AI_PASSIVE);
  if (!own.ok()) return own.status();
  int error = 0;
  auto fd = listen_address(text("a free port of ", address), *own->head, false, &error);
  if (error == EADDRINUSE) return no_free_port(address);
  return fd;
}

Status no_free_port(const std::string& address) {
  const Fd file(::open("/proc/sys/net/ipv4/ip_local_port_range", O_RDONLY | O_CLOEXEC));
  char range[64] = "";
  const ssize_t length = file.valid() ? ::read(file.get(), range, sizeof range - 1) : 0;
  range[std::max<ssize_t>(length, 0)] = '\0';
  unsigned first = 0, last = 0;
  const bool known = std::sscanf(range, "%u %u", &first, &last) == 2;
  return {Code::system, text("no free port at ", address, ": all that the system may give (net.ipv4.ip_local_port_range",
                             known ? text(", ", first, " to ", last) : "", ") are taken")};
}

}  // namespace megadp
