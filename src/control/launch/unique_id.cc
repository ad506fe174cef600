// SPDX-License-Identifier: Apache-2.0
// The id that a caller passes around instead of having a launcher.
//
//   0        7         8        40      56     58       59 … 119     120
//   │ magic  │ version │ secret │ name  │ port │ length │ root host  │ checksum
//
// Secret and name are random. Port and length are 0 when all ranks are on one node. The checksum notices what a text channel or a wrong
// buffer does to an id; it is no protection against anybody.

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "control/join/job_key.h"
#include "control/launch/launch.h"
#include "control/launch/variables.h"

namespace megadp {
namespace {

constexpr char kMagic[] = "MDPUID";  // with its NUL
constexpr uint8_t kVersion = 2;
constexpr size_t kVersionAt = 7, kSecretAt = 8, kNameAt = 40, kPortAt = 56, kLengthAt = 58, kHostAt = 59, kChecksumAt = 120;
constexpr size_t kNameSize = kPortAt - kNameAt;
constexpr size_t kMaxHost = kChecksumAt - kHostAt;

std::array<uint8_t, 8> checksum_of(const std::array<uint8_t, 128>& bytes) {
  const auto digest = blake2s({}, std::string_view(reinterpret_cast<const char*>(bytes.data()), kChecksumAt));
  std::array<uint8_t, 8> sum;
  std::copy(digest.begin(), digest.begin() + 8, sum.begin());
  return sum;
}

}  // namespace

Result<UniqueId> create_unique_id() {
  auto root = root_from_environment();
  if (!root.ok()) return root.status();
  if (root->host.size() > kMaxHost) {
    return invalid("MEGADP_ROOT: the host \"", root->host, "\" has ", root->host.size(), " letters, and an id has room for ", kMaxHost);
  }
  UniqueId id;
  uint8_t* const b = id.bytes.data();
  std::memcpy(b, kMagic, sizeof kMagic);
  b[kVersionAt] = kVersion;
  Status status = fill_random(b + kSecretAt, kPortAt - kSecretAt);
  if (!status.ok()) return status;
  b[kPortAt] = static_cast<uint8_t>(root->port);
  b[kPortAt + 1] = static_cast<uint8_t>(root->port >> 8);
  b[kLengthAt] = static_cast<uint8_t>(root->host.size());
  std::memcpy(b + kHostAt, root->host.data(), root->host.size());
  const auto sum = checksum_of(id.bytes);
  std::copy(sum.begin(), sum.end(), id.bytes.begin() + kChecksumAt);
  return id;
}

Result<Launch> launch_from_id(const UniqueId& id, int rank, int nranks) {
  const uint8_t* const b = id.bytes.data();
  if (std::all_of(id.bytes.begin(), id.bytes.end(), [](uint8_t byte) { return byte == 0; })) {
    return invalid("id: all its bytes are zero; it must be made by mdp_unique_id_create on one rank and sent to the others");
  }
  if (std::memcmp(b, kMagic, sizeof kMagic) != 0) return invalid("id: these 128 bytes were not made by mdp_unique_id_create");
  if (b[kVersionAt] != kVersion) {
    return invalid("id: it is of version ", static_cast<int>(b[kVersionAt]), ", this library reads version ", static_cast<int>(kVersion));
  }
  const auto sum = checksum_of(id.bytes);
  const size_t length = b[kLengthAt];
  if (!std::equal(sum.begin(), sum.end(), id.bytes.begin() + kChecksumAt) || length > kMaxHost) {
    return invalid("id: it was damaged on its way; all 128 bytes must arrive as mdp_unique_id_create wrote them");
  }
  if (nranks < 1) return invalid("size is ", nranks, ": with an id it must be at least 1");
  if (rank < 0 || rank >= nranks) return invalid("rank is ", rank, ": with an id it must be at least 0 and below size, which is ", nranks);
  Launch launch;
  launch.launcher = "id";
  launch.rank = rank;
  launch.nranks = nranks;
  launch.job = "id/" + to_hex(b + kNameAt, kNameSize);
  std::copy(b + kSecretAt, b + kNameAt, launch.secret.begin());
  launch.root_port = static_cast<uint16_t>(b[kPortAt] | b[kPortAt + 1] << 8);
  launch.root_host.assign(reinterpret_cast<const char*>(b) + kHostAt, length);
  return launch;
}

}  // namespace megadp
