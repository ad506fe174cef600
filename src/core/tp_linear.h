// SPDX-License-Identifier: Apache-2.0
// TpLinear: a linear layer y = x W^T + b whose weight is cut over the ranks of a communicator.
//
//                 input x                     weight                   output y               backward
//   column        replicated, or cut along    W's rows: out / p        its features: out / p  input: summed over the ranks, or
//                 the sequence and gathered                                                   reduce-scattered along the sequence
//   row           its features: in / p        W's columns: in / p      summed over the ranks  output: as it comes, or gathered along
//                                                                      or reduce-scattered    the sequence
//
// Products run where the caller computes: on the calling thread, or the caller's stream of a device. Collectives run on the communicator's
// channel meanwhile: backward computes the gradient of the weight while that of the input is reduced. What no other work hides is cut into
// chunks of rows, where that pays (rows_of_chunk); see tp_linear_chunks.cc.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/buffer.h"
#include "core/tp_collectives.h"
#include "core/tp_operands.h"
#include "core/tp_shape.h"

namespace megadp {

struct TpLinearConfig : TpLinearShape {
  std::shared_ptr<Buffer> buffer;      // null: weight and bias are the caller's
  std::optional<size_t> weight, bias;  // numbers of the buffer's parameters
  int64_t chunk_rows = 0;              // 0: rows_of_chunk() decides; else the same on all ranks, of tests and measurements
};

// A copy of an input, for one backward.
struct TpSaved {
  std::shared_ptr<Memory> memory;
  StridedArray input;
  const void* layer = nullptr;
  bool used = false;
};

class TpLinear {
 public:
  // Collective over the communicator, blocking.
  static Result<std::shared_ptr<TpLinear>> create(std::shared_ptr<Comm> comm, TpLinearConfig config);

  // Null: not given, or not wanted.
  struct Forward {
    const StridedArray *input = nullptr, *weight = nullptr, *bias = nullptr, *output = nullptr;
  };
  struct Backward {
    TpSaved* saved = nullptr;
    const StridedArray *input = nullptr, *weight = nullptr, *grad_output = nullptr;
    const StridedArray *grad_input = nullptr, *grad_weight = nullptr, *grad_bias = nullptr;
    bool adds = false;  // to grad_weight and grad_bias
  };
  Status forward(const Forward& given, void* caller);
  Result<std::unique_ptr<TpSaved>> save(const StridedArray& input, void* caller);
  Status backward(const Backward& given, void* caller);

  Comm& comm() const noexcept { return *comm_; }
  OneCall& one_call() const noexcept { return comm_->one_call(); }

 private:
  TpLinear(std::shared_ptr<Comm> comm, TpLinearConfig config);

  int64_t size() const noexcept { return comm_->size(); }
  Backend& backend() const noexcept { return *comm_->context().backend; }

  Status check_parameter(const char* field, size_t param, std::vector<int64_t> shape, Placement placement, int shard_dim) const;
  Status check_parameters() const;
  Status check_same() const;

  Status check_input(const StridedArray& input, const char* argument) const;
  Status check_output(const StridedArray& output, const StridedArray& input, const char* argument, const char* input_argument) const;
  Status check_weight(const StridedArray* given, const char* argument, bool is_bias, bool wanted) const;
  bool is_registered(const std::optional<size_t>& param) const;

  // One call: what its steps share.
  struct Call {
    TpCollectives collectives;
    void* caller;
  };
  Result<Matrix> weight(const StridedArray* given, void* caller) const;  // [out, in], whatever it lies like
  Result<StridedArray> bias(const StridedArray* given, void* caller) const;
  Status add_bias(const Matrix& output, const StridedArray& bias, void* caller) const;
  Result<StridedArray> in_scratch(const std::vector<int64_t>& shape, ScratchPiece piece) const;
  Result<Matrix> whole_in_scratch(const Matrix& own, ScratchPiece piece) const;  // for the rows of all ranks

  // Rows of all ranks on their way to this one.
  struct Gathered {
    Matrix whole;                              // chunk after chunk; in each, the ranks' rows of it one after another
    Matrix own;                                // this rank's rows, to be read meanwhile; no data: they are not
    int64_t chunk_rows = 0;                    // of each rank
    std::vector<std::shared_ptr<Event>> ends;  // of the chunks
  };

  // The parts of this rank, and of all: by block along the features.
  struct Piece {
    uint64_t whole_at, local_at, part;  // elements, `part` of them on each rank
  };
  std::vector<Piece> pieces() const;
  Status gather_features(const StridedArray& to, const StridedArray& from, Call& call) const;
  Status scatter_features(const StridedArray& to, const StridedArray& from, Call& call) const;
  Result<StridedArray> own_features(const StridedArray& input, Call& call) const;
  Status reduce_scatter_features(const StridedArray& to, const StridedArray& from, Call& call) const;

  Status forward_column(const Forward& given, Call& call);
  Status multiply_column(const Forward& given, const Gathered* gathered, Call& call);
  Status forward_row(const Forward& given, Call& call);

  // In tp_linear_chunks.cc.
  struct Chunks {
    int64_t rows;            // of each
    bool own_first = false;  // products begin with this rank's rows, while the others' come
    static Chunks one(int64_t rows) { return {rows}; }
  };
  Chunks chunks(TpMove move, int64_t rows, int64_t features) const;
  Result<Gathered> start_gather(const StridedArray& input, ScratchPiece piece, const Chunks& chunks, Call& call) const;
  Status wait_for(const Gathered& gathered, Call& call) const;
  Status multiply_gathered(const Matrix& c, const Gathered& gathered, const Matrix& b, Call& call) const;
  struct Sum {
    TpMove move;
    Matrix to;       // rows of this rank, or of all where the sum is for all
    Matrix partial;  // the product, of all rows; `to` itself where the sum is for all
  };
  Status multiply_and_sum(const Sum& sum, const Matrix& a, const Matrix& b, int64_t chunk_rows, Call& call) const;

  // In tp_linear_bwd.cc.
  struct Wanted {
    bool weight, bias;
  };
  Wanted wanted(const Backward& given) const;
  Status check_backward(const Backward& given, const StridedArray* input) const;
  Status check_gradients(const Backward& given) const;
  std::vector<int64_t> input_shape_for(const StridedArray& output) const;
  Status backward_column(const Backward& given, const StridedArray* input, Call& call);
  Status backward_row(const Backward& given, const StridedArray* input, Call& call);
  Status row_gradients(const Backward& given, const StridedArray* input, const Matrix& dy, const Gathered* gathered, Call& call);
  Status row_input_gradient(const Backward& given, const Matrix& dy, const Gathered* gathered, Call& call);
  Status start_input_gradient(const Backward& given, const Matrix& dy, std::optional<MatrixOut>* dx, Call& call);
  Status weight_gradients(const Backward& given, const Matrix& dy, const Matrix& x, const Matrix& bias_dy, Call& call);
  struct Target {  // of a gradient: a parameter's place, or an array of the caller's
    const std::optional<size_t>& param;
    const StridedArray* given;
    std::vector<int64_t> shape;
    bool transposed;
  };
  Status into_gradient(const Target& target, const Matrix& left, const Matrix& right, bool adds, Call& call);

  const std::shared_ptr<Comm> comm_;
  const TpLinearConfig config_;
};

}  // namespace megadp
