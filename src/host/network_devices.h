// SPDX-License-Identifier: Apache-2.0
// Which of this machine's network devices lead to the other nodes of a job: a transport listens at no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace megadp::host {

// The names of the devices that the routes to these addresses (numbers) begin with, each once. If one of them is empty or has no route,
// all devices that are up, but not the loopback.
std::vector<std::string> devices_towards(const std::vector<std::string>& addresses);

// Whether the system has so many TCP ports to give at each of these devices, all that are up where none is named; otherwise Code::system.
Status check_free_ports(const std::vector<std::string>& devices, size_t count);

// The sockets of this process that listen, by inode.
std::vector<uint64_t> listening_sockets();

// For a library that listens by itself and hands out `name`, some bytes with its address and port in them: connections to those sockets
// that come over the loopback, as all from this machine do whatever address they ask for, are dropped from now on. Not to `others`, which
// listened before: a port of the program's own may be found in the name by chance. Returns how many sockets were found and could be
// treated so.
int refuse_own_machine(std::string_view name, const std::vector<uint64_t>& others);

}  // namespace megadp::host
