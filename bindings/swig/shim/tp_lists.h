// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism on lists of numbers.
#pragma once

#include "tp_calls.h"

namespace megadp {

// Float32s, which layers compute in, of float64 numbers, which lists are of.
inline std::vector<float> to_floats(const std::vector<double>& values) {
  return std::vector<float>(values.begin(), values.end());
}

inline std::vector<double> to_doubles(const std::vector<float>& values) {
  return std::vector<double>(values.begin(), values.end());
}

inline const unsigned char* bytes_or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : reinterpret_cast<const unsigned char*>(values.data());
}

inline unsigned char* writable_bytes(std::vector<float>& values) {
  return values.empty() ? nullptr : reinterpret_cast<unsigned char*>(values.data());
}

inline long long byte_count(const std::vector<float>& values) {
  return static_cast<long long>(values.size() * sizeof(float));
}

inline std::vector<double> TpLinear::forward(const std::vector<double>& input, const std::vector<double>& weight,
                                             const std::vector<double>& bias, Failure& failure) {
  return guarded(failure, [&] {
    if (!is_f32(failure)) return std::vector<double>();
    const std::vector<float> x = to_floats(input), w = to_floats(weight), b = to_floats(bias);
    long long count = static_cast<long long>(x.size()) / input_features();
    if (static_cast<long long>(x.size()) != count * input_features()) {
      failure.refuse(MDP_E_INVALID, "input has %zu numbers; this layer's rows have %lld each", x.size(), input_features());
      return std::vector<double>();
    }
    if (options_.sequence) count = options_.split == TpSplit::COLUMN ? count * ranks_ : count / ranks_;
    std::vector<float> y(static_cast<size_t>(count * output_features()));
    forward(bytes_or_null(x), byte_count(x), bytes_or_null(w), byte_count(w), bytes_or_null(b), byte_count(b), writable_bytes(y),
            byte_count(y), failure);
    return failure.failed() ? std::vector<double>() : to_doubles(y);
  });
}

inline TpGradients* TpLinear::backward(const std::vector<double>& input, const std::vector<double>& weight,
                                       const std::vector<double>& grad_output, Failure& failure) {
  return guarded(failure, [&]() -> TpGradients* {
    if (!is_f32(failure)) return nullptr;
    const std::vector<float> x = to_floats(input), w = to_floats(weight), dy = to_floats(grad_output);
    std::vector<float> dx(x.size()), dw(weight.size()), db(options_.bias && !in_buffer_ ? static_cast<size_t>(local_out()) : 0);
    backward(bytes_or_null(x), byte_count(x), bytes_or_null(w), byte_count(w), bytes_or_null(dy), byte_count(dy), writable_bytes(dx),
             byte_count(dx), writable_bytes(dw), byte_count(dw), writable_bytes(db), byte_count(db), false, failure);
    return failure.failed() ? nullptr : new TpGradients(to_doubles(dx), to_doubles(dw), to_doubles(db));
  });
}

// call(comm, config, from, to) on numbers; what comes out has the shape that forward's output has, or its input.
template <class Call>
std::vector<double> region_on_numbers(const Comm& comm, const TpRegionOptions& options, const std::vector<double>& values, bool ahead,
                                      Failure& failure, Call call) {
  std::vector<double> result;
  with_region(comm, options, failure, [&](auto* group, auto* config, const auto& input, const auto& output) {
    const std::vector<int64_t>&given = ahead ? input : output, &made = ahead ? output : input;
    int64_t count = 1;
    for (const int64_t size : made) count *= size;
    result.resize(static_cast<size_t>(count));
    const TpOperand source(values.data(), DType::F64, byte_count(values), "values", given, failure);
    const TpOperand target(result.data(), DType::F64, byte_count(result), "result", made, failure);
    if (failure.failed() || !failure.take(call(group, config, source.get(), target.get()))) result.clear();
  });
  return result;
}

inline std::vector<double> TensorParallel::region_forward(const Comm& comm, const TpRegionOptions& options,
                                                          const std::vector<double>& values, Failure& failure) {
  return region_on_numbers(comm, options, values, true, failure, [](auto* group, auto* config, auto* from, auto* to) {
    return mdp_tp_region_fwd(group, config, from, to, nullptr);
  });
}

inline std::vector<double> TensorParallel::region_backward(const Comm& comm, const TpRegionOptions& options,
                                                           const std::vector<double>& values, Failure& failure) {
  return region_on_numbers(comm, options, values, false, failure, [](auto* group, auto* config, auto* from, auto* to) {
    return mdp_tp_region_bwd(group, config, from, to, nullptr);
  });
}

}  // namespace megadp
