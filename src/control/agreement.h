// SPDX-License-Identifier: Apache-2.0
// What all ranks must have before any goes on: agreed on after each step of setting up something shared.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "control/world.h"

namespace megadp {

// What is agreed on. Ranks that come to an agreement with different numbers or bytes get Code::desync.
struct Subject {
  const char* kind;     // a literal such as "allocate_window", as in World::exchange
  uint64_t number = 0;  // where one group has several: of the window
  uint64_t bytes = 0;   // how much of it
};

// All ranks of `members` learn whether all of them succeeded: the first failure in their order (with the name of its rank in front) is
// returned on each. Where the World fails meanwhile, `mine` if that is a failure, otherwise the World's. Collective, blocking. `line`: see
// World::exchange.
Status agree(World& world, const std::vector<int>& members, const Subject& on, const Status& mine, uint64_t line = 0);

// A body that the other ranks take part in. Where memory runs out in it, in the midst of an exchange, they learn of it as a failure of the
// World: they do not agree any more on where they are. What each rank does by itself is better an attempt(), which they agree on.
template <class Body>
std::invoke_result_t<Body&> with_others(World& world, Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    world.fail(Status::out_of_memory());
    return Status::out_of_memory();
  }
}

// World::exchange of plain data without pointers.
template <class T>
Result<std::vector<T>> exchange_as(World& world, const std::vector<int>& members, const char* what, const T& mine, uint64_t line = 0) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto all = world.exchange(members, what, std::string(reinterpret_cast<const char*>(&mine), sizeof mine), line);
  if (!all.ok()) return all.status();
  std::vector<T> values(all->size());
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& bytes = (*all)[i];
    if (bytes.size() != sizeof(T)) return internal_error(what, ": ", bytes.size(), " bytes came from rank ", members[i]);
    std::memcpy(&values[i], bytes.data(), sizeof(T));
  }
  return values;
}

}  // namespace megadp
