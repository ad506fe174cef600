// SPDX-License-Identifier: Apache-2.0
// Routes are asked of the kernel by connecting a datagram socket, which sends nothing.
#include "host/network_devices.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/fd.h"
#include "control/net/socket.h"

namespace megadp::host {
namespace {

struct FreeDevices {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

std::unique_ptr<ifaddrs, FreeDevices> all_addresses() {
  ifaddrs* list = nullptr;
  return std::unique_ptr<ifaddrs, FreeDevices>(::getifaddrs(&list) == 0 ? list : nullptr);
}

// Without the label that a second address may have: "eth0:1" is an address of eth0.
std::string device_of(const ifaddrs& entry) {
  const std::string name = entry.ifa_name;
  return name.substr(0, name.find(':'));
}

bool same_address(const sockaddr* a, const sockaddr_storage& b) {
  if (a == nullptr || a->sa_family != b.ss_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr == reinterpret_cast<const sockaddr_in*>(&b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 && std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                                                 &reinterpret_cast<const sockaddr_in6*>(&b)->sin6_addr, sizeof(in6_addr)) == 0;
}

// Of IPv4, if the device has one; null: it has none, or is none.
const ifaddrs* first_address(const ifaddrs* own, const std::string& device) {
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = own; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == family && device_of(*entry) == device) return entry;
    }
  }
  return nullptr;
}

// Empty if there is no route.
std::string device_towards(const std::string& address, const ifaddrs* own) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* there = nullptr;
  if (::getaddrinfo(address.c_str(), "9", &hints, &there) != 0) return "";  // any port: nothing is sent
  const Fd socket(::socket(there->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage here{};
  socklen_t length = sizeof here;
  const bool routed = ::connect(socket.get(), there->ai_addr, there->ai_addrlen) == 0 &&
                      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &length) == 0;
  ::freeaddrinfo(there);
  for (const ifaddrs* entry = own; routed && entry != nullptr; entry = entry->ifa_next) {
    if (same_address(entry->ifa_addr, here)) return device_of(*entry);
  }
  return "";
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

template <class Number>
bool holds(std::string_view bytes, const Number& number) {
  return bytes.find(std::string_view(reinterpret_cast<const char*>(&number), sizeof number)) != std::string_view::npos;
}

// act(fd, inode) for each socket of this process that listens.
template <class Act>
void each_listener(const Act& act) {
  const std::unique_ptr<DIR, CloseFolder> folder(::opendir("/proc/self/fd"));
  for (const dirent* entry = nullptr; folder && (entry = ::readdir(folder.get())) != nullptr;) {
    const int fd = std::atoi(entry->d_name);
    int listening = 0;
    socklen_t size = sizeof listening;
    struct stat file {};
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0 || ::fstat(fd, &file) != 0) continue;
    act(fd, file.st_ino);
  }
}

bool is_named(int fd, std::string_view name) {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) != 0) return false;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(at);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(at);
  if (at.ss_family == AF_INET) return holds(name, v4.sin_port) && holds(name, v4.sin_addr);
  return at.ss_family == AF_INET6 && holds(name, v6.sin6_port) && holds(name, v6.sin6_addr);
}

bool drop_what_comes_over_loopback(int fd) {
  // A program for the kernel: nothing is kept of a packet that has come in over this device, of others all.
  const unsigned loopback = ::if_nametoindex("lo");
  std::array<sock_filter, 4> steps{{{BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<uint32_t>(SKF_AD_OFF + SKF_AD_IFINDEX)},
                                    {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, loopback},
                                    {BPF_RET | BPF_K, 0, 0, 0},
                                    {BPF_RET | BPF_K, 0, 0, UINT32_MAX}}};
  const sock_fprog program{static_cast<unsigned short>(steps.size()), steps.data()};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

}  // namespace

std::vector<std::string> devices_towards(const std::vector<std::string>& addresses) {
  const auto own = all_addresses();
  std::vector<std::string> devices;
  const auto add = [&](const std::string& name) {
    if (std::find(devices.begin(), devices.end(), name) == devices.end()) devices.push_back(name);
  };
  bool all_found = true;
  for (const std::string& address : addresses) {
    const std::string device = address.empty() ? "" : device_towards(address, own.get());
    if (device.empty()) {
      all_found = false;
    } else {
      add(device);
    }
  }
  for (const ifaddrs* entry = all_found ? nullptr : own.get(); entry != nullptr; entry = entry->ifa_next) {
    const bool usable = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0 && entry->ifa_addr != nullptr;
    if (usable && (entry->ifa_addr->sa_family == AF_INET || entry->ifa_addr->sa_family == AF_INET6)) add(device_of(*entry));
  }
  return devices;
}

Status check_free_ports(const std::vector<std::string>& devices, size_t count) {
  const auto own = all_addresses();
  for (const std::string& device : devices.empty() ? devices_towards({""}) : devices) {
    const ifaddrs* const entry = first_address(own.get(), device);
    if (entry == nullptr) continue;  // no device of the system's, perhaps one of the library's
    if (Status room = check_descriptors(count); !room) return room;
    const socklen_t length = entry->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::vector<Fd> sockets;  // which hold their ports until all are found
    while (sockets.size() < count) {
      sockets.emplace_back(::socket(entry->ifa_addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      // Another failure the library will meet itself, and tell.
      if (!sockets.back().valid() || ::bind(sockets.back().get(), entry->ifa_addr, length) == 0) continue;
      if (errno != EADDRINUSE) break;
      char number[NI_MAXHOST] = "";
      ::getnameinfo(entry->ifa_addr, length, number, sizeof number, nullptr, 0, NI_NUMERICHOST);
      return no_free_port(number);
    }
  }
  return {};
}

std::vector<uint64_t> listening_sockets() {
  std::vector<uint64_t> inodes;
  each_listener([&](int, uint64_t inode) { inodes.push_back(inode); });
  return inodes;
}

int refuse_own_machine(std::string_view name, const std::vector<uint64_t>& others) {
  int treated = 0;
  each_listener([&](int fd, uint64_t inode) {
    const bool is_other = std::find(others.begin(), others.end(), inode) != others.end();
    if (!is_other && is_named(fd, name) && drop_what_comes_over_loopback(fd)) ++treated;
  });
  return treated;
}

}  // namespace megadp::host
