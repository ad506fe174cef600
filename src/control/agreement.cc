// SPDX-License-Identifier: Apache-2.0
#include "control/agreement.h"

#include <cstring>
#include <utility>

namespace megadp {
namespace {

// What a rank says in agree(): this, then the sentence of its failure.
struct Report {
  uint64_t number;
  uint64_t bytes;
  int32_t code;
  int32_t blamed;  // the rank that the failure names
};

std::string pack(const Subject& on, const Status& mine) {
  Report report{};
  report.number = on.number;
  report.bytes = on.bytes;
  report.code = static_cast<int32_t>(mine.code());
  report.blamed = mine.blame().rank;
  std::string packed(reinterpret_cast<const char*>(&report), sizeof report);
  if (!mine.ok()) packed += mine.text();
  return packed;
}

Status compare(const char* kind, const Mismatch& found) {
  Report first, other;
  std::memcpy(&first, found.first_bytes.data(), sizeof first);
  std::memcpy(&other, found.other_bytes.data(), sizeof other);
  if (first.number != other.number) {
    return {Code::desync,
            text("ranks ", found.first, " and ", found.other, " of the world set up different things: ", kind, " number ", first.number,
                 " and number ", other.number),
            Blame{.rank = found.other}};
  }
  if (first.bytes != other.bytes) {
    return {Code::desync,
            text(kind, ": rank ", found.first, " of the world asks for ", first.bytes, " bytes and rank ", found.other, " for ",
                 other.bytes, "; all must ask for the same"),
            Blame{.rank = found.other}};
  }
  return {};
}

}  // namespace

Status agree(World& world, const std::vector<int>& members, const Subject& on, const Status& mine) {
  auto compared = world.compare(members, on.kind, pack(on, mine));
  if (!compared.ok()) return mine.ok() ? compared.status().with_context(on.kind) : mine;
  if (mine.ok() && !*compared) return {};
  const auto failure_of = [&](int rank, const std::string& bytes) -> Status {
    if (rank == world.rank()) return mine;
    Report report;
    std::memcpy(&report, bytes.data(), sizeof report);
    if (report.code == 0) return {};
    return {static_cast<Code>(report.code), text("rank ", rank, ": ", bytes.substr(sizeof report)),
            Blame{.rank = report.blamed >= 0 ? report.blamed : rank}};
  };
  if (!*compared) return failure_of(members.front(), pack(on, mine));  // all failed, and all for the same reason
  const Mismatch& found = **compared;
  for (const auto& [rank, bytes] : {std::pair(found.first, &found.first_bytes), std::pair(found.other, &found.other_bytes)}) {
    if (bytes->size() < sizeof(Report)) return internal_error(on.kind, ": rank ", rank, " sent ", bytes->size(), " bytes");
  }
  Status same = compare(on.kind, found);
  if (!same.ok()) return same;
  Status first = failure_of(found.first, found.first_bytes);
  return first.ok() ? failure_of(found.other, found.other_bytes) : first;
}

}  // namespace megadp
