// SPDX-License-Identifier: Apache-2.0
// The parts of frames that are more than a number.
#include "control/net/frame.h"

namespace megadp {
namespace {

// Texts are for people: whatever is longer was not written by this library.
constexpr size_t kMaxText = 64 * 1024;

bool is_failure(int32_t code) {
  return code >= static_cast<int32_t>(Code::internal) && code <= static_cast<int32_t>(Code::invalid);
}

}  // namespace

void FrameWriter::status(const Status& value) {
  const Blame blame = value.blame();
  i32(static_cast<int32_t>(value.code()));
  i32(blame.rank);
  i32(blame.bucket);
  i64(blame.param);
  u64(blame.operation);
  bytes(std::string_view(value.text()).substr(0, kMaxText));
}

std::string_view FrameReader::bytes() {
  const uint64_t size = u64();
  if (size > left_.size()) {
    ok_ = false;
    left_ = {};
    return {};
  }
  const std::string_view value = left_.substr(0, size);
  left_.remove_prefix(size);
  return value;
}

Status FrameReader::status() {
  const int32_t code = i32();
  Blame blame;
  blame.rank = i32();
  blame.bucket = i32();
  blame.param = i64();
  blame.operation = u64();
  const std::string_view words = bytes();
  if (!ok_ || !is_failure(code) || words.size() > kMaxText) {
    ok_ = false;
    return {Code::corrupt, "a status that could not be read"};
  }
  return {static_cast<Code>(code), std::string(words), blame};
}

}  // namespace megadp
