// SPDX-License-Identifier: Apache-2.0
// Of the sockets that listen in this process only a library's own are closed to this machine.
#include "host/network_devices.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>

#include "base/fd.h"
#include "check.h"

using namespace megadp;
using namespace megadp::test;

namespace {

// At 127.0.0.1, and a port of the system's choice.
struct Listener {
  Listener() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    const bool listens = ::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), length) == 0 && ::listen(socket.get(), 4) == 0 &&
                         ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0;
    check(listens, "a socket listens");
  }
  std::string name() const {
    std::string bytes(sizeof at.sin_port + sizeof at.sin_addr, '\0');
    std::memcpy(bytes.data(), &at.sin_port, sizeof at.sin_port);
    std::memcpy(bytes.data() + sizeof at.sin_port, &at.sin_addr, sizeof at.sin_addr);
    return bytes;
  }
  bool answers() const {
    const Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(client.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at);
    pollfd connected{client.get(), POLLOUT, 0};
    return ::poll(&connected, 1, 300) == 1;
  }

  Fd socket;
  sockaddr_in at{};
};

// The port of one that was there before may be found in the name by chance: here it is the name.
void those_that_listened_before_are_let_be() {
  const Listener programs;
  const std::vector<uint64_t> before = host::listening_sockets();
  const Listener librarys, of_another_thread;
  check_equal(host::refuse_own_machine("of the library: " + librarys.name() + programs.name(), before), 1, "sockets treated");
  check(programs.answers(), "the program's own listener answers nobody on this machine");
  check(of_another_thread.answers(), "a listener that is not named answers nobody on this machine");
  check(!librarys.answers(), "the library's listener answers this machine");
}

}  // namespace

int main() {
  those_that_listened_before_are_let_be();
  return finish();
}
