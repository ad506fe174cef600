// SPDX-License-Identifier: Apache-2.0
// Loading cuBLASLt: which copy, and whether it is of a version whose ABI is known.
#include "cuda/plugin/gemm_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

namespace megadp::cuda {
namespace {

constexpr int kNewest = 13, kOldest = 11;

// The version of the toolkit that this was built with comes first: where several are installed, that is the one of this plugin's runtime.
constexpr int kVersions[] = {std::min(CUDART_VERSION / 1000, kNewest), kNewest, 12, kOldest};

void* load(int version, int flags) {
  char name[32];
  std::snprintf(name, sizeof name, "libcublasLt.so.%d", version);
  return dlopen(name, RTLD_NOW | RTLD_LOCAL | flags);
}

// Where a framework has mapped a copy of its own, that one: a second would take memory of the device and half a gigabyte of addresses.
void* load(const char* path) {
  if (path != nullptr) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  for (const int flags : {RTLD_NOLOAD, 0}) {
    for (const int version : kVersions) {
      if (void* const library = load(version, flags); library != nullptr) return library;
    }
  }
  return nullptr;
}

void say_what_is_missing(const char* path, char* why, size_t size) {
  const char* const said = dlerror();
  if (path != nullptr) {
    std::snprintf(why, size, "cuBLASLt could not be loaded: %s", said != nullptr ? said : path);
    return;
  }
  std::snprintf(why, size,
                "cuBLASLt, which multiplies matrices on GPUs, could not be loaded: libcublasLt.so.%d, .12 and .%d were looked for (%s); "
                "install cuBLAS with CUDA's packages (libcublas) or PyPI's (nvidia-cublas), and name its folder in LD_LIBRARY_PATH",
                kNewest, kOldest, said != nullptr ? said : "the loader says no more");
}

}  // namespace

// The properties say it in three numbers; the one number of cublasLtGetVersion() was made otherwise in 11 than it is now.
int32_t load_cublaslt(const char* path, void** library, int32_t* version, char* why, size_t size) {
  void* const loaded = load(path);
  if (loaded == nullptr) {
    say_what_is_missing(path, why, size);
    return kUnsupported;
  }
  const char* const name = path != nullptr ? path : "libcublasLt.so";
  int numbers[] = {0, 0, 0};
  int32_t result = 0;
  cublaslt::GetProperty* const get_property = Symbols(loaded)("cublasLtGetProperty");
  if (get_property == nullptr) {
    std::snprintf(why, size, "%s is no cuBLASLt: it lacks cublasLtGetProperty", name);
    result = kUnsupported;
  }
  for (int i = 0; i < 3 && result == 0; i++) {
    result = result_of_cublas(get_property(static_cast<libraryPropertyType>(i), &numbers[i]));
    if (result != 0) std::snprintf(why, size, "cublasLtGetProperty of %s fails with %d", name, result - kCublasFailure);
  }
  if (result == 0 && (numbers[0] < kOldest || numbers[0] > kNewest)) {
    std::snprintf(why, size, "cuBLASLt %d.%d.%d was found (%s); %d, 12 or %d is needed", numbers[0], numbers[1], numbers[2], name, kOldest,
                  kNewest);
    result = kUnsupported;
  }
  if (result != 0) {
    dlclose(loaded);
    return result;
  }
  *library = loaded;
  *version = numbers[0] * 10000 + numbers[1] * 100 + numbers[2];
  return 0;
}

const char* name_of_cublas(cublaslt::Status status) {
  switch (status) {
    case 1:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case 8:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case cublaslt::kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case 16:
      return "CUBLAS_STATUS_LICENSE_ERROR";
    default:
      return nullptr;
  }
}

}  // namespace megadp::cuda
