// SPDX-License-Identifier: Apache-2.0
// A 64-bit digest of bytes, for noticing accidental differences. Not for secrets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace megadp {

// Eight bytes at a time through a multiply and an xor-shift (the finalizer of MurmurHash3, public domain). Chain calls by passing the last
// result as `seed`; cutting the same bytes into other calls gives another digest.
inline uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed = 0) noexcept {
  const auto mix = [](uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ULL;
    return h ^ (h >> 33);
  };
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t hash = mix(seed ^ (0x9e3779b97f4a7c15ULL + bytes));
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = mix(hash ^ word);
  }
  uint64_t tail = 0;
  if (bytes > 0) std::memcpy(&tail, at, bytes);  // nothing may be NULL
  return mix(hash ^ tail);
}

inline uint64_t hash_bytes(std::string_view text) noexcept {
  return hash_bytes(text.data(), text.size());
}

// The same purpose for a few words, whose number is known: pairs of them are multiplied and folded, each pair by itself, so that a
// processor does several at a time.
template <size_t kWords>
uint64_t hash_words(const void* data) noexcept {
  static_assert(kWords % 2 == 0);
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15ULL;  // odd, and half of its bits are set
  __extension__ using Product = unsigned __int128;
  uint64_t words[kWords], hash = 0;
  std::memcpy(words, data, sizeof words);
  for (size_t i = 0; i < kWords; i += 2) {
    const Product product = static_cast<Product>(words[i] ^ kStep * (i + 1)) * (words[i + 1] ^ kStep * (i + 2));
    hash ^= static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  return hash;
}

}  // namespace megadp
