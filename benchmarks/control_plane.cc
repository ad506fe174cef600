// SPDX-License-Identifier: Apache-2.0
// What the control plane costs: bytes and milliseconds of its small collectives, by the number of ranks. The ranks are threads that meet
// over TCP on the loopback device, whose counters tell the bytes with all headers. So run it where nothing else uses that device:
//
//   unshare --net sh -c 'ip link set lo up; build/bin/bench_control_plane 16 64 128'
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/text.h"
#include "control/launch/launch.h"
#include "control/world.h"

using namespace megadp;

namespace {

constexpr uint64_t kTimeoutNs = 120'000'000'000;
constexpr int kRounds = 21;
constexpr size_t kConfigurationBytes = 150;  // as long as the text of an optimizer's configuration

using Worlds = std::vector<std::shared_ptr<World>>;

// Of this network namespace; /sys shows that of whoever mounted it.
uint64_t bytes_sent() {
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find("lo:");
    if (colon == std::string::npos) continue;
    std::istringstream numbers(line.substr(colon + 3));
    uint64_t received = 0;  // what this device sends it receives
    numbers >> received;
    return received;
  }
  return 0;
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.text().c_str());
  std::exit(1);
}

void on_all(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

void measure(const char* what, int ranks, int rounds, const std::function<void(int)>& body) {
  std::vector<double> milliseconds;
  std::vector<double> kilobytes;
  for (int round = 0; round < rounds; ++round) {
    const uint64_t bytes = bytes_sent(), begun = now_ns();
    on_all(ranks, body);
    milliseconds.push_back(static_cast<double>(now_ns() - begun) * 1e-6);
    kilobytes.push_back(static_cast<double>(bytes_sent() - bytes) * 1e-3);
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::sort(kilobytes.begin(), kilobytes.end());
  const size_t middle = milliseconds.size() / 2;
  std::printf("%6d  %-34s %10.2f %12.1f %14.2f\n", ranks, what, milliseconds[middle], kilobytes[middle], kilobytes[middle] / ranks);
}

void run(int ranks) {
  Worlds worlds(static_cast<size_t>(ranks));
  std::vector<int> everyone(worlds.size());
  for (size_t r = 0; r < everyone.size(); ++r) everyone[r] = static_cast<int>(r);
  measure("join", ranks, 1, [&](int rank) {
    Launch launch;
    launch.rank = rank;
    launch.nranks = ranks;
    launch.job = text("bench ", ::getpid(), " ", ranks);
    launch.root_host = "127.0.0.1";
    launch.root_port = static_cast<uint16_t>(21000 + ranks);
    auto world = World::join(launch, kTimeoutNs);
    must(world.status());
    worlds[static_cast<size_t>(rank)] = *world;
  });
  const std::string configuration(kConfigurationBytes, 'x');
  const auto world = [&](int rank) -> World& { return *worlds[static_cast<size_t>(rank)]; };
  measure("threads of this program alone", ranks, kRounds, [](int) {});
  measure("compare, 150 bytes", ranks, kRounds, [&](int rank) { must(world(rank).compare(everyone, "bench", configuration).status()); });
  measure("broadcast, 150 bytes", ranks, kRounds,
          [&](int rank) { must(world(rank).broadcast(everyone, "bench", configuration).status()); });
  measure("exchange, 150 bytes", ranks, kRounds, [&](int rank) { must(world(rank).exchange(everyone, "bench", configuration).status()); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s RANKS...\n", argv[0]);
    return 2;
  }
  std::printf("%6s  %-34s %10s %12s %14s\n", "ranks", "what", "ms", "kB in all", "kB a rank");
  for (int i = 1; i < argc; ++i) run(std::atoi(argv[i]));
  return 0;
}
