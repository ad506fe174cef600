// SPDX-License-Identifier: Apache-2.0
// Matrix products of a linear layer, 4096 x 4096, by each library of matrix products on this machine, in turns, with one thread: the least
// time of the processor, which other programs on the machine lengthen least, in milliseconds. Forward y = x W^T; its gradients dx = dy W
// and dW += dy^T x.
//
// usage: bench_gemm [ROUNDS 5] [LIBRARY...]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "host/gemm_library.h"

namespace {

using namespace megadp;

constexpr int64_t kSize = 4096;

struct Timed {
  std::unique_ptr<host::GemmLibrary> gemm;
  double least_ms = 0;
};

struct Product {
  const char* name;
  Matrix c, a, b;
  bool add;
};

double now_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

void measure(std::vector<Timed>& libraries, const Product& product, int rounds) {
  for (Timed& timed : libraries) timed.least_ms = 1e9;
  for (int round = 0; round <= rounds; round++) {  // the first is not counted
    for (Timed& timed : libraries) {
      const double begin = now_ms();
      if (const Status done = host::gemm_by(*timed.gemm, product.c, product.a, product.b, product.add); !done.ok()) {
        std::fprintf(stderr, "bench_gemm: %s: %s\n", timed.gemm->name().c_str(), done.text().c_str());
        std::exit(1);
      }
      if (round > 0) timed.least_ms = std::min(timed.least_ms, now_ms() - begin);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 5;
  std::vector<std::string> names(argv + std::min(argc, 2), argv + argc);
  if (names.empty()) names = {"libdnnl.so.3", "libdnnl.so.2", "libopenblas.so.0"};
  setenv("OMP_NUM_THREADS", "1", 1);
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  std::vector<Timed> libraries;
  for (const std::string& name : names) {
    auto opened = host::open_gemm_library({.file = name, .any_openmp = true}, 1);
    if (opened.ok()) libraries.push_back({*std::move(opened)});
  }
  std::printf("%-24s", "product");
  for (const Timed& timed : libraries) std::printf(" %20s", timed.gemm->name().c_str());
  std::printf("\n");
  const size_t most = 512 * kSize * sizeof(float), square = kSize * kSize * sizeof(float);
  std::vector<std::byte> rows_memory(most), out_memory(most), weight_memory(square);
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const int64_t rows : {16, 64, 512}) {
      const Matrix x = {rows_memory.data(), type, rows, kSize, kSize, 1}, y = {out_memory.data(), type, rows, kSize, kSize, 1};
      const Matrix weight = {weight_memory.data(), type, kSize, kSize, kSize, 1};
      const Matrix weight_grad = {weight_memory.data(), DType::f32, kSize, kSize, kSize, 1};
      for (const Product& product : {Product{"x W^T", y, x, transposed(weight), false}, Product{"dy W", y, x, weight, false},
                                     Product{"dW += dy^T x", weight_grad, transposed(y), x, true}}) {
        measure(libraries, product, rounds);
        std::printf("%-4s %3d rows %-12s", name_of(type), static_cast<int>(rows), product.name);
        for (const Timed& timed : libraries) std::printf(" %20.1f", timed.least_ms);
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  }
}
