// SPDX-License-Identifier: Apache-2.0
// find_symbol: one function of a library that was loaded by name.
#pragma once

#include <dlfcn.h>

#include <string>

namespace megadp {

// Null if the library has none of that name; the name is then added to `missing`, for the sentence that says what is lacking.
template <class Function>
void find_symbol(void* library, const char* name, Function* out, std::string* missing) {
  *out = reinterpret_cast<Function>(::dlsym(library, name));
  if (*out == nullptr) *missing += std::string(missing->empty() ? "" : ", ") + name;
}

}  // namespace megadp
