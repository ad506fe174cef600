// SPDX-License-Identifier: Apache-2.0
#include "api/intake.h"

#include <algorithm>
#include <cstring>

namespace megadp {

namespace {

// More than any struct will ever have: a struct_size beyond it was never written.
constexpr uint32_t kAbsurdSize = 64 * 1024;

uint32_t size_field(const void* given) {
  uint32_t size;
  std::memcpy(&size, given, sizeof size);
  return size;
}

}  // namespace

Status check_pointer(const void* pointer, const Argument& argument, size_t alignment) {
  if (pointer == nullptr) return invalid(argument, " is NULL");
  if ((reinterpret_cast<uintptr_t>(pointer) & (alignment - 1)) != 0) {
    return invalid(argument, " is ", pointer, ", which is not a multiple of ", alignment, ": a misaligned pointer");
  }
  return {};
}

Status check_struct(const void* given, const Argument& argument, const StructKind& kind) {
  if (Status status = check_pointer(given, argument, kind.alignment); !status) return status;
  const uint32_t size = size_field(given);
  if (size >= kind.first_size && size <= kAbsurdSize && size % kind.alignment == 0) return {};
  return invalid(argument, ".struct_size is ", size, "; set it to sizeof(", kind.name, "), which is ", kind.size, " in this build");
}

Status take_struct(const void* given, const Argument& argument, const StructKind& kind, void* ours) {
  if (Status status = check_struct(given, argument, kind); !status) return status;
  const uint32_t theirs = size_field(given);
  const auto* bytes = static_cast<const unsigned char*>(given);
  const auto* end = bytes + theirs;
  const auto* unknown = std::find_if(bytes + std::min(theirs, kind.size), end, [](unsigned char byte) { return byte != 0; });
  if (unknown != end) {
    return unsupported("this build of megadp does not know the field of ", kind.name, " at offset ", unknown - bytes, ", which ", argument,
                       " sets; its ", kind.name, " ends at ", kind.size);
  }
  std::memset(ours, 0, kind.size);
  std::memcpy(ours, given, std::min(theirs, kind.size));
  std::memcpy(ours, &kind.size, sizeof kind.size);
  return {};
}

void give_struct(const void* ours, const StructKind& kind, void* out) {
  const size_t field = sizeof(uint32_t);
  std::memcpy(static_cast<char*>(out) + field, static_cast<const char*>(ours) + field, std::min(size_field(out), kind.size) - field);
}

Status check_array(const void* first, size_t count, const char* argument, const StructKind& kind, size_t* stride) {
  if (count > kMaxArray) return invalid("the count of ", argument, " is ", count, "; at most ", kMaxArray, " are taken");
  if (count == 0) return {};
  if (first == nullptr) return invalid(argument, " is NULL, but its count is ", count);
  if (Status status = check_struct(first, {argument, "[0]"}, kind); !status) return status;
  *stride = size_field(first);
  return {};
}

Status check_flags(uint64_t flags, uint64_t known, const Argument& argument, const char* allowed) {
  if ((flags & ~known) == 0) return {};
  return invalid(argument, " is ", flags, "; of its bits ", flags & ~known, " is not known. Allowed: ", allowed);
}

Status check_reserved(int64_t value, const Argument& argument) {
  return value == 0 ? Status() : invalid(argument, " is ", value, "; it is reserved and must be 0");
}

Status check_stream(mdp_stream stream, const char* argument, const Place& place) {
  return stream == nullptr || place.type != DeviceType::cpu ? Status()
                                                            : invalid(argument, " is ", stream, "; on the host backend a stream is NULL");
}

Status check_text_output(const char* json, size_t capacity, const size_t* needed) {
  if (json == nullptr && capacity != 0) return invalid("json is NULL, but capacity is ", capacity, "; to ask for the size give capacity 0");
  if (json == nullptr && needed == nullptr) return invalid("json and needed are both NULL: there is nothing to answer");
  return needed == nullptr ? Status() : check_pointer(needed, "needed", alignof(size_t));
}

Status give_text(const std::string& from, char* json, size_t capacity, size_t* needed) {
  const size_t size = from.size() + 1;
  if (needed != nullptr) *needed = size;
  if (json == nullptr) return {};
  if (capacity < size) return invalid("capacity is ", capacity, " bytes; the text and its NUL take ", size);
  std::memcpy(json, from.c_str(), size);
  return {};
}

}  // namespace megadp
