// SPDX-License-Identifier: Apache-2.0
#include "cuda/exchange.h"

#include <numeric>
#include <utility>

namespace megadp::cuda {

CudaExchange::CudaExchange(Group& group, std::shared_ptr<Watch> watch, Memories memories, const Counts& out_bytes, const Counts& in_bytes)
    : group_(group),
      watch_(std::move(watch)),
      memories_(std::make_shared<Memories>(std::move(memories))),
      ways_{make_way(out_bytes, in_bytes), make_way(in_bytes, out_bytes)} {}

// What was started may not be on the device yet: its launcher waits for the other ranks.
CudaExchange::~CudaExchange() {
  if (passed_ != nullptr) watch_->drop(std::move(memories_), std::move(passed_));
}

CudaExchange::Way CudaExchange::make_way(const Counts& out, const Counts& in) {
  Way way{out, in, Counts(out.size()), Counts(in.size())};
  std::exclusive_scan(out.begin(), out.end(), way.out_at.begin(), uint64_t{0});
  std::exclusive_scan(in.begin(), in.end(), way.in_at.begin(), uint64_t{0});
  return way;
}

// What went and came last is over on the stream that the caller fills outgoing() on: he has ordered it so, after the last finish().
Status CudaExchange::begin(bool back) {
  back_ = back;
  return {};
}

Status CudaExchange::start(Stream& stream, void* caller, uint64_t /*lends*/) {
  if (Status ordered = stream.wait_for_caller(caller); !ordered) return ordered;
  // Ranks of one node compare the names.
  const Tag tag{-1, back_ ? "pieces for neighbours, backward" : "pieces for neighbours"};
  const Status submitted = group_.all_to_all_v(stream, memories_->out->data(), way().out, memories_->in->data(), way().in, DType::u8, tag);
  if (!submitted) return submitted;
  auto event = stream.record();
  if (!event) return event.status();
  passed_ = std::static_pointer_cast<CudaEvent>(*std::move(event));
  return {};
}

Status CudaExchange::finish(Stream& stream, void* caller) {
  return stream.make_caller_wait(caller, *passed_);
}

}  // namespace megadp::cuda
