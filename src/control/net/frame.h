// SPDX-License-Identifier: Apache-2.0
// Frames: the messages that ranks exchange over their control sockets, and the writing and bounds-checked reading of their contents.
//
//   0        4      6       8            16
//   │ magic  │ type │ fds   │ length      │ payload (length bytes)
//
// All numbers are little-endian, as the machines are; a magic number read backwards is refused. `fds` descriptors travel with the frame
// (UNIX sockets only).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "control/world.h"

namespace megadp {

enum class FrameType : uint16_t {
  // rendezvous
  hello = 1,    // client → server: Hello
  welcome = 2,  // server → client: admitted, wait for the others
  refused = 3,  // server → client: u32 whether trying again may help; Status
  table = 4,    // server → client: all have come; Process of each
  broken = 5,   // both ways: the rendezvous has failed; Status
  give_up = 6,  // client → server: my deadline has passed; u64 how long I waited (ns)
  // afterwards
  heartbeat = 16,  // both ways. From the hub: u32 n, then n times i32 rank, u64 ns since it was heard of
  failure = 17,    // rank → hub and hub → ranks: i32 rank that found it (-1: the hub), Status
  goodbye = 18,    // rank → hub and hub → ranks: i32 rank
  give = 19,       // rank → relay: OperationKey, what it is part of, contribution
  result = 20,     // relay → rank: OperationKey, place of the first that differs (compare), contributions
  undone = 21,     // relay → rank: OperationKey, Status
  withdraw = 22,   // rank → relay: OperationKey, u64 how long I waited (ns)
};

struct FrameHeader {
  uint32_t magic;
  uint16_t type;
  uint16_t fds;
  uint64_t length;
};
static_assert(sizeof(FrameHeader) == 16);
constexpr uint32_t kFrameMagic = 0x4650444d;  // "MDPF"

struct Frame {
  FrameType type;
  std::string payload;
  std::vector<Fd> fds;
};

class FrameWriter {
 public:
  void u32(uint32_t value) { raw(&value, sizeof value); }
  void i32(int32_t value) { raw(&value, sizeof value); }
  void u64(uint64_t value) { raw(&value, sizeof value); }
  void i64(int64_t value) { raw(&value, sizeof value); }
  void bytes(std::string_view value) {
    u64(value.size());
    raw(value.data(), value.size());
  }
  void status(const Status& value);
  void append(std::string_view written) { raw(written.data(), written.size()); }  // by another writer
  void reserve(size_t size) { out_.reserve(size); }
  std::string take() { return std::move(out_); }

 private:
  void raw(const void* data, size_t size) { out_.append(static_cast<const char*>(data), size); }
  std::string out_;
};

// Reads what FrameWriter wrote. After the first read past the end everything is zero and ok() is false.
class FrameReader {
 public:
  explicit FrameReader(std::string_view bytes) : left_(bytes) {}
  uint32_t u32() { return number<uint32_t>(); }
  int32_t i32() { return number<int32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  int64_t i64() { return number<int64_t>(); }
  std::string_view bytes();
  Status status();  // a failed one: what was sent is never Code::ok
  bool ok() const noexcept { return ok_; }
  bool finished() const noexcept { return ok_ && left_.empty(); }
  size_t left() const noexcept { return left_.size(); }

 private:
  template <class T>
  T number() {
    T value{};
    if (left_.size() < sizeof value) {
      ok_ = false;
      left_ = {};
      return value;
    }
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace megadp
