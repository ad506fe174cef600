// SPDX-License-Identifier: Apache-2.0
#include "bench_values.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"

namespace megadp::tool {
namespace {

// Calls `visit` with `data` as an array of the type's elements.
template <class Visit>
void for_type(void* data, DType type, const Visit& visit) {
  if (type == DType::f32) visit(static_cast<float*>(data));
  if (type == DType::bf16) visit(static_cast<Bf16*>(data));
  if (type == DType::f16) visit(static_cast<F16*>(data));
}

// The mean of 1 to n, each rounded to T: added in fp32 in this order, divided, rounded.
template <class T>
float mean_of_ranks(size_t n) {
  float sum = 0;
  T element;
  for (size_t rank = 0; rank < n; ++rank) {
    from_f32(&element, static_cast<float>(rank + 1));
    sum += to_f32(element);
  }
  from_f32(&element, sum / static_cast<float>(n));
  return to_f32(element);
}

}  // namespace

WindowOp call_of(const BenchTask& task, Window& window, size_t count, int ranks) {
  WindowOp call{task.collective, &window, task.type, 0, count, {-1, "bench"}};
  if (is_sum(task.collective)) call.divisor = static_cast<float>(ranks);
  return call;
}

void fill_values(void* data, DType type, size_t count, int rank) {
  for_type(data, type, [&]<class T>(T* elements) {
    T value;
    from_f32(&value, static_cast<float>(rank + 1));
    std::fill_n(elements, count, value);
  });
}

Status check_values(const void* data, const BenchTask& task, size_t count, int rank, int ranks, double tolerance, const char* who) {
  const size_t piece = count / static_cast<size_t>(ranks), own = static_cast<size_t>(rank);
  const bool only_own = task.collective == Collective::reduce_scatter;  // the rest of the window may then be anything
  Status right;
  for_type(const_cast<void*>(data), task.type, [&]<class T>(const T* elements) {
    const float mean = mean_of_ranks<T>(static_cast<size_t>(ranks));
    for (size_t i = only_own ? own * piece : 0; i < (only_own ? (own + 1) * piece : count) && right.ok(); ++i) {
      T gathered;
      from_f32(&gathered, static_cast<float>(i / piece + 1));
      const float expected = task.collective == Collective::all_gather ? to_f32(gathered) : mean;
      const float found = to_f32(elements[i]);
      const bool near = std::abs(static_cast<double>(found) - static_cast<double>(expected)) <= tolerance * static_cast<double>(expected);
      if (!near) right = internal_error(who, " gave ", found, " for element ", i, " on rank ", rank, ": ", expected, " is right");
    }
  });
  return right;
}

}  // namespace megadp::tool
