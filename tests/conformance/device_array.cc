// SPDX-License-Identifier: Apache-2.0
#include "device_array.h"

namespace megadp::test {

bool on_device(Rank& rank) {
  return rank.backend().place().type != DeviceType::cpu;
}

void put(Rank& rank, void* to, const Bytes& bytes) {
  put_values(rank, to, bytes);
}

Bytes get(Rank& rank, const void* from, size_t bytes) {
  return get_values<std::byte>(rank, from, bytes);
}

StridedArray flat(const void* data, size_t bytes) {
  return {const_cast<void*>(data), DType::u8, {static_cast<int64_t>(bytes)}, {1}};
}

DeviceArray::DeviceArray(Rank& rank, size_t bytes) : rank_(rank), bytes_(bytes) {
  if (on_device(rank)) {
    memory_ = rank.must(rank.backend().allocate(bytes));
  } else {
    ordinary_.resize(bytes);
  }
}

DeviceArray::DeviceArray(Rank& rank, const Bytes& contents) : DeviceArray(rank, contents.size()) {
  set(contents);
}

std::byte* DeviceArray::data() {
  return memory_ != nullptr ? static_cast<std::byte*>(memory_->data()) : ordinary_.data();
}

void DeviceArray::set(const Bytes& contents) {
  put(rank_, data(), contents);
}

Bytes DeviceArray::get() {
  return test::get(rank_, data(), bytes_);
}

}  // namespace megadp::test
