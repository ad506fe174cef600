// SPDX-License-Identifier: Apache-2.0
// What one thread of a kernel does, as functions of its number and of how many there are; nothing here knows CUDA. So the tests run every
// thread of a launch on the host, where all indices can be checked, and the kernels are left with nothing but the launch.
//
// Element-wise work goes over its arrays like this, if all of them can be brought to 16-byte addresses by one offset:
//
//   | head: single elements | unit | unit | unit | ... | tail: single elements |
//
// Neighbouring threads take neighbouring units; each has several of its own under way at a time, since only bytes in flight bring the
// memory up to its speed. Elements are computed by base/math.h and the update rules alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "base/dtype.h"
#include "base/finding.h"
#include "base/math.h"
#include "base/rules.h"
#include "base/sum_order.h"

#if defined(__CUDA_ARCH__)
#define MEGADP_UNROLL _Pragma("unroll")
#else
#define MEGADP_UNROLL
#endif

namespace megadp::cuda {

// `n` neighbours, read and written by accesses of 16 bytes (or all at once if they are fewer).
constexpr size_t pack_alignment(size_t bytes) {
  return bytes < 16 ? bytes : 16;
}
template <class T, int n>
struct alignas(pack_alignment(sizeof(T) * n)) Pack {
  T at[n];
};
template <int n, class T>
MEGADP_HOST_DEVICE inline Pack<T, n> load_pack(const T* from) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const Pack<T, n>*>(from);  // which the device's compiler does at once; the host's may not alias so
#else
  Pack<T, n> pack;
  std::memcpy(&pack, from, sizeof pack);
  return pack;
#endif
}
template <class T, int n>
MEGADP_HOST_DEVICE inline void store_pack(T* to, const Pack<T, n>& pack) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<Pack<T, n>*>(to) = pack;
#else
  std::memcpy(to, &pack, sizeof pack);
#endif
}

// How `count` elements are cut into head, units and tail.
struct Split {
  uint64_t count, head, units;
};
struct Array {
  const void* data;
  size_t element;  // bytes
};
// Units of `width` elements, a power of two. Arrays that no common offset aligns are gone through by single elements.
inline Split split_evenly(uint64_t count, unsigned width, std::initializer_list<Array> arrays) {
  for (uint64_t head = 0; head < width && head <= count; head++) {
    bool aligned = true;
    for (const Array& array : arrays) {
      aligned &= (reinterpret_cast<uintptr_t>(array.data) + head * array.element) % pack_alignment(width * array.element) == 0;
    }
    if (aligned) return {count, head, (count - head) / width};
  }
  return {count, 0, 0};
}

// An operation on elements: load<n>(i) reads all that elements [i, i + n) need, store() computes and writes. kWidth: elements of a unit;
// kDepth: units whose loads are under way together.
template <class Operation>
struct ForEach {
  Operation operation;
  Split split;

  MEGADP_HOST_DEVICE void operator()(uint64_t thread, uint64_t threads) const {
    constexpr int width = Operation::kWidth, depth = Operation::kDepth;
    using Loaded = decltype(operation.template load<width>(0));
    uint64_t unit = thread;
    for (; unit + (depth - 1) * threads < split.units; unit += depth * threads) {
      Loaded loaded[depth];
      MEGADP_UNROLL
      for (int d = 0; d < depth; d++) loaded[d] = operation.template load<width>(begin_of<width>(unit + d * threads));
      MEGADP_UNROLL
      for (int d = 0; d < depth; d++) operation.store(begin_of<width>(unit + d * threads), loaded[d]);
    }
    for (; unit < split.units; unit += threads) {
      operation.store(begin_of<width>(unit), operation.template load<width>(begin_of<width>(unit)));
    }
    for (uint64_t single = thread; single < singles(); single += threads) {
      const uint64_t i = begin_of_single(single);
      operation.store(i, operation.template load<1>(i));
    }
  }

  // A unit and a single element for each thread, of which there are at least as many as pieces. What the operation computes with is made
  // ready while the loads are under way, by all threads of a block together; false: nothing is to be stored.
  template <class Ready>
  MEGADP_HOST_DEVICE void once(uint64_t thread, const Ready& ready) {
    constexpr int width = Operation::kWidth;
    const bool has_unit = thread < split.units, has_single = thread < singles();
    decltype(operation.template load<width>(0)) unit;
    decltype(operation.template load<1>(0)) single;
    if (has_unit) unit = operation.template load<width>(begin_of<width>(thread));
    if (has_single) single = operation.template load<1>(begin_of_single(thread));
    if (!ready(operation)) return;
    if (has_unit) operation.store(begin_of<width>(thread), unit);
    if (has_single) operation.store(begin_of_single(thread), single);
  }
  MEGADP_HOST_DEVICE uint64_t pieces() const { return split.units > singles() ? split.units : singles(); }

 private:
  MEGADP_HOST_DEVICE uint64_t singles() const { return split.count - split.units * Operation::kWidth; }
  MEGADP_HOST_DEVICE uint64_t begin_of_single(uint64_t single) const {
    return single < split.head ? single : single + split.units * Operation::kWidth;
  }
  template <int width>
  MEGADP_HOST_DEVICE uint64_t begin_of(uint64_t unit) const {
    return split.head + unit * width;
  }
};

// ── to = from, to += from ──

template <class To, class From, bool adds>
struct Convert {
  static constexpr size_t kLarger = sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From);
  static constexpr int kWidth = kLarger > 4 ? 4 : 16 / kLarger, kDepth = 4;
  To* to;
  const From* from;

  template <int n>
  struct Loaded {
    Pack<From, n> from;
    Pack<To, n> to;  // what is added to
  };
  template <int n>
  MEGADP_HOST_DEVICE Loaded<n> load(uint64_t i) const {
    Loaded<n> loaded;
    loaded.from = load_pack<n>(from + i);
    if constexpr (adds) loaded.to = load_pack<n>(to + i);
    return loaded;
  }
  template <int n>
  MEGADP_HOST_DEVICE void store(uint64_t i, Loaded<n> loaded) const {
    MEGADP_UNROLL
    for (int k = 0; k < n; k++) {
      if constexpr (adds) {
        add_to(&loaded.to.at[k], widen(loaded.from.at[k]));
      } else {
        convert(&loaded.to.at[k], widen(loaded.from.at[k]));
      }
    }
    store_pack(to + i, loaded.to);
  }
};

// ── f32 rounded to bf16, and what that loses ──

struct RoundWithFeedback {
  static constexpr int kWidth = 4, kDepth = 4;
  Bf16* to;
  const float* from;
  float* residual;

  template <int n>
  struct Loaded {
    Pack<float, n> from, residual;
  };
  template <int n>
  MEGADP_HOST_DEVICE Loaded<n> load(uint64_t i) const {
    return {load_pack<n>(from + i), load_pack<n>(residual + i)};
  }
  template <int n>
  MEGADP_HOST_DEVICE void store(uint64_t i, Loaded<n> x) const {
    Pack<Bf16, n> rounded;
    MEGADP_UNROLL
    for (int k = 0; k < n; k++) round_with_feedback(&rounded.at[k], x.from.at[k], &x.residual.at[k]);
    store_pack(to + i, rounded);
    store_pack(residual + i, x.residual);
  }
};

// ── masters of parameters that were written ──

template <class T>
struct RefreshMasters {
  static constexpr int kWidth = 4, kDepth = 4;
  float* masters;
  const T* params;

  template <int n>
  struct Loaded {
    Pack<float, n> masters;
    Pack<T, n> params;
  };
  template <int n>
  MEGADP_HOST_DEVICE Loaded<n> load(uint64_t i) const {
    return {load_pack<n>(masters + i), load_pack<n>(params + i)};
  }
  template <int n>
  MEGADP_HOST_DEVICE void store(uint64_t i, Loaded<n> x) const {
    MEGADP_UNROLL
    for (int k = 0; k < n; k++) refresh_master(&x.masters.at[k], x.params.at[k]);
    store_pack(masters + i, x.masters);
  }
};

// ── an array multiplied by a factor ──

template <class T>
struct Scale {
  static constexpr int kWidth = 16 / sizeof(T), kDepth = 4;
  T* data;
  float factor;

  template <int n>
  MEGADP_HOST_DEVICE Pack<T, n> load(uint64_t i) const {
    return load_pack<n>(data + i);
  }
  template <int n>
  MEGADP_HOST_DEVICE void store(uint64_t i, Pack<T, n> x) const {
    MEGADP_UNROLL
    for (int k = 0; k < n; k++) from_f32(&x.at[k], scaled(to_f32(x.at[k]), factor));
    store_pack(data + i, x);
  }
};

// ── step counts ──

struct CountSteps {
  const StepScalars* scalars;
  uint64_t* steps;
  uint64_t count;

  MEGADP_HOST_DEVICE void operator()(uint64_t thread, uint64_t threads) const {
    for (uint64_t i = thread; i < count; i += threads) count_step(*scalars, steps[i]);
  }
};

// ── an update rule: one pass over all that belongs to an element ──

template <int n>
MEGADP_HOST_DEVICE inline Pack<float, n> load_widened(const float* from) {
  return load_pack<n>(from);
}
template <int n, class T>
MEGADP_HOST_DEVICE inline Pack<float, n> load_widened(const T* from) {
  const Pack<T, n> loaded = load_pack<n>(from);
  Pack<float, n> wide;
  MEGADP_UNROLL
  for (int e = 0; e < n; e++) wide.at[e] = to_f32(loaded.at[e]);
  return wide;
}
template <int n>
MEGADP_HOST_DEVICE inline void store_narrowed(float* to, const Pack<float, n>& wide) {
  store_pack(to, wide);
}
template <int n, class T>
MEGADP_HOST_DEVICE inline void store_narrowed(T* to, const Pack<float, n>& wide) {
  Pack<T, n> narrow;
  MEGADP_UNROLL
  for (int e = 0; e < n; e++) from_f32(&narrow.at[e], wide.at[e]);
  store_pack(to, narrow);
}
template <int n>
MEGADP_HOST_DEVICE inline void store_rounded_with(Bf16* to, const Pack<float, n>& wide, const RandomWords (&random)[n], uint32_t array) {
  Pack<Bf16, n> narrow;
  MEGADP_UNROLL
  for (int e = 0; e < n; e++) round_with(&narrow.at[e], wide.at[e], random[e].of_array(array));
  store_pack(to, narrow);
}

// How values are stored is asked in each launch, by all threads alike: types of their own would double the kernels twice.
template <class Rule, class Grad, class Param, class States = std::make_index_sequence<Rule::state.size()>>
struct UpdateStep;
template <class Rule, class Grad, class Param, size_t... k>
struct UpdateStep<Rule, Grad, Param, std::index_sequence<k...>> {
  static constexpr int kWidth = 4;
  typename Rule::Constants constants;
  float factor, limit;  // of gradients
  uint64_t key;         // of random bits, in this step
  const Grad* grad;
  float* master;                  // NULL: the parameter is its own, rounded with random bits
  Param* param;                   // NULL: is its own master, f32
  void* state[sizeof...(k) + 1];  // one more, so that a rule may have none
  bool bf16_state, rounds_state_with_bits;
  RandomSource random;

  template <int n>
  struct Loaded {
    Pack<Grad, n> grad;
    Pack<float, n> value[1 + sizeof...(k)];  // the master, then the state
  };
  template <int n>
  MEGADP_HOST_DEVICE Loaded<n> load(uint64_t i) const {
    return {load_pack<n>(grad + i), {load_master<n>(i), load_state<n, k>(i)...}};
  }
  template <int n>
  MEGADP_HOST_DEVICE void store(uint64_t i, Loaded<n> x) const {
    MEGADP_UNROLL
    for (int e = 0; e < n; e++) {
      Rule::element(constants, clipped(to_f32(x.grad.at[e]), factor, limit), x.value[0].at[e], x.value[k + 1].at[e]...);
    }
    RandomWords words[n];
    if (master == nullptr || rounds_state_with_bits) {
      MEGADP_UNROLL
      for (int e = 0; e < n; e++) words[e] = random_words(key, random.element(i + static_cast<uint64_t>(e)));
    }
    if (master != nullptr) {
      store_pack(master + i, x.value[0]);
      if (param != nullptr) store_narrowed(param + i, x.value[0]);
    } else if constexpr (std::is_same_v<Param, Bf16>) {
      store_rounded_with(param + i, x.value[0], words, 0);
    }
    (store_state<n, k>(i, x.value[k + 1], words), ...);
  }

 private:
  template <int n>
  MEGADP_HOST_DEVICE Pack<float, n> load_master(uint64_t i) const {
    if constexpr (std::is_same_v<Param, Bf16>) {
      if (master == nullptr) return load_widened<n>(param + i);
    }
    return load_pack<n>(master + i);
  }
  template <int n, size_t which>
  MEGADP_HOST_DEVICE Pack<float, n> load_state(uint64_t i) const {
    using Type = StateType<Rule, which>;
    if (std::is_same_v<Type, float> && bf16_state) return load_widened<n>(static_cast<const Bf16*>(state[which]) + i);
    return load_widened<n>(static_cast<const Type*>(state[which]) + i);
  }
  template <int n, size_t which>
  MEGADP_HOST_DEVICE void store_state(uint64_t i, const Pack<float, n>& value, const RandomWords (&words)[n]) const {
    using Type = StateType<Rule, which>;
    if (!std::is_same_v<Type, float> || !bf16_state) {
      store_narrowed(static_cast<Type*>(state[which]) + i, value);
    } else if (rounds_state_with_bits) {
      store_rounded_with(static_cast<Bf16*>(state[which]) + i, value, words, which + 1);
    } else {
      store_narrowed(static_cast<Bf16*>(state[which]) + i, value);
    }
  }
};

constexpr size_t stored_bytes(size_t of_rule, bool bf16_state) {
  return bf16_state && of_rule == sizeof(float) ? sizeof(Bf16) : of_rule;
}

// The work of a launch; its constants and key are for the kernel to fill in, since what they follow from is in the device's memory.
template <class Rule, class Grad, class Param, size_t... k>
ForEach<UpdateStep<Rule, Grad, Param>> update_work(const Update& u, std::index_sequence<k...>) {
  using Operation = UpdateStep<Rule, Grad, Param>;
  const bool bf16_state = u.state_type == DType::bf16;
  const Operation operation{{},
                            1,
                            HUGE_VALF,
                            0,
                            static_cast<const Grad*>(u.grad),
                            u.master,
                            u.param == u.master ? nullptr : static_cast<Param*>(u.param),
                            {u.state[k]...},
                            bf16_state,
                            u.rounds_state_with_bits,
                            u.random};
  const Array param{u.param, sizeof(Param)}, master{u.master, sizeof(float)};
  return {operation, split_evenly(u.count, Operation::kWidth,
                                  {{u.grad, sizeof(Grad)},
                                   u.master != nullptr ? master : param,
                                   {u.state[k], stored_bytes(sizeof(StateType<Rule, k>), bf16_state)}...,
                                   param})};
}
template <class Rule, class Grad, class Param>
ForEach<UpdateStep<Rule, Grad, Param>> update_work(const Update& u) {
  return update_work<Rule, Grad, Param>(u, std::make_index_sequence<Rule::state.size()>());
}

// ── the sum, maximum or minimum of several arrays ──

template <class T, bool sums>
struct Reduce {
  using Value = decltype(widen(T()));
  static constexpr int kWidth = 16 / sizeof(T), kDepth = 1;  // the parts are under way together
  T* to;
  const T* from;
  uint64_t stride;
  int parts;
  bool largest;   // if not a sum: or else the smallest
  Value divisor;  // of a sum

  template <int n>
  struct Loaded {
    Value value[n];
  };
  template <int n>
  MEGADP_HOST_DEVICE Loaded<n> load(uint64_t i) const {
    if (parts <= kTogether) return few<n>(i, 0, parts);
    const auto add_packs = [this](const Loaded<n>& a, const Loaded<n>& b) { return combine<n>(a, b); };
    TreeSum<Loaded<n>, decltype(add_packs)> tree(add_packs);
    for (int part = 0; part < parts; part += kTogether) tree.push(few<n>(i, part, parts - part));
    return tree.sum();
  }
  template <int n>
  MEGADP_HOST_DEVICE void store(uint64_t i, const Loaded<n>& loaded) const {
    Pack<T, n> result;
    MEGADP_UNROLL
    for (int k = 0; k < n; k++) narrow(&result.at[k], sums ? divide(loaded.value[k], divisor) : loaded.value[k]);
    store_pack(to + i, result);
  }

 private:
  static constexpr int kTogether = 4;  // loads that are under way at a time

  template <int n>
  MEGADP_HOST_DEVICE Loaded<n> combine(const Loaded<n>& a, const Loaded<n>& b) const {
    Loaded<n> both;
    MEGADP_UNROLL
    for (int k = 0; k < n; k++) {
      both.value[k] = sums ? add(a.value[k], b.value[k]) : largest ? larger(a.value[k], b.value[k]) : smaller(a.value[k], b.value[k]);
    }
    return both;
  }
  // The tree over the next parts: kTogether, or what is left.
  template <int n>
  MEGADP_HOST_DEVICE Loaded<n> few(uint64_t i, int part, int left) const {
    Pack<T, n> packs[kTogether];
    Loaded<n> loaded[kTogether];
    MEGADP_UNROLL
    for (int p = 0; p < kTogether; p++) {
      if (p < left) packs[p] = load_pack<n>(from + (part + p) * stride + i);
    }
    MEGADP_UNROLL
    for (int p = 0; p < kTogether; p++) {
      if (p >= left) continue;
      MEGADP_UNROLL
      for (int k = 0; k < n; k++) loaded[p].value[k] = widen(packs[p].at[k]);
    }
    if (left == 1) return loaded[0];
    const Loaded<n> two = combine<n>(loaded[0], loaded[1]);
    if (left == 2) return two;
    return combine<n>(two, left == 3 ? loaded[2] : combine<n>(loaded[2], loaded[3]));
  }
};

// ── zeros, and the largest magnitude; NaN is none ──

struct Extremes {
  uint32_t zeros, largest_bits;
  MEGADP_HOST_DEVICE void look_at(float x) {
    const uint32_t magnitude = as_bits(x) & 0x7fffffffU;
    zeros += magnitude == 0 ? 1 : 0;
    if (magnitude <= 0x7f800000U && magnitude > largest_bits) largest_bits = magnitude;
  }
};

// ── the first element that is not finite ──

// Threads come in any order, and each to ascending elements: what is lower than what stands there already need not be told, which spares
// an array full of NaN all but a few of the turns at one address.
MEGADP_HOST_DEVICE inline void raise_to(uint64_t* found, uint64_t number) {
#if defined(__CUDA_ARCH__)
  if (*reinterpret_cast<volatile uint64_t*>(found) >= number) return;
  atomicMax(reinterpret_cast<unsigned long long*>(found), static_cast<unsigned long long>(number));
#else
  if (number > *found) *found = number;
#endif
}

template <class T>
struct FindNonfinite {
  static constexpr int kWidth = 16 / sizeof(T), kDepth = 4;
  const T* data;
  uint64_t first;
  uint64_t* found;

  template <int n>
  MEGADP_HOST_DEVICE Pack<T, n> load(uint64_t i) const {
    return load_pack<n>(data + i);
  }
  template <int n>
  MEGADP_HOST_DEVICE void store(uint64_t i, Pack<T, n> x) const {
    MEGADP_UNROLL
    for (int k = 0; k < n; k++) {
      const float value = to_f32(x.at[k]);
      if (!is_finite(value)) raise_to(found, finding_at(first, i + static_cast<uint64_t>(k), value));
    }
  }
};

// ── the sum of squares, in the order that host/kernels.h lays down: runs of blocks of elements, in each block kSquareLanes lanes ──

struct LaneSum {
  double sum;
  uint32_t nonfinite;
};
// Lane `lane` of block `block`. The lanes of a block read neighbours: whole sectors of memory, however the array is aligned, so that wider
// loads would gain nothing; `together` of them are under way.
template <class T>
MEGADP_HOST_DEVICE inline LaneSum square_lane(const T* data, uint64_t count, uint64_t block, int lane) {
  constexpr int together = 16;
  LaneSum result{0, 0};
  uint64_t i = block * kSquareBlock + static_cast<uint64_t>(lane);
  const uint64_t end = count - block * kSquareBlock < kSquareBlock ? count : (block + 1) * kSquareBlock;
  for (; i + (together - 1) * kSquareLanes < end; i += together * kSquareLanes) {
    float x[together];
    MEGADP_UNROLL
    for (int k = 0; k < together; k++) x[k] = to_f32(data[i + static_cast<uint64_t>(k * kSquareLanes)]);
    MEGADP_UNROLL
    for (int k = 0; k < together; k++) {
      result.sum = add_square(result.sum, x[k]);
      result.nonfinite += is_finite(x[k]) ? 0 : 1;
    }
  }
  for (; i < end; i += kSquareLanes) {
    const float x = to_f32(data[i]);
    result.sum = add_square(result.sum, x);
    result.nonfinite += is_finite(x) ? 0 : 1;
  }
  return result;
}

}  // namespace megadp::cuda
