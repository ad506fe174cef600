// SPDX-License-Identifier: Apache-2.0
// Which SIMD targets this machine can run.
#include "host/simd.h"

#include <type_traits>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace megadp::host {
namespace {

#if defined(__x86_64__) || defined(__i386__)
bool has_f16c() noexcept {  // clang's __builtin_cpu_supports does not know it
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

// The instruction sets that Highway lets the compiler use for a target; libgcc also asks whether the system saves the registers.
bool machine_runs(SimdTarget target) noexcept {
#if defined(__x86_64__) || defined(__i386__)
  const bool sse4 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
  const bool avx2 = sse4 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  const bool sse4 = false, avx2 = false, avx3 = false;
#endif
#if defined(__aarch64__)
  constexpr unsigned long aes = 1UL << 3;  // HWCAP_AES: Highway counts it to NEON
  const bool neon = (getauxval(AT_HWCAP) & aes) != 0;
#else
  const bool neon = false;
#endif
  switch (target) {
    case SimdTarget::baseline:
      return true;
    case SimdTarget::sse4:
      return sse4;
    case SimdTarget::avx2:
      return avx2;
    case SimdTarget::avx3:
      return avx3;
    case SimdTarget::neon:
      return neon;
  }
  return false;
}

struct Found {  // without memory from the heap, so that nothing can fail
  Kernels kernels[5];
  size_t count = 0;
};

Found find_kernels() noexcept {
  struct Name {
    SimdTarget target;
    const char* name;
  };
  constexpr Name best_first[] = {{SimdTarget::neon, "NEON"},
                                 {SimdTarget::avx3, "AVX-512"},
                                 {SimdTarget::avx2, "AVX2"},
                                 {SimdTarget::sse4, "SSE4"},
                                 {SimdTarget::baseline, "baseline"}};
  Found found{};
  for (const auto& [target, name] : best_first) {
    const Kernels kernels{target, name, cast_table(target), reduce_table(target), step_table(target), vocabulary_table(target)};
    if (machine_runs(target) && kernels.casts && kernels.reduces && kernels.steps && kernels.vocabulary)
      found.kernels[found.count++] = kernels;
  }
  return found;
}

}  // namespace

std::span<const Kernels> all_kernels() noexcept {
  static const Found found = find_kernels();
  static_assert(std::is_trivially_destructible_v<Found>);  // streams may compute on while the process exits
  return {found.kernels, found.count};
}

}  // namespace megadp::host
