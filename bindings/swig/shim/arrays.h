// SPDX-License-Identifier: Apache-2.0
// Arrays on their way in and out: bytes of the caller's with a dtype, numbers as float64 for languages whose lists are lists of numbers,
// and views of the library's memory.
#pragma once

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "enumerations.h"
#include "handle.h"

#ifndef SWIG
// DLPack's managed tensor, as far as it takes to give one back; this part of its layout is fixed for ever.
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
};
#endif

namespace megadp {

#ifndef SWIG

// 0 for what is not the type of an element.
inline long long element_size(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return 4;
    case DType::BF16:
    case DType::F16:
      return 2;
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::U8:
      return 1;
    default:
      return 0;
  }
}

// A dense tensor over the caller's memory for the length of a call, with one dimension unless shape_as() finds that a shape fits.
class Operand {
 public:
  Operand(DType dtype, const void* data, long long bytes, const char* argument, Failure& failure) {
    const long long size = element_size(dtype);
    if (size == 0) {
      failure.refuse(MDP_E_INVALID, "dtype must be F32, BF16, F16, F64, I64 or U8, not %d", static_cast<int>(dtype));
    } else if (bytes % size != 0) {
      failure.refuse(MDP_E_INVALID, "%s has %lld bytes, which is no multiple of an element's %lld", argument, bytes, size);
    } else {
      count_ = bytes / size;
      tensor_.struct_size = sizeof tensor_;
      tensor_.dtype = static_cast<mdp_dtype>(dtype);
      tensor_.ndim = 1;
      tensor_.data = const_cast<void*>(data);
      tensor_.shape = &count_;
    }
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  // The caller's array is flat in most of these languages: with the right number of elements it is taken in the parameter's shape,
  // otherwise the library says what is wrong with it.
  void shape_as(const std::vector<int64_t>& shape) {
    int64_t product = 1;
    for (int64_t size : shape) product *= size;
    if (product != count_) return;
    tensor_.shape = shape.data();
    tensor_.ndim = static_cast<int32_t>(shape.size());
  }
  const mdp_tensor* get() const { return &tensor_; }

 private:
  mdp_tensor tensor_{};
  int64_t count_ = 0;
};

inline long long byte_count(const std::vector<double>& values) {
  return static_cast<long long>(values.size() * sizeof(double));
}

#endif

#ifndef SWIG

// Which gradients are lent to a View. It says false from the moment on in which the memory may become another gradient's.
class Leases {
 public:
  using Lease = std::shared_ptr<std::atomic<bool>>;

  explicit Leases(size_t params) : of_(params) {}
  long long size() const { return static_cast<long long>(of_.size()); }  // of parameters
  void begin(size_t param, const Lease& lease) {
    const std::lock_guard<std::mutex> lock(mutex_);
    of_[param] = lease;
    *lease = true;
  }
  void end(size_t param) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (of_[param]) *of_[param] = false;
  }
  void end_all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Lease& lease : of_) {
      if (lease) *lease = false;
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Lease> of_;
};

#endif

/// A piece of memory that a View lends.
struct Memory {
  unsigned char* data = nullptr;
  long long bytes = 0;
};

/// The library's memory of a parameter, a gradient or a piece of optimizer state, flat and row-major. It stays valid as long as the View
/// exists, whatever has been closed. Write parameters between a step and the next forward, and tell Buffer.changed. A view of
/// Buffer.acquire is for use until ready, release or sync, one of an UpdatePiece until the Step's next; they fail with STATE from then on.
class View {
 public:
  DType dtype() const { return dtype_; }
  long long size() const { return count_; }
  /// Of Buffer.acquire: whether nothing that counts is there, so that every element is to be written; else they are to be added to.
  bool first() const { return first_; }

#if !defined(SWIG) || defined(SWIGJAVA) || defined(SWIGGO)
  /// `bytes` bytes from the byte first_byte on.
  Memory memory(long long first_byte, long long bytes, Failure& failure) const {
    const long long all = size() * element_size(dtype_);
    if (!is_open(failure)) return Memory();
    if (first_byte < 0 || bytes < 0 || first_byte > all || bytes > all - first_byte) {
      failure.refuse(MDP_E_INVALID, "first_byte %lld and bytes %lld do not lie within the %lld bytes of the view", first_byte, bytes, all);
      return Memory();
    }
    return Memory{static_cast<unsigned char*>(data_) + first_byte, bytes};
  }
#endif

#if !defined(SWIGJAVA) && !defined(SWIGGO)
  /// One element, and all of them; F32 and U8 only: parameters of other types are for Buffer.read and Buffer.write.
  double get(long long index, Failure& failure) const {
    return has(index, failure) ? element(index) : 0;
  }
  void set(long long index, double value, Failure& failure) {
    if (has(index, failure) && is_element(value, failure)) set_element(index, value);
  }
  std::vector<double> values(Failure& failure) const {
    return guarded(failure, [&] {
      std::vector<double> values;
      for (long long i = 0; has_numbers(failure) && i < count_; ++i) values.push_back(element(i));
      return values;
    });
  }
  void set_values(const std::vector<double>& values, Failure& failure) {
    if (!has_numbers(failure)) return;
    if (values.size() != static_cast<size_t>(count_)) {
      failure.refuse(MDP_E_INVALID, "values has %zu elements; the view has %lld", values.size(), count_);
      return;
    }
    for (const double value : values) {
      if (!is_element(value, failure)) return;
    }
    for (long long i = 0; i < count_; ++i) set_element(i, values[static_cast<size_t>(i)]);
  }
#endif

#ifndef SWIG
  View(const mdp_tensor& tensor, std::shared_ptr<void> keep)
      : keep_(std::move(keep)), dtype_(static_cast<DType>(tensor.dtype)), data_(tensor.data), count_(1) {
    for (int32_t i = 0; i < tensor.ndim; ++i) count_ *= tensor.shape[i];
  }

  // What of a buffer lives on with the view is the memory alone: a view that waits for a garbage collector keeps no communicator open.
  static std::shared_ptr<void> keep(mdp_buffer* buffer, const mdp_tensor& tensor, Failure& failure) {
    DLManagedTensorVersioned* managed = nullptr;
    if (!failure.take(mdp_buffer_to_dlpack(buffer, &tensor, &managed))) return nullptr;
    return std::shared_ptr<void>(managed, [](void* it) {
      auto* const tensor = static_cast<DLManagedTensorVersioned*>(it);
      tensor->deleter(tensor);
    });
  }
  static View* of_buffer(mdp_buffer* buffer, const mdp_tensor& tensor, Failure& failure) {
    std::shared_ptr<void> kept = keep(buffer, tensor, failure);
    return kept ? new View(tensor, std::move(kept)) : nullptr;
  }
  // What the library has lent to it; over: how a refusal goes on once the lease has ended.
  void lend(const mdp_tensor& tensor, bool first, Leases::Lease lease, const char* over) {
    *this = View(tensor, keep_);
    first_ = first;
    lease_ = std::move(lease);
    over_ = over;
  }
#endif

 private:
  bool is_open(Failure& failure) const {
    const bool open = !lease_ || *lease_;
    if (!open) failure.refuse(MDP_E_STATE, "this view %s", over_);
    return open;
  }
  bool has_numbers(Failure& failure) const {
    if (!is_open(failure)) return false;
    if (dtype_ == DType::F32 || dtype_ == DType::U8) return true;
    failure.refuse(MDP_E_UNSUPPORTED,
                   "elements of this view are neither F32 nor U8: parameters are read by Buffer.read and written by Buffer.write; "
                   "an array of CheckpointParts.add_tensor or of a Halo must be F32 or U8 for this");
    return false;
  }
  bool has(long long index, Failure& failure) const {
    if (!has_numbers(failure)) return false;
    if (index >= 0 && index < count_) return true;
    failure.refuse(MDP_E_INVALID, "index must be 0 to %lld, not %lld", count_ - 1, index);
    return false;
  }
  bool is_element(double value, Failure& failure) const {
    if (dtype_ == DType::F32 || (value >= 0 && value <= UCHAR_MAX && value == static_cast<int>(value))) return true;
    failure.refuse(MDP_E_INVALID, "a byte must be a whole number from 0 to 255, not %g", value);
    return false;
  }
  double element(long long index) const {
    return dtype_ == DType::U8 ? static_cast<unsigned char*>(data_)[index] : static_cast<double>(static_cast<float*>(data_)[index]);
  }
  void set_element(long long index, double value) {
    if (dtype_ == DType::U8) {
      static_cast<unsigned char*>(data_)[index] = static_cast<unsigned char>(value);
    } else {
      static_cast<float*>(data_)[index] = static_cast<float>(value);
    }
  }

  std::shared_ptr<void> keep_;
  Leases::Lease lease_;         // empty: not lent
  const char* over_ = nullptr;  // with a lease
  bool first_ = false;
  DType dtype_;
  void* data_;
  long long count_;
};

}  // namespace megadp
