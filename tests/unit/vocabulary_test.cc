// SPDX-License-Identifier: Apache-2.0
// The softmax of logits on every SIMD target: the bits of the baseline for every length, place of the target and type, exponentials beside
// the standard library's; rows of embeddings in the order of their tokens.
#include "host/vocabulary.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"

using namespace megadp;
using namespace megadp::test;
using host::Kernels;

namespace {

constexpr DType kStorage[] = {DType::f32, DType::bf16, DType::f16};

void exponentials() {
  double worst = 0;
  for (uint32_t step = 0; step < 2000000; step++) {
    const float x = -static_cast<float>(step) * 4.4e-5F;
    const double wanted = std::exp(static_cast<double>(x)), got = exponential(x);
    if (x < -87.33F) {
      check_equal(got, 0.0, text("e^", x));
    } else {
      worst = std::max(worst, std::fabs(got - wanted) / wanted);
    }
  }
  check(worst < 1.5 * 0x1p-23, text("e^x is off by ", worst));
  check_equal(exponential(0.0F), 1.0F, "e^0");
  check_equal(exponential(-HUGE_VALF), 0.0F, "e^-inf");
  check(std::isnan(exponential(std::nanf(""))), "e^NaN");
}

// One token's logits, gradient and what is between.
struct Row {
  CrossEntropy work;
  std::vector<std::byte> logits, grads;
  int64_t target;
  TokenScore scores[2] = {};
  TokenSum sum = {};
  float loss = 0, grad_loss = 0.75F;

  Row(DType type, int64_t columns, int64_t classes, int64_t aim) : target(aim) {
    logits.resize(static_cast<size_t>(columns) * size_of(type));
    grads.resize(logits.size(), std::byte{0x5a});
    for (int64_t v = 0; v < columns; v++) {
      const float x = static_cast<float>((v * 7919 + columns) % 1009) / 97 - 4;
      std::byte* const at = logits.data() + static_cast<size_t>(v) * size_of(type);
      if (type == DType::f32) from_f32(reinterpret_cast<float*>(at), x);
      if (type == DType::bf16) from_f32(reinterpret_cast<Bf16*>(at), x);
      if (type == DType::f16) from_f32(reinterpret_cast<F16*>(at), x);
    }
    work.logits = logits.data();
    work.type = type;
    work.targets = &target;
    work.tokens = 1;
    work.columns = columns;
    work.classes = classes;
    work.smoothing = columns > 1 ? 0.1 : 0;
    work.z = 1e-3;
    work.scores = scores;
    work.gathered = scores;
    work.losses = &loss;
    work.sums = &sum;
    work.grad_losses = &grad_loss;
    work.grad_logits = grads.data();
  }
  void run(const Kernels& kernels) {
    for (const auto pass : {CrossEntropyPass::scores, CrossEntropyPass::losses, CrossEntropyPass::gradient}) {
      check(host::cross_entropy(work, pass, kernels).ok(), "cross_entropy");
    }
  }
};

void rows(const Kernels& kernels) {
  const Kernels& baseline = host::all_kernels().back();
  for (const DType type : kStorage) {
    for (const int64_t columns : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 4095, 4096, 4111, 9001}) {
      for (const int64_t back : {columns, int64_t{1}, columns / 2}) {
        if (back < 1) continue;
        Row here(type, columns, columns, columns - back), there(type, columns, columns, columns - back),
            in_place(type, columns, columns, columns - back);
        here.run(kernels);
        there.run(baseline);
        in_place.work.grad_logits = in_place.logits.data();
        in_place.run(kernels);
        const std::string what = text(kernels.name, ", ", columns, " ", name_of(type), ", target ", here.target);
        check(std::memcmp(here.scores, there.scores, sizeof here.scores) == 0, text(what, ": other scores than the baseline's"));
        check_equal(here.loss, there.loss, text(what, ": the loss"));
        check(here.grads == there.grads, text(what, ": other gradients than the baseline's"));
        check(here.grads == in_place.logits, text(what, ": other gradients in the place of the logits"));
      }
    }
  }
}

// Each gradient against the formula in double; they add up to what z adds.
void values(const Kernels& kernels) {
  constexpr int64_t columns = 5000, classes = 4999, target = 77;
  Row row(DType::f32, columns, classes, target);
  row.run(kernels);
  const auto* const x = reinterpret_cast<const float*>(row.logits.data());
  const auto* const dx = reinterpret_cast<const float*>(row.grads.data());
  double sum = 0, mean = 0;
  for (int64_t v = 0; v < classes; v++) sum += std::exp(double{x[v]});
  for (int64_t v = 0; v < classes; v++) mean += x[v];
  const double whole = std::log(sum), others = 0.1 / (classes - 1);
  const double loss = 0.9 * (whole - x[target]) + others * (classes * whole - mean - (whole - x[target])) + 1e-3 * whole * whole;
  check(std::fabs(row.loss - loss) < 1e-6 * loss, text(kernels.name, ": the loss is ", row.loss, ", not ", loss));
  double worst = 0;
  for (int64_t v = 0; v < classes; v++) {
    const double p = std::exp(x[v] - whole), q = v == target ? 0.9 : others;
    worst = std::max(worst, std::fabs(dx[v] - 0.75 * (p * (1 + 2e-3 * whole) - q)));
  }
  check(worst < 5e-8, text(kernels.name, ": a gradient is off by ", worst));
  check_equal(dx[classes], 0.0F, "the gradient of padding");
}

void embeddings() {
  const int64_t ids[] = {3, 1, 3, 5, 0, 3};
  float table[] = {1, 2, 3, 4, 5, 6, 7, 8}, output[18] = {};  // rows 2 to 5 of 6
  Lookup work;
  work.ids = ids;
  work.tokens = 6;
  work.features = 2;
  work.first = 2;
  work.rows = 4;
  work.all_rows = 6;
  work.table = table;
  work.table_stride = 2;
  work.output = output;
  work.output_stride = 3;
  check(host::look_up(work).ok(), "look_up");
  const float found[] = {3, 4, 0, 0, 0, 0, 3, 4, 0, 7, 8, 0, 0, 0, 0, 3, 4, 0};
  check(std::memcmp(output, found, sizeof found) == 0, "rows, and zeros where another rank has them");
  // Added in the order of tokens: 1 is lost in 2^24, and 2^24 is not lost in the sum of the two.
  const float grads[] = {0x1p24F, 1, 0, 9, 9, 0, 1, 1, 0, 5, 6, 0, 9, 9, 0, 1, 1, 0};
  std::memcpy(output, grads, sizeof grads);
  for (float& x : table) x = 100;
  check(host::add_up_rows(work).ok(), "add_up_rows");
  const float summed[] = {0, 0, 0x1p24F, 3, 0, 0, 5, 6};
  check(std::memcmp(table, summed, sizeof summed) == 0, "sums of rows, and zeros where no token came");
  work.add = true;
  check(host::add_up_rows(work).ok(), "add_up_rows");
  check(table[3] == 6 && table[0] == 0 && table[7] == 12, "sums added to sums");
  const int64_t none = 3;
  fails(host::check_ids("ids", ids, 6, 3, nullptr), Code::invalid, {"ids[0] is 3", "between 0 and 2"});
  fails(host::check_ids("ids", ids, 6, 3, &none), Code::invalid, {"ids[3] is 5"});
  check(host::check_ids("ids", ids, 6, 6, nullptr).ok(), "ids that are rows");
}

}  // namespace

int main() {
  exponentials();
  for (const Kernels& kernels : host::all_kernels()) {
    rows(kernels);
    values(kernels);
  }
  embeddings();
  return finish();
}
