// SPDX-License-Identifier: Apache-2.0
#include "cuda/plugin_library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "cuda/build.h"
#include "cuda/gemm.h"

namespace megadp::cuda {
namespace {

constexpr const char* kFile = "libmegadp_cuda.so";

std::mutex loading;
Result<const PluginTable*>* loaded = nullptr;  // under loading; stays, for threads that outlive main

std::string own_folder() {
  Dl_info info{};
  link_map* map = nullptr;
  const auto* const here = reinterpret_cast<const void*>(&load_plugin);
  if (::dladdr1(here, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 || map == nullptr) return {};
  std::string file = map->l_name;
  if (file.empty()) {  // in the program itself, whose name as it was called need not be a path, or the path of something else
    char path[4096];
    const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
    if (length > 0 && static_cast<size_t>(length) < sizeof path) file.assign(path, static_cast<size_t>(length));
  }
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

// Where it may be: beside this code, in the place of libraries where this code is in a program, and where the system looks.
void* open_file(std::string* why) {
  const std::string folder = own_folder();
  for (const std::string& file : {folder + kFile, folder + "../lib/" + kFile, std::string(kFile)}) {
    // RTLD_LOCAL: two builds of the library in one process must each see their own.
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    const char* const said = ::dlerror();
    // A file that is there but cannot be loaded is worth more words than one that is not.
    if (said != nullptr && (why->empty() || ::access(file.c_str(), F_OK) == 0)) *why = said;
  }
  return nullptr;
}

Result<const PluginTable*> open_plugin() {
  std::string why;
  void* const library = open_file(&why);
  if (library == nullptr) return unsupported("the CUDA backend is a library of its own, ", kFile, ", which cannot be loaded: ", why);
  auto* const entry = reinterpret_cast<decltype(&::megadp_cuda_plugin)>(::dlsym(library, "megadp_cuda_plugin"));
  if (entry == nullptr) return unsupported(kFile, " is not a plugin of megadp: it has no function megadp_cuda_plugin");
  const PluginTable* const table = entry();
  if (table->version != kPluginVersion || table->bytes != sizeof(PluginTable) || std::strcmp(table->build, kBuild) != 0) {
    return unsupported(kFile, " belongs to another build of megadp than this library, which is ", kBuild, ": install both from one build");
  }
  return table;
}

std::string describe(const PluginTable& table, int32_t index) {
  DeviceInfo info{};
  if (table.device_info(index, &info) != 0) return text("device ", index);
  return text(info.name, " (", info.memory_bytes >> 30, " GiB, sm_", info.major, info.minor, ")");
}

// Without it everything works but matrix products.
std::string describe_gemm(const PluginTable& table) {
  Gemm* gemm = nullptr;
  char why[512] = "";
  if (table.gemm_open(nullptr, nullptr, &gemm, why, sizeof why) != 0) return text("no matrix products: ", why);
  std::string name = gemm_library_name(table.gemm_version(gemm));
  table.gemm_close(gemm);
  return name;
}

}  // namespace

Result<const PluginTable*> load_plugin() {
  const std::lock_guard lock(loading);
  if (loaded == nullptr) loaded = new Result<const PluginTable*>(open_plugin());
  return *loaded;
}

void use_plugin(const PluginTable& table) {
  const std::lock_guard lock(loading);
  delete std::exchange(loaded, new Result<const PluginTable*>(&table));
}

PluginInfo plugin_info() {
  auto plugin = load_plugin();
  if (!plugin) return {false, plugin.status().text()};
  const PluginTable& table = **plugin;
  int32_t count = 0;
  if (const int32_t result = table.device_count(&count); result != 0) {
    char why[512] = "";
    table.explain(result, nullptr, why, sizeof why);
    return {false, text("no device can be used: ", why)};
  }
  if (count == 0) return {false, "the driver offers no device"};
  std::string devices;
  for (int32_t index = 0; index < count; ++index) devices += (index == 0 ? "" : ", ") + describe(table, index);
  Nccl* nccl = nullptr;
  char why[512] = "";
  if (table.nccl_open(nullptr, &nccl, why, sizeof why) != 0) return {false, text(devices, "; but NCCL cannot be used: ", why)};
  const int32_t version = table.nccl_version(nccl);
  table.nccl_close(nccl);
  return {true, text(devices, "; NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100, "; ", describe_gemm(table))};
}

}  // namespace megadp::cuda
