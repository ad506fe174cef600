// SPDX-License-Identifier: Apache-2.0
// Streaming stores where the machine has them: SSE2, which every x86-64 has. They fill whole cache lines, so wider ones gain nothing.
#include "host/copy_past.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace megadp::host {

void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) noexcept {
#if defined(__SSE2__)
  constexpr size_t kLine = 64;
  if (bytes > kThroughCaches) {
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, head);
    const size_t end = head + (bytes - head) / kLine * kLine;
    for (size_t at = head; at < end; at += kLine) {
      const auto* const line = reinterpret_cast<const __m128i*>(from + at);
      auto* const out = reinterpret_cast<__m128i*>(to + at);
      const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1), c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    std::memcpy(to + end, from + end, bytes - end);
    _mm_sfence();  // streaming stores are not ordered by an atomic store
    return;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace megadp::host
