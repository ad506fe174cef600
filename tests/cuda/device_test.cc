// SPDX-License-Identifier: Apache-2.0
// The plugin's entries on a real device, beside the host backend's kernels: the same bits; and matrix products beside those in f64. Skipped
// (77) if there is no device.
// device_test PLUGIN [small]: small leaves out the largest arrays, the products and what is refused, for compute-sanitizer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/finding.h"
#include "host/attention.h"
#include "host/kernels.h"
#include "host/vocabulary.h"
#include "plugin_test.h"
#include "product_oracle.h"

using namespace megadp;
using namespace megadp::cuda;
using namespace megadp::test;

namespace {

const PluginTable* plugin;
Device* device;
void* stream;
std::mt19937_64 random_bits(3);

bool ok(int32_t result, const char* what, test::Place at = test::Place::current()) {
  return check(result == 0, text(what, ": ", sentence(*plugin, result)), at);
}

// An array on both sides, `offset` elements from alignment.
struct Twin {
  DType type;
  size_t count, bytes;
  std::vector<std::byte> host;
  void* base = nullptr;
  std::byte* on_device = nullptr;

  Twin(DType element, size_t elements, size_t offset) : type(element), count(elements), bytes(elements * size_of(element)), host(bytes) {
    for (size_t i = 0; i < count; i++) put(i);
    ok(plugin->allocate(device, bytes + 256, &base), "allocate");
    on_device = static_cast<std::byte*>(base) + offset * size_of(type);
    upload();
  }
  ~Twin() { ok(plugin->release(device, base), "release"); }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  void put(size_t i) {
    const uint64_t bits = random_bits();
    const double x = static_cast<double>(static_cast<int64_t>(bits % 20001) - 10000) / 64 * (bits >> 60 == 1 ? 1e-41 : 1);
    std::byte* const at = host.data() + i * size_of(type);
    if (type == DType::f32) from_f64(reinterpret_cast<float*>(at), x);
    if (type == DType::bf16) from_f64(reinterpret_cast<Bf16*>(at), x);
    if (type == DType::f16) from_f64(reinterpret_cast<F16*>(at), x);
    if (type == DType::f64) std::memcpy(at, &x, 8);
    if (type == DType::i64 || type == DType::u8) std::memcpy(at, &bits, size_of(type));
  }
  void upload() {
    ok(plugin->copy(device, stream, on_device, host.data(), bytes), "copy to the device");
    ok(plugin->stream_synchronize(device, stream), "stream_synchronize");
  }
  // What is on the device now is what the host has computed.
  void compare(const std::string& what, test::Place at = test::Place::current()) {
    std::vector<std::byte> seen(bytes);
    ok(plugin->copy(device, stream, seen.data(), on_device, bytes), "copy from the device", at);
    ok(plugin->stream_synchronize(device, stream), "stream_synchronize", at);
    if (check(seen == host, text(what, " gives other bits than the host"), at)) return;
    const auto first = std::mismatch(seen.begin(), seen.end(), host.begin()).first - seen.begin();
    std::cerr << "  first at element " << static_cast<size_t>(first) / size_of(type) << " of " << count << "\n";
  }
};

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr DType kTrainable[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8};
std::vector<size_t> counts = {0, 1, 7, 1000, 9001, 100'003};
Rounded added_bf16 = Rounded::once;  // how a bf16 product is that is added to an array

size_t some_offset() {
  return random_bits() % 2 == 0 ? 0 : random_bits() % 9;
}

void casts() {
  for (const DType to_type : kFloats) {
    for (const DType from_type : kFloats) {
      for (const size_t n : counts) {
        Twin to(to_type, n, some_offset()), from(from_type, n, some_offset());
        ok(plugin->cast(device, stream, to.on_device, to_type, from.on_device, from_type, n), "cast");
        check(host::cast(to.host.data(), to_type, from.host.data(), from_type, n).ok(), "the host's cast");
        to.compare(text("cast of ", n, " ", name_of(from_type), " to ", name_of(to_type)));
      }
    }
  }
}

Strided plain(const StridedArray& array) {
  Strided out{};
  out.data = array.data;
  out.type = static_cast<uint32_t>(array.type);
  out.dimensions = static_cast<int32_t>(array.shape.size());
  std::copy(array.shape.begin(), array.shape.end(), out.shape);
  std::copy(array.strides.begin(), array.strides.end(), out.strides);
  return out;
}

void strided_copies() {
  const std::vector<int64_t> shape = {3, 70, 41};
  for (const DType to_type : kAll) {
    for (const DType from_type : kAll) {
      const bool integers = to_type == DType::i64 || to_type == DType::u8 || from_type == DType::i64 || from_type == DType::u8;
      if (integers && to_type != from_type) continue;
      // Dense, turned, backwards with gaps, each row read again and again, rows that overlap, one element for all.
      for (const std::vector<int64_t>& strides :
           {std::vector<int64_t>{2870, 41, 1}, {2870, 1, 70}, {-2870, 82, -2}, {0, 0, 1}, {5, 3, 1}, {0, 0, 0}}) {
        for (const bool add : {false, true}) {
          Twin to(to_type, 8610, some_offset()), from(from_type, 17220, some_offset());
          const int64_t origin = strides[0] < 0 ? 2 * 2870 + 80 : 0;
          StridedArray host_to{to.host.data(), to_type, shape, {2870, 41, 1}};
          StridedArray host_from{from.host.data() + origin * static_cast<int64_t>(size_of(from_type)), from_type, shape, strides};
          Strided on_to = plain(host_to), on_from = plain(host_from);
          on_to.data = to.on_device;
          on_from.data = from.on_device + origin * static_cast<int64_t>(size_of(from_type));
          ok(plugin->copy_strided(device, stream, &on_to, &on_from, add), "copy_strided");
          check(host::copy_strided(host_to, host_from, add).ok(), "the host's copy_strided");
          to.compare(text(add ? "adding " : "copying ", name_of(from_type), " to ", name_of(to_type), " by stride ", strides[2]));
        }
      }
    }
  }
}

void reductions() {
  for (const DType type : kAll) {
    for (const Op op : {Op::sum, Op::avg, Op::max, Op::min}) {
      for (const size_t n : counts) {
        const int parts = static_cast<int>(1 + random_bits() % 9);
        const bool divides = op == Op::sum && type != DType::i64 && type != DType::u8;
        const double divisor = divides ? 3 : 1;
        Twin to(type, n, some_offset()), from(type, n * static_cast<size_t>(parts), some_offset());
        std::vector<const void*> arrays;
        for (int k = 0; k < parts; k++) arrays.push_back(from.host.data() + static_cast<size_t>(k) * n * size_of(type));
        ok(plugin->reduce(device, stream, to.on_device, from.on_device, n, parts, n, type, op, divisor), "reduce");
        check(host::reduce(to.host.data(), arrays.data(), parts, n, type, op, divisor).ok(), "the host's reduce");
        to.compare(text("reducing ", parts, " times ", n, " ", name_of(type), ", operation ", static_cast<int>(op)));
      }
    }
  }
}

void scalings() {
  for (const DType type : kTrainable) {
    for (const size_t n : counts) {
      Twin data(type, n, some_offset());
      const float factor = -1.0F / 3;
      ok(plugin->scale(device, stream, data.on_device, type, n, factor), "scale");
      check(host::scale(data.host.data(), type, n, factor).ok(), "the host's scale");
      data.compare(text("scaling ", n, " ", name_of(type)));
    }
  }
}

void rounding_with_feedback() {
  for (const size_t n : counts) {
    Twin to(DType::bf16, n, some_offset()), from(DType::f32, n, some_offset()), residual(DType::f32, n, some_offset());
    ok(plugin->round_with_feedback(device, stream, to.on_device, reinterpret_cast<const float*>(from.on_device),
                                   reinterpret_cast<float*>(residual.on_device), n),
       "round_with_feedback");
    check(host::round_with_feedback(to.host.data(), reinterpret_cast<const float*>(from.host.data()),
                                    reinterpret_cast<float*>(residual.host.data()), n)
              .ok(),
          "the host's round_with_feedback");
    to.compare(text("rounding ", n));
    residual.compare(text("what rounding ", n, " loses"));
  }
}

void masters() {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const size_t n : counts) {
      Twin masters(DType::f32, n, some_offset()), params(type, n, some_offset());
      for (size_t i = 0; i < n; i += 2) {  // as parameters that were not written are
        check(host::cast(params.host.data() + i * 2, type, masters.host.data() + i * 4, DType::f32, 1).ok(), "the host's cast");
      }
      params.upload();
      ok(plugin->refresh_masters(device, stream, reinterpret_cast<float*>(masters.on_device), params.on_device, type, n),
         "refresh_masters");
      check(host::refresh_masters(reinterpret_cast<float*>(masters.host.data()), params.host.data(), type, n).ok(),
            "the host's refresh_masters");
      masters.compare(text("masters of ", n, " ", name_of(type)));
    }
  }
}

// None, one, and nothing but NaN.
void nonfinite_elements() {
  Twin found(DType::i64, 1, 0);
  for (const DType type : kTrainable) {
    for (const size_t n : counts) {
      for (const size_t odd : {size_t{0}, size_t{1}, n}) {
        Twin data(type, n, some_offset());
        const size_t from = odd == 1 ? random_bits() % std::max<size_t>(n, 1) : 0;
        if (std::min(odd, n) > 0) std::memset(data.host.data() + from * size_of(type), 0xff, std::min(odd, n) * size_of(type));
        data.upload();
        uint64_t expected = 0;
        std::memset(found.host.data(), 0, sizeof expected);
        found.upload();
        ok(plugin->find_nonfinite(device, stream, data.on_device, type, n, first_finding(3), reinterpret_cast<uint64_t*>(found.on_device)),
           "find_nonfinite");
        check(host::find_nonfinite(data.host.data(), type, n, first_finding(3), &expected).ok(), "the host's find_nonfinite");
        std::memcpy(found.host.data(), &expected, sizeof expected);
        found.compare(text("looking for ", odd, " odd elements in ", n, " ", name_of(type)));
      }
    }
  }
}

Update update_of(const StepScalars* scalars, const uint64_t* steps, const void* grad, void* master, void* m, void* v, void* param, size_t n,
                 DType grad_type, DType param_type) {
  return {{1e-2, 0.9, 0.99, 1e-8, 0.1, 0}, scalars, steps, grad, static_cast<float*>(master), {m, v}, param, n, grad_type, param_type, 0};
}

// Two steps: one that is taken, one that is skipped for a NaN; and one after the device was poisoned.
void steps(DType grad_type, DType param_type, size_t n, bool poisoned) {
  const StepSettings settings{1.5, 2, 0, Norm::l2};
  const size_t offset = some_offset();
  Twin grad(grad_type, n, offset), master(DType::f32, n, offset), m(DType::f32, n, offset), v(DType::f32, n, some_offset());
  Twin param(param_type, n, some_offset()), scalars(DType::u8, sizeof(StepScalars), 0), kept(DType::i64, 3, 0);
  for (float* x = reinterpret_cast<float*>(v.host.data()); x != reinterpret_cast<float*>(v.host.data() + v.bytes); x++)
    *x = *x < 0 ? -*x : *x;
  v.upload();
  StepScalars s{};
  uint64_t counts[3] = {1, 1000, 2};  // of classes that have taken part in other steps
  std::memcpy(kept.host.data(), counts, sizeof counts);
  kept.upload();
  for (int step = 0; step < 2; step++) {
    if (step == 1 && n > 0) std::memset(grad.host.data(), 0xff, size_of(grad_type));
    grad.upload();
    s.square_sum = s.nonfinite = s.largest = 0;
    s.zeros = 0;
    std::memcpy(scalars.host.data(), &s, sizeof s);
    scalars.upload();
    auto* const on_device = reinterpret_cast<StepScalars*>(scalars.on_device);
    const uint64_t syncs = plugin->host_syncs(device);
    ok(plugin->square_sum(device, stream, grad.on_device, grad_type, n, &on_device->square_sum), "square_sum");
    ok(plugin->extremes(device, stream, grad.on_device, grad_type, n, &on_device->zeros, &on_device->largest), "extremes");
    ok(plugin->begin_step(device, stream, on_device, &settings), "begin_step");
    auto* const counts_on_device = reinterpret_cast<uint64_t*>(kept.on_device);
    ok(plugin->count_steps(device, stream, on_device, counts_on_device, 2), "count_steps");
    const Update update = update_of(on_device, counts_on_device + 1, grad.on_device, master.on_device, m.on_device, v.on_device,
                                    param.on_device, n, grad_type, param_type);
    ok(plugin->update(device, stream, &update), "update");
    check_equal(plugin->host_syncs(device), syncs, "waits of the host in a step");
    check(host::square_sum(grad.host.data(), grad_type, n, &s.square_sum, &s.nonfinite).ok(), "the host's square_sum");
    check(host::extremes(grad.host.data(), grad_type, n, &s.zeros, &s.largest).ok(), "the host's extremes");
    if (poisoned) {
      s.skip = 1;
    } else {
      begin_step(s, settings);
    }
    for (uint64_t* count = counts; count < counts + 2; ++count) count_step(s, *count);
    std::memcpy(kept.host.data(), counts, sizeof counts);
    const Update on_host = update_of(&s, counts + 1, grad.host.data(), master.host.data(), m.host.data(), v.host.data(), param.host.data(),
                                     n, grad_type, param_type);
    check(host::update(on_host).ok(), "the host's update");
    const std::string what = text("step ", step, " on ", n, " elements, ", name_of(grad_type), " to ", name_of(param_type));
    StepScalars seen{};
    ok(plugin->copy(device, stream, &seen, on_device, sizeof seen), "copy");
    ok(plugin->stream_synchronize(device, stream), "stream_synchronize");
    const bool both_nan = seen.square_sum != seen.square_sum && s.square_sum != s.square_sum;
    check((seen.square_sum == s.square_sum || both_nan) && seen.nonfinite == s.nonfinite && seen.step == s.step && seen.skip == s.skip,
          text(what, ": the scalars differ: ", seen.square_sum, " and ", s.square_sum));
    check(seen.zeros == s.zeros && seen.largest == s.largest,
          text(what, ": ", seen.zeros, " zeros up to ", seen.largest, ", not ", s.zeros, " up to ", s.largest));
    kept.compare(what + ", step counts");
    master.compare(what + ", masters");
    m.compare(what + ", m");
    v.compare(what + ", v");
    param.compare(what + ", parameters");
  }
}

// Moments as bf16, rounded to nearest or with random bits, and bf16 parameters with masters or without, which are rounded so too.
void small_state(DType param_type, bool has_master, bool stochastic, size_t n) {
  Twin grad(DType::f32, n, some_offset()), master(DType::f32, n, some_offset()), param(param_type, n, some_offset());
  Twin m(DType::bf16, n, some_offset()), v(DType::bf16, n, some_offset()), scalars(DType::u8, sizeof(StepScalars), 0);
  for (size_t i = 0; i < n; i++) v.host[2 * i + 1] &= std::byte{0x7f};  // a second moment is not negative
  v.upload();
  StepScalars s{};
  begin_step(s, StepSettings{1.5, 2, 0, Norm::l2});
  std::memcpy(scalars.host.data(), &s, sizeof s);
  scalars.upload();
  Twin count(DType::i64, 1, 0);
  const uint64_t steps = 7;
  std::memcpy(count.host.data(), &steps, sizeof steps);
  count.upload();
  Update here = update_of(&s, reinterpret_cast<const uint64_t*>(count.host.data()), grad.host.data(), master.host.data(), m.host.data(),
                          v.host.data(), param.host.data(), n, DType::f32, param_type);
  here.state_type = DType::bf16;
  here.rounds_state_with_bits = stochastic;
  here.random = {0xfeedbeef12345678U, (uint64_t{3} << 32) - 100, 700, 1000, 11};  // runs of 700 of every 1000, across a carry of 32 bits
  Update there = here;
  there.scalars = reinterpret_cast<const StepScalars*>(scalars.on_device);
  there.steps = reinterpret_cast<const uint64_t*>(count.on_device);
  there.grad = grad.on_device;
  there.master = reinterpret_cast<float*>(master.on_device);
  there.state[0] = m.on_device;
  there.state[1] = v.on_device;
  there.param = param.on_device;
  if (!has_master) here.master = there.master = nullptr;
  check(host::update(here).ok(), "the host's update");
  ok(plugin->update(device, stream, &there), "update");
  const std::string what = text(n, " ", name_of(param_type), has_master ? "" : " without masters", stochastic ? ", random bits" : "");
  master.compare(what + ", masters");
  m.compare(what + ", m");
  v.compare(what + ", v");
  param.compare(what + ", parameters");
}

void small_states() {
  for (const size_t n : counts) {
    for (const bool stochastic : {false, true}) {
      for (const DType param : kTrainable) small_state(param, true, stochastic, n);
      small_state(DType::bf16, false, stochastic, n);
    }
  }
}

// On both sides, filled as a Twin is.
struct TwinMatrix {
  LaidMatrix laid;
  Twin twin;

  explicit TwinMatrix(const LaidMatrix& as) : laid(as), twin(as.type, as.elements(), some_offset()) {}
  Matrix on_device() const { return laid.view(twin.on_device); }
  Matrix on_host() const { return laid.view(const_cast<std::byte*>(twin.host.data())); }
};

void compare_product(const TwinMatrix& c, const TwinMatrix& a, const TwinMatrix& b, bool add, const std::string& what) {
  std::vector<std::byte> seen(c.twin.bytes);
  ok(plugin->copy(device, stream, seen.data(), c.twin.on_device, c.twin.bytes), "copy from the device");
  ok(plugin->stream_synchronize(device, stream), "stream_synchronize");
  const std::string wrong = wrong_in_product(c.laid, seen, c.twin.host, a.on_host(), b.on_host(), add, added_bf16);
  check(wrong.empty(), text(what, ": ", wrong));
}

void product(Gemm* gemm, const ProductCase& one) {
  const TwinMatrix a(one.a), b(one.b), c(one.c);
  const Matrix on_c = c.on_device(), on_a = a.on_device(), on_b = b.on_device();
  const std::string what = one.name();
  if (ok(plugin->gemm(gemm, stream, &on_c, &on_a, &on_b, one.add), what.c_str())) compare_product(c, a, b, one.add, what);
}

// Two streams at once, whose algorithms may share the workspace: a long inner dimension is divided among blocks.
void products_on_two_streams(Gemm* gemm) {
  void* const first = stream;
  void* second = nullptr;
  ok(plugin->stream_create(device, false, &second), "stream_create");
  const TwinMatrix a({DType::bf16, 16, 8192, true, 0}), b({DType::bf16, 8192, 16, false, 0});
  const TwinMatrix one({DType::bf16, 16, 16, true, 0}), two({DType::bf16, 16, 16, true, 0});
  const Matrix on_a = a.on_device(), on_b = b.on_device(), on_one = one.on_device(), on_two = two.on_device();
  for (int i = 0; i < 50; i++) {
    ok(plugin->gemm(gemm, first, &on_one, &on_a, &on_b, false), "a product on one stream");
    ok(plugin->gemm(gemm, second, &on_two, &on_a, &on_b, false), "a product on another");
  }
  compare_product(one, a, b, false, "fifty products on one stream");
  stream = second;
  compare_product(two, a, b, false, "fifty products on another");
  stream = first;
  ok(plugin->stream_destroy(device, second), "stream_destroy");
}

void products() {
  Gemm* gemm = nullptr;
  char why[512] = "";
  if (plugin->gemm_open(device, nullptr, &gemm, why, sizeof why) != 0) {
    std::cerr << "without matrix products: " << why << "\n";
    return;
  }
  std::cerr << "cuBLASLt " << plugin->gemm_version(gemm) << "\n";
  for (const ProductCase& one : product_cases()) product(gemm, one);
  products_on_two_streams(gemm);
  plugin->gemm_close(gemm);
}

// ── a vocabulary ──

// Ids, and targets: rows 100 to 219 of 400 are this rank's; one id is none.
std::vector<int64_t> some_ids(size_t count) {
  std::vector<int64_t> ids(count);
  for (size_t i = 0; i < count; i++) ids[i] = i == 5 ? -1 : static_cast<int64_t>(random_bits() % 400);
  return ids;
}

struct OnDevice {  // bytes of the host's, copied there
  void* at = nullptr;
  OnDevice(const void* data, size_t bytes) {
    ok(plugin->allocate(device, bytes, &at), "allocate");
    if (data != nullptr) ok(plugin->copy(device, stream, at, data, bytes), "copy to the device");
    ok(plugin->stream_synchronize(device, stream), "stream_synchronize");
  }
  ~OnDevice() { ok(plugin->release(device, at), "release"); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

void embedding_rows(DType table_type, DType output_type, uint64_t features) {
  constexpr uint64_t tokens = 777;
  const std::vector<int64_t> ids = some_ids(tokens);
  const OnDevice ids_there(ids.data(), tokens * sizeof(int64_t));
  Twin table(table_type, 120 * features, 0), output(output_type, tokens * features, 0), grads(output_type, tokens * features, 0);
  Lookup here;
  here.ids = ids.data();
  here.tokens = tokens;
  here.features = features;
  here.first = 100;
  here.rows = 120;
  here.all_rows = 400;
  here.table = table.host.data();
  here.table_stride = here.output_stride = static_cast<int64_t>(features);
  here.table_type = table_type;
  here.output = output.host.data();
  here.output_type = output_type;
  Lookup there = here;
  there.ids = static_cast<const int64_t*>(ids_there.at);
  there.table = table.on_device;
  there.output = output.on_device;
  check(host::look_up(here).ok(), "the host's rows");
  const std::vector<float> nan(features, as_float(0x7fc00000U));
  check(host::cast(output.host.data() + 5 * features * size_of(output_type), output_type, nan.data(), DType::f32, features).ok(), "cast");
  ok(plugin->look_up(device, stream, &there, false), "look_up");
  output.compare(text("rows of ", name_of(table_type), " as ", name_of(output_type)));
  here.output = grads.host.data();
  there.output = grads.on_device;
  for (const bool add : {false, true}) {
    here.add = there.add = add;
    check(host::add_up_rows(here).ok(), "the host's sums of rows");
    ok(plugin->look_up(device, stream, &there, true), "look_up of gradients");
    table.compare(text("sums of rows of ", name_of(output_type), " in ", name_of(table_type), add ? ", added" : ""));
  }
}

void compare_near(const std::vector<float>& seen, const std::vector<float>& wanted, float most, const std::string& what) {
  for (size_t i = 0; i < wanted.size(); i++) {
    if (std::isnan(seen[i]) && std::isnan(wanted[i])) continue;
    if (std::fabs(seen[i] - wanted[i]) <= most * (1 + std::fabs(wanted[i]))) continue;
    check(false, text(what, " ", i, ": ", seen[i], ", not ", wanted[i]));
    return;
  }
  check(true, what);
}

// Of one rank, with padding, an ignored target and one that is none. The order of a device's sums is its own.
void losses(DType type, int64_t columns) {
  constexpr size_t tokens = 37;
  const auto elements = tokens * static_cast<size_t>(columns);
  std::vector<int64_t> targets(tokens);
  for (size_t i = 0; i < tokens; i++) targets[i] = i == 3 ? -100 : i == 4 ? columns : static_cast<int64_t>(i * 31) % (columns - 1);
  Twin logits(type, elements, 0), grads(type, elements, 0);
  std::vector<float> each(tokens), given(tokens, 0.5F), there_each(tokens);
  std::vector<TokenScore> scores(tokens + 1);
  std::vector<TokenSum> sums(tokens);
  const OnDevice targets_there(targets.data(), tokens * sizeof(int64_t)), given_there(given.data(), tokens * sizeof(float));
  const OnDevice each_there(nullptr, tokens * sizeof(float)), scores_there(nullptr, (tokens + 1) * sizeof(TokenScore));
  const OnDevice sums_there(nullptr, tokens * sizeof(TokenSum));
  CrossEntropy here;
  here.logits = logits.host.data();
  here.logits_stride = here.grad_stride = here.columns = columns;
  here.classes = columns - 1;
  here.type = type;
  here.targets = targets.data();
  here.tokens = tokens;
  here.ignores = true;
  here.ignored = -100;
  here.smoothing = 0.1;
  here.z = 1e-4;
  here.scores = scores.data();
  here.gathered = scores.data();
  here.losses = each.data();
  here.sums = sums.data();
  here.grad_losses = given.data();
  here.grad_logits = grads.host.data();
  CrossEntropy there = here;
  there.logits = logits.on_device;
  there.targets = static_cast<const int64_t*>(targets_there.at);
  there.scores = static_cast<TokenScore*>(scores_there.at);
  there.gathered = there.scores;
  there.losses = static_cast<float*>(each_there.at);
  there.sums = static_cast<TokenSum*>(sums_there.at);
  there.grad_losses = static_cast<const float*>(given_there.at);
  there.grad_logits = grads.on_device;
  for (const auto pass : {CrossEntropyPass::scores, CrossEntropyPass::losses, CrossEntropyPass::gradient}) {
    check(host::cross_entropy(here, pass).ok(), "the host's cross-entropy");
    ok(plugin->cross_entropy(device, stream, &there, pass), "cross_entropy");
  }
  std::vector<std::byte> seen(grads.bytes);
  ok(plugin->copy(device, stream, there_each.data(), each_there.at, tokens * sizeof(float)), "copy from the device");
  ok(plugin->copy(device, stream, seen.data(), grads.on_device, grads.bytes), "copy from the device");
  ok(plugin->stream_synchronize(device, stream), "stream_synchronize");
  const std::string what = text(columns, " logits of ", name_of(type));
  compare_near(there_each, each, 1e-5F, what + ", loss");
  std::vector<float> ours(elements), theirs(elements);
  check(host::cast(ours.data(), DType::f32, grads.host.data(), type, elements).ok(), "cast");
  check(host::cast(theirs.data(), DType::f32, seen.data(), type, elements).ok(), "cast");
  compare_near(theirs, ours, type == DType::f32 ? 1e-5F : 1e-2F, what + ", gradient");
}

void vocabularies() {
  for (const DType table : kTrainable) {
    for (const DType output : kTrainable) embedding_rows(table, output, 65);
  }
  embedding_rows(DType::bf16, DType::bf16, 3001);
  for (const DType type : kTrainable) {
    for (const int64_t columns : {3, 255, 256, 50257}) losses(type, columns);
  }
}

// Of rows where both sides have keys, one of them, or none. A device's exp and log are its own.
void merged_attention(int64_t features) {
  constexpr int64_t batches = 3, rows = 257;
  const auto some = [](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random_bits() % 4001) / 100 - 20;
    return values;
  };
  std::vector<float> out = some(batches * rows * features), part = some(batches * rows * features);
  std::vector<float> lse = some(batches * rows), part_lse = some(batches * rows);
  for (size_t i = 0; i < lse.size(); i++) {
    if (i % 7 < 2) lse[i] = as_float(0xff800000U);
    if (i % 7 == 1 || i % 7 == 3) part_lse[i] = as_float(0xff800000U);
  }
  const OnDevice out_there(out.data(), out.size() * sizeof(float)), part_there(part.data(), part.size() * sizeof(float));
  const OnDevice lse_there(lse.data(), lse.size() * sizeof(float)), part_lse_there(part_lse.data(), lse.size() * sizeof(float));
  const int64_t all = rows * features;
  const AttentionMerge here{out.data(), lse.data(), part.data(), part_lse.data(), batches, rows, features, all, rows, all, rows};
  AttentionMerge there = here;
  there.out = static_cast<float*>(out_there.at);
  there.lse = static_cast<float*>(lse_there.at);
  there.part = static_cast<const float*>(part_there.at);
  there.part_lse = static_cast<const float*>(part_lse_there.at);
  host::merge_attention(here);
  ok(plugin->merge_attention(device, stream, &there), "merge_attention");
  std::vector<float> seen(out.size()), seen_lse(lse.size());
  ok(plugin->copy(device, stream, seen.data(), out_there.at, seen.size() * sizeof(float)), "copy from the device");
  ok(plugin->copy(device, stream, seen_lse.data(), lse_there.at, seen_lse.size() * sizeof(float)), "copy from the device");
  ok(plugin->stream_synchronize(device, stream), "stream_synchronize");
  compare_near(seen, out, 1e-6F, text("attention merged, ", features, " features, out"));
  for (size_t i = 0; i < lse.size(); i++) {  // the difference of two infinities is none
    if (seen_lse[i] == lse[i]) seen_lse[i] = lse[i] = 0;
  }
  compare_near(seen_lse, lse, 1e-6F, text("attention merged, ", features, " features, lse"));
}

void streams_and_memory() {
  void *other = nullptr, *begin = nullptr, *end = nullptr, *pinned = nullptr;
  ok(plugin->stream_create(device, true, &other), "stream_create");
  ok(plugin->event_create(device, &begin), "event_create");
  ok(plugin->event_create(device, &end), "event_create");
  ok(plugin->allocate_pinned(device, 4096, &pinned), "allocate_pinned");
  Twin data(DType::f32, 100'000, 0);
  Access access = Access::unknown;
  ok(plugin->access(device, data.on_device, &access), "access");
  check(access == Access::device, "memory of the device is not known as such");
  ok(plugin->access(device, pinned, &access), "access");
  check(access == Access::host, "pinned memory is not known as such");
  ok(plugin->access(device, data.host.data(), &access), "access");
  check(access == Access::unknown, "ordinary memory is not known as such");
  ok(plugin->event_record(device, begin, stream), "event_record");
  ok(plugin->zero(device, stream, data.on_device, data.bytes), "zero");
  ok(plugin->event_record(device, end, stream), "event_record");
  ok(plugin->stream_wait(device, other, end), "stream_wait");
  ok(plugin->copy(device, other, pinned, data.on_device, 4096), "copy");
  ok(plugin->stream_synchronize(device, other), "stream_synchronize");
  check(std::all_of(static_cast<std::byte*>(pinned), static_cast<std::byte*>(pinned) + 4096, [](std::byte b) { return b == std::byte{0}; }),
        "a stream did not wait for the other");
  ok(plugin->event_query(device, end), "event_query");
  float milliseconds = -1;
  ok(plugin->event_elapsed(device, begin, end, &milliseconds), "event_elapsed");
  check(milliseconds >= 0, text("zeroing took ", milliseconds, " ms"));
  for (void* event : {begin, end}) ok(plugin->event_destroy(device, event), "event_destroy");
  ok(plugin->stream_destroy(device, other), "stream_destroy");
  ok(plugin->release_pinned(device, pinned), "release_pinned");
}

void too_much_memory() {
  void* none = nullptr;
  check_equal(plugin->allocate(device, size_t{1} << 50, &none), kOutOfMemory, "a petabyte");
}

}  // namespace

int main(int count_of_arguments, char** arguments) {
  const bool small = count_of_arguments > 2 && std::strcmp(arguments[2], "small") == 0;
  if (small) counts.pop_back();
  plugin = load_plugin(arguments[1]);
  if (plugin == nullptr) return finish();
  int32_t count = 0;
  if (const int32_t result = plugin->device_count(&count); result != 0 || count == 0) {
    std::cerr << "skipped: " << (result != 0 ? sentence(*plugin, result) : "there is no device") << "\n";
    return 77;
  }
  DeviceInfo info{};
  if (!ok(plugin->device_info(0, &info), "device_info") || !ok(plugin->device_open(0, &device), "device_open")) return finish();
  if (info.major > 0) added_bf16 = Rounded::before_it_is_added;  // by cuBLASLt, not by the stand-in
  std::cerr << info.name << " " << info.uuid << ", sm_" << info.major << info.minor << "\n";
  if (!ok(plugin->stream_create(device, false, &stream), "stream_create")) return finish();
  std::thread([] { casts(); }).join();  // a thread that never had a device
  strided_copies();
  reductions();
  scalings();
  rounding_with_feedback();
  masters();
  nonfinite_elements();
  for (const DType grad : kTrainable) {
    for (const DType param : kTrainable) {
      for (const size_t n : counts) steps(grad, param, n, false);
    }
  }
  if (!small) steps(DType::f32, DType::bf16, 3'000'003, false);  // several runs of squares, the last one not full
  small_states();
  vocabularies();
  for (const int64_t features : {1, 33, 64, 128, 300}) merged_attention(features);
  if (!small) products();  // the kernels of cuBLASLt are not ours to be looked into
  streams_and_memory();
  if (!small) too_much_memory();  // compute-sanitizer reports each call that CUDA refuses
  plugin->poison(device);
  steps(DType::f32, DType::bf16, 1000, true);
  ok(plugin->stream_destroy(device, stream), "stream_destroy");
  plugin->device_close(device);
  return finish();
}
