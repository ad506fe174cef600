// SPDX-License-Identifier: Apache-2.0
// What the cases of messages between two ranks begin with.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "device_array.h"
#include "suite.h"

namespace megadp::test {

constexpr uint64_t kSecondNs = 1'000'000'000;

inline void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

struct Bench {
  std::unique_ptr<Stream> stream;
  std::shared_ptr<Group> group;
  explicit Bench(Rank& rank) {
    stream = rank.must(rank.backend().create_stream("messages"));
    group = rank.must(rank.backend().create_group(rank.everyone()));
    rank.must(group->barrier(*stream, {}));  // operation 1: what goes wrong later must not find a rank still setting up
    finish_set_up(rank, *stream);
    if (!on_device(rank)) return;
    const auto met = rank.world().exchange(rank.everyone(), "bench", "");  // a device's events fail with the World, seen or not
    rank.check(met.ok() || rank.world().failed(), met.status().text());
  }
  Status send(int to, DeviceArray& data, size_t count, DType type) { return group->send_recv(*stream, {to, data.data(), count, type}, {}); }
  Status recv(int from, DeviceArray& data, size_t count, DType type) {
    return group->send_recv(*stream, {}, {from, data.data(), count, type});
  }
};

}  // namespace megadp::test
