// SPDX-License-Identifier: Apache-2.0
#include "host/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "host/transport.h"

namespace megadp::host {

#ifdef MEGADP_HAVE_UCX

namespace {

constexpr const char* kName = "libucp.so.0";

// What UCX reads while it loads, and what it must find. Each only if the user has not set it.
class LoadingEnvironment {
 public:
  LoadingEnvironment() {
    for (const auto& [name, value] : {std::pair{"UCX_ERROR_SIGNALS", ""},
                                      {"UCX_DEBUG_SIGNO", ""},
                                      {"UCX_MEM_EVENTS", "n"},
                                      {"UCX_LOG_LEVEL", "fatal"},
                                      {"UCX_HANDLE_ERRORS", "none"}}) {
      if (std::getenv(name) != nullptr) continue;
      if (setenv(name, value, 0) == 0) set_.push_back(name);
    }
  }
  ~LoadingEnvironment() {
    for (const char* name : set_) unsetenv(name);
  }
  LoadingEnvironment(const LoadingEnvironment&) = delete;
  LoadingEnvironment& operator=(const LoadingEnvironment&) = delete;

 private:
  std::vector<const char*> set_;
};

Result<UcxLibrary> load() {
  // If another library (an MPI) has loaded UCX before, all that loading decides has been decided: the environment is left alone.
  void* library = dlopen(kName, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  if (library == nullptr) {
    const LoadingEnvironment environment;
    library = dlopen(kName, RTLD_NOW | RTLD_GLOBAL);
  }
  if (library == nullptr) {
    const char* why = dlerror();
    return unsupported("UCX carries data between nodes and could not be loaded: ", why != nullptr ? why : kName,
                       "; on Debian and Ubuntu it is the package libucx0. Without it, set MEGADP_TRANSPORT=sockets on all ranks");
  }
  const UcxLibrary ucx{Symbols(library)};
  if (const char* const missing = ucx.find.missing(); missing != nullptr) return unsupported(kName, " lacks ", missing);
  unsigned major = 0, minor = 0, release = 0;
  ucx.get_version(&major, &minor, &release);
  if (major != 1 || minor < 12) return unsupported("UCX ", major, ".", minor, ".", release, " was found; 1.12 or a later 1.x is needed");
  return ucx;
}

}  // namespace

Result<const UcxLibrary*> UcxLibrary::get() {
  // Never unloaded: UCX does not survive that.
  static std::mutex mutex;
  static const Result<UcxLibrary>* loaded = nullptr;
  std::lock_guard lock(mutex);
  if (loaded == nullptr) loaded = new Result<UcxLibrary>(load());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

TransportInfo ucx_info() {
  auto ucx = UcxLibrary::get();
  if (!ucx) return {"UCX", false, ucx.status().text()};
  unsigned major = 0, minor = 0, release = 0;
  (*ucx)->get_version(&major, &minor, &release);
  return {"UCX", true, text("UCX ", major, ".", minor, ".", release)};
}

#else

Result<const UcxLibrary*> UcxLibrary::get() {
  return unsupported(
      "this build of megadp has no UCX to carry data between nodes: ucp/api/ucp.h was not found when it was configured. Without it, set "
      "MEGADP_TRANSPORT=sockets on all ranks");
}

TransportInfo ucx_info() {
  return {"UCX", false, UcxLibrary::get().status().text()};
}

#endif

}  // namespace megadp::host
