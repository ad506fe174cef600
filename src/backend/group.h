// SPDX-License-Identifier: Apache-2.0
// Group: this rank in an ordered set of ranks, with the collectives of one backend. Window: memory that the other ranks of the node (or
// the device fabric) can address, so that a collective on it needs no staging.
//
// A group or window may be dropped, by any thread and in any order, while submitted work still uses it: the work keeps what it needs
// alive. Every call below is stream-ordered: it returns when the work is submitted. All ranks of the group submit the same calls in the
// same order; groups over several nodes use one stream at a time, all together. Ranks are summed in the order of base/sum_order.h, in fp32
// (f64 for f64, i64 for i64), then divided, then rounded once to the element type: the result does not depend on timing, on where the ranks
// run, or on how a buffer is cut into calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/exchange.h"
#include "backend/stream.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/update.h"

namespace megadp {

// Of the host's memory, for each rank of a group of several ranks of one node: its page for meeting the others, and staging memory.
constexpr size_t kGroupBytes = 4096 + (size_t{1} << 20);

// Of a device's, for each group that adds up by itself, not by NCCL: what the ranks have sent each other, at a time.
constexpr size_t kSumBytes = size_t{32} << 20;

class Window {
 public:
  virtual ~Window() = default;
  virtual std::byte* data() noexcept = 0;  // this rank's own part, zeroed at first, 64-byte aligned
  virtual size_t bytes() const noexcept = 0;
};

// What an operation is for, which is the same on all ranks; and this rank's number of the bucket, for the sentence of a failure.
struct Tag {
  int32_t bucket = -1;
  const char* what = "";    // a literal, such as "gradients" or "parameters"
  uint32_t microbatch = 0;  // the same on all ranks; 0: of none
};

enum class Collective : uint32_t {  // in host::Operation it goes from process to process
  reduce_scatter,
  all_reduce,
  all_gather,
  broadcast,
  all_to_all,
  barrier,
  reduce_scatter_v,
  all_gather_v,
  all_to_all_v,
  send,  // these two are no operations of the group: see send_recv()
  recv
};
const char* name_of(Collective kind) noexcept;
constexpr bool is_sum(Collective kind) noexcept {
  return kind == Collective::reduce_scatter || kind == Collective::all_reduce;
}
// "all_reduce of 1000 f32 from element 64 (gradients, operation 17 of the group, bucket 3)", where `how` is " from element 64". Operation
// 0: it has no number yet.
std::string describe(Collective kind, size_t count, DType type, const std::string& how, const Tag& tag, uint64_t operation);

// Elements of each rank's piece, by rank; the pieces lie one after another.
using Counts = std::vector<uint64_t>;

// The updates that make a rank's piece of parameters, each from an element of the piece on. They read not their own gradients but the sum
// of everyone's, divided and rounded to the type, which nobody keeps.
struct PieceUpdates {
  struct One {
    uint64_t begin;
    Update update;
  };
  std::vector<One> updates;
  Window* grads = nullptr;  // of a group of the same ranks
  DType grad_type = DType::f32;
  size_t grad_begin = 0;  // the element of it for the first of the range
  float divisor = 1;
};

// A collective in windows, as data: elements [begin, begin + count) of `type` in everyone's part. Piece r of them is count / size elements
// (exact) from begin + r * piece; or with `counts`, of which all ranks give the same, as many as these say.
// - reduce_scatter: rank r's piece becomes sum / divisor; the other pieces are unspecified, except that elements that were zero on every
//   rank stay zero. With `to`, which is this rank's own affair, the sum goes there and all pieces are unspecified. With to_f32 it goes
//   there as f32, not rounded to `type`; except that where NCCL adds up (see exact), its sums are of `type`. With `counts` all ranks have
//   `to`, or none has.
// - all_reduce: everything becomes sum / divisor.
// - all_gather: rank r's piece is copied to all others.
// - broadcast: rank root's elements are copied to all others.
struct WindowOp {
  Collective kind;  // one of these four
  Window* window;
  DType type;
  size_t begin, count;
  Tag tag = {};
  float divisor = 1;   // of sums
  int root = -1;       // of a broadcast
  void* to = nullptr;  // of a reduce_scatter: any memory of the backend, which stays alive until the stream has passed
  bool to_f32 = false;
  bool exact = false;  // not by NCCL, whatever the group is like
  std::shared_ptr<const Counts> counts = {};
  // Of a reduce_scatter whose sum is not in f32 by to_f32, where Group::adds_squares(): two numbers that become what Backend::square_sum()
  // of the first `squared` elements of the sum adds. Memory as `to`.
  double* squares = nullptr;
  uint64_t squared = 0;
  // Of an all_gather of equal pieces, where Group::updates_pieces(): what makes this rank's, block by block, each of which is gathered
  // while it is in the cache. All ranks give some; those of a piece do not overlap.
  std::shared_ptr<const PieceUpdates> updates = {};
};

// One half of an exchange between ranks: `count` elements that go to `rank` of the group, or come from it. Rank -1: this half is left out.
struct Message {
  int rank = -1;
  void* data = nullptr;  // of what is sent only read
  size_t count = 0;
  DType type = DType::u8;
};

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const std::vector<int>& members() const noexcept = 0;  // world rank of each rank

  // The group of the same ranks that carries small messages between the ranks' host memories, on the streams of Backend::control(): for a
  // device the host's, for the host itself.
  virtual Group& control() noexcept { return *this; }

  // What each rank has submitted to a group whose collectives run where nobody compares them (a device), kept by the host's group
  // of the same ranks. log_submission(): this rank submits its operation `number` (1, 2, ...), which is `what`; neither waits, any thread.
  // submissions(): what the ranks of this node, this one too, have said of operation `number`. Numbers from kMessageNumbers on are those of
  // messages, which are no operations of the group.
  static constexpr uint64_t kMessageNumbers = uint64_t{1} << 32;
  struct Submission {
    int member;        // world rank
    uint64_t last;     // number of the last operation of the group that it submitted, 0: none
    std::string what;  // of `number`, cut after 119 bytes; "": it has not come to it, or was there too long ago
  };
  virtual void log_submission(uint64_t /*number*/, const std::string& /*what*/) noexcept {}
  virtual std::vector<Submission> submissions(uint64_t /*number*/) const { return {}; }

  // Collective over this group, blocking: a group of `members` (world ranks of this group, this one among them, the same list on each of
  // them). Empty: this rank takes no part, and gets a null pointer.
  virtual Result<std::shared_ptr<Group>> split(const std::vector<int>& members) = 0;

  // Whether WindowOp::squares may be given: who makes the sums reads them on the way.
  virtual bool adds_squares() const noexcept { return false; }
  // Whether WindowOp::updates may be given.
  virtual bool updates_pieces() const noexcept { return false; }

  // Collective, blocking: `bytes` may differ from rank to rank only by mistake, which is Code::desync. Destroying a window is local.
  virtual Result<std::unique_ptr<Window>> allocate_window(size_t bytes) = 0;

  // ── in windows, in place ──
  // All of them; a device may start them as one. So all ranks give the same list, and none of its ranges overlap. Arguments are refused
  // before anything is submitted. If a call fails after another was submitted, a device's group has failed for good.
  virtual Status together(Stream& stream, std::span<const WindowOp> calls) = 0;

  Status reduce_scatter(Stream& stream, Window& window, DType type, size_t begin, size_t count, float divisor, const Tag& tag) {
    return one(stream, {Collective::reduce_scatter, &window, type, begin, count, tag, divisor});
  }
  Status all_reduce(Stream& stream, Window& window, DType type, size_t begin, size_t count, float divisor, const Tag& tag) {
    return one(stream, {Collective::all_reduce, &window, type, begin, count, tag, divisor});
  }
  Status all_gather(Stream& stream, Window& window, DType type, size_t begin, size_t count, const Tag& tag) {
    return one(stream, {Collective::all_gather, &window, type, begin, count, tag});
  }
  Status broadcast(Stream& stream, Window& window, DType type, size_t begin, size_t count, int root, const Tag& tag) {
    return one(stream, {Collective::broadcast, &window, type, begin, count, tag, 1, root});
  }

  // ── on any memory of the backend, staged where need be; `from` and `to` may be equal (for reduce_scatter and all_gather: may overlap as
  //    in MPI_IN_PLACE, `to` or `from` being the own piece of the other); they stay alive until the stream has passed ──
  // divisor: of sums, as in windows.
  virtual Status all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, const Tag& tag,
                            float divisor = 1) = 0;
  virtual Status reduce_scatter(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, Op op, const Tag& tag) = 0;
  virtual Status all_gather(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, const Tag& tag) = 0;
  virtual Status all_to_all(Stream& stream, const void* from, void* to, size_t count_per_rank, DType type, const Tag& tag) = 0;
  virtual Status broadcast(Stream& stream, void* data, size_t count, DType type, int root, const Tag& tag) = 0;
  virtual Status barrier(Stream& stream, const Tag& tag) = 0;

  // The same with pieces of different sizes: `counts` has one for each rank and is the same on all of them. In place is the own piece of
  // the other array, and nothing else.
  virtual Status reduce_scatter_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Op op, const Tag& tag) = 0;
  virtual Status all_gather_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, const Tag& tag) = 0;
  // from_counts[r] on rank s is to_counts[s] on rank r. `from` and `to` are apart.
  virtual Status all_to_all_v(Stream& stream, const void* from, const Counts& from_counts, void* to, const Counts& to_counts, DType type,
                              const Tag& tag) = 0;

  // ── between two ranks; the others take no part, so that this is no operation of the group: it has no number ──
  // Sends and receives at once. The k-th send to a rank meets its k-th receive from this one, with the same count and type. As everything
  // that a rank submits it begins when what came before has ended, and it ends when both halves have. The two arrays are apart. A rank
  // exchanges with itself by both halves, which is a copy.
  virtual Status send_recv(Stream& stream, const Message& send, const Message& recv) = 0;

  // Collective over this group, blocking, once, and then nothing else is called on the group. Bytes that go to each rank and come from it;
  // with this rank itself none, and what one sends the other expects. lent: bytes of Exchange::lent(), zeroed. The group outlives it.
  virtual Result<std::unique_ptr<Exchange>> create_exchange(const Counts& out, const Counts& in, uint64_t lent) = 0;

  // Words that the ranks of a group on one node tell each other about operation `number`, from launchers' threads: say() does not wait.
  // hear() waits until all have said theirs and returns the largest, or 0 if `give_up`, which it asks every 25 ms at least, was true
  // first. A word is not 0. It holds until its owner says the same kind of word about a later operation: nobody may before all have heard
  // it.
  enum class Word : uint32_t {
    sharing,  // what each has on its device for the group's collectives
    ready,    // nothing but the group's ranks holds it back
    stamp     // its place in an order of collectives
  };
  virtual void say(Word /*which*/, uint64_t /*number*/, uint64_t /*word*/) noexcept {}
  virtual uint64_t hear(Word /*which*/, uint64_t /*number*/, const std::function<bool()>& /*give_up*/) { return 0; }

 protected:
  // What is the same for all backends: the kind, the range, its pieces, the divisor, the root.
  Status check(const WindowOp& call) const;
  Status check_root(int root) const;
  Status check(const Counts& counts, Collective kind, const char* name) const;
  Status check(const Message& send, const Message& recv) const;

 private:
  Status one(Stream& stream, const WindowOp& call) { return together(stream, {&call, 1}); }
};

}  // namespace megadp
