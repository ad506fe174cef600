// SPDX-License-Identifier: Apache-2.0
#include "core/transfer.h"

#include <algorithm>

namespace megadp {

Result<std::shared_ptr<Transfer>> Traffic::submit(Comm& comm, std::span<const WindowOp> calls) {
  Stream& stream = comm.channel().stream();
  uint64_t sent = 0;
  for (const WindowOp& call : calls) sent += call.count * size_of(call.type);
  return submit(stream, sent, [&] { return comm.group().together(stream, calls); });
}

Result<std::shared_ptr<Transfer>> Traffic::submit(Stream& stream, uint64_t sent, const std::function<Status()>& work) {
  auto begin = stream.record();
  if (!begin) return begin.status();
  if (Status submitted = work(); !submitted) return submitted;
  auto end = stream.record();
  if (!end) return end.status();
  bytes += sent;
  return std::make_shared<Transfer>(Transfer{*std::move(begin), *std::move(end)});
}

void Traffic::count(Transfer* transfer) {
  if (transfer == nullptr || transfer->counted || !transfer->end->done()) return;
  const uint64_t end_ns = transfer->end->time_ns();
  comm_ns += end_ns - std::min(end_ns, transfer->begin->time_ns());  // after a failure both are the moments in which it was learned
  transfer->counted = true;
}

}  // namespace megadp
