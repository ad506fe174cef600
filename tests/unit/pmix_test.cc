// SPDX-License-Identifier: Apache-2.0
// Ranks of Open MPI on several nodes agree on where to meet through PMIx, which waits for all of them: it must not be asked by a call that
// only wants to know how the process was started, and must not hold up a rank for longer than its timeout.
#include <dlfcn.h>

#include <cstdlib>
#include <iostream>

#include "check.h"
#include "control/launch/launch.h"
#include "control/world.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

void* fake_pmix() {
  return ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_NOLOAD);
}

void one_rank_alone() {
  const auto launch = launch_from_environment();
  if (!check(launch.ok(), "refused: " + launch.status().text())) return;
  check(launch->root_by_pmix && launch->root_port == 0, "the root is not known yet");
  check(fake_pmix() == nullptr, "looking at the environment has asked PMIx");

  for (int attempt = 0; attempt < 2; ++attempt) {
    const uint64_t begun = now_ns();
    fails(World::join(*launch, kSecond / 5).status(), Code::timeout, {"MEGADP_ROOT", "did not come to PMIx_Fence within 0."});
    check(now_ns() - begun < 20 * kSecond, "it took much longer than its timeout");
  }
  void* const pmix = fake_pmix();
  void* const open_fence = pmix == nullptr ? nullptr : ::dlsym(pmix, "fake_pmix_open_fence");
  if (!check(open_fence != nullptr, "this is another libpmix, or none")) return;
  reinterpret_cast<void (*)()>(open_fence)();
  Launch complete = *launch;
  const Status status = complete_launch(&complete, Deadline::after_ns(60 * kSecond));
  if (status.ok()) {
    check(!complete.root_host.empty() && complete.root_port != 0, "the root is known");
  } else {  // a machine without a network
    fails(status, Code::system, {"no network address"});
  }
  check(reinterpret_cast<int (*)()>(::dlsym(pmix, "fake_pmix_started"))() == 1, "PMIx was started more than once");
}

}  // namespace

int main() {
  for (const char* setting : {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                              "OMPI_COMM_WORLD_LOCAL_SIZE=1", "PMIX_NAMESPACE=test"}) {
    ::putenv(const_cast<char*>(setting));
  }
  one_rank_alone();
  return finish();
}
