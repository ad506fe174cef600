// SPDX-License-Identifier: Apache-2.0
// Backend: memory, streams and element-wise kernels of one kind of device, and the groups on it. One object per context and rank.
// The core is written against this and never names a device. Kernels are stream-ordered: they return when submitted, and their operands
// stay alive until the stream has passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/group.h"
#include "backend/stream.h"
#include "base/attention.h"
#include "base/dtype.h"
#include "base/matrix.h"
#include "base/status.h"
#include "base/update.h"
#include "base/vocabulary.h"

namespace megadp {

class World;

// Private memory of a backend, zeroed, 64-byte aligned, freed with the object.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* data() noexcept = 0;
  virtual size_t bytes() const noexcept = 0;
};

enum class DeviceType : int32_t {  // as DLPack numbers them
  cpu = 1,
  cuda = 2
};
struct Place {  // where a backend's memory is
  DeviceType type = DeviceType::cpu;
  int32_t index = 0;
};

struct StridedArray {
  void* data = nullptr;
  DType type = DType::f32;
  std::vector<int64_t> shape, strides;  // in elements
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual World& world() noexcept = 0;
  // The backend of the host's memory, with which ranks tell each other what has to be known outside the device.
  virtual Backend& control() noexcept { return *this; }
  virtual Place place() const noexcept { return {}; }
  // How often the host has waited for a device.
  virtual uint64_t host_syncs() const noexcept { return 0; }

  virtual Result<std::unique_ptr<Memory>> allocate(size_t bytes) = 0;
  // Memory of the host, zeroed, a few bytes: where fetch() may write to.
  virtual Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) = 0;
  virtual Result<std::unique_ptr<Stream>> create_stream(const char* name) = 0;
  // Collective over `members` (world ranks, this one among them), blocking.
  virtual Result<std::shared_ptr<Group>> create_group(const std::vector<int>& members) = 0;

  // ── kernels ──
  virtual Status zero(Stream& stream, void* data, size_t bytes) = 0;
  // to[i] = from[i], rounded to nearest even.
  virtual Status cast(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) = 0;
  // to[i] = to[i] + from[i] in fp32 (f64 if either is f64), rounded once. f32, bf16, f16, f64.
  virtual Status add(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) = 0;
  // to[i], a bf16, = from[i] + residual[i], rounded; residual[i] = what rounding lost, 0 where the sum is not finite.
  virtual Status round_with_feedback(Stream& stream, void* to, const float* from, float* residual, size_t count) = 0;
  // masters[i] = params[i], unless it rounds to that already. bf16, f16.
  virtual Status refresh_masters(Stream& stream, float* masters, const void* params, DType type, size_t count) = 0;
  // Adds the sum of squares to sums[0] and the number of elements that are not finite to sums[1]. In f64 and in one order, so that every
  // backend gets the same bits: blocks of 4096 elements, counted from the first one of the call; in a block, element i goes to lane i % 16
  // and the 16 lanes are added in their order; the blocks are added in their order, then their sum to sums[0].
  virtual Status square_sum(Stream& stream, const void* data, DType type, size_t count, double* sums) = 0;
  // Counts zeros, and keeps the largest magnitude; NaN is none. f32, bf16, f16.
  virtual Status extremes(Stream& stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest) = 0;
  // data[i] = data[i] * factor in fp32, rounded to the type. f32, bf16, f16.
  virtual Status scale(Stream& stream, void* data, DType type, size_t count, float factor) = 0;
  // By base/step.h. Must run once per step, also when no norm is wanted (square_sum 0).
  virtual Status begin_step(Stream& stream, StepScalars* scalars, const StepSettings& settings) = 0;
  // Adds 1 to each of `count` step counts, unless scalars->skip.
  virtual Status count_steps(Stream& stream, const StepScalars* scalars, uint64_t* steps, size_t count) = 0;
  // One launch of an update rule (base/rules.h), whose arrays and counts are the backend's memory.
  virtual Status update(Stream& stream, const Update& update) = 0;

  // host_to, memory of allocate_host(), = from.
  virtual Status fetch(Stream& stream, void* host_to, const void* from, size_t bytes) = 0;
  // Of the host's backend, control(): work of the core's own, on the stream's thread. It must not wait, and may be dropped there.
  virtual Status run(Stream& stream, std::function<void()> work) = 0;

  // ── not on a stream of ours ──
  // to = from, or to += from; casts, any strides; shapes are equal. Ordered on `caller`, the caller's stream (on the host: finished on
  // return). One side may be the host's memory; it is then finished on return too.
  virtual Status copy(const StridedArray& to, const StridedArray& from, bool add, void* caller) = 0;
  // Raises *found to the number of the first element that is not finite (base/finding.h), where first_finding() is `first`. Ordered on
  // `caller` as copy(). f32, bf16, f16.
  virtual Status find_nonfinite(const void* data, DType type, size_t count, uint64_t first, uint64_t* found, void* caller) = 0;
  // c = a b, or c += a b: summed in f32, in an order of the library's own, and rounded once to c's type; but cuBLASLt
  // may round a product before it is added to bf16. All f32; or a and b bf16 and c bf16 or f32. Sizes fit; c is apart from a and b; of an
  // empty inner dimension the sum is zero. Ordered on `caller` as copy(). Code::unsupported, as gemm_library() says it, if there is no
  // library.
  virtual Status gemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add, void* caller) = 0;
  // The library that gemm() calls, with its version: "oneDNN 3.2.0". Loaded with the first call of either.
  virtual Result<std::string> gemm_library() = 0;
  // output = rows of the table, or `gradient`: table = the sums of rows of output. Ordered on `caller` as copy(). An id outside the whole
  // table: on the host Code::invalid, on a device a row of NaN.
  virtual Status look_up(const Lookup& work, bool gradient, void* caller) = 0;
  // Likewise; of a target outside the loss, and in backward the gradients, are NaN.
  virtual Status cross_entropy(const CrossEntropy& work, CrossEntropyPass pass, void* caller) = 0;
  // Finished on return.
  virtual Status read(void* host_to, const void* from, size_t bytes) = 0;
  virtual Status write(void* to, const void* host_from, size_t bytes) = 0;
  // By base/attention.h. Ordered on `caller` as copy().
  virtual Status merge_attention(const AttentionMerge& work, void* caller) = 0;
};

}  // namespace megadp
