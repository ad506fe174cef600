// SPDX-License-Identifier: Apache-2.0
// Which of this machine's network devices lead to the other nodes of a job: a transport listens at no other.
#pragma once

#include <cstddef>
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

// For a library that listens by itself and hands out `name`, some bytes with its address and port in them: connections to those sockets
// that come over the loopback, as all from this machine do whatever address they ask for, are dropped from now on. Returns how many
// sockets were found and could be treated so.
int refuse_own_machine(std::string_view name);

}  // namespace megadp::host
