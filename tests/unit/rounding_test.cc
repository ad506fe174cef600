// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding, and updates of what is kept in bf16: the published vectors of Threefry; bits that follow from an element's place in
// the whole alone; the mean error of many roundings; on every SIMD target the bits of an emulation by single elements, for every rule.
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/rules.h"
#include "check.h"
#include "core/cutting.h"
#include "host/kernels.h"

using namespace megadp;
using namespace megadp::test;
using host::Kernels;

namespace {

std::mt19937_64 any_bits(20261125);

uint16_t rounded_with(float x, uint32_t random) {
  Bf16 out;
  round_with(&out, x, random);
  return out.bits;
}

// The known answers of Random123 1.09, tests/kat_vectors.
void known_answers() {
  const struct {
    uint64_t key, counter, words;
  } known[] = {{0, 0, 0x99ba4efe6b200159},
               {UINT64_MAX, UINT64_MAX, 0xbb002be71cb996fc},
               {0x0370734413198a2e, 0x85a308d3243f6a88, 0x483df7a0c4923a9c}};
  for (const auto& each : known) check_equal(key_of_step(each.key, each.counter), each.words, "Threefry-2x32-20");
}

void edges() {
  const float largest = as_float(0x7f7f0000), infinity = HUGE_VALF;
  for (const uint32_t random : {0U, 1U, 0x7fffU, 0x8000U, 0xffffU}) {
    for (uint32_t bits = 0; bits < 65536; bits++) {  // what a bf16 holds stays; NaN becomes quiet
      const float x = to_f32(Bf16{static_cast<uint16_t>(bits)});
      const uint32_t expected = std::isnan(x) ? bits | 0x40U : bits;
      if (rounded_with(x, random) != expected) check(false, text("bf16 ", bits, " does not stay with ", random));
    }
    check_equal(rounded_with(infinity, random), uint16_t{0x7f80}, "infinity");
    check_equal(rounded_with(-infinity, random), uint16_t{0xff80}, "-infinity");
    for (const uint32_t nan : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU, 0x7f80ffffU}) {
      const float got = to_f32(Bf16{rounded_with(as_float(nan), random)});
      check(std::isnan(got) && std::signbit(got) == (nan >> 31 != 0), "NaN stays one, with its sign");
    }
    for (const uint32_t beyond : {0x7f7f0001U, 0x7f7f8000U, 0x7f7fffffU}) {  // above the largest bf16
      check_equal(to_f32(Bf16{rounded_with(as_float(beyond), random)}), largest, "a finite number stays finite");
      check_equal(to_f32(Bf16{rounded_with(-as_float(beyond), random)}), -largest, "a finite number stays finite");
    }
  }
  check_equal(rounded_with(as_float(0x3f800001), 0xffff), uint16_t{0x3f81}, "up, with one chance in 65536");
  check_equal(rounded_with(as_float(0x3f800001), 0xfffe), uint16_t{0x3f80}, "or else down");
  check_equal(rounded_with(as_float(0xbf80ffff), 1), uint16_t{0xbf81}, "of magnitudes");
  check_equal(rounded_with(as_float(0x00000001), 0xffff), uint16_t{0x0001}, "subnormals too");
}

// 10^6 roundings of values between two neighbours, 1 and 1 + 2^-7: the error, in units of the last place, has the variance p (1 - p).
void mean_error() {
  constexpr int count = 1000000;
  double sum = 0, variance = 0;
  for (int array = 0; array < 4; array++) {
    for (int i = 0; i < count; i++) {
      const auto cut_off = static_cast<uint32_t>(any_bits() & 0xffff);
      const float x = as_float(0x3f800000 | cut_off);
      const double error =
          to_f32(Bf16{rounded_with(x, random_words(42, static_cast<uint64_t>(i)).of_array(static_cast<uint32_t>(array)))}) - double{x};
      const double p = cut_off / 65536.0;
      sum += error * 128;
      variance += p * (1 - p);
    }
    const double mean = sum / count, standard_error = std::sqrt(variance) / count;
    check(std::fabs(mean) < 3 * standard_error,
          text("array ", array, ": the mean error is ", mean, ", and its standard error ", standard_error));
    check(standard_error > 1e-4, "these are hardly rounded");
    if (array == 0)
      std::cerr << "mean error of 10^6 roundings: " << mean << " units of the last place, standard error " << standard_error << "\n";
    sum = variance = 0;
  }
}

// Steps, names, elements and arrays have bits of their own.
void all_of_it_counts() {
  std::set<uint64_t> keys;
  for (uint64_t key = 0; key < 30; key++) {
    for (uint64_t step = 1; step < 30; step++) keys.insert(key_of_step(key, step));
  }
  check_equal(keys.size(), size_t{30 * 29}, "keys of steps");
  std::set<std::pair<uint32_t, uint32_t>> words;
  int equal = 0;
  for (uint64_t counter : {uint64_t{0}, uint64_t{1} << 32, uint64_t{1} << 57}) {
    for (uint64_t i = 0; i < 1000; i++) {
      const RandomWords drawn = random_words(7, counter + i);
      words.insert({drawn.first, drawn.second});
      for (uint32_t a = 0; a < kRandomArrays; a++) {
        for (uint32_t b = 0; b < a; b++) equal += drawn.of_array(a) == drawn.of_array(b) ? 1 : 0;
      }
    }
  }
  check_equal(words.size(), size_t{3000}, "words of elements");
  check(equal < 8, text(equal, " of 18000 pairs of arrays have the same bits"));
}

// Against core/cutting.h, which reckons by segments: uneven parts, strides, dimensions before and behind.
void places_in_the_whole() {
  for (int round = 0; round < 300; round++) {
    const auto some = [](int most) { return 1 + static_cast<int>(any_bits() % static_cast<uint64_t>(most)); };
    StoredArray array;
    const int before = some(4), behind = some(5), ranks = some(4), stride = some(3);
    array.cut = {1, stride, {}};
    int64_t whole = 0, turn = 0;
    for (int r = 0; r < ranks; r++) array.cut.sizes.push_back(static_cast<int64_t>(stride) * some(5));
    for (const int64_t size : array.cut.sizes) whole += size, turn += size / stride;
    array.shape = {before, whole, behind};
    const Cutting cutting(array);
    int64_t offset = 0;
    for (size_t part = 0; part < array.cut.sizes.size(); part++) {
      const int64_t length = array.cut.sizes[part] / stride;
      const auto elements = static_cast<uint64_t>(before * array.cut.sizes[part] * behind);
      RandomSource source;
      source.begin = any_bits() % elements;
      source.run = static_cast<uint64_t>(length * behind);
      source.period = static_cast<uint64_t>(turn * behind);
      source.offset = static_cast<uint64_t>(offset * behind);
      bool good = true;
      (void)cutting.to_whole(part, source.begin, elements, [&](const Run& run) -> Status {
        for (uint64_t i = 0; i < run.count; i++) {
          const uint64_t at = run.from + i - source.begin;
          good &= source.element(at) == run.to + i && source.neighbours(at) >= run.count - i;
        }
        return {};
      });
      check(good, "an element is elsewhere in the whole");
      offset += length;
    }
  }
}

void kernels_of(const Kernels& kernels) {
  for (const size_t n : {0, 1, 3, 7, 16, 33, 1024, 1031}) {
    for (const uint64_t counter : {uint64_t{0}, uint64_t{12345}, (uint64_t{5} << 32) - 2000, (uint64_t{1} << 40) + 17}) {
      std::vector<uint32_t> first(n + 1, 99), second(n + 1, 99);
      std::vector<float> from(n);
      std::vector<Bf16> to(n + 1, Bf16{99});
      kernels.casts->random_words(first.data(), second.data(), 0x1234567890abcdefU, counter, n);
      for (float& x : from) x = as_float(static_cast<uint32_t>(any_bits()));
      kernels.casts->round_with(to.data(), from.data(), second.data(), 16, n);
      bool good = first[n] == 99 && second[n] == 99 && to[n].bits == 99;
      for (size_t i = 0; i < n; i++) {
        const RandomWords words = random_words(0x1234567890abcdefU, counter + i);
        good &= first[i] == words.first && second[i] == words.second && to[i].bits == rounded_with(from[i], words.of_array(3));
      }
      check(good, text(kernels.name, ": random words or roundings of ", n, " elements from ", counter));
    }
  }
}

// ── updates ──

struct Storage {
  bool bf16_state, stochastic, no_master;
};
constexpr Storage kStorages[] = {{true, false, false}, {true, true, false}, {false, false, true}, {true, false, true}, {true, true, true}};

float some_float() {
  return std::normal_distribution<float>()(any_bits);
}

struct Launch {
  Hyper hyper{3e-3, 0.9, 0.95, 1e-8, 0.1, 0.8};
  StepScalars scalars{};
  uint64_t steps = 3;
  uint32_t number;
  DType grad_type, param_type;
  Storage storage;
  std::vector<float> grad32, master, state32[3];
  std::vector<uint16_t> grad16, param, state16[3];

  Launch(uint32_t rule, DType grads, DType params, const Storage& how, size_t n)
      : number(rule), grad_type(grads), param_type(params), storage(how), grad32(n), master(n), grad16(n), param(n) {
    scalars.grad_factor = 0.25F;
    scalars.grad_limit = 1;
    for (size_t i = 0; i < n; i++) {
      grad32[i] = some_float();
      grad16[i] = rounded(grad32[i]);
      master[i] = some_float();
      param[i] = rounded(some_float());
    }
    for (size_t k = 0; k < megadp::rule(rule).state.size(); k++) {
      for (size_t i = 0; i < n; i++) {
        state32[k].push_back(std::fabs(some_float()));
        state16[k].push_back(rounded(state32[k][i]));
      }
    }
  }
  static uint16_t rounded(float x) {
    Bf16 out;
    from_f32(&out, x);
    return out.bits;
  }
  Update update() {
    Update u{};
    u.hyper = hyper;
    u.scalars = &scalars;
    u.steps = &steps;
    u.grad = grad_type == DType::f32 ? static_cast<void*>(grad32.data()) : grad16.data();
    u.master = storage.no_master ? nullptr : master.data();
    u.param = param_type == DType::f32 ? static_cast<void*>(master.data()) : param.data();
    for (size_t k = 0; k < rule(number).state.size(); k++)
      u.state[k] = storage.bf16_state ? static_cast<void*>(state16[k].data()) : state32[k].data();
    u.count = grad32.size();
    u.grad_type = grad_type;
    u.param_type = param_type;
    u.rule = number;
    u.state_type = storage.bf16_state ? DType::bf16 : DType::f32;
    u.rounds_state_with_bits = storage.stochastic;
    u.random = {0xfeedbeef12345678U, (uint64_t{3} << 32) - 100, 700, 1000, 11};
    return u;
  }
  bool operator==(const Launch& other) const {
    bool good = master == other.master && param == other.param;
    for (size_t k = 0; k < 3; k++) good &= state32[k] == other.state32[k] && state16[k] == other.state16[k];
    return good;
  }
};

// Widened, updated, rounded: element by element.
template <class Rule, size_t... k>
void by_elements(Launch& l, std::index_sequence<k...>) {
  const auto constants = Rule::constants(l.hyper, l.steps);
  const Update u = l.update();
  const uint64_t key = key_of_step(u.random.key, l.steps);
  for (size_t i = 0; i < l.grad32.size(); i++) {
    const uint64_t at = u.random.begin + i;
    const RandomWords words = random_words(key, at / 700 * 1000 + 11 + at % 700);
    const uint32_t bits[] = {words.first & 0xffff, words.first >> 16, words.second & 0xffff, words.second >> 16};
    const auto wide = [](uint16_t half) { return to_f32(Bf16{half}); };
    float values[] = {l.storage.no_master ? wide(l.param[i]) : l.master[i],
                      (l.storage.bf16_state ? wide(l.state16[k][i]) : l.state32[k][i])...};
    const float g = clipped(l.grad_type == DType::f32 ? l.grad32[i] : wide(l.grad16[i]), l.scalars.grad_factor, l.scalars.grad_limit);
    Rule::element(constants, g, values[0], values[k + 1]...);
    if (l.storage.no_master) {
      l.param[i] = rounded_with(values[0], bits[0]);
    } else {
      l.master[i] = values[0];
      if (l.param_type != DType::f32) l.param[i] = Launch::rounded(values[0]);
    }
    [[maybe_unused]] const auto keep = [&](size_t which) {
      const float value = values[which + 1];
      if (!l.storage.bf16_state) {
        l.state32[which][i] = value;
      } else {
        l.state16[which][i] = l.storage.stochastic ? rounded_with(value, bits[which + 1]) : Launch::rounded(value);
      }
    };
    (keep(k), ...);
  }
}

void updates(const Kernels& kernels) {
  for (uint32_t number = 0; number < kCallerRule; number++) {
    for (const DType grad_type : {DType::f32, DType::bf16}) {
      for (const DType param_type : {DType::f32, DType::bf16}) {
        for (const Storage& storage : kStorages) {
          if (storage.no_master && param_type == DType::f32) continue;
          for (const size_t n : {1, 5, 1023, 1024, 3003}) {
            Launch launch(number, grad_type, param_type, storage, n), expected(launch);
            with_rule(number, [&](auto rule) {
              using Rule = decltype(rule);
              by_elements<Rule>(expected, std::make_index_sequence<Rule::state.size()>());
            });
            check(host::update(launch.update(), kernels).ok(), "update");
            check(launch == expected,
                  text(kernels.name, " ", rule(number).name, ", parameters ", name_of(param_type), ", bf16 state ", storage.bf16_state,
                       ", stochastic ", storage.stochastic, ", no master ", storage.no_master, ", ", n));
          }
        }
      }
    }
  }
}

void refusals() {
  Launch launch(0, DType::f32, DType::f32, {false, false, true}, 4);
  Update update = launch.update();
  check(host::update(update).code() == Code::unsupported, "an f32 parameter without a master");
  update = Launch(0, DType::f32, DType::bf16, {true, false, false}, 4).update();
  update.state_type = DType::f16;
  check(host::update(update).code() == Code::unsupported, "state as f16");
  Launch nothing(0, DType::f32, DType::f32, {false, false, false}, 0);
  check(host::update(nothing.update()).ok(), "of no elements there need be no master");
}

}  // namespace

int main() {
  known_answers();
  edges();
  mean_error();
  all_of_it_counts();
  places_in_the_whole();
  for (const Kernels& kernels : host::all_kernels()) {
    kernels_of(kernels);
    updates(kernels);
  }
  refusals();
  return finish();
}
