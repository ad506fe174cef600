// SPDX-License-Identifier: Apache-2.0
// Loading NCCL: which copy, whether it is new enough, whether it has what its version promises.
#include "cuda/plugin/nccl_library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

namespace megadp::cuda {
namespace {

constexpr const char* kName = "libnccl.so.2";

// Where a framework has mapped a copy of its own, that one: two in one process fight over the device's resources.
void* load(const char* path) {
  if (path != nullptr) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* const adopted = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return adopted != nullptr ? adopted : dlopen(kName, RTLD_NOW | RTLD_LOCAL);
}

// Which file it was found in.
const char* file_of(void* function, const char* otherwise) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

// 2.19 is 21900, but versions up to 2.8 were counted in thousands: 2808.
int32_t check_version(void* library, const char* name, int* version, char* why, size_t size) {
  const decltype(&::ncclGetVersion) get_version = Symbols(library)("ncclGetVersion");
  if (get_version == nullptr) {
    std::snprintf(why, size, "%s is no NCCL: it lacks ncclGetVersion", name);
    return kUnsupported;
  }
  if (const int32_t failed = result_of(get_version(version)); failed != 0) {
    std::snprintf(why, size, "ncclGetVersion of %s fails with %d", name, failed & 0xffff);
    return failed;
  }
  if (*version >= kOldestNccl && *version < 30000) return 0;
  const int unit = *version < 10000 ? 1000 : 10000;
  std::snprintf(why, size, "NCCL %d.%d.%d was found (%s); 2.19 or a later 2.x is needed", *version / unit, *version % unit / 100,
                *version % 100, file_of(reinterpret_cast<void*>(get_version), name));
  return kUnsupported;
}

}  // namespace

int32_t nccl_open(const char* path, Nccl** out, char* why, size_t size) {
  const char* const name = path != nullptr ? path : kName;
  void* const library = load(path);
  if (library == nullptr) {
    const char* const said = dlerror();
    std::snprintf(why, size, "NCCL, which carries data between GPUs, could not be loaded: %s", said != nullptr ? said : name);
    return kUnsupported;
  }
  int version = 0;
  int32_t result = check_version(library, name, &version, why, size);
  std::unique_ptr<Nccl> nccl;
  if (result == 0) {
    nccl.reset(new (std::nothrow) Nccl{Symbols(library), version});
    if (nccl == nullptr) {
      std::snprintf(why, size, "out of memory while loading %s", name);
      result = kNoHostMemory;
    } else if (const char* const missing = nccl->find.missing(); missing != nullptr) {
      std::snprintf(why, size, "%s says that it is NCCL %d.%d.%d, but lacks %s",
                    file_of(reinterpret_cast<void*>(nccl->get_unique_id), name), version / 10000, version / 100 % 100, version % 100,
                    missing);
      result = kUnsupported;
    }
  }
  if (result != 0) {
    dlclose(library);
    return result;
  }
  *out = nccl.release();
  return 0;
}

// The library stays: it has threads, and what a thread still runs must not be unmapped.
void nccl_close(Nccl* nccl) {
  delete nccl;
}

int32_t nccl_version(const Nccl* nccl) {
  return nccl->version;
}

int32_t nccl_unique_id(Nccl* nccl, uint8_t out[128]) {
  ncclUniqueId id{};
  static_assert(sizeof id == 128);
  if (const int32_t result = result_of(nccl->get_unique_id(&id)); result != 0) return result;
  std::memcpy(out, &id, sizeof id);
  return 0;
}

const char* name_of(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "ncclSuccess";
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case ncclSystemError:
      return "ncclSystemError";
    case ncclInternalError:
      return "ncclInternalError";
    case ncclInvalidArgument:
      return "ncclInvalidArgument";
    case ncclInvalidUsage:
      return "ncclInvalidUsage";
    case ncclRemoteError:
      return "ncclRemoteError";
    case ncclInProgress:
      return "ncclInProgress";
    default:
      return nullptr;
  }
}

}  // namespace megadp::cuda
