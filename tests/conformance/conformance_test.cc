// SPDX-License-Identifier: Apache-2.0
// conformance_test BACKEND RANKS [CASE…]: runs the suite on a backend (host, host-2-threads or host-3-threads; cuda; cuda-standin, see
// tests/cuda/standin.h) with ranks as threads on the test World ("test-world", or "test-hosts" for two nodes), or as threads ("threads") or
// processes ("processes") on the real World. Cases are named by the start of their names; --ranks=1,2 leaves out all other numbers of
// ranks, and another --ranks= says with which to run the cases that have none of these.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <sstream>

#include "api/backends.h"
#include "cuda/backend.h"
#include "host/backend.h"
#include "standin.h"
#include "suite.h"

namespace megadp::test {

void Suite::run(const Setting& setting, int size, const std::function<void(Rank&)>& body) {
  if (!setting.sizes.empty() && std::find(setting.sizes.begin(), setting.sizes.end(), size) == setting.sizes.end()) return;
  const Outcome outcome = run_ranks(setting, size, body);
  outcome_.checks += outcome.checks;
  for (const std::string& finding : outcome.findings) outcome_.findings.push_back(text("of ", size, " ranks, ", finding));
}

void Suite::record(bool good, const std::string& what) {
  outcome_.checks += 1;
  if (!good) outcome_.findings.push_back(what);
}

Status finish(Stream& stream) {
  Result<std::shared_ptr<Event>> event = stream.record();
  if (!event.ok()) return event.status();
  return (*event)->wait(Deadline::after_ns(300'000'000'000));
}

void finish_set_up(Rank& rank, Stream& stream) {
  const Status met = finish(stream);
  if (met.ok()) return;
  const std::string why = rank.world().failure().text();
  rank.check(!why.empty() && why.find("barrier (operation 1 of the group") == std::string::npos, met.text());
}

namespace {

// A case (or those that begin so, with a dot at the end) that a backend is excused from; a reason that does not hold any more is found by
// running the case by name.
struct Skip {
  const char* name;
  const char* reason;
};

using Open = Result<std::shared_ptr<Backend>> (*)(std::shared_ptr<World> world);

struct Driver {
  const char* name;
  Open open;
  std::vector<Skip> skips;
};

template <BackendKind kind>
Result<std::shared_ptr<Backend>> open_kind(std::shared_ptr<World> world) {
  return open_backend({.kind = kind, .exact_sums = true}, std::move(world));
}

// Pieces as small as they may be: nearly all that these cases move is done by several threads.
template <int threads>
Result<std::shared_ptr<Backend>> open_with_threads(std::shared_ptr<World> world) {
  return host::HostBackend::open(std::move(world), {.threads = threads, .threads_always = true, .piece_bytes = 1});
}

Result<std::shared_ptr<Backend>> open_standin(std::shared_ptr<World> world) {
  auto host = open_backend({.kind = BackendKind::host}, world);
  if (!host) return host.status();
  return cuda::CudaBackend::open(*megadp_cuda_plugin(), std::move(world), *std::move(host), {.exact = true});
}

// What holds on the host only.
std::vector<Skip> device_skips() {
  return {{"failure.different_calls", "a failure ends the whole context, which then has no more streams: see cuda.lost_ranks"},
          {"failure.dropped_operation", "a kernel that cannot be is a failure of the context, not of its stream"},
          {"failure.failed_work", "a kernel that cannot be is a failure of the context, not of its stream"},
          {"stream.failure_sticks", "a kernel that cannot be is a failure of the context, not of its stream"},
          {"lifetime.dropped_one_after_the_other", "a collective on a device ends with its context"},
          {"stream.destroyed_while_waiting", "what is on a device's stream goes on without it"},
          {"exchange.other_way", "only ranks of one node compare, as they launch: see cuda.capi_halo"},
          {"uneven.counts_that_do_not_meet", "on a device nobody compares what two ranks expect of each other in an all_to_all_v"}};
}

std::vector<Skip> nccl_skips() {
  std::vector<Skip> skips = device_skips();
  skips.push_back({"p2p.nothing_waits", "NCCL is done with a message of nothing as soon as it is sent"});
  return skips;
}

const std::vector<Driver>& drivers() {
  static const std::vector<Driver> all = {{"host", &open_kind<BackendKind::host>, {}},
                                          {"host-2-threads", &open_with_threads<2>, {}},
                                          {"host-3-threads", &open_with_threads<3>, {}},
                                          {"cuda", &open_kind<BackendKind::cuda>, nccl_skips()},
                                          {"cuda-standin", &open_standin, device_skips()}};
  return all;
}

const char* skip_reason(const Driver& driver, const char* name) {
  for (const Skip& skip : driver.skips) {
    const size_t length = std::strlen(skip.name);
    if (std::strncmp(skip.name, name, skip.name[length - 1] == '.' ? length : length + 1) == 0) return skip.reason;
  }
  return nullptr;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& list : {window_cases(), memory_cases(), random_cases(), group_cases(), order_cases(), failure_cases(), stream_cases(),
                           kernel_cases(), lifetime_cases(), p2p_cases(), p2p_failure_cases(), uneven_cases(), exchange_cases()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

bool chosen(const char* name, const std::vector<std::string>& wanted) {
  for (const std::string& start : wanted) {
    if (std::string(name).rfind(start, 0) == 0) return true;
  }
  return wanted.empty();
}

// With the first of these lists of sizes with which the case looks at anything; empty: with all sizes.
Outcome run_with(const std::vector<std::vector<int>>& sizes, Setting setting, const Case& one) {
  for (const std::vector<int>& some : sizes) {
    setting.sizes = some;
    Suite suite(setting);
    one.run(suite);
    const Outcome& outcome = suite.outcome();
    if (outcome.checks > 0 || !outcome.findings.empty()) return outcome;
  }
  return {};
}

int run_all(const Driver& driver, Ranks ranks, const std::vector<std::vector<int>>& sizes, const std::vector<std::string>& wanted) {
  int failures = 0, ran = 0, checks = 0;
  for (const Case& one : all_cases()) {
    if (!chosen(one.name, wanted)) continue;
    const char* reason = skip_reason(driver, one.name);
    if (one.needs_processes && ranks != Ranks::processes) reason = "it needs ranks as processes";
    if (reason != nullptr && (wanted.empty() || one.needs_processes)) {
      std::cout << "skipped " << one.name << ": " << reason << std::endl;
      continue;
    }
    Setting setting;
    setting.ranks = ranks;
    setting.open = driver.open;
    if (driver.open == &open_kind<BackendKind::cuda>) setting.cycles = 20;  // NCCL takes half a second for each communicator
    const uint64_t begin_ns = now_ns();
    const Outcome outcome = run_with(sizes, setting, one);
    if (outcome.checks == 0 && outcome.findings.empty() && !sizes.front().empty()) {
      std::cout << "skipped " << one.name << ": it needs other numbers of ranks" << std::endl;
      continue;
    }
    const bool good = outcome.findings.empty() && outcome.checks > 0;
    std::cout << (good ? "ok      " : "FAILED  ") << one.name << " (" << outcome.checks << " checks, " << (now_ns() - begin_ns) / 1'000'000
              << " ms)" << std::endl;
    for (size_t i = 0; i < outcome.findings.size() && i < 20; ++i) std::cout << "  " << outcome.findings[i] << std::endl;
    ++ran;
    checks += outcome.checks;
    failures += good ? 0 : 1;
  }
  if (driver.open == &open_standin) standin::wait_for_threads();
  std::cout << ran << " cases, " << checks << " checks, " << failures << " cases failed" << std::endl;
  return failures == 0 && ran > 0 ? 0 : 1;
}

}  // namespace
}  // namespace megadp::test

int main(int argc, char** argv) {
  using namespace megadp::test;
  const std::string name = argc > 1 ? argv[1] : "", mode = argc > 2 ? argv[2] : "";
  const std::pair<const char*, Ranks> modes[] = {{"test-world", Ranks::on_test_world},
                                                 {"test-hosts", Ranks::on_test_hosts},
                                                 {"test-pairs", Ranks::on_test_pairs},
                                                 {"threads", Ranks::threads},
                                                 {"processes", Ranks::processes}};
  std::vector<std::string> wanted(argv + (argc < 3 ? argc : 3), argv + argc);
  std::vector<std::vector<int>> sizes;
  for (; !wanted.empty() && wanted[0].rfind("--ranks=", 0) == 0; wanted.erase(wanted.begin())) {
    std::istringstream list(wanted[0].substr(8));
    sizes.emplace_back();
    for (std::string size; std::getline(list, size, ',');) sizes.back().push_back(std::atoi(size.c_str()));
  }
  if (sizes.empty()) sizes.emplace_back();
  for (const Driver& driver : drivers()) {
    for (const auto& [known, ranks] : modes) {
      if (name == driver.name && mode == known) return run_all(driver, ranks, sizes, wanted);
    }
  }
  std::cerr << "usage: conformance_test host|cuda|cuda-standin test-world|test-hosts|test-pairs|threads|processes [--ranks=N,N...]... "
               "[CASE...]\n";
  return 2;
}
