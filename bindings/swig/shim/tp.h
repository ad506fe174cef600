// SPDX-License-Identifier: Apache-2.0
// Tensor and sequence parallelism: linear layers cut over the ranks of a communicator, and the operators between what is replicated and
// what is cut. Arrays are dense and row-major; their features are the last dimension, and where a sequence is cut, it is the first.
#pragma once

#include "buffer.h"

namespace megadp {

/// A layer y = x W^T + b, W of out_features x in_features (TRANSPOSED: the other way round). Zero, false and unset are the defaults; split
/// and sizes must be said, and grad where y is the same on all ranks (ROW without sequence, gather_output). The same on all ranks.
struct TpLinearOptions {
  TpSplit split = TpSplit::UNSET;
  long long in_features = 0;  ///< of the whole layer
  long long out_features = 0;
  DType dtype = DType::DEFAULT;  ///< of all arrays but gradients of weight and bias, which are F32: F32, or BF16, whose sums are F32
  TpGrad grad = TpGrad::UNSET;
  bool bias = false;              ///< has one: added once, to the sum
  bool transposed = false;        ///< the weight is in_features x out_features
  bool sequence = false;          ///< x (COLUMN) or y (ROW) is cut along the sequence outside the layer
  bool gather_output = false;     ///< COLUMN: y is whole on all ranks
  bool whole_input = false;       ///< ROW: x is whole on all ranks
  bool check_replicated = false;  ///< compares over the ranks what should be the same on all; waits, for debugging

  /// One more block of the cut dimension, of what is fused (q, k, v): each is cut over the ranks by itself.
  void add_block(long long size) { blocks_.push_back(size); }

#ifndef SWIG
  mdp_tp_linear_config config() const {
    mdp_tp_linear_config config{};
    config.struct_size = sizeof config;
    config.split = static_cast<mdp_tp_split>(split);
    config.in_features = in_features;
    config.out_features = out_features;
    config.blocks = blocks_.empty() ? nullptr : blocks_.data();
    config.block_count = blocks_.size();
    config.dtype = static_cast<mdp_dtype>(dtype);
    config.grad = static_cast<mdp_tp_grad>(grad);
    config.flags = (bias ? MDP_TP_LINEAR_BIAS : 0) | (transposed ? MDP_TP_LINEAR_TRANSPOSED : 0) | (sequence ? MDP_TP_LINEAR_SEQUENCE : 0) |
                   (gather_output ? MDP_TP_LINEAR_GATHER_OUTPUT : 0) | (whole_input ? MDP_TP_LINEAR_WHOLE_INPUT : 0) |
                   (check_replicated ? MDP_TP_LINEAR_CHECK_REPLICATED : 0);
    return config;
  }
#endif

 private:
  std::vector<int64_t> blocks_;
};

/// An operator on arrays over a communicator. grad must be said of COPY, REDUCE and GATHER. Dimensions are counted from 0, the outermost.
struct TpRegionOptions {
  TpRegion region = TpRegion::UNSET;
  TpGrad grad = TpGrad::UNSET;
  int dim = 0;                    ///< that is cut over the ranks; not of COPY and REDUCE. Of EXCHANGE: of what goes in
  int to_dim = 0;                 ///< of EXCHANGE: of what comes out
  bool check_replicated = false;  ///< as in TpLinearOptions

  /// One more dimension of what this rank puts into forward, the outermost first.
  void add_dimension(long long size) { shape_.push_back(size); }
  /// Sizes of the ranks' parts along dim, and along to_dim, one for each rank; without them parts are equal.
  void set_parts(const Counts& parts) { parts_ = parts; }
  void set_to_parts(const Counts& parts) { to_parts_ = parts; }

#ifndef SWIG
  // `parts` and `to_parts` are what the configuration points to.
  mdp_tp_region_config config(const std::vector<uint64_t>& parts, const std::vector<uint64_t>& to_parts) const {
    mdp_tp_region_config config{};
    config.struct_size = sizeof config;
    config.region = static_cast<mdp_tp_region>(region);
    config.grad = static_cast<mdp_tp_grad>(grad);
    config.dim = dim;
    config.to_dim = to_dim;
    config.parts = parts.empty() ? nullptr : parts.data();
    config.to_parts = to_parts.empty() ? nullptr : to_parts.data();
    config.flags = check_replicated ? MDP_TP_REGION_CHECK_REPLICATED : 0;
    return config;
  }
  const Counts& parts() const {
    return parts_;
  }
  const Counts& to_parts() const {
    return to_parts_;
  }
  const std::vector<int64_t>& shape() const {
    return shape_;
  }
#endif

 private:
  std::vector<int64_t> shape_;
  Counts parts_, to_parts_;
};

/// A table of rows, cut by rows over the ranks. grad must be said where the output is the same on all ranks (not with sequence). The same
/// on all ranks.
struct TpEmbeddingOptions {
  long long rows = 0;            ///< of the whole table
  long long features = 0;        ///< of a row
  DType dtype = DType::DEFAULT;  ///< of weight and output and its gradient: F32, BF16 or F16. The gradient of the weight is F32
  TpGrad grad = TpGrad::UNSET;
  bool sequence = false;          ///< the output is cut along its first dimension
  bool check_replicated = false;  ///< as in TpLinearOptions

#ifndef SWIG
  mdp_tp_embedding_config config() const {
    mdp_tp_embedding_config config{};
    config.struct_size = sizeof config;
    config.grad = static_cast<mdp_tp_grad>(grad);
    config.rows = rows;
    config.flags = (sequence ? MDP_TP_EMBEDDING_SEQUENCE : 0) | (check_replicated ? MDP_TP_EMBEDDING_CHECK_REPLICATED : 0);
    return config;
  }
#endif
};

/// The cross-entropy of logits whose classes are cut over the ranks, the same number on each. The same on all ranks.
struct TpCrossEntropyOptions {
  long long classes = 0;          ///< 0: as many as all ranks have columns; those beyond are padding and do not count
  GivenClass ignore_index = 0;    ///< unset: none. A target without loss and gradient
  double label_smoothing = 0;     ///< the target has probability 1 - label_smoothing, each other class label_smoothing / (classes - 1)
  double z_loss = 0;              ///< adds z_loss * log(sum of exp(logits))^2
  DType dtype = DType::DEFAULT;   ///< of logits and their gradient: F32, BF16 or F16. All else is F32
  bool check_replicated = false;  ///< as in TpLinearOptions
  bool set_ignore_index = false;

#ifndef SWIG
  mdp_tp_cross_entropy_config config() const {
    mdp_tp_cross_entropy_config config{};
    config.struct_size = sizeof config;
    config.classes = classes;
    config.ignore_index = set_ignore_index ? ignore_index : 0;
    config.label_smoothing = label_smoothing;
    config.z_loss = z_loss;
    config.flags = (set_ignore_index ? MDP_TP_CROSS_ENTROPY_IGNORE : 0) | (check_replicated ? MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED : 0);
    return config;
  }
#endif
};

/// A copy of a layer's input, for one backward.
class TpSaved {
 public:
  void close() { saved_.close(); }
  bool closed() const { return saved_.closed(); }

#ifndef SWIG
  explicit TpSaved(mdp_tp_saved* saved) : saved_("TpSaved", saved, mdp_tp_saved_free) {}
  const Handle<mdp_tp_saved>& handle() const {
    return saved_;
  }
#endif

 private:
  Handle<mdp_tp_saved> saved_;
};

#if !defined(SWIGJAVA) && !defined(SWIGGO)
/// What backward has found, as lists; empty where the layer's buffer has it, or there is none.
class TpGradients {
 public:
  std::vector<double> input() const { return input_; }
  std::vector<double> weight() const { return weight_; }
  std::vector<double> bias() const { return bias_; }

#ifndef SWIG
  TpGradients(std::vector<double> input, std::vector<double> weight, std::vector<double> bias)
      : input_(std::move(input)), weight_(std::move(weight)), bias_(std::move(bias)) {}
#endif

 private:
  std::vector<double> input_, weight_, bias_;
};
#endif

#if !defined(SWIGJAVA) && !defined(SWIGGO)
/// Losses, one for each target, and what their gradient needs.
class TpLosses {
 public:
  std::vector<double> values() const { return std::vector<double>(losses_.begin(), losses_.end()); }

#ifndef SWIG
  TpLosses(std::vector<float> losses, std::vector<float> saved) : losses_(std::move(losses)), saved_(std::move(saved)) {}
  const std::vector<float>& saved() const {
    return saved_;
  }
#endif

 private:
  std::vector<float> losses_, saved_;
};
#endif

/// A linear layer whose weight is cut over the ranks of a communicator; nothing is initialised. Collective, in the order of the
/// communicator's other collectives; blocking. Its products are those of a library (OpenBLAS, oneDNN) that is found at run time.
class TpLinear {
 public:
  /// weight and bias, this rank's parts, are given to each call.
  static TpLinear* create(const Comm& comm, const TpLinearOptions& options, Failure& failure);
  /// They are parameters of a buffer, by index; bias counts with options.bias only. Their placement is SHARDED over the same ranks; of the
  /// bias of ROW it is REPLICATED, with sequence PARTIAL_SUM.
  static TpLinear* create_in(const Comm& comm, const Buffer& buffer, long long weight, long long bias, const TpLinearOptions& options,
                             Failure& failure);
  /// Drops this handle. Any thread.
  void close() { linear_.close(); }
  bool closed() const { return linear_.closed(); }

#if !defined(SWIG) || defined(SWIGJAVA) || defined(SWIGGO)
  /// Null memory: not given, or not wanted. weight and bias are null where they are parameters of a buffer.
  void forward(const unsigned char* input, long long input_bytes, const unsigned char* weight, long long weight_bytes,
               const unsigned char* bias, long long bias_bytes, unsigned char* output, long long output_bytes, Failure& failure);
  /// Keeps a copy of the input for backward_saved.
  TpSaved* forward_saving(const unsigned char* input, long long input_bytes, const unsigned char* weight, long long weight_bytes,
                          const unsigned char* bias, long long bias_bytes, unsigned char* output, long long output_bytes, Failure& failure);
  /// The gradients. Those of a buffer's parameters go where they belong and count as ready. add: those of weight and bias are added to what
  /// is there. input null: the weight needs no gradient.
  void backward(const unsigned char* input, long long input_bytes, const unsigned char* weight, long long weight_bytes,
                const unsigned char* grad_output, long long grad_output_bytes, unsigned char* grad_input, long long grad_input_bytes,
                unsigned char* grad_weight, long long grad_weight_bytes, unsigned char* grad_bias, long long grad_bias_bytes, bool add,
                Failure& failure);
  void backward_saved(const TpSaved& saved, const unsigned char* weight, long long weight_bytes, const unsigned char* grad_output,
                      long long grad_output_bytes, unsigned char* grad_input, long long grad_input_bytes, unsigned char* grad_weight,
                      long long grad_weight_bytes, unsigned char* grad_bias, long long grad_bias_bytes, bool add, Failure& failure);
#endif
#if !defined(SWIGJAVA) && !defined(SWIGGO)
  /// On lists, of F32 layers. weight and bias are empty where they are parameters of a buffer, bias where there is none.
  std::vector<double> forward(const std::vector<double>& input, const std::vector<double>& weight, const std::vector<double>& bias,
                              Failure& failure);
  TpGradients* backward(const std::vector<double>& input, const std::vector<double>& weight, const std::vector<double>& grad_output,
                        Failure& failure);
#endif

#ifndef SWIG
  TpLinear(mdp_tp_linear* linear, const TpLinearOptions& options, int ranks, bool in_buffer, const std::shared_ptr<Operations>& operations)
      : linear_("TpLinear", linear, mdp_tp_linear_destroy, operations), options_(options), ranks_(ranks), in_buffer_(in_buffer) {}
#endif

 private:
  struct Piece;  // memory of the caller's, or none
  struct Gradients;
  static TpLinear* created(const Comm& comm, mdp_tp_linear_config config, const TpLinearOptions& options, Failure& failure);
  TpSaved* run(const Piece& input, const Piece& weight, const Piece& bias, const Piece& output, bool saves, Failure& failure);
  void run_back(mdp_tp_saved* saved, const Piece& input, const Piece& weight, const Gradients& gradients, bool add, Failure& failure);
  std::vector<int64_t> rows(const Piece& piece, long long features) const;
  std::vector<int64_t> weight_shape() const;
  DType dtype() const {
    return options_.dtype == DType::DEFAULT ? DType::F32 : options_.dtype;
  }
  bool is_f32(Failure& failure) const;
  long long local_in() const {
    return options_.split == TpSplit::ROW ? options_.in_features / ranks_ : options_.in_features;
  }
  long long local_out() const {
    return options_.split == TpSplit::COLUMN ? options_.out_features / ranks_ : options_.out_features;
  }
  long long input_features() const {
    return options_.whole_input ? options_.in_features : local_in();
  }
  long long output_features() const {
    return options_.gather_output ? options_.out_features : local_out();
  }

  Handle<mdp_tp_linear> linear_;
  const TpLinearOptions options_;
  const long long ranks_;
  const bool in_buffer_;
};

/// The operators by themselves. Collective; blocking. Shapes of what comes out follow from TpRegionOptions.
class TensorParallel {
 public:
#if !defined(SWIG) || defined(SWIGJAVA) || defined(SWIGGO)
  static void region_forward(const Comm& comm, const TpRegionOptions& options, DType dtype, const unsigned char* from, long long from_bytes,
                             unsigned char* to, long long to_bytes, Failure& failure);
  /// The gradient of what forward was given, `to`, from that of what it gave, `from`.
  static void region_backward(const Comm& comm, const TpRegionOptions& options, DType dtype, const unsigned char* from,
                              long long from_bytes, unsigned char* to, long long to_bytes, Failure& failure);
  /// output: the rows `ids` (I64, from 0) of a table, of which weight, [rows / ranks, features], is this rank's part.
  static void embedding_forward(const Comm& comm, const TpEmbeddingOptions& options, const unsigned char* ids, long long ids_bytes,
                                const unsigned char* weight, long long weight_bytes, unsigned char* output, long long output_bytes,
                                Failure& failure);
  /// The gradient of weight, F32, zeros where no id came. add: to what is there.
  static void embedding_backward(const Comm& comm, const TpEmbeddingOptions& options, const unsigned char* ids, long long ids_bytes,
                                 const unsigned char* grad_output, long long grad_output_bytes, unsigned char* grad_weight,
                                 long long grad_weight_bytes, bool add, Failure& failure);
  /// losses, one for each of targets (I64, classes of the whole, from 0), of this rank's columns of logits. saved: two numbers a target for
  /// backward, or null.
  static void cross_entropy_forward(const Comm& comm, const TpCrossEntropyOptions& options, const unsigned char* logits,
                                    long long logits_bytes, const unsigned char* targets, long long targets_bytes, unsigned char* losses,
                                    long long losses_bytes, unsigned char* saved, long long saved_bytes, Failure& failure);
  /// grad_logits may be the memory of logits. Local.
  static void cross_entropy_backward(const Comm& comm, const TpCrossEntropyOptions& options, const unsigned char* logits,
                                     long long logits_bytes, const unsigned char* targets, long long targets_bytes,
                                     const unsigned char* saved, long long saved_bytes, const unsigned char* grad_losses,
                                     long long grad_losses_bytes, unsigned char* grad_logits, long long grad_logits_bytes,
                                     Failure& failure);
#endif
#if !defined(SWIGJAVA) && !defined(SWIGGO)
  static std::vector<double> region_forward(const Comm& comm, const TpRegionOptions& options, const std::vector<double>& values,
                                            Failure& failure);
  static std::vector<double> region_backward(const Comm& comm, const TpRegionOptions& options, const std::vector<double>& values,
                                             Failure& failure);
  /// On lists, of F32 tables and logits. ids and targets are whole numbers, from 0.
  static std::vector<double> embedding_forward(const Comm& comm, const TpEmbeddingOptions& options, const std::vector<double>& ids,
                                               const std::vector<double>& weight, Failure& failure);
  static std::vector<double> embedding_backward(const Comm& comm, const TpEmbeddingOptions& options, const std::vector<double>& ids,
                                                const std::vector<double>& grad_output, Failure& failure);
  static TpLosses* cross_entropy_forward(const Comm& comm, const TpCrossEntropyOptions& options, const std::vector<double>& logits,
                                         const std::vector<double>& targets, Failure& failure);
  static std::vector<double> cross_entropy_backward(const Comm& comm, const TpCrossEntropyOptions& options,
                                                    const std::vector<double>& logits, const std::vector<double>& targets,
                                                    const TpLosses& losses, const std::vector<double>& grad_losses, Failure& failure);
#endif
};

}  // namespace megadp

#ifndef SWIG
#include "tp_calls.h"
#include "tp_vocabulary.h"
#if !defined(SWIGJAVA) && !defined(SWIGGO)
#include "tp_lists.h"
#endif
#endif
