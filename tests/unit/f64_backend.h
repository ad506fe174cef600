// SPDX-License-Identifier: Apache-2.0
// A backend on the host's whose matrix products are plain loops in f64, so that layers can be compared with finite differences, which
// counts: what collectives send, what memory there is; and one of whose products can fail.
#pragma once

#include <atomic>
#include <memory>

#include "backend/backend.h"

namespace megadp::test {

struct Counters {                           // of a rank
  std::atomic<uint64_t> sent{0};            // bytes: to each other rank what it needs; a sum for all is one of parts that are then gathered
  std::atomic<uint64_t> calls{0};           // of these collectives
  std::atomic<uint64_t> live{0};            // bytes of memory, as they were asked for
  std::atomic<int> products_left{1 << 30};  // then one fails
};

std::shared_ptr<Backend> make_f64_backend(std::shared_ptr<Backend> host, std::shared_ptr<Counters> counters);

}  // namespace megadp::test
