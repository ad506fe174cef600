// SPDX-License-Identifier: Apache-2.0
// Memory and the stream-ordered kernels as the core uses them; their bits are the business of the unit tests.
#include <array>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <iostream>

#include "base/finding.h"
#include "base/math.h"
#include "device_array.h"
#include "suite.h"

namespace megadp::test {
namespace {

void memory(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4096}, size_t{3} << 20}) {
      auto memory = rank.must(rank.backend().allocate(bytes));
      rank.check(memory->bytes() == bytes, text("memory of ", bytes, " bytes has ", memory->bytes()));
      rank.check(reinterpret_cast<uintptr_t>(memory->data()) % 64 == 0, "memory is not aligned to 64 bytes");
      std::vector<std::byte> seen(bytes, std::byte{1});
      rank.must(rank.backend().read(seen.data(), memory->data(), bytes));
      rank.check(seen == std::vector<std::byte>(bytes), "memory does not start zeroed");
      std::vector<std::byte> written(bytes, std::byte{0x5a});
      rank.must(rank.backend().write(memory->data(), written.data(), bytes));
      rank.must(rank.backend().read(seen.data(), memory->data(), bytes));
      rank.check(seen == written, "memory does not give back what was written");
    }
    rank.check(rank.must(rank.backend().allocate(0))->bytes() == 0, "memory of 0 bytes has some");
    rank.fails(rank.backend().allocate(SIZE_MAX - 5).status(), Code::memory, {"allocate", text(SIZE_MAX - 5)});
    rank.fails(rank.backend().allocate(size_t{1} << 60).status(), Code::memory, {"allocate", text(size_t{1} << 60)});
  });
}

void copy(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    const std::vector<float> values = {1, 2, 3, 4, 5, 6};
    std::vector<float> from = values;
    DeviceArray to(rank, 6 * sizeof(double)), inside(rank, 6 * sizeof(float));
    put_values(rank, to.data(), std::vector<double>(6, 10));
    StridedArray source{from.data(), DType::f32, {2, 3}, {3, 1}}, target{to.data(), DType::f64, {2, 3}, {1, 2}};
    rank.must(rank.backend().copy(target, source, false, nullptr));
    const auto seen = [&] { return get_values<double>(rank, to.data(), 6); };
    rank.check(seen() == std::vector<double>{1, 4, 2, 5, 3, 6}, "copy does not transpose");
    rank.must(rank.backend().copy(target, source, true, nullptr));
    rank.check(seen() == std::vector<double>{2, 8, 4, 10, 6, 12}, "copy does not add");
    // From memory of the backend, and into ordinary memory, backwards.
    StridedArray within{inside.data(), DType::f32, {2, 3}, {3, 1}};
    rank.must(rank.backend().copy(within, target, false, nullptr));
    rank.must(rank.backend().copy(target, within, true, nullptr));
    StridedArray backwards{from.data() + 5, DType::f32, {2, 3}, {-3, -1}};
    rank.must(rank.backend().copy(backwards, target, false, nullptr));
    rank.check(from == std::vector<float>{24, 20, 16, 12, 8, 4}, text("a copy into ordinary memory begins with ", from[0]));
    if (!on_device(rank)) {
      rank.fails(rank.backend().copy(target, source, true, from.data()), Code::invalid, {"host streams are NULL"});
    }
    source.shape = {3, 2};
    rank.fails(rank.backend().copy(target, source, true, nullptr), Code::invalid, {"shape"});
  });
}

// A whole step on one parameter, in stream order, beside the same in double.
void step(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    Backend& backend = rank.backend();
    auto stream = rank.must(backend.create_stream("step"));
    auto memory = rank.must(backend.allocate(4096));
    auto* const scalars = static_cast<StepScalars*>(memory->data());
    auto* const counts = reinterpret_cast<uint64_t*>(scalars + 1);
    float* const grad = reinterpret_cast<float*>(counts + 2);
    float *const master = grad + 4, *const m = grad + 8, *const v = grad + 12;
    const Update update{{0.1, 0.9, 0.99, 1e-8, 0.5, 0}, scalars, counts, grad, master, {m, v}, master, 4, DType::f32, DType::f32, 0};
    const float grads[4] = {3, -4, 0, 12}, weights[4] = {1, 2, 3, 4};
    rank.must(backend.write(grad, grads, sizeof grads));
    rank.must(backend.write(master, weights, sizeof weights));
    rank.must(backend.square_sum(*stream, grad, DType::f32, 4, &scalars->square_sum));
    rank.must(backend.extremes(*stream, grad, DType::f32, 4, &scalars->zeros, &scalars->largest));
    rank.must(backend.begin_step(*stream, scalars, {6.5, 2.0, 0, Norm::l2}));
    rank.must(backend.count_steps(*stream, scalars, counts, 1));
    rank.must(backend.update(*stream, update));
    rank.must(finish(*stream));
    StepScalars now{};
    rank.must(backend.read(&now, scalars, sizeof now));
    rank.check(now.square_sum == 169 && now.nonfinite == 0 && now.grad_norm == 6.5, text("the norm is ", now.grad_norm));
    rank.check(now.zeros == 1 && now.largest == 12, text(now.zeros, " zeros, the largest is ", now.largest));
    rank.check(now.step == 1 && now.skip == 0, "the step did not begin");
    uint64_t counted[2];
    rank.must(backend.read(counted, counts, sizeof counted));
    rank.check(counted[0] == 1 && counted[1] == 0, text("the step counts are ", counted[0], " and ", counted[1]));
    rank.check(std::fabs(now.clip_factor - 1) < 1e-6, text("the clip factor is ", now.clip_factor));
    float result[4];
    rank.must(backend.read(result, master, sizeof result));
    for (int i = 0; i < 4; ++i) {
      // After one step m / (1 - beta1) is the gradient and v / (1 - beta2) its square.
      const double direction = grads[i] == 0 ? 0 : grads[i] > 0 ? 1 : -1;
      const double expected = weights[i] * (1 - 0.1 * 0.5) - 0.1 * direction;
      rank.check(std::fabs(result[i] - expected) < 1e-5, text("weight ", i, " is ", result[i], ", not ", expected));
    }
    // A gradient that is not finite: the same calls change nothing.
    const float bad[4] = {1, INFINITY, 1, 1};
    rank.must(backend.write(grad, bad, sizeof bad));
    rank.must(backend.zero(*stream, &scalars->square_sum, 16));
    rank.must(backend.square_sum(*stream, grad, DType::f32, 4, &scalars->square_sum));
    rank.must(backend.begin_step(*stream, scalars, {6.5, 2.0, 0, Norm::l2}));
    rank.must(backend.count_steps(*stream, scalars, counts, 1));
    rank.must(backend.update(*stream, update));
    rank.must(finish(*stream));
    rank.must(backend.read(&now, scalars, sizeof now));
    rank.check(now.skip == 1 && now.step == 1 && now.nonfinite == 1, "the step was not skipped");
    rank.must(backend.read(counted, counts, sizeof counted));
    rank.check(counted[0] == 1, text("a skipped step was counted: ", counted[0]));
    float after[4];
    rank.must(backend.read(after, master, sizeof after));
    rank.check(std::memcmp(result, after, sizeof result) == 0, "a skipped step changed the weights");
  });
}

// On the caller's stream, which other streams are told to wait for.
void nonfinite(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    Backend& backend = rank.backend();
    auto stream = rank.must(backend.create_stream("checks"));
    auto memory = rank.must(backend.allocate(65536));
    auto seen = rank.must(backend.allocate_host(2 * sizeof(uint64_t)));
    auto* const found = static_cast<uint64_t*>(memory->data());
    float* const data = reinterpret_cast<float*>(found + 2);
    std::vector<float> values(9000, 2);
    values[8001] = INFINITY;
    values[8888] = NAN;
    rank.must(backend.write(data, values.data(), values.size() * sizeof(float)));
    rank.must(backend.find_nonfinite(data, DType::f32, 8001, first_finding(1), found, nullptr));
    rank.must(backend.find_nonfinite(data + 1, DType::f32, 8999, first_finding(7), found + 1, nullptr));
    rank.must(stream->wait_for_caller(nullptr));
    rank.must(backend.fetch(*stream, seen->data(), found, 2 * sizeof(uint64_t)));
    rank.must(finish(*stream));
    const auto* const told = static_cast<const uint64_t*>(seen->data());
    rank.check(told[0] == 0, "something was found among finite numbers");
    const NonfiniteElement one = read_finding(told[1]);
    rank.check(one.microbatch == 7 && one.element == 8000 && one.value == Nonfinite::plus_inf,
               text("found: ", name_of(one.value), " at element ", one.element, " in microbatch ", one.microbatch));
    // Work of the core's own, in the order of the control stream.
    auto control = rank.must(backend.control().create_stream("control"));
    int turn = 0;
    rank.must(backend.control().run(*control, [&turn] { turn = turn * 10 + 1; }));
    rank.must(backend.control().run(*control, [&turn] { turn = turn * 10 + 2; }));
    rank.must(finish(*control));
    rank.check(turn == 12, text("work on the stream came in another order: ", turn));
  });
}

// What is computed on the caller's thread, with that set to round in this way.
std::vector<float> computed_here(Rank& rank, int mode) {
  std::vector<float> in(64);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i * 7919 % 97) / 89 - 0.4F;
  std::vector<float> table(in), summed(8), merged(in.begin(), in.begin() + 16), lse{0.3F, -0.2F}, product(64), losses(1), grads(16);
  const std::vector<int64_t> ids(8, 0);  // of rows of 8: all tokens use the first
  Lookup sums;
  sums.ids = ids.data();
  sums.tokens = sums.features = 8;
  sums.rows = sums.all_rows = 1;
  sums.table = summed.data();
  sums.output = in.data();
  sums.table_stride = sums.output_stride = 8;
  std::vector<TokenScore> scores(2);
  CrossEntropy entropy;
  entropy.logits = in.data();
  entropy.targets = ids.data();
  entropy.tokens = 1;
  entropy.columns = entropy.classes = entropy.logits_stride = entropy.grad_stride = 16;
  entropy.smoothing = 0.1;
  entropy.z = 1e-3;
  entropy.scores = scores.data();
  entropy.gathered = scores.data();
  entropy.losses = losses.data();
  TokenSum token{};
  entropy.sums = &token;
  entropy.grad_losses = &in[1];
  entropy.grad_logits = grads.data();
  const AttentionMerge merge{merged.data(), lse.data(), &in[16], &in[40], 1, 2, 8, 16, 2, 16, 2};
  const Matrix a{table.data(), DType::f32, 8, 8, 8, 1}, c{product.data(), DType::f32, 8, 8, 8, 1};

  Status done[6];
  std::fesetround(mode);
  done[0] = rank.backend().look_up(sums, true, nullptr);
  done[1] = rank.backend().merge_attention(merge, nullptr);
  done[2] = rank.backend().gemm(c, a, a, false, nullptr);
  for (const auto pass : {CrossEntropyPass::scores, CrossEntropyPass::losses, CrossEntropyPass::gradient}) {
    done[3 + static_cast<int>(pass)] = rank.backend().cross_entropy(entropy, pass, nullptr);
  }
  const bool is_unchanged = std::fegetround() == mode;
  std::fesetround(FE_TONEAREST);
  rank.check(is_unchanged, "the caller's rounding has changed");
  for (const Status& status : done) rank.must(status);
  for (const auto* const more : {&merged, &lse, &product, &losses, &grads}) summed.insert(summed.end(), more->begin(), more->end());
  return summed;
}

// Replicas have the same bits, however the threads round that their programs call from.
void check_floats_of_the_caller(Rank& rank) {
  const std::vector<float> nearest = computed_here(rank, FE_TONEAREST);
  for (const int mode : {FE_UPWARD, FE_DOWNWARD}) {
    const std::vector<float> found = computed_here(rank, mode);
    for (size_t i = 0; i < nearest.size(); ++i) {
      rank.check(found[i] == nearest[i], text("value ", i, " is ", found[i], " where the caller rounds otherwise, and not ", nearest[i]));
    }
  }
}

// A program may have set its threads to flush subnormal numbers, as some mathematics libraries do; a stream's results are the same.
void floating_point_environment(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    auto memory = rank.must(rank.backend().allocate(4096));
    auto* const scalars = static_cast<StepScalars*>(memory->data());
    float* const grad = reinterpret_cast<float*>(scalars + 1);
    const float subnormal = 1e-40F;
    rank.must(rank.backend().write(grad, &subnormal, sizeof subnormal));
    std::fenv_t before;
    std::fegetenv(&before);
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);  // flush to zero, denormals are zero
#else
    std::fesetround(FE_UPWARD);
#endif
    auto stream = rank.must(rank.backend().create_stream("environment"));
    std::fesetenv(&before);
    rank.must(rank.backend().square_sum(*stream, grad, DType::f32, 1, &scalars->square_sum));
    rank.must(finish(*stream));
    StepScalars now;
    rank.must(rank.backend().read(&now, scalars, sizeof now));
    rank.check(now.square_sum == double{subnormal} * double{subnormal}, text("the square of 1e-40 is ", now.square_sum));

    // A copy is made on the caller's thread, and rounds to the nearest all the same; for these values that is below, and above.
    const std::vector<double> values{0.7, 0.1};
    DeviceArray rounded(rank, values.size() * sizeof(float));
    const StridedArray from{const_cast<double*>(values.data()), DType::f64, {2}, {1}};
    for (const int mode : {FE_UPWARD, FE_DOWNWARD}) {
      std::fesetround(mode);
      const Status copied = rank.backend().copy({rounded.data(), DType::f32, {2}, {1}}, from, false, nullptr);
      rank.check(std::fegetround() == mode, "the caller's rounding has changed");
      std::fesetround(FE_TONEAREST);
      rank.must(copied);
      rank.check(get_values<float>(rank, rounded.data(), 2) == std::vector<float>{0.7F, 0.1F}, "a copy is rounded as the caller has set");
    }
    if (!on_device(rank)) check_floats_of_the_caller(rank);
  });
}

// A matrix of fractions in the backend's memory, by rows or by columns, with gaps after them.
struct Table {
  Table(Rank& rank, DType type, int64_t rows, int64_t columns, bool by_rows, uint32_t seed)
      : leading((by_rows ? columns : rows) + 3),
        values(static_cast<size_t>(leading * (by_rows ? rows : columns))),
        array(rank, values.size() * size_of(type)),
        matrix{array.data(), type, rows, columns, by_rows ? leading : 1, by_rows ? 1 : leading} {
    std::vector<Bf16> halves(values.size());
    for (size_t i = 0; i < values.size(); i++) {
      seed = seed * 1664525 + 1013904223;
      values[i] = static_cast<float>(seed >> 8) * 0x1p-24F - 0.5F;
      from_f32(&halves[i], values[i]);
      if (type == DType::bf16) values[i] = to_f32(halves[i]);
    }
    if (type == DType::bf16) put_values(rank, array.data(), halves);
    if (type == DType::f32) put_values(rank, array.data(), values);
  }
  std::vector<float> now(Rank& rank) {
    if (matrix.type == DType::f32) return get_values<float>(rank, array.data(), values.size());
    std::vector<float> out;
    for (const Bf16 half : get_values<Bf16>(rank, array.data(), values.size())) out.push_back(to_f32(half));
    return out;
  }
  size_t at(int64_t row, int64_t column) const { return static_cast<size_t>(row * matrix.row_stride + column * matrix.column_stride); }

  int64_t leading;
  std::vector<float> values;
  DeviceArray array;
  Matrix matrix;
};

void check_product(Rank& rank, const Table& c, const std::vector<float>& got, const Table& a, const Table& b, bool add) {
  std::vector<bool> written(got.size());
  for (int64_t row = 0; row < c.matrix.rows; row++) {
    for (int64_t column = 0; column < c.matrix.columns; column++) {
      double sum = add ? c.values[c.at(row, column)] : 0, magnitude = std::fabs(sum);
      for (int64_t i = 0; i < a.matrix.columns; i++) {
        const double term = double{a.values[a.at(row, i)]} * b.values[b.at(i, column)];
        sum += term;
        magnitude += std::fabs(term);
      }
      written[c.at(row, column)] = true;
      const double allowed = magnitude * 1e-5 + (c.matrix.type == DType::bf16 ? std::fabs(sum) * 0x1p-8 : 0), is = got[c.at(row, column)];
      if (!(std::fabs(is - sum) <= allowed)) {
        rank.check(false, text("a product of ", name_of(a.matrix.type), " into ", name_of(c.matrix.type), add ? ", added," : "",
                               " has at (", row, ", ", column, ") ", is, ", not ", sum));
        return;
      }
    }
  }
  for (size_t i = 0; i < got.size(); i++) {
    if (!written[i] && got[i] != c.values[i]) rank.check(false, text("a product was written to element ", i, ", between its rows"));
  }
  rank.check(true, "");
}

void gemm(Suite& suite) {
  suite.run(1, [](Rank& rank) {
    Backend& backend = rank.backend();
    auto library = backend.gemm_library();
    auto stream = rank.must(backend.create_stream("products"));
    const auto multiply = [&](DType type, DType c_type, unsigned order, bool add, const std::array<int64_t, 3>& size) {
      Table a(rank, type, size[0], size[2], (order & 1) != 0, 1), b(rank, type, size[2], size[1], (order & 2) != 0, 2);
      Table c(rank, c_type, size[0], size[1], (order & 4) != 0, 3);
      const Status done = backend.gemm(c.matrix, a.matrix, b.matrix, add, nullptr);
      if (!library.ok()) return rank.fails(done, Code::unsupported, {library.status().text()});
      rank.must(done);
      rank.must(stream->wait_for_caller(nullptr));  // reading a device's memory does not
      rank.must(finish(*stream));
      check_product(rank, c, c.now(rank), a, b, add);
      return true;
    };
    if (!library.ok()) {
      rank.fails(library.status(), Code::unsupported, {});
      std::cout << "skipped kernels.gemm: " << library.status().text() << std::endl;
      multiply(DType::f32, DType::f32, 7, false, {4, 4, 4});
      return;
    }
    rank.check(library->find_first_of("0123456789") != std::string::npos, text("'", *library, "' says no version"));
    const std::pair<DType, DType> types[] = {{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};
    for (const auto& [type, c_type] : types) {
      for (unsigned order = 0; order < 8; order++) {
        for (const bool add : {false, true}) {
          multiply(type, c_type, order, add, {13, 21, 70});
          multiply(type, c_type, order, add, {64, 32, 48});
          multiply(type, c_type, order, add, {1, 5, 3});
          multiply(type, c_type, order, add, {5, 1, 1});
          multiply(type, c_type, order, add, {3, 4, 0});
          multiply(type, c_type, order, add, {0, 4, 3});
        }
      }
    }
    Table square(rank, DType::f32, 4, 4, true, 4), other(rank, DType::f32, 4, 4, true, 5);
    if (!on_device(rank)) {
      rank.fails(backend.gemm(square.matrix, other.matrix, other.matrix, false, &square), Code::invalid, {"host streams are NULL"});
    }
  });
}

void identity(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    rank.check(&rank.backend().world() == &rank.world(), "the backend has another world");
    rank.check(!rank.backend().name().empty(), "the backend has no name");
  });
}

}  // namespace

std::vector<Case> kernel_cases() {
  return {{"kernels.memory", memory},
          {"kernels.copy", copy},
          {"kernels.step", step},
          {"kernels.nonfinite", nonfinite},
          {"kernels.floating_point_environment", floating_point_environment},
          {"kernels.gemm", gemm},
          {"kernels.identity", identity}};
}

}  // namespace megadp::test
