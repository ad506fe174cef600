// SPDX-License-Identifier: Apache-2.0
// Exchange: pieces of fixed sizes that the ranks of a group hand each other again and again, each rank with those alone that it has
// something for or from, its neighbours. On a node they are read where their sender has put them.
//
//   begin ── the caller fills outgoing() ── start ── other work ── finish ── the caller reads incoming() ── end
//
// Or a rank lends them: what is in lent(), memory of the exchange's own, its neighbours on the node read as it lies there.
//
// All ranks make the same calls in the same order. Made by Group::create_exchange, for whom this is the only use of the group.
#pragma once

#include <cstddef>

#include "backend/stream.h"
#include "base/status.h"

namespace megadp {

class Exchange {
 public:
  virtual ~Exchange() = default;

  // back: the pieces go the other way, so that what goes to a rank is as long as what comes from it otherwise. On the host it may wait for
  // neighbours that still read what came to them last.
  virtual Status begin(bool back) = 0;
  // The piece for `rank`, to be written by what the caller puts on its stream before start(); the content is what it was.
  virtual std::byte* outgoing(int rank) noexcept = 0;
  // lends: what neighbours have to know about what is in lent(), which stays as it is until all have read it; 0: nothing is lent. Then
  // outgoing() is for those alone who cannot see it.
  virtual Status start(Stream& stream, void* caller, uint64_t lends) = 0;
  // What the caller does after it finds the pieces of all neighbours; on the host it waits for them.
  virtual Status finish(Stream& stream, void* caller) = 0;
  virtual const std::byte* incoming(int rank) noexcept = 0;
  // If it has lent them: its lent(), and what it says of that; otherwise null.
  virtual const std::byte* lent_by(int rank, uint64_t* lends) noexcept = 0;
  // The caller has read them, or will have, on its stream.
  virtual void end() noexcept = 0;
  // Until all neighbours that could read what was lent have come to their end().
  virtual Status await_readers() = 0;

  virtual std::byte* lent() noexcept = 0;
  virtual bool sees(int rank) const noexcept = 0;  // lent() of that rank, and the reverse
};

}  // namespace megadp
