// SPDX-License-Identifier: Apache-2.0
// The 128 bytes of an id, which come over whatever way the caller has, with a rank and a number of ranks.
#include <algorithm>

#include "base/text.h"
#include "control/join/job_key.h"
#include "control/launch/launch.h"
#include "fuzz.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr size_t kSummed = 120;

std::string take(const UniqueId& id, int rank, int nranks) {
  const auto launch = launch_from_id(id, rank, nranks);
  if (!launch.ok()) {
    must(launch.status().code() == Code::invalid && !launch.status().text().empty(), "a bad id is not Code::invalid, with a sentence");
    return launch.status().text();
  }
  must(launch->rank == rank && launch->nranks == nranks && rank >= 0 && rank < nranks, "a rank that is none was taken");
  must(launch->root_host.size() <= 61 && launch->job.size() == 3 + 32, "parts of an id are not where they belong");
  socket_name(*launch, "fuzz");
  auth_key_of(*launch);
  return text("taken", launch->root_port == 0 ? "" : " with a port", launch->root_host.empty() ? "" : " with a host");
}

std::string run(const std::string& input) {
  Bytes bytes(input);
  auto id = bytes.number<UniqueId>();
  const auto rank = bytes.number<int32_t>(), nranks = bytes.number<int32_t>();
  const std::string as_it_came = take(id, rank, nranks);
  // Once more as if it had been made so, or nothing would get past the checksum.
  const auto sum = blake2s({}, std::string_view(reinterpret_cast<const char*>(id.bytes.data()), kSummed));
  std::copy_n(sum.begin(), id.bytes.size() - kSummed, id.bytes.begin() + kSummed);
  return text(as_it_came, "; ", take(id, rank, nranks));
}

std::string made(const char* root, int rank, int nranks) {
  ::setenv("MEGADP_ROOT", root, 1);
  const auto id = create_unique_id();
  must(id.ok(), "no id could be made");
  ::unsetenv("MEGADP_ROOT");
  return bytes_of(*id) + bytes_of(rank) + bytes_of(nranks);
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz(argc, argv, {{made("", 0, 1), made("node7:29400", 3, 4), made("[::1]:1", 0, 1 << 20)}, {}, run});
}
