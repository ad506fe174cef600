// SPDX-License-Identifier: Apache-2.0
// Structs that know their size, on their way in and out.
//
//   in    caller's: | struct_size | known to both | newer than ours: must be zero |
//         ours:     | sizeof      | known to both | newer than the caller's: zero |
//   out   min(caller's struct_size, ours) bytes are written, struct_size itself is left alone
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "api/argument.h"
#include "backend/backend.h"
#include "base/status.h"
#include "megadp.h"

namespace megadp {

// What must be known of a struct to take it in. `first_size` is its size in the release it first appeared in: nobody can have been
// compiled with a smaller one.
struct StructKind {
  const char* name;
  uint32_t first_size;
  uint32_t size;
  uint32_t alignment;
};

template <class T>
consteval StructKind kind_of(const char* name, uint32_t first_size) {
  static_assert(alignof(T) == 8, "the structs have no holes and end on a multiple of 8");
  if (first_size > sizeof(T) || sizeof(T) % 8 != 0) throw "a struct never shrinks";
  return {name, first_size, sizeof(T), alignof(T)};
}
template <class T>
constexpr StructKind kKind{};
template <>
inline constexpr StructKind kKind<mdp_error_info> = kind_of<mdp_error_info>("mdp_error_info", 1056);
template <>
inline constexpr StructKind kKind<mdp_bootstrap> = kind_of<mdp_bootstrap>("mdp_bootstrap", 40);
template <>
inline constexpr StructKind kKind<mdp_comm_config> = kind_of<mdp_comm_config>("mdp_comm_config", 64);
template <>
inline constexpr StructKind kKind<mdp_grid_config> = kind_of<mdp_grid_config>("mdp_grid_config", 48);
template <>
inline constexpr StructKind kKind<mdp_tensor> = kind_of<mdp_tensor>("mdp_tensor", 48);
template <>
inline constexpr StructKind kKind<mdp_param> = kind_of<mdp_param>("mdp_param", 72);
template <>
inline constexpr StructKind kKind<mdp_buffer_config> = kind_of<mdp_buffer_config>("mdp_buffer_config", 64);
template <>
inline constexpr StructKind kKind<mdp_plan_report> = kind_of<mdp_plan_report>("mdp_plan_report", 104);
template <>
inline constexpr StructKind kKind<mdp_range> = kind_of<mdp_range>("mdp_range", 56);
template <>
inline constexpr StructKind kKind<mdp_param_group> = kind_of<mdp_param_group>("mdp_param_group", 32);
template <>
inline constexpr StructKind kKind<mdp_optimizer_config> = kind_of<mdp_optimizer_config>("mdp_optimizer_config", 96);
template <>
inline constexpr StructKind kKind<mdp_param_state> = kind_of<mdp_param_state>("mdp_param_state", 24);
template <>
inline constexpr StructKind kKind<mdp_update> = kind_of<mdp_update>("mdp_update", 152);
template <>
inline constexpr StructKind kKind<mdp_scaler> = kind_of<mdp_scaler>("mdp_scaler", 64);
template <>
inline constexpr StructKind kKind<mdp_grad_summary> = kind_of<mdp_grad_summary>("mdp_grad_summary", 40);
template <>
inline constexpr StructKind kKind<mdp_step_config> = kind_of<mdp_step_config>("mdp_step_config", 48);
template <>
inline constexpr StructKind kKind<mdp_step_report> = kind_of<mdp_step_report>("mdp_step_report", 48);
template <>
inline constexpr StructKind kKind<mdp_stats_report> = kind_of<mdp_stats_report>("mdp_stats_report", 80);
template <>
inline constexpr StructKind kKind<mdp_checkpoint_part> = kind_of<mdp_checkpoint_part>("mdp_checkpoint_part", 24);
template <>
inline constexpr StructKind kKind<mdp_checkpoint_tensor> = kind_of<mdp_checkpoint_tensor>("mdp_checkpoint_tensor", 32);
template <>
inline constexpr StructKind kKind<mdp_checkpoint_config> = kind_of<mdp_checkpoint_config>("mdp_checkpoint_config", 104);
template <>
inline constexpr StructKind kKind<mdp_tp_region_config> = kind_of<mdp_tp_region_config>("mdp_tp_region_config", 48);
template <>
inline constexpr StructKind kKind<mdp_tp_linear_config> = kind_of<mdp_tp_linear_config>("mdp_tp_linear_config", 80);
template <>
inline constexpr StructKind kKind<mdp_tp_embedding_config> = kind_of<mdp_tp_embedding_config>("mdp_tp_embedding_config", 24);
template <>
inline constexpr StructKind kKind<mdp_tp_cross_entropy_config> = kind_of<mdp_tp_cross_entropy_config>("mdp_tp_cross_entropy_config", 48);
template <>
inline constexpr StructKind kKind<mdp_halo_config> = kind_of<mdp_halo_config>("mdp_halo_config", 80);
template <>
inline constexpr StructKind kKind<mdp_conv_config> = kind_of<mdp_conv_config>("mdp_conv_config", 48);
template <>
inline constexpr StructKind kKind<mdp_conv_part> = kind_of<mdp_conv_part>("mdp_conv_part", 72);
template <>
inline constexpr StructKind kKind<mdp_cp_config> = kind_of<mdp_cp_config>("mdp_cp_config", 32);
template <>
inline constexpr StructKind kKind<mdp_cp_block> = kind_of<mdp_cp_block>("mdp_cp_block", 136);
template <>
inline constexpr StructKind kKind<mdp_bucket_report> = kind_of<mdp_bucket_report>("mdp_bucket_report", 56);

// Not NULL, and a multiple of `alignment`, which is a power of two.
Status check_pointer(const void* pointer, const Argument& argument, size_t alignment);
template <class T>
Status check_out(T* out, const Argument& argument) {
  return check_pointer(out, argument, alignof(T));
}

// Not NULL, aligned, and with a struct_size that can be.
Status check_struct(const void* given, const Argument& argument, const StructKind& kind);
Status take_struct(const void* given, const Argument& argument, const StructKind& kind, void* ours);
void give_struct(const void* ours, const StructKind& kind, void* out);

// An input struct, `argument` being its name in error sentences. NULL is an error here; where NULL means all defaults see take_or_default.
template <class T>
Result<T> take(const T* given, const Argument& argument) {
  // Mostly it is just ours: then it is copied at once.
  if (given != nullptr && reinterpret_cast<uintptr_t>(given) % alignof(T) == 0 && given->struct_size == sizeof(T)) return *given;
  T ours{};
  if (Status status = take_struct(given, argument, kKind<T>, &ours); !status) return status;
  return ours;
}
template <class T>
Result<T> take_or_default(const T* given, const Argument& argument) {
  return given == nullptr ? Result<T>(T{}) : take(given, argument);
}

// An output struct: checked before the work is done, written after.
template <class T>
Status check_output(const T* out, const Argument& argument) {
  return check_struct(out, argument, kKind<T>);
}
template <class T>
void give(const T& ours, T* out) {
  give_struct(&ours, kKind<T>, out);
}

// Into an array of the caller's, whose elements are as long as the first one says, which was checked.
template <class T>
void give_array(const std::vector<T>& from, T* to) {
  const uint32_t stride = to->struct_size;
  for (size_t i = 0; i < from.size(); ++i) {
    T* const element = reinterpret_cast<T*>(reinterpret_cast<std::byte*>(to) + i * stride);
    element->struct_size = stride;
    give(from[i], element);
  }
}

// An array of input structs. A count above the limit is refused, since it is almost certainly a negative number that was converted.
constexpr size_t kMaxArray = size_t{1} << 24;
Status check_array(const void* first, size_t count, const char* argument, const StructKind& kind, size_t* stride);
template <class T>
class Array {
 public:
  static Result<Array> open(const T* first, size_t count, const char* argument) {
    size_t stride = 0;
    if (Status status = check_array(first, count, argument, kKind<T>, &stride); !status) return status;
    return Array(first, count, argument, stride);
  }
  size_t count() const noexcept { return count_; }
  // Good as long as this array is.
  Argument name(size_t i) const noexcept { return {argument_, i}; }
  Result<T> take_at(size_t i) const {
    const T* element = reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(first_) + i * stride_);
    if (element->struct_size != stride_) {
      return invalid(name(i), ".struct_size is ", element->struct_size, ", but ", name(0), ".struct_size is ", stride_,
                     ": all elements of an array carry the same");
    }
    return take(element, name(i));
  }

 private:
  Array(const T* first, size_t count, const char* argument, size_t stride)
      : first_(first), count_(count), argument_(argument), stride_(stride) {}
  const T* first_;
  size_t count_;
  Argument argument_;
  size_t stride_;
};

// Bits of `flags` outside `known`: invalid, with `allowed` naming what may be set ("MDP_GRAD_ADD and MDP_GRAD_MORE", or "none").
Status check_flags(uint64_t flags, uint64_t known, const Argument& argument, const char* allowed);
Status check_reserved(int64_t value, const Argument& argument);
// With the host backend a stream is NULL; with CUDA anything is taken: NULL is the default stream.
Status check_stream(mdp_stream stream, const char* argument, const Place& place);

// Text out, by the protocol of mdp_info: *needed counts the terminating NUL; json may be NULL when capacity is 0, to ask for the size.
Status check_text_output(const char* json, size_t capacity, const size_t* needed);
Status give_text(const std::string& from, char* json, size_t capacity, size_t* needed);

}  // namespace megadp
