// SPDX-License-Identifier: Apache-2.0
// Memory of the backend under test, which the host may not be able to look at: the suite writes and reads it through the backend only.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "oracle.h"
#include "ranks.h"

namespace megadp::test {

bool on_device(Rank& rank);

// Any memory of the backend's, also a part of a window.
void put(Rank& rank, void* to, const Bytes& bytes);
Bytes get(Rank& rank, const void* from, size_t bytes);

// For Backend::copy, of the backend's memory or the host's.
StridedArray flat(const void* data, size_t bytes);

template <class T>
void put_values(Rank& rank, void* to, const std::vector<T>& values) {
  rank.must(rank.backend().write(to, values.data(), values.size() * sizeof(T)));
}
template <class T>
std::vector<T> get_values(Rank& rank, const void* from, size_t count) {
  std::vector<T> values(count);
  rank.must(rank.backend().read(values.data(), from, count * sizeof(T)));
  return values;
}

// What a program gives to a collective. On the host it is ordinary memory: aligned no better than that, and watched by AddressSanitizer to
// the byte.
class DeviceArray {
 public:
  DeviceArray(Rank& rank, size_t bytes);  // zeroed
  DeviceArray(Rank& rank, const Bytes& contents);
  std::byte* data();
  size_t bytes() const { return bytes_; }
  void set(const Bytes& contents);  // of the first bytes
  Bytes get();

 private:
  Rank& rank_;
  const size_t bytes_;
  Bytes ordinary_;                  // on the host
  std::unique_ptr<Memory> memory_;  // on a device
};

}  // namespace megadp::test
