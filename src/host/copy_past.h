// SPDX-License-Identifier: Apache-2.0
// copy_past_caches: memcpy for what another core reads next and this one does not.
//
// An ordinary store first takes the cache line from everyone who has read it. When two ranks write to their staging memory at the same
// time, each having read the other's, these requests may get in each other's way: 2.5 GB/s was measured where stores past the caches give
// 28 GB/s (two cores of an AMD EPYC, 256 KiB each), and reading them afterwards cost less than was saved; see host/staging_stores.h. Up to
// 4 KiB it is the other way round: an all-reduce of 4 KiB over 2 ranks takes 0.94 us with ordinary stores and 1.5 us past the caches.
#pragma once

#include <cstddef>

namespace megadp::host {

// Up to so many bytes copy_past_caches is memcpy.
constexpr size_t kThroughCaches = 4 << 10;
// From so many bytes on no cache would hold what is written: each line would be fetched only to be overwritten. With 32 MiB of cache that
// two ranks share, gathering 4 MiB from each takes 110 us by ordinary stores and 330 past them, 16 MiB 1.9 ms and 1.4.
constexpr size_t kBeyondCaches = size_t{8} << 20;

// Regions do not overlap. What was written is seen by whoever sees a later atomic store of this thread.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) noexcept;

}  // namespace megadp::host
