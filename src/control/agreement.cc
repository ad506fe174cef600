// SPDX-License-Identifier: Apache-2.0
#include "control/agreement.h"

#include <cstring>

namespace megadp {
namespace {

// What a rank says in agree(): this, then the sentence of its failure.
struct Report {
  uint64_t number;
  uint64_t bytes;
  int32_t code;
  int32_t unused;
};

std::string pack(const Subject& on, const Status& mine) {
  Report report{};
  report.number = on.number;
  report.bytes = on.bytes;
  report.code = static_cast<int32_t>(mine.code());
  std::string packed(reinterpret_cast<const char*>(&report), sizeof report);
  if (!mine.ok()) packed += mine.text();
  return packed;
}

Status compare(const char* kind, const Report& first, int first_rank, const Report& other, int other_rank) {
  if (first.number != other.number) {
    return {Code::desync,
            text("ranks ", first_rank, " and ", other_rank, " of the world set up different things: ", kind, " number ", first.number,
                 " and number ", other.number),
            Blame{.rank = other_rank}};
  }
  if (first.bytes != other.bytes) {
    return {Code::desync,
            text(kind, ": rank ", first_rank, " of the world asks for ", first.bytes, " bytes and rank ", other_rank, " for ", other.bytes,
                 "; all must ask for the same"),
            Blame{.rank = other_rank}};
  }
  return {};
}

}  // namespace

Status agree(World& world, const std::vector<int>& members, const Subject& on, const Status& mine) {
  Result<std::vector<std::string>> all = world.exchange(members, on.kind, pack(on, mine));
  if (!all.ok()) return mine.ok() ? all.status().with_context(on.kind) : mine;
  std::vector<Report> reports(all->size());
  for (size_t i = 0; i < reports.size(); ++i) {
    if ((*all)[i].size() < sizeof(Report)) return internal_error(on.kind, ": rank ", members[i], " sent ", (*all)[i].size(), " bytes");
    std::memcpy(&reports[i], (*all)[i].data(), sizeof(Report));
  }
  for (size_t i = 1; i < reports.size(); ++i) {
    Status same = compare(on.kind, reports[0], members[0], reports[i], members[i]);
    if (!same.ok()) return same;
  }
  for (size_t i = 0; i < reports.size(); ++i) {
    if (reports[i].code == 0) continue;
    if (members[i] == world.rank()) return mine;
    return {static_cast<Code>(reports[i].code), text("rank ", members[i], ": ", (*all)[i].substr(sizeof(Report))),
            Blame{.rank = members[i]}};
  }
  return {};
}

}  // namespace megadp
