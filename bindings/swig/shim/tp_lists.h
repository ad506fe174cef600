// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism on lists of numbers.
#pragma once

#include "tp_calls.h"
#include "tp_vocabulary.h"

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

// ── a vocabulary ──

// Int64s of numbers that are whole, and small enough to be so for sure.
inline std::vector<int64_t> to_integers(const std::vector<double>& values, const char* argument, Failure& failure) {
  constexpr double most = 9007199254740992.0;  // 2^53
  std::vector<int64_t> integers;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] >= -most && values[i] <= most && values[i] == static_cast<double>(static_cast<int64_t>(values[i])))) {
      failure.refuse(MDP_E_INVALID, "number %zu of %s (counted from 0) is %g; it must be whole", i, argument, values[i]);
      return {};
    }
    integers.push_back(static_cast<int64_t>(values[i]));
  }
  return integers;
}

inline const unsigned char* bytes_of(const std::vector<int64_t>& values) {
  return reinterpret_cast<const unsigned char*>(values.data());
}

inline long long byte_count(const std::vector<int64_t>& values) {
  return static_cast<long long>(values.size() * sizeof(int64_t));
}

inline bool is_for_lists(DType dtype, Failure& failure) {
  const bool fits = f32_unless(dtype) == DType::F32;
  if (!fits) failure.refuse(MDP_E_UNSUPPORTED, "options.dtype is not F32; lists of numbers are for that");
  return fits;
}

// Floats for the library to fill, as many as the shape has. What makes no array is the library's to refuse.
inline std::vector<float> floats_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return std::vector<float>(static_cast<size_t>(count > 0 ? count : 0));
}

inline std::vector<double> TensorParallel::embedding_forward(const Comm& comm, const TpEmbeddingOptions& options,
                                                             const std::vector<double>& ids, const std::vector<double>& weight,
                                                             Failure& failure) {
  return guarded(failure, [&] {
    const std::vector<int64_t> rows = to_integers(ids, "ids", failure);
    const auto group = comm.handle().use(failure);
    if (failure.failed() || !group || !is_for_lists(options.dtype, failure)) return std::vector<double>();
    const std::vector<float> table = to_floats(weight);
    std::vector<float> output = floats_of(shape_of_rows(options, byte_count(rows), group.get()));
    embedding_forward(comm, options, bytes_of(rows), byte_count(rows), bytes_or_null(table), byte_count(table), writable_bytes(output),
                      byte_count(output), failure);
    return failure.failed() ? std::vector<double>() : to_doubles(output);
  });
}

inline std::vector<double> TensorParallel::embedding_backward(const Comm& comm, const TpEmbeddingOptions& options,
                                                              const std::vector<double>& ids, const std::vector<double>& grad_output,
                                                              Failure& failure) {
  return guarded(failure, [&] {
    const std::vector<int64_t> rows = to_integers(ids, "ids", failure);
    const auto group = comm.handle().use(failure);
    if (failure.failed() || !group || !is_for_lists(options.dtype, failure)) return std::vector<double>();
    const std::vector<float> given = to_floats(grad_output);
    std::vector<float> table = floats_of(part_of_table(options, group.get()));
    embedding_backward(comm, options, bytes_of(rows), byte_count(rows), bytes_or_null(given), byte_count(given), writable_bytes(table),
                       byte_count(table), false, failure);
    return failure.failed() ? std::vector<double>() : to_doubles(table);
  });
}

inline TpLosses* TensorParallel::cross_entropy_forward(const Comm& comm, const TpCrossEntropyOptions& options,
                                                       const std::vector<double>& logits, const std::vector<double>& targets,
                                                       Failure& failure) {
  return guarded(failure, [&]() -> TpLosses* {
    const std::vector<int64_t> classes = to_integers(targets, "targets", failure);
    if (failure.failed() || !is_for_lists(options.dtype, failure)) return nullptr;
    const std::vector<float> x = to_floats(logits);
    std::vector<float> losses(classes.size()), saved(2 * classes.size());
    cross_entropy_forward(comm, options, bytes_or_null(x), byte_count(x), bytes_of(classes), byte_count(classes), writable_bytes(losses),
                          byte_count(losses), writable_bytes(saved), byte_count(saved), failure);
    return failure.failed() ? nullptr : new TpLosses(std::move(losses), std::move(saved));
  });
}

inline std::vector<double> TensorParallel::cross_entropy_backward(const Comm& comm, const TpCrossEntropyOptions& options,
                                                                  const std::vector<double>& logits, const std::vector<double>& targets,
                                                                  const TpLosses& losses, const std::vector<double>& grad_losses,
                                                                  Failure& failure) {
  return guarded(failure, [&] {
    const std::vector<int64_t> classes = to_integers(targets, "targets", failure);
    if (failure.failed() || !is_for_lists(options.dtype, failure)) return std::vector<double>();
    std::vector<float> x = to_floats(logits);  // the gradient takes their place
    const std::vector<float>&saved = losses.saved(), given = to_floats(grad_losses);
    cross_entropy_backward(comm, options, bytes_or_null(x), byte_count(x), bytes_of(classes), byte_count(classes), bytes_or_null(saved),
                           byte_count(saved), bytes_or_null(given), byte_count(given), writable_bytes(x), byte_count(x), failure);
    return failure.failed() ? std::vector<double>() : to_doubles(x);
  });
}

}  // namespace megadp
