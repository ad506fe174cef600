// SPDX-License-Identifier: Apache-2.0
#include "host/gemm_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <utility>

#include "base/thread.h"
#include "host/blas_gemm.h"
#include "host/gemm.h"
#include "host/onednn_gemm.h"

namespace megadp::host {
namespace {

constexpr const char* kOneDnn[] = {"libdnnl.so.3", "libdnnl.so.2"};
constexpr const char* kOpenBlas = "libopenblas.so.0";

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

// "libgomp" is the stem of libgomp.so.1, of libgomp-a34b3233.so.1 and of no libgomphash.so.
bool has_stem(std::string_view path, std::string_view stem) {
  const std::string_view name = file_name(path);
  return name.substr(0, stem.size()) == stem && name.size() > stem.size() && (name[stem.size()] == '.' || name[stem.size()] == '-');
}

void add_mapped(std::vector<GemmChoice>* choices, std::string_view stem, const std::vector<std::string>& mapped) {
  for (const std::string& file : mapped) {
    if (has_stem(file, stem)) choices->push_back({.file = file, .must_be_mapped = true});
  }
}

std::vector<std::string> mapped_files() {
  std::vector<std::string> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        if (info->dlpi_name != nullptr && *info->dlpi_name != '\0')
          static_cast<std::vector<std::string>*>(to)->emplace_back(info->dlpi_name);
        return 0;
      },
      &files);
  return files;
}

std::string why_not_loaded(const std::string& file) {
  const char* const why = dlerror();
  return why != nullptr ? why : file;
}

}  // namespace

std::vector<std::string> openmp_runtimes(const std::vector<std::string>& files) {
  std::vector<std::string> found;
  for (const std::string& file : files) {
    for (const char* stem : {"libgomp", "libomp", "libiomp5"}) {
      if (has_stem(file, stem)) {
        found.emplace_back(file_name(file));
        break;
      }
    }
  }
  return found;
}

std::vector<GemmChoice> gemm_choices(std::string_view wanted, const std::vector<std::string>& mapped) {
  std::vector<GemmChoice> choices;
  const bool any = wanted.empty(), onednn = any || wanted == "onednn", openblas = any || wanted == "openblas";
  if (!onednn && !openblas) return {{.file = std::string(wanted), .any_openmp = true}};
  if (onednn) add_mapped(&choices, "libdnnl", mapped);
  for (const char* stem : {"libopenblas", "libopenblasp", "libopenblaso"}) {  // the last two: builds for threads and for OpenMP
    if (openblas) add_mapped(&choices, stem, mapped);
  }
  if (any) {
    for (const char* stem : {"libmkl_rt", "libblis", "libcblas"}) add_mapped(&choices, stem, mapped);
    choices.push_back({.file = "", .must_be_mapped = true});
  }
  const std::vector<std::string> runtimes = openmp_runtimes(mapped);
  // oneDNN of distributions is built for libgomp.so.1. A wheel's copy has a name of its own, and does not count as that.
  const bool same_openmp = std::any_of(runtimes.begin(), runtimes.end(), [](const auto& name) { return name.rfind("libgomp.so", 0) == 0; });
  const bool other_openmp = !runtimes.empty() && !same_openmp;
  if (onednn && !(any && other_openmp)) {
    for (const char* file : kOneDnn) choices.push_back({.file = file, .any_openmp = !any});
  }
  if (openblas) choices.push_back({.file = kOpenBlas, .any_openmp = !any});
  return choices;
}

Result<std::unique_ptr<GemmLibrary>> open_gemm_library(const GemmChoice& choice, int threads) {
  const std::vector<std::string> before = openmp_runtimes(mapped_files());
  const char* const file = choice.file.empty() ? nullptr : choice.file.c_str();
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  const bool ours = handle == nullptr;
  if (ours && !choice.must_be_mapped) handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return unsupported(why_not_loaded(choice.file));
  const std::vector<std::string> after = openmp_runtimes(mapped_files());
  if (!choice.any_openmp && !before.empty() && after.size() > before.size()) {
    dlclose(handle);
    return unsupported(choice.file, " needs ", after.back(), ", and this process has another OpenMP runtime, ", before.front());
  }
  const int count = !ours ? 0 : threads > 0 ? threads : usable_processors();
  auto library = dlsym(handle, "dnnl_version") != nullptr ? open_onednn(handle, choice.file, count) : open_blas(handle, choice.file, count);
  if (!library.ok()) dlclose(handle);
  return library;
}

Result<std::unique_ptr<GemmLibrary>> find_gemm_library(int threads) {
  const char* const variable = std::getenv("MEGADP_GEMM");
  const std::string wanted = variable != nullptr ? variable : "";
  std::string tried;
  for (const GemmChoice& choice : gemm_choices(wanted, mapped_files())) {
    auto library = open_gemm_library(choice, threads);
    if (library.ok()) return library;
    if (!choice.file.empty()) tried += text(tried.empty() ? "" : "; ", library.status().text());
  }
  if (!wanted.empty()) return unsupported("no matrix products by MEGADP_GEMM=", in_quotes(wanted), ": ", tried);
  return unsupported("matrix products need a library, and none could be loaded: ", tried,
                     ". Install libdnnl2 or libopenblas0 (on Debian and Ubuntu), or set MEGADP_GEMM to the file of a oneDNN or CBLAS");
}

}  // namespace megadp::host
