// SPDX-License-Identifier: Apache-2.0
// Agreeing by one comparison: what all ranks say is the same where all succeeded.
#include "control/agreement.h"

#include <string>

#include "base/text.h"
#include "control/net/frame.h"

namespace megadp {
namespace {

// What a rank says in agree().
struct Report {
  uint64_t number = 0, bytes = 0;
  Status status;
};

std::string write(const Report& report) {
  FrameWriter writer;
  writer.u64(report.number);
  writer.u64(report.bytes);
  writer.u32(report.status.ok() ? 0 : 1);
  if (!report.status.ok()) writer.status(report.status);
  return writer.take();
}

bool read(const std::string& bytes, Report* report) {
  FrameReader reader(bytes);
  report->number = reader.u64();
  report->bytes = reader.u64();
  if (reader.u32() != 0) report->status = reader.status();
  return reader.finished();
}

Status same_subject(const char* kind, const Mismatch& found, const Report& first, const Report& other) {
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

Status agree(World& world, const std::vector<int>& members, const Subject& on, const Status& mine, uint64_t line) {
  auto compared = world.compare(members, on.kind, write({on.number, on.bytes, mine}), line);
  if (!compared.ok()) return mine.ok() ? compared.status().with_context(on.kind) : mine;
  const auto told = [&](int rank, const Status& status) -> Status {
    if (status.ok() || rank == world.rank()) return rank == world.rank() ? mine : Status();
    Blame blame = status.blame();
    if (blame.rank < 0) blame.rank = rank;
    return {status.code(), text("rank ", rank, ": ", status.text()), blame};
  };
  if (!*compared) return told(members.front(), mine);  // all succeeded, or all failed for the same reason
  const Mismatch& found = **compared;
  Report first, other;
  if (!read(found.first_bytes, &first) || !read(found.other_bytes, &other)) {
    return internal_error(on.kind, ": ranks ", found.first, " and ", found.other, " sent bytes that cannot be read");
  }
  if (Status same = same_subject(on.kind, found, first, other); !same.ok()) return same;
  Status failed = told(found.first, first.status);
  return failed.ok() ? told(found.other, other.status) : failed;
}

}  // namespace megadp
