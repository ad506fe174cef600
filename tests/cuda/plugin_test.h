// SPDX-License-Identifier: Apache-2.0
// The plugin as the tests load it, and what they say about results. Programs are given the plugin's path first.
#pragma once

#include <dlfcn.h>

#include <string>
#include <string_view>

#include "check.h"
#include "cuda/plugin.h"

namespace megadp::test {

inline const cuda::PluginTable* load_plugin(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!check(library != nullptr, text(path, ": ", library == nullptr ? dlerror() : ""))) return nullptr;
  auto* const entry = reinterpret_cast<decltype(&megadp_cuda_plugin)>(dlsym(library, "megadp_cuda_plugin"));
  if (!check(entry != nullptr, "the plugin has no megadp_cuda_plugin")) return nullptr;
  const cuda::PluginTable* const table = entry();
  check_equal(table->version, cuda::kPluginVersion, "version of the table");
  check_equal(table->bytes, sizeof *table, "size of the table");
  return table;
}

inline std::string sentence(const cuda::PluginTable& plugin, int32_t result, const cuda::Nccl* nccl = nullptr) {
  char said[512] = "";
  plugin.explain(result, nccl, said, sizeof said);
  return said;
}

// A failure of this kind whose sentence has this word.
inline bool names(const cuda::PluginTable& plugin, int32_t result, int32_t kind, std::string_view word, const std::string& what,
                  const cuda::Nccl* nccl = nullptr, Place at = Place::current()) {
  const std::string said = sentence(plugin, result, nccl);
  const bool good = result != 0 && result != cuda::kPending && cuda::kind_of(result) == kind && said.find(word) != std::string::npos;
  return check(good, text(what, ": result ", result, ", '", said, "', should say '", word, "'"), at);
}

}  // namespace megadp::test
