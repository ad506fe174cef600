// SPDX-License-Identifier: Apache-2.0
// What halo.h declares and does not define in place.
#pragma once

#include "halo.h"

namespace megadp {

inline Halo* Halo::create(const Comm& comm, const HaloOptions& options, Failure& failure) {
  return guarded(failure, [&]() -> Halo* {
    const auto group = comm.handle().use_collectively(failure);
    if (!group || !not_negative("fields", options.fields, failure) || !not_negative("arrays", options.arrays, failure)) return nullptr;
    if (!options.fits(failure)) return nullptr;
    const mdp_halo_config config = options.config();
    mdp_halo* halo = nullptr;
    return failure.take(mdp_halo_create(group.get(), &config, &halo)) ? new Halo(halo, options, comm.handle().operations()) : nullptr;
  });
}

inline View* Halo::array(long long index, Failure& failure) const {
  return guarded(failure, [&]() -> View* {
    const auto halo = halo_.use(failure);
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    if (!halo || !not_negative("index", index, failure)) return nullptr;
    return failure.take(mdp_halo_array(halo.get(), static_cast<uint64_t>(index), &tensor)) ? new View(tensor, halo) : nullptr;
  });
}

inline void Halo::run(const std::vector<mdp_tensor>& fields, bool backward, bool finishes, Failure& failure) const {
  const auto halo = halo_.use_collectively(failure);
  if (!halo) return;
  if (!failure.take(mdp_halo_start(halo.get(), fields.data(), fields.size(), backward ? MDP_HALO_BACKWARD : 0, nullptr))) return;
  if (finishes) failure.take(mdp_halo_finish(halo.get(), nullptr));
}

inline void Halo::start(long long first, bool backward, Failure& failure) const {
  guarded(failure, [&] {
    const auto halo = halo_.use(failure);
    if (!halo || !not_negative("first", first, failure)) return;
    std::vector<mdp_tensor> fields(options_.field_count());
    for (size_t f = 0; f < fields.size(); ++f) {
      fields[f].struct_size = sizeof fields[f];
      if (!failure.take(mdp_halo_array(halo.get(), static_cast<uint64_t>(first) + f, &fields[f]))) return;
    }
    run(fields, backward, false, failure);
  });
}

inline void Halo::finish(Failure& failure) const {
  if (const auto halo = halo_.use_collectively(failure)) failure.take(mdp_halo_finish(halo.get(), nullptr));
}

inline void Halo::exchange(unsigned char* field, long long field_bytes, bool backward, Failure& failure) const {
  guarded(failure, [&] {
    const size_t count = options_.field_count();
    std::vector<std::vector<int64_t>> shapes;  // which operands point to, and tensors to these
    std::vector<std::unique_ptr<Operand>> operands;
    std::vector<mdp_tensor> fields;
    std::vector<long long> sizes;
    long long all = 0;
    for (size_t f = 0; f < count; ++f) {
      shapes.push_back(options_.padded(f));
      sizes.push_back(element_size(dtype()));
      for (const int64_t size : shapes.back()) sizes.back() *= size;
      all += sizes.back();
    }
    // If they do not fit, the library says so of the first.
    const auto each = static_cast<long long>(count);
    if (all != field_bytes && field_bytes % each != 0) {
      failure.refuse(MDP_E_INVALID, "field has %lld bytes, which %lld fields cannot share evenly", field_bytes, each);
      return;
    }
    for (size_t f = 0; f < count && !failure.failed(); ++f) {
      const long long bytes = all == field_bytes ? sizes[f] : field_bytes / each;
      operands.emplace_back(new Operand(dtype(), field, bytes, "field", failure));
      operands.back()->shape_as(shapes[f]);
      fields.push_back(*operands.back()->get());
      field += bytes;
    }
    if (!failure.failed()) run(fields, backward, true, failure);
  });
}

#if !defined(SWIGJAVA) && !defined(SWIGGO)
inline std::vector<double> Halo::exchange(const std::vector<double>& values, bool backward, Failure& failure) const {
  return guarded(failure, [&] {
    std::vector<double> doubles(values);
    std::vector<float> floats(values.begin(), values.end());
    if (dtype() == DType::F64) {
      exchange(reinterpret_cast<unsigned char*>(doubles.data()), byte_count(doubles), backward, failure);
    } else if (dtype() == DType::F32) {
      exchange(reinterpret_cast<unsigned char*>(floats.data()), static_cast<long long>(floats.size() * sizeof(float)), backward, failure);
      doubles.assign(floats.begin(), floats.end());
    } else {
      failure.refuse(MDP_E_UNSUPPORTED, "options.dtype is not F32 or F64; lists of numbers are for those");
    }
    return failure.failed() ? std::vector<double>() : doubles;
  });
}
#endif

inline long long Halo::placed(int dimension, int which, Failure& failure) const {
  return guarded(failure, [&]() -> long long {
    const size_t dims = options_.dimensions();
    const auto halo = halo_.use(failure);
    if (!halo) return 0;
    if (dimension < 0 || static_cast<size_t>(dimension) >= dims) {
      failure.refuse(MDP_E_INVALID, "dimension must be 0 to %zu, not %d", dims - 1, dimension);
      return 0;
    }
    std::vector<int64_t> lists[3] = {std::vector<int64_t>(dims), std::vector<int64_t>(dims), std::vector<int64_t>(dims)};
    if (!failure.take(mdp_halo_place(halo.get(), lists[0].data(), lists[1].data(), lists[2].data()))) return 0;
    return lists[which][static_cast<size_t>(dimension)];
  });
}

inline ConvPart Halo::conv_split(const ConvOptions& options, int part, Failure& failure) {
  const mdp_conv_config config = options.config();
  mdp_conv_part out{};
  out.struct_size = sizeof out;
  ConvPart found;
  if (!failure.take(mdp_conv_split(&config, options.parts().data(), options.parts().size(), part, &out))) return found;
  found.low = out.low;
  found.high = out.high;
  found.output_begin = out.output_begin;
  found.output_size = out.output_size;
  found.first = out.first;
  found.inside_begin = out.inside_begin;
  found.inside_size = out.inside_size;
  found.whole_output = out.whole_output;
  return found;
}

}  // namespace megadp
