// SPDX-License-Identifier: Apache-2.0
// Element types, by the values of mdp_dtype that name a storage type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megadp {

enum class DType : uint32_t {
  f32 = 2,
  bf16 = 3,
  f16 = 4,
  f64 = 5,
  i64 = 6,
  u8 = 7
};

constexpr size_t size_of(DType type) noexcept {
  switch (type) {
    case DType::f32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(DType type) noexcept {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::f64:
      return "f64";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "?";
}

// The types a parameter or gradient may have; the others occur in collectives only.
constexpr bool is_trainable(DType type) noexcept {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

enum class Op : uint32_t {
  sum = 0,
  avg = 1,
  max = 2,
  min = 3
};
constexpr const char* name_of(Op op) noexcept {
  switch (op) {
    case Op::sum:
      return "sum";
    case Op::avg:
      return "avg";
    case Op::max:
      return "max";
    case Op::min:
      return "min";
  }
  return "?";
}
// the values of mdp_op

}  // namespace megadp
