// SPDX-License-Identifier: Apache-2.0
// InChild: what a forked child does first, before anything of the program runs in it, with what is its parent's.
#pragma once

#include <mutex>

namespace megadp {

class InChild {
 public:
  // While this lives a child calls act(of), which must allocate and free nothing. Let it be the last member of `of`: the first to go.
  InChild(void (*act)(void* of) noexcept, void* of);
  ~InChild();
  InChild(const InChild&) = delete;
  InChild& operator=(const InChild&) = delete;

  // Nothing forks meanwhile: to change what `act` is about.
  static std::unique_lock<std::mutex> no_fork();

 private:
  struct All;
  static All& all();

  void (*const act_)(void*) noexcept;
  void* const of_;
  InChild *before_ = nullptr, *after_ = nullptr;  // in the list of all
};

}  // namespace megadp
