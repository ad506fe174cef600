// SPDX-License-Identifier: Apache-2.0
// Symbols: the functions of a library that was loaded by name, so that a struct can list each with its type and its name once:
//
//   struct Library {
//     Symbols find;
//     decltype(&::twice) twice = find("twice");
//   };
#pragma once

#include <dlfcn.h>

namespace megadp {

class Symbols {
 public:
  // Of dlopen(); null: a library that has nothing.
  explicit Symbols(void* library) noexcept : library_(library) {}

  // A function of any type; null if the library has none of that name.
  class Found {
   public:
    explicit Found(void* address) noexcept : address_(address) {}
    template <class Function>
    operator Function*() const noexcept {  // NOLINT(google-explicit-constructor): the member that it becomes says the type
      return reinterpret_cast<Function*>(address_);
    }

   private:
    void* address_;
  };
  Found operator()(const char* name) noexcept {
    void* const address = library_ == nullptr ? nullptr : ::dlsym(library_, name);
    if (address == nullptr && missing_ == nullptr) missing_ = name;
    return Found(address);
  }
  // Looked for only if `wanted`, and not missed otherwise.
  Found optional(bool wanted, const char* name) noexcept { return wanted ? (*this)(name) : Found(nullptr); }

  // The name of the first that was not found, or null.
  const char* missing() const noexcept { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

}  // namespace megadp
