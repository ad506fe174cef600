// SPDX-License-Identifier: Apache-2.0
// Names and sections are those of RFC 7693.
#include "control/join/blake2s.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

namespace megadp {
namespace {

constexpr size_t kBlock = 64;

constexpr uint32_t kIv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// Which word of the message a mixing takes, by round (section 2.7).
constexpr uint8_t kSigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

uint32_t load_le(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8 | static_cast<uint32_t>(bytes[2]) << 16 |
         static_cast<uint32_t>(bytes[3]) << 24;
}

class Blake2s {
 public:
  explicit Blake2s(size_t key_size) {
    std::copy(std::begin(kIv), std::end(kIv), h_);
    h_[0] ^= 0x01010000U ^ static_cast<uint32_t>(key_size) << 8 ^ static_cast<uint32_t>(sizeof(Digest));
  }

  // One block of 64 bytes, of which `count` are the message's and the others zero.
  void compress(const uint8_t* block, size_t count, bool last) {
    total_ += count;
    uint32_t m[16], v[16];
    for (size_t i = 0; i < 16; ++i) m[i] = load_le(block + 4 * i);
    std::copy(std::begin(h_), std::end(h_), v);
    std::copy(std::begin(kIv), std::end(kIv), v + 8);
    v[12] ^= static_cast<uint32_t>(total_);
    v[13] ^= static_cast<uint32_t>(total_ >> 32);
    if (last) v[14] = ~v[14];
    for (const auto& s : kSigma) {
      for (size_t i = 0; i < 4; ++i) mix(v[i], v[4 + i], v[8 + i], v[12 + i], m[s[2 * i]], m[s[2 * i + 1]]);
      for (size_t i = 0; i < 4; ++i) {
        mix(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4], m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
      }
    }
    for (size_t i = 0; i < 8; ++i) h_[i] ^= v[i] ^ v[8 + i];
  }

  Digest digest() const {
    Digest out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(h_[i / 4] >> (8 * (i % 4)));
    return out;
  }

 private:
  static void mix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t x, uint32_t y) {
    a += b + x;
    d = std::rotr(d ^ a, 16);
    c += d;
    b = std::rotr(b ^ c, 12);
    a += b + y;
    d = std::rotr(d ^ a, 8);
    c += d;
    b = std::rotr(b ^ c, 7);
  }

  uint32_t h_[8];
  uint64_t total_ = 0;
};

}  // namespace

Digest blake2s(std::span<const uint8_t> key, std::string_view bytes) {
  Blake2s state(key.size());
  uint8_t block[kBlock] = {};
  if (!key.empty()) {  // the first block, filled up with zeros that count
    std::copy(key.begin(), key.end(), block);
    state.compress(block, kBlock, bytes.empty());
    if (bytes.empty()) return state.digest();
  }
  // The last block is the one that is marked: it is whole where the length is a multiple of a block's.
  do {
    const size_t count = std::min(bytes.size(), kBlock);
    std::memset(block, 0, kBlock);
    std::copy_n(bytes.data(), count, block);
    bytes.remove_prefix(count);
    state.compress(block, count, bytes.empty());
  } while (!bytes.empty());
  return state.digest();
}

}  // namespace megadp
