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

// Finds functions, and remembers the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <class Function>
  void find(const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(library_, name));
    if (*out == nullptr && missing_ == nullptr) missing_ = name;
  }
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

// The name of what is missing, or NULL.
const char* find_all(void* library, Nccl* nccl) {
  Finder finder(library);
  finder.find("ncclGetUniqueId", &nccl->get_unique_id);
  finder.find("ncclGetErrorString", &nccl->get_error_string);
  finder.find("ncclGetLastError", &nccl->get_last_error);
  finder.find("ncclCommInitRankConfig", &nccl->comm_init_rank_config);
  finder.find("ncclCommAbort", &nccl->comm_abort);
  finder.find("ncclCommGetAsyncError", &nccl->comm_get_async_error);
  finder.find("ncclCommRegister", &nccl->comm_register);
  finder.find("ncclCommDeregister", &nccl->comm_deregister);
  finder.find("ncclMemAlloc", &nccl->mem_alloc);
  finder.find("ncclMemFree", &nccl->mem_free);
  finder.find("ncclRedOpCreatePreMulSum", &nccl->red_op_create_pre_mul_sum);
  finder.find("ncclGroupStart", &nccl->group_start);
  finder.find("ncclGroupEnd", &nccl->group_end);
  finder.find("ncclSend", &nccl->send);
  finder.find("ncclRecv", &nccl->recv);
  finder.find("ncclAllReduce", &nccl->all_reduce);
  finder.find("ncclReduceScatter", &nccl->reduce_scatter);
  finder.find("ncclAllGather", &nccl->all_gather);
  finder.find("ncclBroadcast", &nccl->broadcast);
  if (nccl->version >= kNcclWindows) {
    finder.find("ncclCommWindowRegister", &nccl->window_register);
    finder.find("ncclCommWindowDeregister", &nccl->window_deregister);
  }
  if (nccl->version >= kNcclAllToAll) finder.find("ncclAlltoAll", &nccl->all_to_all);
  return finder.missing();
}

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
int32_t check_version(void* library, const char* name, Nccl* nccl, char* why, size_t size) {
  decltype(&::ncclGetVersion) get_version = nullptr;
  Finder finder(library);
  finder.find("ncclGetVersion", &get_version);
  if (get_version == nullptr) {
    std::snprintf(why, size, "%s is no NCCL: it lacks ncclGetVersion", name);
    return kUnsupported;
  }
  if (const int32_t failed = result_of(get_version(&nccl->version)); failed != 0) {
    std::snprintf(why, size, "ncclGetVersion of %s fails with %d", name, failed & 0xffff);
    return failed;
  }
  if (nccl->version >= kOldestNccl && nccl->version < 30000) return 0;
  const int unit = nccl->version < 10000 ? 1000 : 10000;
  std::snprintf(why, size, "NCCL %d.%d.%d was found (%s); 2.19 or a later 2.x is needed", nccl->version / unit, nccl->version % unit / 100,
                nccl->version % 100, file_of(reinterpret_cast<void*>(get_version), name));
  return kUnsupported;
}

}  // namespace

int32_t nccl_open(const char* path, Nccl** out, char* why, size_t size) {
  const char* const name = path != nullptr ? path : kName;
  std::unique_ptr<Nccl> nccl(new (std::nothrow) Nccl{});
  if (nccl == nullptr) {
    std::snprintf(why, size, "out of memory while loading %s", name);
    return kNoHostMemory;
  }
  void* const library = load(path);
  if (library == nullptr) {
    const char* const said = dlerror();
    std::snprintf(why, size, "NCCL, which carries data between GPUs, could not be loaded: %s", said != nullptr ? said : name);
    return kUnsupported;
  }
  int32_t result = check_version(library, name, nccl.get(), why, size);
  if (result == 0) {
    if (const char* const missing = find_all(library, nccl.get()); missing != nullptr) {
      std::snprintf(why, size, "%s says that it is NCCL %d.%d.%d, but lacks %s",
                    file_of(reinterpret_cast<void*>(nccl->get_unique_id), name), nccl->version / 10000, nccl->version / 100 % 100,
                    nccl->version % 100, missing);
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
