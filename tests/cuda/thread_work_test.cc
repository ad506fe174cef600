// SPDX-License-Identifier: Apache-2.0
// What the threads of the CUDA kernels do, run on the host, thread after thread, beside the host backend's own kernels: the same bits, for
// all types, at all alignments and sizes, and no element touched twice or forgotten.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "backend/backend.h"
#include "check.h"
#include "cuda/plugin/strided_work.h"
#include "cuda/plugin/thread_work.h"
#include "host/kernels.h"

using namespace megadp;
using namespace megadp::test;

namespace {

std::mt19937_64 random_bits(7);

uint64_t below(uint64_t bound) {
  return random_bits() % bound;
}

// Memory with an array in it that begins `offset` elements after an address divisible by 256. Where nothing is behind the array, a
// sanitizer sees what is read there; in what is behind it otherwise, what is written there shows.
enum class Behind {
  nothing,
  something
};
struct Block {
  size_t begin, total;
  std::unique_ptr<std::byte, void (*)(void*)> memory;

  Block(size_t elements, size_t size, size_t offset, Behind behind = Behind::something)
      : begin(offset * size), total(begin + elements * size + (behind == Behind::something ? 512 : 0)), memory(nullptr, &std::free) {
    void* taken = nullptr;
    check(posix_memalign(&taken, 256, std::max<size_t>(total, 1)) == 0, "out of memory");
    memory.reset(static_cast<std::byte*>(taken));
    std::fill_n(memory.get(), total, std::byte{0xa5});
  }
  Block(const Block& other) : Block(other.total, 1, 0, Behind::nothing) {
    begin = other.begin;
    std::copy_n(other.memory.get(), total, memory.get());
  }
  Block& operator=(const Block&) = delete;
  std::byte* data() { return memory.get() + begin; }
  const std::byte* data() const { return memory.get() + begin; }
};

// Small numbers, large ones, subnormals, infinities and NaN, of which the payload is ordinary.
void fill(Block& block, DType type, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const uint64_t bits = random_bits();
    double x = static_cast<double>(static_cast<int64_t>(bits % 20001) - 10000) / 64;
    if (bits >> 60 == 0) x = x * 1e30;
    if (bits >> 60 == 1) x = x * 1e-41;
    if (bits >> 55 == 0x1ff) x = bits & 1 ? HUGE_VAL : -HUGE_VAL;
    std::byte* const at = block.data() + i * size_of(type);
    if (type == DType::f32) from_f64(reinterpret_cast<float*>(at), x);
    if (type == DType::bf16) from_f64(reinterpret_cast<Bf16*>(at), x);
    if (type == DType::f16) from_f64(reinterpret_cast<F16*>(at), x);
    if (type == DType::f64) std::memcpy(at, &x, 8);
    if (type == DType::i64 || type == DType::u8) std::memcpy(at, &bits, size_of(type));
  }
}

template <class Work>
void run_all_threads(const Work& work, uint64_t threads) {
  for (uint64_t thread = 0; thread < threads; thread++) work(thread, threads);
}

template <class Operation>
void run_for_each(const Operation& operation, uint64_t count, std::initializer_list<cuda::Array> arrays, uint64_t threads) {
  run_all_threads(cuda::ForEach<Operation>{operation, cuda::split_evenly(count, Operation::kWidth, arrays)}, threads);
}

template <class Fn>
void with_type(DType type, Fn fn) {
  if (type == DType::f32) fn(float());
  if (type == DType::bf16) fn(Bf16());
  if (type == DType::f16) fn(F16());
  if (type == DType::f64) fn(double());
  if (type == DType::i64) fn(int64_t());
  if (type == DType::u8) fn(uint8_t());
}

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr DType kTrainable[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8};
constexpr uint64_t kThreadCounts[] = {1, 3, 32, 1000};

// The same bits everywhere, NaN and what lies around the array included. Of NaN that arithmetic made, the payload is left open.
bool same(const Block& a, const Block& b, DType type, size_t n) {
  if (std::memcmp(a.data(), b.data(), n * size_of(type)) == 0) return true;
  for (size_t i = 0; i < n; i++) {
    const std::byte *const x = a.data() + i * size_of(type), *const y = b.data() + i * size_of(type);
    if (std::memcmp(x, y, size_of(type)) == 0) continue;
    bool both_nan = false;
    with_type(type, [&](auto element) {
      decltype(element) p, q;
      std::memcpy(&p, x, sizeof p);
      std::memcpy(&q, y, sizeof q);
      const auto wide = widen(p), other = widen(q);
      both_nan = wide != wide && other != other;
    });
    if (!both_nan) return false;
  }
  return true;
}

// Nothing before and behind the array was written.
bool surroundings_kept(const Block& block, size_t bytes) {
  for (size_t i = 0; i < block.total; i++) {
    if ((i < block.begin || i >= block.begin + bytes) && block.memory.get()[i] != std::byte{0xa5}) return false;
  }
  return true;
}

size_t some_count() {
  const size_t bounds[] = {4, 20, 200, 5000};
  return below(bounds[below(4)]);
}

void conversions() {
  const auto one = [](DType to_type, DType from_type, bool adds) {
    for (int round = 0; round < 24; round++) {
      const size_t n = some_count();
      Block to(n, size_of(to_type), below(20)), from(n, size_of(from_type), below(20), Behind::nothing);
      fill(to, to_type, n);
      fill(from, from_type, n);
      Block expected(to);
      const Status done = adds ? host::add_cast(expected.data(), to_type, from.data(), from_type, n)
                               : host::cast(expected.data(), to_type, from.data(), from_type, n);
      check(done.ok(), done.text());
      with_type(to_type, [&](auto to_element) {
        with_type(from_type, [&](auto from_element) {
          using To = decltype(to_element);
          using From = decltype(from_element);
          if constexpr (std::is_integral_v<To> == std::is_integral_v<From> && (!std::is_integral_v<To> || std::is_same_v<To, From>)) {
            To* const out = reinterpret_cast<To*>(to.data());
            const From* const in = reinterpret_cast<const From*>(from.data());
            const uint64_t threads = kThreadCounts[below(4)];
            if (adds) run_for_each(cuda::Convert<To, From, true>{out, in}, n, {{out, sizeof(To)}, {in, sizeof(From)}}, threads);
            if constexpr (!std::is_integral_v<To>) {
              if (!adds) run_for_each(cuda::Convert<To, From, false>{out, in}, n, {{out, sizeof(To)}, {in, sizeof(From)}}, threads);
            }
          }
        });
      });
      check(same(to, expected, to_type, n) && surroundings_kept(to, n * size_of(to_type)),
            text(adds ? "adding " : "converting ", n, " ", name_of(from_type), " to ", name_of(to_type)));
    }
  };
  for (const DType to : kFloats) {
    for (const DType from : kFloats) {
      if (to != from) one(to, from, false);
      one(to, from, true);
    }
  }
  one(DType::i64, DType::i64, true);
  one(DType::u8, DType::u8, true);
}

void scalings() {
  for (const DType type : kTrainable) {
    for (int round = 0; round < 24; round++) {
      const size_t n = some_count();
      Block data(n, size_of(type), below(20));
      fill(data, type, n);
      Block expected(data);
      const float factor = std::array{-1.0F / 3, 0.0F, 1e-3F}[static_cast<size_t>(round) % 3];
      const Status done = host::scale(expected.data(), type, n, factor);
      check(done.ok(), done.text());
      with_type(type, [&](auto element) {
        using T = decltype(element);
        if constexpr (sizeof(T) <= 4 && !std::is_integral_v<T>) {
          T* const at = reinterpret_cast<T*>(data.data());
          run_for_each(cuda::Scale<T>{at, factor}, n, {{at, sizeof(T)}}, kThreadCounts[below(4)]);
        }
      });
      check(same(data, expected, type, n) && surroundings_kept(data, n * size_of(type)),
            text("scaling ", n, " ", name_of(type), " by ", factor));
    }
  }
}

void rounding_with_feedback() {
  for (const uint64_t threads : kThreadCounts) {
    for (int round = 0; round < 24; round++) {
      const size_t n = some_count();
      Block to(n, sizeof(Bf16), below(20)), from(n, sizeof(float), below(20), Behind::nothing), residual(n, sizeof(float), below(20));
      fill(from, DType::f32, n);
      fill(residual, DType::f32, n);
      Block expected(to), lost(residual);
      const auto* const values = reinterpret_cast<const float*>(from.data());
      check(host::round_with_feedback(expected.data(), values, reinterpret_cast<float*>(lost.data()), n).ok(), "round_with_feedback");
      const cuda::RoundWithFeedback work{reinterpret_cast<Bf16*>(to.data()), values, reinterpret_cast<float*>(residual.data())};
      run_for_each(work, n, {{to.data(), sizeof(Bf16)}, {values, sizeof(float)}, {residual.data(), sizeof(float)}}, threads);
      check(same(to, expected, DType::bf16, n) && same(residual, lost, DType::f32, n), text("rounding ", n, " with ", threads, " threads"));
      check(surroundings_kept(to, n * sizeof(Bf16)) && surroundings_kept(residual, n * sizeof(float)), "rounding wrote beside its arrays");
    }
  }
}

template <class T>
void masters(DType type) {
  for (const uint64_t threads : kThreadCounts) {
    for (int round = 0; round < 24; round++) {
      const size_t n = some_count();
      Block masters(n, sizeof(float), below(20)), params(n, sizeof(T), below(20), Behind::nothing);
      fill(masters, DType::f32, n);
      fill(params, type, n);
      for (size_t i = below(4); i < n; i += 1 + below(4)) {
        from_f32(reinterpret_cast<T*>(params.data()) + i, reinterpret_cast<const float*>(masters.data())[i]);
      }
      Block expected(masters);
      check(host::refresh_masters(reinterpret_cast<float*>(expected.data()), params.data(), type, n).ok(), "refresh_masters");
      const cuda::RefreshMasters<T> work{reinterpret_cast<float*>(masters.data()), reinterpret_cast<const T*>(params.data())};
      run_for_each(work, n, {{masters.data(), sizeof(float)}, {params.data(), sizeof(T)}}, threads);
      check(same(masters, expected, DType::f32, n), text("masters of ", n, " ", name_of(type), " with ", threads, " threads"));
      check(surroundings_kept(masters, n * sizeof(float)), "refreshing wrote beside the masters");
    }
  }
}

void step_counts() {
  for (const uint32_t skip : {0U, 1U}) {
    for (const uint64_t threads : kThreadCounts) {
      const size_t n = some_count();
      StepScalars scalars{};
      scalars.skip = skip;
      std::vector<uint64_t> steps(n), expected(n);
      for (size_t i = 0; i < n; i++) steps[i] = expected[i] = random_bits() >> 8;
      for (size_t i = 0; i < n && skip == 0; i++) expected[i]++;
      run_all_threads(cuda::CountSteps{&scalars, steps.data(), n}, threads);
      check(steps == expected, text("counting ", n, " steps, skip ", skip, ", with ", threads, " threads"));
    }
  }
}

// How an update stores its values.
struct Storage {
  bool bf16_state, stochastic, no_master;
  DType of(const StateArray& array) const { return bf16_state && array.type == DType::f32 ? DType::bf16 : array.type; }
};
constexpr Storage kStorages[] = {
    {false, false, false}, {true, false, false}, {true, true, false}, {false, false, true}, {true, true, true}};

// The arrays of an update: gradient, parameter, master and state.
struct Launch {
  Block grad, param;
  std::vector<Block> floats;  // the master, then the state

  // Together: at one distance from alignment, as the library lays them out.
  Launch(const UpdateRule& rule, const Storage& storage, DType grad_type, DType param_type, size_t n, bool together)
      : Launch(rule, storage, grad_type, param_type, n, together, below(20)) {
    fill(grad, grad_type, n);
    fill(floats[0], DType::f32, n);
    for (size_t k = 0; k < rule.state.size(); k++) fill(floats[k + 1], storage.of(rule.state[k]), n);
    if (storage.no_master) fill(param, param_type, n);
  }
  Update update(uint32_t rule, const Storage& storage, DType grad_type, DType param_type, size_t n, bool own_master) {
    Update u{};
    u.hyper = {1e-2, 0.9, 0.99, 1e-8, 0.1, 0.8};
    u.grad = grad.data();
    u.master = storage.no_master ? nullptr : reinterpret_cast<float*>(floats[0].data());
    for (size_t k = 1; k < floats.size(); k++) u.state[k - 1] = floats[k].data();
    u.param = own_master ? floats[0].data() : param.data();
    u.count = n;
    u.grad_type = grad_type;
    u.param_type = param_type;
    u.rule = rule;
    u.state_type = storage.bf16_state ? DType::bf16 : DType::f32;
    u.rounds_state_with_bits = storage.stochastic;
    u.random = {0x123456789abcdefU, (uint64_t{1} << 32) - 70, 13, 40, 7};
    return u;
  }

 private:
  Launch(const UpdateRule& rule, const Storage& storage, DType grad_type, DType param_type, size_t n, bool together, size_t offset)
      : grad(n, size_of(grad_type), offset, Behind::nothing), param(n, size_of(param_type), together ? offset : below(20)) {
    floats.reserve(rule.state.size() + 1);
    floats.emplace_back(n, size_t{4}, together ? offset : below(20));
    for (const StateArray& array : rule.state) floats.emplace_back(n, size_of(storage.of(array)), together ? offset : below(20));
  }
};

template <class Rule, class Grad, class Param>
void run_update(const Update& u, const StepScalars& scalars, uint64_t steps) {
  auto work = cuda::update_work<Rule, Grad, Param>(u);
  const auto ready = [&](auto& operation) {
    operation.constants = Rule::constants(u.hyper, steps);
    operation.factor = scalars.grad_factor;
    operation.limit = scalars.grad_limit;
    operation.key = key_of_step(u.random.key, steps);
    return scalars.skip == 0;
  };
  const uint64_t threads = work.pieces() + kThreadCounts[below(4)];
  for (uint64_t thread = 0; thread < threads; thread++) work.once(thread, ready);
}

void updates(uint32_t number, const Storage& storage, DType grad_type, DType param_type) {
  const UpdateRule& described = rule(number);
  StepScalars scalars{};
  scalars.grad_factor = 1.0F / 24;
  scalars.grad_limit = 0.04F;
  const uint64_t steps = 3;
  for (int round = 0; round < 24; round++) {
    const size_t n = some_count();
    Launch launch(described, storage, grad_type, param_type, n, round % 2 != 0);
    Launch expected(launch);
    const bool own_master = param_type == DType::f32 && round % 3 == 0;
    Update on_host = expected.update(number, storage, grad_type, param_type, n, own_master);
    on_host.scalars = &scalars;
    on_host.steps = &steps;
    const Status done = host::update(on_host);
    check(done.ok(), done.text());
    const Update u = launch.update(number, storage, grad_type, param_type, n, own_master);
    with_rule(number, [&](auto rule) {
      with_type(grad_type, [&](auto grad) {
        with_type(param_type, [&](auto param) {
          using Grad = decltype(grad);
          using Param = decltype(param);
          if constexpr (sizeof(Grad) <= 4 && sizeof(Param) <= 4 && !std::is_integral_v<Grad> && !std::is_integral_v<Param>) {
            run_update<decltype(rule), Grad, Param>(u, scalars, steps);
          }
        });
      });
    });
    bool good =
        same(launch.param, expected.param, param_type, own_master ? 0 : n) && surroundings_kept(launch.param, n * size_of(param_type));
    for (size_t k = 0; k < launch.floats.size(); k++) {
      const DType type = k == 0 ? DType::f32 : storage.of(described.state[k - 1]);
      good &= same(launch.floats[k], expected.floats[k], type, n) && surroundings_kept(launch.floats[k], n * size_of(type));
    }
    check(good,
          text(described.name, " on ", n, " elements, gradient ", name_of(grad_type), ", parameter ", name_of(param_type),
               storage.bf16_state ? ", bf16 state" : "", storage.stochastic ? ", stochastic" : "", storage.no_master ? ", no master" : ""));
  }
}

template <class T, bool sums>
void reduce_threads(void* to, const void* from, size_t stride, int parts, size_t n, bool largest, double divisor) {
  using Operation = cuda::Reduce<T, sums>;
  const Operation operation{
      static_cast<T*>(to), static_cast<const T*>(from), stride, parts, largest, static_cast<typename Operation::Value>(divisor)};
  run_for_each(operation, n, {{to, sizeof(T)}, {from, sizeof(T)}, {operation.from + stride, sizeof(T)}}, kThreadCounts[below(4)]);
}

void reductions() {
  for (const DType type : kAll) {
    for (int round = 0; round < 80; round++) {
      const Op op = std::array{Op::sum, Op::avg, Op::max, Op::min}[static_cast<size_t>(round) % 4];
      const bool sums = op == Op::sum || op == Op::avg, integers = type == DType::i64 || type == DType::u8;
      const int parts = static_cast<int>(1 + below(11));
      const size_t n = some_count(), stride = n + below(2) * below(40), size = size_of(type);
      const double divisor = sums && !integers ? static_cast<double>(1 + below(9)) : 1;
      Block from(stride * static_cast<size_t>(parts), size, below(20), Behind::nothing), apart(n, size, below(20));
      fill(from, type, stride * static_cast<size_t>(parts));
      const bool within = round % 3 == 0;
      std::byte* const to = within ? from.data() + below(static_cast<uint64_t>(parts)) * stride * size : apart.data();
      std::vector<const void*> arrays;
      for (int k = 0; k < parts; k++) arrays.push_back(from.data() + static_cast<size_t>(k) * stride * size);
      Block expected(n, size, 0);
      const Status done = host::reduce(expected.data(), arrays.data(), parts, n, type, op, divisor);
      check(done.ok(), done.text());
      const double whole = op == Op::avg ? divisor * parts : divisor;
      with_type(type, [&](auto element) {
        using T = decltype(element);
        if (sums) reduce_threads<T, true>(to, from.data(), stride, parts, n, false, whole);
        if (!sums) reduce_threads<T, false>(to, from.data(), stride, parts, n, op == Op::max, 1);
      });
      Block result(n, size, 0);
      std::memcpy(result.data(), to, n * size);
      check(same(result, expected, type, n),
            text("reducing ", parts, " times ", n, " ", name_of(type), ", operation ", static_cast<int>(op)));
      check(within || surroundings_kept(apart, n * size), "a reduction wrote beside its result");
    }
  }
}

void square_sums() {
  for (const DType type : kTrainable) {
    for (const size_t n : {0, 1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 3 * 4096 + 5, 40000}) {
      Block data(n, size_of(type), below(20), Behind::nothing);
      fill(data, type, n);
      if (n > 300) std::memset(data.data() + 299 * size_of(type), 0xff, size_of(type));  // NaN
      double expected = 0, expected_nonfinite = 0;
      const Status done = host::square_sum(data.data(), type, n, &expected, &expected_nonfinite);
      check(done.ok(), done.text());
      double total = 0, nonfinite = 0;
      for (uint64_t block = 0; block * kSquareBlock < n; block++) {
        double sum = 0;
        for (int lane = 0; lane < kSquareLanes; lane++) {
          with_type(type, [&](auto element) {
            using T = decltype(element);
            if constexpr (sizeof(T) <= 4 && !std::is_integral_v<T>) {
              const cuda::LaneSum mine = cuda::square_lane(reinterpret_cast<const T*>(data.data()), n, block, lane);
              sum = add(sum, mine.sum);
              nonfinite += mine.nonfinite;
            }
          });
        }
        total = add(total, sum);
      }
      const bool equal = total == expected || (total != total && expected != expected);
      check(equal && nonfinite == expected_nonfinite, text("squares of ", n, " ", name_of(type), ": ", total, ", not ", expected));
    }
  }
}

// As threads look at every so many elements, and hand each other what they saw.
void extremes() {
  for (const DType type : kTrainable) {
    for (const size_t n : {0, 1, 31, 1000}) {
      Block data(n, size_of(type), below(20), Behind::nothing);
      fill(data, type, n);
      for (size_t i = 0; i < n; i += 3) std::memset(data.data() + i * size_of(type), 0, size_of(type));
      if (n > 300) std::memset(data.data() + 299 * size_of(type), 0xff, size_of(type));  // NaN
      uint64_t zeros = 0, expected_zeros = 0;
      float largest = 0, expected = 0;
      check(host::extremes(data.data(), type, n, &expected_zeros, &expected).ok(), "extremes");
      for (size_t thread = 0; thread < 7; thread++) {
        with_type(type, [&](auto element) {
          using T = decltype(element);
          if constexpr (sizeof(T) <= 4 && !std::is_integral_v<T>) {
            cuda::Extremes mine{0, 0};
            for (size_t i = thread; i < n; i += 7) mine.look_at(to_f32(reinterpret_cast<const T*>(data.data())[i]));
            zeros += mine.zeros;
            largest = std::max(largest, as_float(mine.largest_bits));
          }
        });
      }
      check(zeros == expected_zeros && largest == expected, text("extremes of ", n, " ", name_of(type), ": ", zeros, " and ", largest));
    }
  }
}

// Whatever thread comes first.
void nonfinite_elements() {
  for (const DType type : kTrainable) {
    for (const size_t n : {0, 1, 31, 1000}) {
      for (const size_t step : {1, 7, 400, 2000}) {
        Block data(n, size_of(type), below(20), Behind::nothing);
        fill(data, type, n);
        for (size_t i = 0; i < n; i++) {
          if (i % step == step / 2) std::memset(data.data() + i * size_of(type), 0xff, size_of(type));
        }
        uint64_t found = 0, expected = 0;
        check(host::find_nonfinite(data.data(), type, n, first_finding(2), &expected).ok(), "find_nonfinite");
        with_type(type, [&](auto element) {
          using T = decltype(element);
          if constexpr (sizeof(T) <= 4 && !std::is_integral_v<T>) {
            using Find = cuda::FindNonfinite<T>;
            const cuda::ForEach<Find> work{{reinterpret_cast<const T*>(data.data()), first_finding(2), &found},
                                           cuda::split_evenly(n, Find::kWidth, {{data.data(), sizeof(T)}})};
            for (size_t thread = 7; thread-- > 0;) work(thread, 7);
          }
        });
        check(found == expected, text("in ", n, " ", name_of(type), " element ", read_finding(found).element, " was found"));
      }
    }
  }
}

// ── copies with strides ──

// As one block of threads does it, tile after tile.
void run_turned(const cuda::TurnedCopy& work) {
  cuda::TurnedCopy::Tile tile;
  for (uint64_t number = 0; number < work.tiles; number++) {
    const auto corner = work.corner_of(number);
    std::memset(tile, 0x3c, sizeof tile);
    for (int y = 0; y < cuda::kTileRows; y++) {
      for (int x = 0; x < cuda::kTile; x++) work.take(corner, x, y, tile);
    }
    for (int y = 0; y < cuda::kTileRows; y++) {
      for (int x = 0; x < cuda::kTile; x++) work.put(corner, x, y, tile);
    }
  }
}

cuda::Strided plain(const StridedArray& array) {
  cuda::Strided out{};
  out.data = array.data;
  out.type = static_cast<uint32_t>(array.type);
  out.dimensions = static_cast<int32_t>(array.shape.size());
  std::copy(array.shape.begin(), array.shape.end(), out.shape);
  std::copy(array.strides.begin(), array.strides.end(), out.strides);
  return out;
}

// Strides of an array whose dimensions lie in memory in the given order, some of them backwards; *origin is the element of index 0.
std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, const std::vector<size_t>& order, int64_t gap, int64_t* extent,
                                int64_t* origin) {
  std::vector<int64_t> strides(shape.size());
  *extent = gap;
  *origin = 0;
  for (const size_t d : order) {
    strides[d] = *extent;
    *extent *= shape[d];
    if (below(4) == 0) {
      *origin += (shape[d] - 1) * strides[d];
      strides[d] = -strides[d];
    }
  }
  return strides;
}

int strided_ways[3];

void copy_once(DType to_type, DType from_type, bool adds) {
  const size_t dimensions = below(5);
  std::vector<int64_t> shape;
  std::vector<size_t> to_order, from_order;
  for (size_t d = 0; d < dimensions; d++) {
    shape.push_back(static_cast<int64_t>(1 + below(dimensions < 3 ? 100 : 12)));
    to_order.push_back(d);
  }
  std::shuffle(to_order.begin(), to_order.end(), random_bits);
  from_order = to_order;
  if (below(3) != 0) std::shuffle(from_order.begin(), from_order.end(), random_bits);
  int64_t to_extent = 0, from_extent = 0, to_origin = 0, from_origin = 0;
  StridedArray to{nullptr, to_type, shape, strides_of(shape, to_order, below(4) == 0 ? 3 : 1, &to_extent, &to_origin)};
  StridedArray from{nullptr, from_type, shape, strides_of(shape, from_order, below(4) == 0 ? 2 : 1, &from_extent, &from_origin)};
  const auto to_size = static_cast<int64_t>(size_of(to_type)), from_size = static_cast<int64_t>(size_of(from_type));
  Block to_block(static_cast<size_t>(to_extent), size_of(to_type), below(9)),
      from_block(static_cast<size_t>(from_extent), size_of(from_type), below(9), Behind::nothing);
  fill(to_block, to_type, static_cast<size_t>(to_extent));
  fill(from_block, from_type, static_cast<size_t>(from_extent));
  Block expected(to_block);
  from.data = from_block.data() + from_origin * from_size;
  to.data = expected.data() + to_origin * to_size;
  const Status done = host::copy_strided(to, from, adds);
  check(done.ok(), done.text());
  to.data = to_block.data() + to_origin * to_size;
  cuda::Walk walk{};
  uint64_t count = 0;
  check_equal(cuda::plan_walk(plain(to), plain(from), adds, &walk, &count), 0, "plan_walk");
  const int turned = transposed_dim(walk.dims, walk.count);
  if (turned >= 0) {
    run_turned(cuda::turned_copy(walk, turned, count));
  } else {
    run_all_threads(cuda::StridedCopy{walk, count}, kThreadCounts[below(4)]);
  }
  strided_ways[turned >= 0 ? 0 : cuda::is_dense(walk) ? 1 : 2]++;
  check(same(to_block, expected, to_type, static_cast<size_t>(to_extent)) &&
            surroundings_kept(to_block, static_cast<size_t>(to_extent * to_size)),
        text(adds ? "adding " : "copying ", count, " ", name_of(from_type), " to ", name_of(to_type), " in ", dimensions, " dimensions"));
}

void strided_copies() {
  for (int round = 0; round < 120; round++) {
    for (const DType to : kFloats) {
      for (const DType from : kFloats) copy_once(to, from, round % 2 == 0);
    }
    copy_once(DType::i64, DType::i64, round % 2 == 0);
    copy_once(DType::u8, DType::u8, round % 2 == 0);
  }
  check(strided_ways[0] > 100 && strided_ways[1] > 100 && strided_ways[2] > 100, "not every way of copying was taken");
}

void refused_walks() {
  cuda::Walk walk{};
  uint64_t count = 0;
  float data[6] = {};
  StridedArray to{data, DType::f32, {2, 3}, {3, 1}}, from = to;
  const auto planned = [&] { return cuda::plan_walk(plain(to), plain(from), false, &walk, &count); };
  check_equal(planned(), 0, "equal arrays");
  from.type = DType::i64;
  check_equal(planned(), cuda::kBadArgument, "types that do not convert");
  from = to;
  from.shape = {3, 2};
  check_equal(planned(), cuda::kBadArgument, "shapes that differ");
  from = to;
  to.strides[0] = 0;
  check_equal(planned(), cuda::kBadArgument, "a target that is reached twice");
  to = from = {data, DType::f32, {2, 0}, {3, 1}};
  check_equal(planned(), 0, "an empty array");
  check_equal(count, 0U, "its elements");
}

// Beyond 32 bits, where nothing can be tried: every element is in exactly one place.
void places_of_large_arrays() {
  cuda::Walk walk{};
  walk.count = 3;
  walk.dims[0] = {1 << 20, 5, 1};
  walk.dims[1] = {1 << 10, 7, 3};
  walk.dims[2] = {(1 << 10) + 1, 1, 11};
  for (int round = 0; round < 10000; round++) {
    const uint64_t a = below(1 << 20), b = below(1 << 10), c = below((1 << 10) + 1);
    const cuda::Place place = cuda::place_of(walk, 3, (a * 1024 + b) * 1025 + c, false);
    const auto signed_a = static_cast<int64_t>(a), signed_b = static_cast<int64_t>(b), signed_c = static_cast<int64_t>(c);
    if (place.to != signed_a * 5 + signed_b * 7 + signed_c || place.from != signed_a + signed_b * 3 + signed_c * 11) {
      check(false, text("element ", a, ",", b, ",", c, " is at ", place.to));
    }
  }
  check(true, "");
}

void units_are_aligned() {
  for (int round = 0; round < 5000; round++) {
    const uint64_t count = below(100);
    const unsigned width = 1U << below(5);
    const size_t sizes[] = {1, 2, 4, 8};
    const cuda::Array arrays[] = {{reinterpret_cast<const void*>(below(64) * 8), sizes[below(4)]},
                                  {reinterpret_cast<const void*>(below(64) * 8), sizes[below(4)]}};
    const cuda::Split split = cuda::split_evenly(count, width, {arrays[0], arrays[1]});
    check(split.count == count && split.head + split.units * width <= count, "a split goes past the end");
    for (const cuda::Array& array : arrays) {
      const auto at = reinterpret_cast<uintptr_t>(array.data) + split.head * array.element;
      check(split.units == 0 || at % cuda::pack_alignment(width * array.element) == 0, "a unit is not aligned");
    }
  }
}

}  // namespace

int main() {
  conversions();
  scalings();
  step_counts();
  for (uint32_t rule = 0; rule < kRules; rule++) {
    for (const DType grad_type : kTrainable) {
      for (const DType param_type : kTrainable) {
        for (const Storage& storage : kStorages) {
          if (!storage.no_master || param_type == DType::bf16) updates(rule, storage, grad_type, param_type);
        }
      }
    }
  }
  reductions();
  square_sums();
  rounding_with_feedback();
  masters<Bf16>(DType::bf16);
  masters<F16>(DType::f16);
  extremes();
  nonfinite_elements();
  strided_copies();
  refused_walks();
  places_of_large_arrays();
  units_are_aligned();
  return finish();
}
