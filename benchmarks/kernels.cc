// SPDX-License-Identifier: Apache-2.0
// How fast the element-wise kernels move memory, beside memcpy in the same run. Every figure counts all bytes read and written once; the
// best of some rounds in which all jobs take turns, so that a busy machine slows all of them alike.
//
// usage: bench_kernels [--json] [--mib 64] [--rounds 15]
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/deadline.h"
#include "host/kernels.h"

using namespace megadp;

namespace {

struct Job {
  std::string name;
  size_t bytes;
  std::function<void()> run;
  uint64_t best_ns = UINT64_MAX;
};

// Of n floats each; half-width arrays use half of one. Every element stays 2^-3, or halves of its bits, but for the last five arrays: 8 to
// 11 are AdamW's, 12 is written only.
struct Arrays {
  std::vector<std::vector<float>> f32;
  size_t n;
  float* at(size_t i) { return f32[i].data(); }
};

void must(const Status& status) {
  if (status) return;
  std::cerr << status.text() << "\n";
  std::exit(1);
}

std::vector<Job> make_jobs(Arrays& a) {
  const size_t n = a.n;
  std::vector<Job> jobs;
  jobs.push_back({"memcpy", 8 * n, [&a, n] { std::memcpy(a.at(12), a.at(0), 4 * n); }});
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const std::string name = name_of(type);
    const size_t size = size_of(type);
    for (const int nfrom : {2, 3, 4, 8}) {
      jobs.push_back({"reduce " + std::to_string(nfrom) + " " + name + " in place", (static_cast<size_t>(nfrom) + 1) * size * n, [=, &a] {
                        const void* from[8];
                        for (int k = 0; k < nfrom; k++) from[k] = a.at(static_cast<size_t>(k));
                        must(host::reduce(a.at(0), from, nfrom, n, type, Op::avg));
                      }});
    }
    jobs.push_back({"reduce 2 " + name + " elsewhere", 3 * size * n, [=, &a] {
                      const void* const from[] = {a.at(0), a.at(1)};
                      must(host::reduce(a.at(12), from, 2, n, type, Op::avg));
                    }});
    jobs.push_back({"square_sum " + name, size * n, [=, &a] {
                      double sum = 0, nonfinite = 0;
                      must(host::square_sum(a.at(0), type, n, &sum, &nonfinite));
                    }});
    jobs.push_back({"find_nonfinite " + name, size * n, [=, &a] {
                      uint64_t found = 0;
                      must(host::find_nonfinite(a.at(0), type, n, 0, &found));
                    }});
    // Reads the gradient, master, m and v; writes master, m, v and, if it is not the master, the parameter.
    jobs.push_back({"adamw f32 gradient, " + name + " parameter", (7 * 4 + (type == DType::f32 ? 0 : size)) * n, [=, &a] {
                      StepScalars scalars{};
                      scalars.grad_factor = 1;
                      const uint64_t steps = 3;
                      void* const param = type == DType::f32 ? a.at(9) : a.at(12);
                      must(host::update({{1e-3, 0.9, 0.999, 1e-8, 0.1, 0},
                                         &scalars,
                                         &steps,
                                         a.at(8),
                                         a.at(9),
                                         {a.at(10), a.at(11)},
                                         param,
                                         n,
                                         DType::f32,
                                         type,
                                         0}));
                    }});
    if (type == DType::f32) continue;
    jobs.push_back({"cast f32 to " + name, (4 + size) * n, [=, &a] { must(host::cast(a.at(12), type, a.at(0), DType::f32, n)); }});
    jobs.push_back({"cast " + name + " to f32", (4 + size) * n, [=, &a] { must(host::cast(a.at(12), DType::f32, a.at(0), type, n)); }});
  }
  jobs.push_back(
      {"copy_strided f32 transposed", 8 * n, [&a, n] {
         const auto edge = static_cast<int64_t>(n / 1024);
         must(host::copy_strided({a.at(12), DType::f32, {edge, 1024}, {1024, 1}}, {a.at(0), DType::f32, {edge, 1024}, {1, edge}}, false));
       }});
  return jobs;
}

void report(const std::vector<Job>& jobs, bool json) {
  const auto gigabytes_per_s = [](const Job& job) { return static_cast<double>(job.bytes) / static_cast<double>(job.best_ns); };
  for (const Job& job : jobs) {
    const double rate = gigabytes_per_s(job), share = rate / gigabytes_per_s(jobs.front());
    if (json) {
      std::cout << R"({"kernel":")" << job.name << R"(","simd":")" << host::simd_target() << R"(","bytes":)" << job.bytes
                << R"(,"gb_per_s":)" << rate << R"(,"of_memcpy":)" << share << "}\n";
    } else {
      std::printf("%-36s %8.2f GB/s %6.2f of memcpy\n", job.name.c_str(), rate, share);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  size_t mib = 64;
  int rounds = 15;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    const long value = i + 1 < argc ? std::atol(argv[i + 1]) : 0;
    if (word == "--json") {
      json = true;
    } else if (word == "--mib" && value > 0) {
      mib = static_cast<size_t>(value);
      i++;
    } else if (word == "--rounds" && value > 0) {
      rounds = static_cast<int>(value);
      i++;
    } else {
      std::cerr << "usage: bench_kernels [--json] [--mib 64] [--rounds 15]\n";
      return 2;
    }
  }
  Arrays arrays{{}, mib * 1024 * 1024 / 4};
  for (int k = 0; k < 13; k++) arrays.f32.emplace_back(arrays.n, 0x1p-3F);
  std::vector<Job> jobs = make_jobs(arrays);
  for (int round = 0; round < rounds; round++) {
    for (Job& job : jobs) {
      const uint64_t begin = now_ns();
      job.run();
      job.best_ns = std::min(job.best_ns, now_ns() - begin);
    }
  }
  report(jobs, json);
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  std::cerr << "bench_kernels: the output could not be written completely\n";
  return 1;
}
