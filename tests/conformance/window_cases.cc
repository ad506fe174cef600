// SPDX-License-Identifier: Apache-2.0
// Collectives in windows: every rank count, element type, count and offset, compared bit for bit; what lies around the range must not
// change.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/math.h"
#include "base/rules.h"
#include "device_array.h"
#include "oracle.h"
#include "suite.h"

namespace megadp::test {
namespace {

constexpr DType kReals[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8};
constexpr size_t kLargest = 100'003 + 8;
constexpr size_t kWindowBytes = (kLargest + 128) * 8;

std::vector<size_t> counts(int size, bool large) {
  std::vector<size_t> all = {0, 1, static_cast<size_t>(size), 63, 64, 65, 1000, 9'001};
  if (large) all.push_back(100'003);
  return all;
}

size_t divisible(size_t count, int size) {
  const auto n = static_cast<size_t>(size);
  return (count + n - 1) / n * n;
}

// One collective on one range: what everyone starts with, what this rank must end with.
class Trial {
 public:
  Trial(Rank& rank, Window& window, DType type, size_t begin, size_t count, uint64_t seed)
      : rank_(rank), window_(window), type_(type), begin_(begin), count_(count) {
    for (int r = 0; r < rank.size(); ++r) inputs_.push_back(make_input(type, count, seed, r));
    first_ = begin * size_of(type);
    last_ = first_ + count * size_of(type);
    behind_ = std::min(kBehind, window.bytes() - last_);
    around_ = make_input(DType::u8, first_ + behind_, seed + 1, rank.rank());
    Bytes all = around_;
    const auto gap = all.begin() + static_cast<ptrdiff_t>(first_);
    all.insert(gap, input().begin(), input().end());
    put(rank, window.data(), all);
  }

  const std::vector<Bytes>& inputs() const { return inputs_; }
  const Bytes& input() const { return inputs_[static_cast<size_t>(rank_.rank())]; }

  // Elements [from, from + expected) of the range must be `expected`; the rest of the range may be anything, what is around it may not.
  void check(const std::string& what, size_t from, const Bytes& expected) {
    const std::string name = text(what, " ", name_of(type_), " begin ", begin_, " count ", count_);
    const Bytes all = get(rank_, window_.data(), last_ + behind_);
    const auto at = [&all](size_t byte) { return all.begin() + static_cast<ptrdiff_t>(byte); };
    const auto behind = around_.begin() + static_cast<ptrdiff_t>(first_);
    rank_.check(std::equal(expected.begin(), expected.end(), at(first_ + from * size_of(type_))), name + ": wrong result");
    rank_.check(std::equal(around_.begin(), behind, at(0)), name + ": changed what is before the range");
    rank_.check(std::equal(behind, around_.end(), at(last_)), name + ": changed what is after it");
  }

 private:
  static constexpr size_t kBehind = 4096;

  Rank& rank_;
  Window& window_;
  const DType type_;
  const size_t begin_, count_;
  std::vector<Bytes> inputs_;
  size_t first_ = 0, last_ = 0, behind_ = 0;  // the range in bytes, and how much of what is after it is watched
  Bytes around_;
};

Bytes piece_of(const Bytes& whole, int piece, int pieces) {
  const size_t bytes = whole.size() / static_cast<size_t>(pieces);
  const auto first = whole.begin() + static_cast<ptrdiff_t>(bytes * static_cast<size_t>(piece));
  return Bytes(first, first + static_cast<ptrdiff_t>(bytes));
}

struct Bench {  // what every case needs
  std::unique_ptr<Stream> stream;
  std::shared_ptr<Group> group;
  std::unique_ptr<Window> window;
  explicit Bench(Rank& rank) {
    stream = rank.must(rank.backend().create_stream("window cases"));
    group = rank.must(rank.backend().create_group(rank.everyone()));
    window = rank.must(group->allocate_window(kWindowBytes));
  }
};

// Between trials nobody may still be reading what is about to be overwritten; a barrier by another way than the collective under test.
template <class Types, class One>
void for_all(Rank& rank, const Types& types, One one) {
  Bench bench(rank);
  uint64_t seed = 1;
  for (const DType type : types) {
    for (const size_t count : counts(rank.size(), type == DType::f32)) {
      for (const size_t begin : {0, 7, 64}) one(bench, type, begin, count, ++seed);
    }
  }
}

template <class Body>
void on_all_sizes(Suite& suite, Body body) {
  for (const int size : kRankCounts) suite.run(size, body);
}

void starts_zeroed(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    rank.check(bench.window->bytes() == kWindowBytes, "the window has another size");
    rank.check(get(rank, bench.window->data(), kWindowBytes) == Bytes(kWindowBytes), "the window does not start zeroed");
    rank.check(reinterpret_cast<uintptr_t>(bench.window->data()) % 64 == 0, "the window is not aligned to 64 bytes");
  });
}

template <class T>
Bytes widened(const Bytes& from) {
  Bytes to(from.size() / sizeof(T) * sizeof(float));
  for (size_t i = 0; i * sizeof(T) < from.size(); ++i) {
    T element;
    std::memcpy(&element, from.data() + i * sizeof element, sizeof element);
    const float value = to_f32(element);
    std::memcpy(to.data() + i * sizeof value, &value, sizeof value);
  }
  return to;
}

Bytes widened(DType type, const Bytes& from) {
  return type == DType::bf16 ? widened<Bf16>(from) : type == DType::f16 ? widened<F16>(from) : from;
}

void reduce_scatter(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_all(rank, kReals, [&](Bench& bench, DType type, size_t begin, size_t any, uint64_t seed) {
      const size_t count = divisible(any, rank.size());
      const float divisor = seed % 3 == 0 ? 3 : 1;
      Trial trial(rank, *bench.window, type, begin, count, seed);
      const size_t piece = count / static_cast<size_t>(rank.size());
      // Half of the ranks' sums go elsewhere: that is each rank's own affair.
      const bool elsewhere = (seed + static_cast<uint64_t>(rank.rank())) % 2 == 0;
      const bool in_f32 = elsewhere && is_trainable(type) && seed % 5 < 2;
      DeviceArray to(rank, piece * (in_f32 ? sizeof(float) : size_of(type)));
      const WindowOp call{.kind = Collective::reduce_scatter,
                          .window = bench.window.get(),
                          .type = type,
                          .begin = begin,
                          .count = count,
                          .tag = {3, "gradients"},
                          .divisor = divisor,
                          .to = elsewhere ? to.data() : nullptr,
                          .to_f32 = in_f32};
      rank.must(bench.group->together(*bench.stream, {&call, 1}));
      rank.must(finish(*bench.stream));
      std::vector<Bytes> inputs = trial.inputs();
      if (in_f32) {
        for (Bytes& input : inputs) input = widened(type, input);
      }
      const Bytes sum = reduce_arrays(in_f32 ? DType::f32 : type, Op::sum, divisor, inputs);
      if (elsewhere && piece > 0) {
        rank.check(to.get() == piece_of(sum, rank.rank(), rank.size()),
                   text("reduce_scatter elsewhere ", name_of(type), in_f32 ? " in f32" : "", " count ", count));
        trial.check("reduce_scatter elsewhere", 0, {});
        return;
      }
      trial.check("reduce_scatter", piece * static_cast<size_t>(rank.rank()), piece_of(sum, rank.rank(), rank.size()));
    });
  });
}

// What the sum is read for is added up in the order that Backend::square_sum() has; an infinite element is counted.
void squares(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    const auto me = static_cast<size_t>(rank.rank()), size = static_cast<size_t>(rank.size());
    for_all(rank, std::vector{DType::f32, DType::bf16, DType::f16}, [&](Bench& bench, DType type, size_t begin, size_t any, uint64_t seed) {
      const size_t count = divisible(any, rank.size());
      Counts pieces(size, count / size);
      if (seed % 4 == 0) pieces.back() += std::exchange(pieces.front(), 0);
      const auto before = static_cast<size_t>(std::accumulate(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(me), uint64_t{0}));
      Trial trial(rank, *bench.window, type, begin, count, seed);
      DeviceArray to(rank, std::max<size_t>(pieces[me] * size_of(type), 1)), found(rank, Bytes(2 * sizeof(double), std::byte{0x7b}));
      const bool elsewhere = seed % 3 == 0;
      WindowOp call{.kind = Collective::reduce_scatter,
                    .window = bench.window.get(),
                    .type = type,
                    .begin = begin,
                    .count = count,
                    .to = elsewhere ? to.data() : nullptr,
                    .squares = reinterpret_cast<double*>(found.data()),
                    .squared = pieces[me] - std::min<uint64_t>(pieces[me], seed % 7)};
      if (seed % 2 == 0) call.counts = std::make_shared<const Counts>(pieces);
      if (!bench.group->adds_squares()) {
        rank.fails(bench.group->together(*bench.stream, {&call, 1}), Code::internal, {"squares"});
        return;
      }
      rank.must(bench.group->together(*bench.stream, {&call, 1}));
      rank.must(finish(*bench.stream));
      const std::byte* const sum = elsewhere ? to.data() : bench.window->data() + (begin + before) * size_of(type);
      DeviceArray expected(rank, 2 * sizeof(double));
      rank.must(rank.backend().square_sum(*bench.stream, sum, type, call.squared, reinterpret_cast<double*>(expected.data())));
      rank.must(finish(*bench.stream));
      rank.check(found.get() == expected.get(), text("squares of ", call.squared, " ", name_of(type), " of ", count));
      WindowOp too_many = call;
      too_many.squared = pieces[me] + 1;
      rank.fails(bench.group->together(*bench.stream, {&too_many, 1}), Code::internal, {"squares"});
    });
  });
}

// A step of AdamW on parts of this rank's piece of the parameters, which is gathered whole; all at once, or by a reduction, updates and a
// gather.
class Step {
 public:
  Step(Rank& rank, Bench& bench, Window& grads, DType type, size_t begin, size_t count, uint64_t seed)
      : rank_(rank), bench_(bench), grads_(grads), type_(type), begin_(begin), count_(count), seed_(seed) {
    const size_t piece = count / static_cast<size_t>(rank.size());
    first_ = begin + piece * static_cast<size_t>(rank.rank());
    parts_ = {{0, piece / 3}, {piece / 2, piece - piece / 2 - piece % 3}};
  }

  // What it leaves: the parameters, then this rank's masters and state.
  std::vector<Bytes> take(bool at_once) const {
    Trial trial(rank_, *bench_.window, type_, begin_, count_, seed_);
    put(rank_, grads_.data(), make_input(grad_type_, grad_begin_ + count_, seed_ + 5, rank_.rank()));
    StepScalars scalars{};
    scalars.grad_factor = 0.5F;
    scalars.grad_limit = HUGE_VALF;
    DeviceArray now(rank_, sizeof scalars), steps(rank_, sizeof(uint64_t)), master(rank_, make_input(DType::f32, count_, seed_, 77));
    DeviceArray m(rank_, master.bytes()), v(rank_, master.bytes());
    put_values(rank_, now.data(), std::vector{scalars});
    put_values(rank_, steps.data(), std::vector{uint64_t{3}});
    PieceUpdates todo{.updates = {}, .grads = &grads_, .grad_type = grad_type_, .grad_begin = grad_begin_, .divisor = kDivisor};
    for (const auto& [at, n] : parts_) {
      std::byte* const param = bench_.window->data() + (first_ + at) * size_of(type_);
      const auto floats = [at = at](DeviceArray& array) { return reinterpret_cast<float*>(array.data()) + at; };
      float* const weights = type_ == DType::f32 ? reinterpret_cast<float*>(param) : floats(master);  // f32 is its own master
      todo.updates.push_back({at, Update{{0.1, 0.9, 0.99, 1e-8, 0.5, 0},
                                         reinterpret_cast<const StepScalars*>(now.data()),
                                         reinterpret_cast<const uint64_t*>(steps.data()),
                                         nullptr,
                                         weights,
                                         {floats(m), floats(v)},
                                         param,
                                         n,
                                         grad_type_,
                                         type_,
                                         Rules::number_of<AdamW>()}});
    }
    if (at_once) {
      const WindowOp call{.kind = Collective::all_gather,
                          .window = bench_.window.get(),
                          .type = type_,
                          .begin = begin_,
                          .count = count_,
                          .updates = std::make_shared<const PieceUpdates>(todo)};
      rank_.must(bench_.group->together(*bench_.stream, {&call, 1}));
    } else {
      one_after_another(todo);
    }
    rank_.must(finish(*bench_.stream));
    trial.check("updates", 0, {});
    return {get(rank_, bench_.window->data() + begin_ * size_of(type_), count_ * size_of(type_)), master.get(), m.get(), v.get()};
  }

 private:
  static constexpr float kDivisor = 3;

  void one_after_another(const PieceUpdates& todo) const {
    const size_t piece = first_ - begin_;  // where it begins among the gradients
    rank_.must(bench_.group->reduce_scatter(*bench_.stream, grads_, grad_type_, grad_begin_, count_, kDivisor, {}));
    for (const PieceUpdates::One& one : todo.updates) {
      Update update = one.update;
      update.grad = grads_.data() + (grad_begin_ + piece + one.begin) * size_of(grad_type_);
      rank_.must(rank_.backend().update(*bench_.stream, update));
    }
    rank_.must(bench_.group->all_gather(*bench_.stream, *bench_.window, type_, begin_, count_, {}));
  }

  Rank& rank_;
  Bench& bench_;
  Window& grads_;
  const DType type_;
  const size_t begin_, count_;
  const uint64_t seed_;
  const DType grad_type_ = seed_ % 2 == 0 ? DType::f32 : DType::bf16;
  const size_t grad_begin_ = seed_ % 3 * 32;
  size_t first_ = 0;
  std::vector<std::pair<size_t, size_t>> parts_;  // of the piece: begin and count
};

void updates(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    std::unique_ptr<Window> grads;
    for_all(rank, std::vector{DType::f32, DType::bf16}, [&](Bench& bench, DType type, size_t begin, size_t any, uint64_t seed) {
      if (grads == nullptr) grads = rank.must(bench.group->allocate_window(kWindowBytes));
      if (!bench.group->updates_pieces()) {
        const WindowOp call{.kind = Collective::all_gather,
                            .window = bench.window.get(),
                            .type = type,
                            .begin = begin,
                            .count = 0,
                            .updates = std::make_shared<const PieceUpdates>(PieceUpdates{.updates = {}, .grads = grads.get()})};
        rank.fails(bench.group->together(*bench.stream, {&call, 1}), Code::internal, {"not updated on the way"});
        return;
      }
      const Step step(rank, bench, *grads, type, begin, divisible(any, rank.size()), seed);
      const std::vector<Bytes> expected = step.take(false), found = step.take(true);
      for (size_t i = 0; i < expected.size(); ++i) {
        rank.check(found[i] == expected[i], text("array ", i, " of an update of ", name_of(type), " begin ", begin, " count ", any));
      }
    });
  });
}

void all_reduce(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_all(rank, kReals, [&](Bench& bench, DType type, size_t begin, size_t count, uint64_t seed) {
      const float divisor = seed % 3 == 0 ? 0.7F : 1.0F;
      Trial trial(rank, *bench.window, type, begin, count, seed);
      rank.must(bench.group->all_reduce(*bench.stream, *bench.window, type, begin, count, divisor, {}));
      rank.must(finish(*bench.stream));
      trial.check("all_reduce", 0, reduce_arrays(type, Op::sum, divisor, trial.inputs()));
    });
  });
}

void integers(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_all(rank, std::vector{DType::i64, DType::u8}, [&](Bench& bench, DType type, size_t begin, size_t count, uint64_t seed) {
      Trial trial(rank, *bench.window, type, begin, count, seed);
      rank.must(bench.group->all_reduce(*bench.stream, *bench.window, type, begin, count, 1, {}));
      rank.must(finish(*bench.stream));
      trial.check("all_reduce", 0, reduce_arrays(type, Op::sum, 1, trial.inputs()));
    });
  });
}

void all_gather(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_all(rank, kAll, [&](Bench& bench, DType type, size_t begin, size_t any, uint64_t seed) {
      const size_t count = divisible(any, rank.size());
      Trial trial(rank, *bench.window, type, begin, count, seed);
      rank.must(bench.group->all_gather(*bench.stream, *bench.window, type, begin, count, {0, "parameters"}));
      rank.must(finish(*bench.stream));
      Bytes expected;
      for (int r = 0; r < rank.size(); ++r) {
        const Bytes piece = piece_of(trial.inputs()[static_cast<size_t>(r)], r, rank.size());
        expected.insert(expected.end(), piece.begin(), piece.end());
      }
      trial.check("all_gather", 0, expected);
    });
  });
}

void broadcast(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_all(rank, kAll, [&](Bench& bench, DType type, size_t begin, size_t count, uint64_t seed) {
      const int root = static_cast<int>(seed) % rank.size();
      Trial trial(rank, *bench.window, type, begin, count, seed);
      rank.must(bench.group->broadcast(*bench.stream, *bench.window, type, begin, count, root, {}));
      rank.must(finish(*bench.stream));
      trial.check("broadcast", 0, trial.inputs()[static_cast<size_t>(root)]);
    });
  });
}

// Several at once: each does what it does alone.
void together(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    Bench bench(rank);
    auto second = rank.must(bench.group->allocate_window(kWindowBytes));
    auto third = rank.must(bench.group->allocate_window(kWindowBytes));
    const size_t count = divisible(9'001, rank.size());
    const size_t piece = count / static_cast<size_t>(rank.size()) * static_cast<size_t>(rank.rank());
    Trial scattered(rank, *bench.window, DType::f32, 7, count, 21);
    Trial reduced(rank, *second, DType::bf16, 0, count, 22);
    Trial gathered(rank, *third, DType::u8, 64, count, 23);
    using enum Collective;
    const WindowOp calls[] = {{reduce_scatter, bench.window.get(), DType::f32, 7, count, {0, "gradients"}, 3},
                              {all_reduce, second.get(), DType::bf16, 0, count, {1, "gradients"}, 0.7F},
                              {all_gather, third.get(), DType::u8, 64, count, {2, "parameters"}},
                              {all_gather, third.get(), DType::u8, 0, 0, {3, "parameters"}}};
    rank.must(bench.group->together(*bench.stream, calls));
    rank.must(bench.group->together(*bench.stream, {}));
    rank.must(finish(*bench.stream));
    scattered.check("reduce_scatter among others", piece,
                    piece_of(reduce_arrays(DType::f32, Op::sum, 3, scattered.inputs()), rank.rank(), rank.size()));
    reduced.check("all_reduce among others", 0, reduce_arrays(DType::bf16, Op::sum, 0.7F, reduced.inputs()));
    Bytes all;
    for (int r = 0; r < rank.size(); ++r) {
      const Bytes its = piece_of(gathered.inputs()[static_cast<size_t>(r)], r, rank.size());
      all.insert(all.end(), its.begin(), its.end());
    }
    gathered.check("all_gather among others", 0, all);
    // Gathers and integers: a device may start them as one even if its other sums are several steps.
    Trial counted(rank, *third, DType::i64, 9, count, 26);
    Trial first(rank, *bench.window, DType::f32, 0, count, 24);
    Trial other(rank, *second, DType::bf16, 3, count, 25);
    const WindowOp gathers[] = {{all_gather, bench.window.get(), DType::f32, 0, count},
                                {all_reduce, third.get(), DType::i64, 9, count},
                                {all_gather, second.get(), DType::bf16, 3, count}};
    rank.must(bench.group->together(*bench.stream, gathers));
    rank.must(finish(*bench.stream));
    first.check("all_gather of two", piece, piece_of(first.input(), rank.rank(), rank.size()));
    other.check("all_gather of two", piece, piece_of(other.input(), rank.rank(), rank.size()));
    counted.check("all_reduce among two", 0, reduce_arrays(DType::i64, Op::sum, 1, counted.inputs()));
    const WindowOp wrong[] = {{all_gather, bench.window.get(), DType::f32, 0, count},
                              {all_reduce, second.get(), DType::u8, 0, 8, {}, 0.5F}};
    // Nothing of it is submitted: no other rank takes part in the gather.
    if (rank.rank() == 0) rank.fails(bench.group->together(*bench.stream, wrong), Code::unsupported, {"8 u8", "divisor is 0.5"});
    const WindowOp no_call[] = {{barrier, bench.window.get(), DType::f32, 0, 8}};
    rank.fails(bench.group->together(*bench.stream, no_call), Code::internal, {"barrier", "none in windows"});
    const WindowOp no_sum[] = {{all_gather, bench.window.get(), DType::f32, 0, count, {}, 2}};
    rank.fails(bench.group->together(*bench.stream, no_sum), Code::unsupported, {"divisor is 2", "no sum"});
    rank.must(bench.group->barrier(*bench.stream, {}));
    rank.must(finish(*bench.stream));
  });
}

// A range cut into calls gives the same bits as one call.
void cut_into_calls(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    const size_t count = 30'000;
    Trial trial(rank, *bench.window, DType::bf16, 5, count, 11);
    for (size_t at = 0; at < count;) {
      const size_t n = std::min<size_t>(count - at, 1 + at * 3);
      rank.must(bench.group->all_reduce(*bench.stream, *bench.window, DType::bf16, 5 + at, n, 0.3F, {}));
      at += n;
    }
    rank.must(finish(*bench.stream));
    trial.check("all_reduce in calls", 0, reduce_arrays(DType::bf16, Op::sum, 0.3F, trial.inputs()));
  });
}

void bad_arguments(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    Bench bench(rank);
    Group& group = *bench.group;
    Stream& stream = *bench.stream;
    const size_t elements = kWindowBytes / 4;
    rank.fails(group.all_reduce(stream, *bench.window, DType::f32, 1, elements, 1, {}), Code::invalid,
               {"beyond the window", text(elements)});
    rank.fails(group.all_reduce(stream, *bench.window, DType::f32, SIZE_MAX, 2, 1, {}), Code::invalid, {"beyond the window"});
    rank.fails(group.reduce_scatter(stream, *bench.window, DType::f32, 0, 7, 1, {}), Code::invalid, {"count is 7", "divisible", "2 ranks"});
    rank.fails(group.all_gather(stream, *bench.window, DType::f32, 0, 7, {}), Code::invalid, {"count is 7"});
    rank.fails(group.broadcast(stream, *bench.window, DType::f32, 0, 7, 2, {}), Code::invalid, {"root is 2"});
    rank.fails(group.broadcast(stream, *bench.window, DType::f32, 0, 7, -1, {}), Code::invalid, {"root is -1"});
    rank.fails(group.all_reduce(stream, *bench.window, DType::u8, 0, 8, 0.5F, {}), Code::unsupported, {"divisor is 0.5"});
    auto other = rank.must(rank.backend().create_group(rank.everyone()));
    rank.fails(other->all_reduce(stream, *bench.window, DType::f32, 0, 8, 1, {}), Code::invalid, {"another group"});
    // Nothing of that was submitted.
    rank.must(group.barrier(stream, {}));
    rank.ok(finish(stream));
  });
}

void sizes_differ(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    Result<std::unique_ptr<Window>> window = group->allocate_window(rank.rank() == 2 ? 8192 : 4096);
    rank.fails(window.status(), Code::desync, {"rank 0", "4096", "rank 2", "8192"});
    rank.check(window.status().blame().rank == 2, "the blame is not on rank 2");
    rank.fails(group->allocate_window(0).status(), Code::invalid, {"0 bytes"});
    rank.ok(group->allocate_window(100).status());
  });
}

void too_large(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    auto group = rank.must(rank.backend().create_group(rank.everyone()));
    Result<std::unique_ptr<Window>> window = group->allocate_window(SIZE_MAX - 100);
    rank.fails(window.status(), Code::memory, {"allocate_window"});
    rank.ok(group->allocate_window(100).status());
  });
}

}  // namespace

std::vector<Case> window_cases() {
  return {{"window.starts_zeroed", starts_zeroed},
          {"window.reduce_scatter", reduce_scatter},
          {"window.squares", squares},
          {"window.updates", updates},
          {"window.all_reduce", all_reduce},
          {"window.integers", integers},
          {"window.all_gather", all_gather},
          {"window.broadcast", broadcast},
          {"window.together", together},
          {"window.cut_into_calls", cut_into_calls},
          {"window.bad_arguments", bad_arguments},
          {"window.sizes_differ", sizes_differ},
          {"window.too_large", too_large}};
}

}  // namespace megadp::test
