// SPDX-License-Identifier: Apache-2.0
// Spatial parallelism: arrays cut over a grid of ranks, with a halo of what the neighbours have; and how convolutions are cut.
#pragma once

#include "comm.h"

namespace megadp {

/// Dimensions are added from the outermost to the innermost; the innermost varies fastest with the rank. The same on all ranks, but for
/// sizes of parts.
struct HaloOptions {
  DType dtype = DType::DEFAULT;  ///< any
  int fields = 0;                ///< arrays that are exchanged at a time; 0: 1
  long long arrays = 0;          ///< that the library makes: Halo.array
  bool faces = false;            ///< no edges and corners: for star-shaped stencils

  /// One more dimension: cut over `ranks` ranks (1: not cut), of which this one's part has `size` elements, a halo of `low` before and of
  /// `high` behind it, and `edge` beyond the whole array.
  void add_dimension(long long ranks, long long size, long long low, long long high, Edge edge) {
    grid_.push_back(ranks);
    part_.push_back(size);
    low_.push_back(low);
    high_.push_back(high);
    edges_.push_back(static_cast<mdp_edge>(edge));
    padded_.push_back(low + size + high);
  }

  /// Field number `field`, from 0, is longer by one element along a dimension, from 0, the outermost: it lies on the faces of cells.
  void stagger(int field, int dimension) { staggered_.emplace_back(field, dimension); }

#ifndef SWIG
  mdp_halo_config config() const {
    mdp_halo_config config{};
    config.struct_size = sizeof config;
    config.dtype = static_cast<mdp_dtype>(dtype);
    config.ndim = static_cast<int32_t>(grid_.size());
    config.fields = static_cast<uint32_t>(fields);
    config.grid = grid_.data();
    config.shape = part_.data();
    config.low = low_.data();
    config.high = high_.data();
    config.edges = edges_.data();
    config.flags = faces ? MDP_HALO_FACES : 0;
    config.arrays = static_cast<uint64_t>(arrays);
    longer_.assign(field_count() * dimensions(), 0);
    for (const auto& at : staggered_) {
      if (has(at)) longer_[static_cast<size_t>(at.first) * dimensions() + static_cast<size_t>(at.second)] = 1;
    }
    if (!staggered_.empty()) config.staggered = longer_.data();
    return config;
  }
  size_t dimensions() const {
    return part_.size();
  }
  size_t field_count() const {
    return fields > 0 ? static_cast<size_t>(fields) : 1;
  }
  /// Whether there are all fields and dimensions that are said to be longer.
  bool fits(Failure& failure) const {
    for (const auto& at : staggered_) {
      if (has(at)) continue;
      failure.refuse(MDP_E_INVALID, "stagger(%d, %d): fields are 0 to %zu, dimensions 0 to %zu", at.first, at.second, field_count() - 1,
                     dimensions() - 1);
      return false;
    }
    return true;
  }
  std::vector<int64_t> padded(size_t field) const {
    std::vector<int64_t> shape = padded_;
    for (const auto& at : staggered_) {
      if (static_cast<size_t>(at.first) == field) shape[static_cast<size_t>(at.second)] = padded_[static_cast<size_t>(at.second)] + 1;
    }
    return shape;
  }
#endif

 private:
  bool has(const std::pair<int, int>& at) const {
    return at.first >= 0 && static_cast<size_t>(at.first) < field_count() && at.second >= 0 &&
           static_cast<size_t>(at.second) < dimensions();
  }

  std::vector<std::pair<int, int>> staggered_;  // field, dimension
  mutable std::vector<int64_t> longer_;         // by field and dimension
  std::vector<int64_t> grid_, part_, low_, high_, padded_;
  std::vector<mdp_edge> edges_;
};

/// A convolution or pooling along one dimension; 0: 1 of kernel, stride and dilation. Parts are added in the order of ranks.
struct ConvOptions {
  long long kernel = 0;
  long long stride = 0;
  long long dilation = 0;
  long long padding_low = 0;  ///< zeros before the whole input
  long long padding_high = 0;

  void add_part(long long size) { parts_.push_back(size); }

#ifndef SWIG
  mdp_conv_config config() const {
    mdp_conv_config config{};
    config.struct_size = sizeof config;
    config.kernel = kernel;
    config.stride = stride;
    config.dilation = dilation;
    config.padding_low = padding_low;
    config.padding_high = padding_high;
    return config;
  }
  const std::vector<int64_t>& parts() const {
    return parts_;
  }
#endif

 private:
  std::vector<int64_t> parts_;
};

/// What one rank computes of a convolution that is cut. Counted from 0.
struct ConvPart {
  long long low = 0;  ///< widths of the halo, the same on all ranks
  long long high = 0;
  long long output_begin = 0;  ///< this rank's outputs
  long long output_size = 0;
  long long first = 0;         ///< element of the padded part at which the first output's window begins
  long long inside_begin = 0;  ///< of its outputs those that need no halo
  long long inside_size = 0;
  long long whole_output = 0;
};

/// Exchanges of arrays that are cut over a grid of ranks. Padded arrays have part and halo; dense and row-major. Forward, halos become what
/// their owners have; backward, the adjoint, they are added to where they came from, in the order of ranks, and become 0. Collective,
/// but waits for neighbours alone.
class Halo {
 public:
  /// Collective over comm; blocking.
  static Halo* create(const Comm& comm, const HaloOptions& options, Failure& failure);

  /// A padded array of the library's, zero at first, by its number from 0. Much that neighbours on the node need of these they read there.
  /// Local.
  View* array(long long index, Failure& failure) const;
  /// Sends off what neighbours need of the library's arrays `first`, first + 1, ..., as many as there are fields. Until finish only their
  /// inside may be read, what needs no halo.
  void start(long long first, bool backward, Failure& failure) const;
  /// Waits for the neighbours, and brings what they have sent to its place.
  void finish(Failure& failure) const;

#if !defined(SWIG) || defined(SWIGJAVA) || defined(SWIGGO)
  /// Start and finish of memory of the caller's: as many padded arrays as there are fields, one after another.
  void exchange(unsigned char* field, long long field_bytes, bool backward, Failure& failure) const;
#endif
#if !defined(SWIGJAVA) && !defined(SWIGGO)
  /// The same of a list, of F64 or F32; gives what it has become.
  std::vector<double> exchange(const std::vector<double>& values, bool backward, Failure& failure) const;
#endif

  /// Of a dimension, from 0, the outermost: this rank's place in the grid, where its part begins, and the size of the whole. Local.
  long long place(int dimension, Failure& failure) const {
    return placed(dimension, 0, failure);
  }
  long long part_begin(int dimension, Failure& failure) const {
    return placed(dimension, 1, failure);
  }
  long long whole_size(int dimension, Failure& failure) const {
    return placed(dimension, 2, failure);
  }

  /// How an input, cut along one dimension, is convolved or pooled by the rank with number `part`: each output by the rank that has the
  /// element at output * stride, by the last one beyond. Local.
  static ConvPart conv_split(const ConvOptions& options, int part, Failure& failure);

  /// Drops this handle. Any thread.
  void close() {
    halo_.close();
  }
  bool closed() const {
    return halo_.closed();
  }

#ifndef SWIG
  Halo(mdp_halo* halo, const HaloOptions& options, const std::shared_ptr<Operations>& operations)
      : halo_("Halo", halo, mdp_halo_destroy, operations), options_(options) {}
#endif

 private:
  void run(const std::vector<mdp_tensor>& fields, bool backward, bool finishes, Failure& failure) const;
  long long placed(int dimension, int which, Failure& failure) const;
  DType dtype() const {
    return options_.dtype == DType::DEFAULT ? DType::F32 : options_.dtype;
  }

  Handle<mdp_halo> halo_;
  const HaloOptions options_;
};

}  // namespace megadp

#ifndef SWIG
#include "halo_calls.h"
#endif
