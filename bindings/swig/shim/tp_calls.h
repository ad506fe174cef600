// SPDX-License-Identifier: Apache-2.0
// What tp.h declares and does not define in place.
#pragma once

#include <optional>

#include "tp.h"

namespace megadp {

// ── arrays of a layer ──

// Dense memory of the caller's; none where it is null. With the right number of elements it is taken in `shape`; otherwise the library says
// what is wrong with it.
struct TpLinear::Piece {
  const void* data = nullptr;
  long long bytes = 0;
  const char* argument = "";
};

// The shape outlives the operand, which points to it.
class TpOperand {
 public:
  TpOperand(const void* data, DType dtype, long long bytes, const char* argument, std::vector<int64_t> shape, Failure& failure)
      : shape_(std::move(shape)) {
    if (data == nullptr || failure.failed()) return;
    operand_.emplace(dtype, data, bytes, argument, failure);
    operand_->shape_as(shape_);
  }
  const mdp_tensor* get() const { return operand_ ? operand_->get() : nullptr; }

 private:
  std::vector<int64_t> shape_;
  std::optional<Operand> operand_;
};

struct TpLinear::Gradients {
  Piece output, input, weight, bias;
};

// Rows of so many features. Also where a sequence is cut, which is the outermost of what the rows are: with equal parts it is cut as rows.
inline std::vector<int64_t> TpLinear::rows(const Piece& piece, long long features) const {
  const long long row = features * element_size(dtype());
  return {row > 0 ? piece.bytes / row : 0, features};
}

inline std::vector<int64_t> TpLinear::weight_shape() const {
  if (options_.transposed) return {local_in(), local_out()};
  return {local_out(), local_in()};
}

// ── layers ──

inline TpLinear* TpLinear::created(const Comm& comm, mdp_tp_linear_config config, const TpLinearOptions& options, Failure& failure) {
  const auto group = comm.handle().use_collectively(failure);
  mdp_tp_linear* linear = nullptr;
  if (!group || !failure.take(mdp_tp_linear_create(group.get(), &config, &linear))) return nullptr;
  return new TpLinear(linear, options, mdp_comm_size(group.get()), config.buffer != nullptr, comm.handle().operations());
}

inline TpLinear* TpLinear::create(const Comm& comm, const TpLinearOptions& options, Failure& failure) {
  return guarded(failure, [&] { return created(comm, options.config(), options, failure); });
}

inline TpLinear* TpLinear::create_in(const Comm& comm, const Buffer& buffer, long long weight, long long bias,
                                     const TpLinearOptions& options, Failure& failure) {
  return guarded(failure, [&]() -> TpLinear* {
    const auto holder = buffer.handle()->use(failure);
    if (!holder || !buffer.has(weight, failure) || (options.bias && !buffer.has(bias, failure))) return nullptr;
    mdp_tp_linear_config config = options.config();
    config.buffer = holder.get();
    config.weight = static_cast<uint64_t>(weight);
    config.bias = options.bias ? static_cast<uint64_t>(bias) : 0;
    return created(comm, config, options, failure);
  });
}

inline TpSaved* TpLinear::run(const Piece& input, const Piece& weight, const Piece& bias, const Piece& output, bool saves,
                              Failure& failure) {
  return guarded(failure, [&]() -> TpSaved* {
    const TpOperand x(input.data, dtype(), input.bytes, input.argument, rows(input, input_features()), failure);
    const TpOperand w(weight.data, dtype(), weight.bytes, weight.argument, weight_shape(), failure);
    const TpOperand b(bias.data, dtype(), bias.bytes, bias.argument, {local_out()}, failure);
    const TpOperand y(output.data, dtype(), output.bytes, output.argument, rows(output, output_features()), failure);
    if (failure.failed()) return nullptr;
    mdp_tp_saved* saved = nullptr;
    const auto linear = linear_.use_collectively(failure);
    if (!linear) return nullptr;
    failure.take(mdp_tp_linear_fwd(linear.get(), x.get(), w.get(), b.get(), y.get(), nullptr, saves ? &saved : nullptr));
    return saved != nullptr ? new TpSaved(saved) : nullptr;
  });
}

inline void TpLinear::run_back(mdp_tp_saved* saved, const Piece& input, const Piece& weight, const Gradients& gradients, bool add,
                               Failure& failure) {
  guarded(failure, [&] {
    const Piece &dy = gradients.output, &dx = gradients.input, &dw = gradients.weight, &db = gradients.bias;
    const TpOperand x(input.data, dtype(), input.bytes, input.argument, rows(input, input_features()), failure);
    const TpOperand w(weight.data, dtype(), weight.bytes, weight.argument, weight_shape(), failure);
    const TpOperand grad_output(dy.data, dtype(), dy.bytes, dy.argument, rows(dy, output_features()), failure);
    const TpOperand grad_input(dx.data, dtype(), dx.bytes, dx.argument, rows(dx, input_features()), failure);
    const TpOperand grad_weight(dw.data, DType::F32, dw.bytes, dw.argument, weight_shape(), failure);
    const TpOperand grad_bias(db.data, DType::F32, db.bytes, db.argument, {local_out()}, failure);
    if (failure.failed()) return;
    if (const auto linear = linear_.use_collectively(failure)) {
      failure.take(mdp_tp_linear_bwd(linear.get(), saved, x.get(), w.get(), grad_output.get(), grad_input.get(), grad_weight.get(),
                                     grad_bias.get(), add ? MDP_GRAD_ADD : 0, nullptr));
    }
  });
}

inline void TpLinear::forward(const unsigned char* input, long long input_bytes, const unsigned char* weight, long long weight_bytes,
                              const unsigned char* bias, long long bias_bytes, unsigned char* output, long long output_bytes,
                              Failure& failure) {
  run({input, input_bytes, "input"}, {weight, weight_bytes, "weight"}, {bias, bias_bytes, "bias"}, {output, output_bytes, "output"}, false,
      failure);
}

inline TpSaved* TpLinear::forward_saving(const unsigned char* input, long long input_bytes, const unsigned char* weight,
                                         long long weight_bytes, const unsigned char* bias, long long bias_bytes, unsigned char* output,
                                         long long output_bytes, Failure& failure) {
  return run({input, input_bytes, "input"}, {weight, weight_bytes, "weight"}, {bias, bias_bytes, "bias"}, {output, output_bytes, "output"},
             true, failure);
}

inline void TpLinear::backward(const unsigned char* input, long long input_bytes, const unsigned char* weight, long long weight_bytes,
                               const unsigned char* grad_output, long long grad_output_bytes, unsigned char* grad_input,
                               long long grad_input_bytes, unsigned char* grad_weight, long long grad_weight_bytes,
                               unsigned char* grad_bias, long long grad_bias_bytes, bool add, Failure& failure) {
  const Gradients gradients{{grad_output, grad_output_bytes, "grad_output"},
                            {grad_input, grad_input_bytes, "grad_input"},
                            {grad_weight, grad_weight_bytes, "grad_weight"},
                            {grad_bias, grad_bias_bytes, "grad_bias"}};
  run_back(nullptr, {input, input_bytes, "input"}, {weight, weight_bytes, "weight"}, gradients, add, failure);
}

inline void TpLinear::backward_saved(const TpSaved& saved, const unsigned char* weight, long long weight_bytes,
                                     const unsigned char* grad_output, long long grad_output_bytes, unsigned char* grad_input,
                                     long long grad_input_bytes, unsigned char* grad_weight, long long grad_weight_bytes,
                                     unsigned char* grad_bias, long long grad_bias_bytes, bool add, Failure& failure) {
  const Gradients gradients{{grad_output, grad_output_bytes, "grad_output"},
                            {grad_input, grad_input_bytes, "grad_input"},
                            {grad_weight, grad_weight_bytes, "grad_weight"},
                            {grad_bias, grad_bias_bytes, "grad_bias"}};
  if (const auto kept = saved.handle().use(failure)) {
    run_back(kept.get(), Piece(), {weight, weight_bytes, "weight"}, gradients, add, failure);
  }
}

inline bool TpLinear::is_f32(Failure& failure) const {
  if (dtype() != DType::F32) failure.refuse(MDP_E_UNSUPPORTED, "elements of this layer are not F32; lists of numbers are for those");
  return dtype() == DType::F32;
}

// ── regions ──

// The shape of what forward gives on this rank. Sizes that do not divide are the library's to refuse.
inline std::vector<int64_t> shape_of_output(const TpRegionOptions& options, const std::vector<uint64_t>& parts,
                                            const std::vector<uint64_t>& to_parts, int rank, int ranks) {
  std::vector<int64_t> shape = options.shape();
  const auto part = [&](int dim, const std::vector<uint64_t>& sizes) {
    if (dim < 0 || static_cast<size_t>(dim) >= shape.size()) return;
    int64_t& size = shape[static_cast<size_t>(dim)];
    size = sizes.empty() ? size / ranks : static_cast<int64_t>(sizes[static_cast<size_t>(rank)]);
  };
  const auto whole = [&](int dim, const std::vector<uint64_t>& sizes) {
    if (dim < 0 || static_cast<size_t>(dim) >= shape.size()) return;
    int64_t& size = shape[static_cast<size_t>(dim)];
    if (sizes.empty()) size *= ranks;
    if (!sizes.empty()) size = 0;
    for (const uint64_t each : sizes) size += static_cast<int64_t>(each);
  };
  switch (options.region) {
    case TpRegion::SCATTER:
    case TpRegion::REDUCE_SCATTER:
      part(options.dim, parts);
      break;
    case TpRegion::GATHER:
      whole(options.dim, parts);
      break;
    case TpRegion::EXCHANGE:
      whole(options.dim, parts);
      part(options.to_dim, to_parts);
      break;
    default:
      break;
  }
  return shape;
}

// work(comm, config, shape of forward's input, shape of its output)
template <class Work>
void with_region(const Comm& comm, const TpRegionOptions& options, Failure& failure, Work work) {
  guarded(failure, [&] {
    const auto group = comm.handle().use_collectively(failure);
    if (!group) return;
    const int rank = mdp_comm_rank(group.get()), ranks = mdp_comm_size(group.get());
    const auto list = [&](const Counts& counts, const char* argument) {
      return counts.size() == 0 || failure.failed() ? std::vector<uint64_t>() : counts.list(ranks, "rank", argument, failure);
    };
    const std::vector<uint64_t> parts = list(options.parts(), "parts"), to_parts = list(options.to_parts(), "to_parts");
    if (failure.failed()) return;
    const mdp_tp_region_config config = options.config(parts, to_parts);
    work(group.get(), &config, options.shape(), shape_of_output(options, parts, to_parts, rank, ranks));
  });
}

inline void TensorParallel::region_forward(const Comm& comm, const TpRegionOptions& options, DType dtype, const unsigned char* from,
                                           long long from_bytes, unsigned char* to, long long to_bytes, Failure& failure) {
  with_region(comm, options, failure, [&](auto* group, auto* config, const auto& input, const auto& output) {
    const TpOperand source(from, dtype, from_bytes, "from", input, failure), target(to, dtype, to_bytes, "to", output, failure);
    if (!failure.failed()) failure.take(mdp_tp_region_fwd(group, config, source.get(), target.get(), nullptr));
  });
}

inline void TensorParallel::region_backward(const Comm& comm, const TpRegionOptions& options, DType dtype, const unsigned char* from,
                                            long long from_bytes, unsigned char* to, long long to_bytes, Failure& failure) {
  with_region(comm, options, failure, [&](auto* group, auto* config, const auto& input, const auto& output) {
    const TpOperand source(from, dtype, from_bytes, "from", output, failure), target(to, dtype, to_bytes, "to", input, failure);
    if (!failure.failed()) failure.take(mdp_tp_region_bwd(group, config, source.get(), target.get(), nullptr));
  });
}

}  // namespace megadp
