// SPDX-License-Identifier: Apache-2.0
// Collectives whose pieces differ in size: any counts, also of nothing, in place and not, compared bit for bit with the even ones' oracle;
// and lists of counts that do not fit together.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "device_array.h"
#include "oracle.h"
#include "suite.h"

namespace megadp::test {
namespace {

constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8};
constexpr Op kOps[] = {Op::sum, Op::avg, Op::max, Op::min};

struct Bench {
  std::unique_ptr<Stream> stream;
  std::shared_ptr<Group> group;
  explicit Bench(Rank& rank) {
    stream = rank.must(rank.backend().create_stream("uneven cases"));
    group = rank.must(rank.backend().create_group(rank.everyone()));
    rank.must(group->barrier(*stream, {}));
    rank.must(finish(*stream));
    if (on_device(rank)) rank.must(rank.world().exchange(rank.everyone(), "bench", ""));  // whose events fail with it, seen or not
  }
};

size_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}
size_t before(const Counts& counts, size_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<ptrdiff_t>(rank), size_t{0});
}

Bytes slice(const Bytes& whole, size_t from, size_t bytes) {
  const auto first = whole.begin() + static_cast<ptrdiff_t>(from);
  return Bytes(first, first + static_cast<ptrdiff_t>(bytes));
}

// Nothing at all; one rank has everything; as the triangle; equal; several turns of any staging, evenly or on one rank. `large`: of those.
std::vector<Counts> lists(int ranks, bool large) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<Counts> all = {Counts(n, 0), Counts(n, 65)};
  Counts one(n, 0), triangle(n, 0);
  one[n / 2] = 1001;
  for (size_t r = 0; r < n; ++r) triangle[r] = 37 * r;
  all.push_back(one);
  all.push_back(triangle);
  if (!large) return all;
  one[n / 2] = 1'250'000;
  for (size_t r = 0; r < n; ++r) triangle[r] = r % 2 == 0 ? 400'003 * (r + 1) / n : 1;
  all.push_back(one);
  all.push_back(triangle);
  return all;
}

template <class Body>
void on_all_sizes(Suite& suite, Body body) {
  for (const int size : {1, 2, 3, 4, 8}) suite.run(size, body);
}

void sum_pieces(Rank& rank, const Bench& bench, DType type, Op op, const Counts& counts, uint64_t seed) {
  const auto me = static_cast<size_t>(rank.rank());
  const size_t width = size_of(type), piece = counts[me] * width, at = before(counts, me) * width;
  std::vector<Bytes> inputs, pieces;
  for (int r = 0; r < rank.size(); ++r) inputs.push_back(make_input(type, total(counts), seed, r));
  for (const Bytes& input : inputs) pieces.push_back(slice(input, at, piece));
  const Bytes expected = reduce_arrays(type, op, 1, pieces);
  DeviceArray own(rank, inputs[me]), to(rank, piece);
  const std::string name = text(name_of(type), " op ", static_cast<int>(op), " counts[0] ", counts[0], " of ", total(counts));
  rank.must(bench.group->reduce_scatter_v(*bench.stream, own.data(), to.data(), counts, type, op, {}));
  rank.must(finish(*bench.stream));
  rank.check(to.get() == expected, "reduce_scatter_v " + name);
  rank.check(own.get() == inputs[me], "reduce_scatter_v " + name + ": changed its input");
  rank.must(bench.group->reduce_scatter_v(*bench.stream, own.data(), own.data() + at, counts, type, op, {}));
  rank.must(finish(*bench.stream));
  rank.check(slice(own.get(), at, piece) == expected, "reduce_scatter_v in place " + name);
}

void reduce_scatter_v(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    Bench bench(rank);
    uint64_t seed = 100;
    for (const DType type : kAll) {
      for (const Op op : kOps) {
        for (const Counts& counts : lists(rank.size(), type == DType::f32 && op == Op::sum && rank.size() < 5)) {
          sum_pieces(rank, bench, type, op, counts, ++seed);
        }
      }
    }
  });
}

// Longer than what a device exchanges at a time, on some ranks.
void large_pieces(Suite& suite) {
  suite.run(4, [](Rank& rank) {
    Bench bench(rank);
    sum_pieces(rank, bench, DType::f32, Op::avg, {2'500'000, 5, 0, 2'100'001}, 900);
  });
}

void all_gather_v(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    Bench bench(rank);
    const auto me = static_cast<size_t>(rank.rank());
    uint64_t seed = 1000;
    for (const DType type : kAll) {
      for (const Counts& counts : lists(rank.size(), type == DType::f64)) {
        Bytes expected;
        ++seed;
        for (size_t r = 0; r < counts.size(); ++r) {
          const Bytes piece = make_input(type, counts[r], seed, static_cast<int>(r));
          expected.insert(expected.end(), piece.begin(), piece.end());
        }
        const size_t at = before(counts, me) * size_of(type);
        DeviceArray own(rank, slice(expected, at, counts[me] * size_of(type))), to(rank, expected.size()), whole(rank, expected.size());
        const std::string name = text(name_of(type), " counts[0] ", counts[0], " of ", total(counts));
        rank.must(bench.group->all_gather_v(*bench.stream, own.data(), to.data(), counts, type, {}));
        rank.must(finish(*bench.stream));
        rank.check(to.get() == expected, "all_gather_v " + name);
        put(rank, whole.data() + at, own.get());
        rank.must(bench.group->all_gather_v(*bench.stream, whole.data() + at, whole.data(), counts, type, {}));
        rank.must(finish(*bench.stream));
        rank.check(whole.get() == expected, "all_gather_v in place " + name);
      }
    }
  });
}

// A window with a range that is cut into pieces, and what lies around it, which stays as it is.
class InWindow {
 public:
  static constexpr size_t kBegin = 64, kMost = 1'300'000;  // elements
  InWindow(Rank& rank, const Bench& bench, Window& window, DType type, const Counts& counts, uint64_t seed)
      : rank_(rank), bench_(bench), window_(window), type_(type), counts_(counts), edge_(make_input(type, kBegin, seed + 7, rank.rank())) {
    for (int r = 0; r < rank.size(); ++r) inputs_.push_back(make_input(type, total(counts), seed, r));
    name_ = text(name_of(type), " counts[0] ", counts[0], " of ", total(counts));
  }
  const std::vector<Bytes>& inputs() const { return inputs_; }
  const std::string& name() const { return name_; }
  WindowOp call(Collective kind) const {
    return {.kind = kind,
            .window = &window_,
            .type = type_,
            .begin = kBegin,
            .count = total(counts_),
            .tag = {1, "whole"},
            .counts = std::make_shared<const Counts>(counts_)};
  }
  // What is in the range after it.
  Bytes after(const WindowOp& call) {
    Bytes all = edge_;
    for (const Bytes& part : {inputs_[static_cast<size_t>(rank_.rank())], edge_}) all.insert(all.end(), part.begin(), part.end());
    put(rank_, window_.data(), all);
    rank_.must(bench_.group->together(*bench_.stream, {&call, 1}));
    rank_.must(finish(*bench_.stream));
    const Bytes got = get(rank_, window_.data(), all.size());
    const size_t edge = edge_.size();
    rank_.check(slice(got, 0, edge) == edge_ && slice(got, got.size() - edge, edge) == edge_, name_ + ": changed what is around the range");
    return slice(got, edge, got.size() - 2 * edge);
  }

 private:
  Rank& rank_;
  const Bench& bench_;
  Window& window_;
  const DType type_;
  const Counts& counts_;
  const Bytes edge_;
  std::vector<Bytes> inputs_;
  std::string name_;
};

// In place, or into memory of this rank's own, rounded or as f32.
void in_windows(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    Bench bench(rank);
    const auto me = static_cast<size_t>(rank.rank());
    auto window = rank.must(bench.group->allocate_window((InWindow::kMost + 2 * InWindow::kBegin) * sizeof(double)));
    uint64_t seed = 3000;
    for (const DType type : {DType::f32, DType::bf16, DType::f64}) {
      for (const Counts& counts : lists(rank.size(), type == DType::f32 && rank.size() < 5)) {
        InWindow trial(rank, bench, *window, type, counts, ++seed);
        const size_t at = before(counts, me) * size_of(type), piece = counts[me] * size_of(type);
        const Bytes sum = slice(reduce_arrays(type, Op::sum, 4, trial.inputs()), at, piece);
        DeviceArray to(rank, counts[me] * sizeof(double) + 1);
        WindowOp call = trial.call(Collective::reduce_scatter);
        call.divisor = 4;
        if (seed % 3 == 0) {
          call.to = to.data();
          call.to_f32 = type == DType::f32;
          (void)trial.after(call);
          rank.check(slice(to.get(), 0, piece) == sum, "sum elsewhere " + trial.name());
        } else {
          rank.check(slice(trial.after(call), at, piece) == sum, "sum " + trial.name());
        }
        Bytes expected;
        for (size_t r = 0; r < counts.size(); ++r) {
          const Bytes part = slice(trial.inputs()[r], before(counts, r) * size_of(type), counts[r] * size_of(type));
          expected.insert(expected.end(), part.begin(), part.end());
        }
        rank.check(trial.after(trial.call(Collective::all_gather)) == expected, "gathered " + trial.name());
      }
    }
  });
}

// Half-width pieces as f32: what is rounded from them are the rounded sums.
void as_f32(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    Bench bench(rank);
    const auto me = static_cast<size_t>(rank.rank());
    auto window = rank.must(bench.group->allocate_window((InWindow::kMost + 2 * InWindow::kBegin) * sizeof(float)));
    for (const Counts& counts : lists(rank.size(), rank.size() == 3)) {
      InWindow trial(rank, bench, *window, DType::bf16, counts, 4000);
      DeviceArray to(rank, counts[me] * sizeof(float) + 1), rounded(rank, counts[me] * sizeof(Bf16) + 1);
      WindowOp call = trial.call(Collective::reduce_scatter);
      call.to = to.data();
      call.to_f32 = true;
      (void)trial.after(call);
      rank.must(rank.backend().cast(*bench.stream, rounded.data(), DType::bf16, to.data(), DType::f32, counts[me]));
      rank.must(finish(*bench.stream));
      const size_t at = before(counts, me) * sizeof(Bf16), piece = counts[me] * sizeof(Bf16);
      rank.check(slice(rounded.get(), 0, piece) == slice(reduce_arrays(DType::bf16, Op::sum, 1, trial.inputs()), at, piece),
                 "sum as f32 " + trial.name());
    }
  });
}

// Rank 1 has other pieces, of the same sum.
void different_pieces(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    auto window = rank.must(bench.group->allocate_window(4096));
    const Counts counts = rank.rank() == 1 ? Counts{4, 6, 5} : Counts{4, 5, 6};
    const WindowOp call{.kind = Collective::all_gather,
                        .window = window.get(),
                        .type = DType::f32,
                        .begin = 0,
                        .count = 15,
                        .counts = std::make_shared<const Counts>(counts)};
    Status status = bench.group->together(*bench.stream, {&call, 1});
    if (status.ok()) status = finish(*bench.stream);
    rank.fails(status, Code::desync, {"all_gather of 15 f32", "pieces of"});
    WindowOp wrong = call;
    wrong.counts = std::make_shared<const Counts>(Counts{4, 5, 7});
    rank.fails(bench.group->together(*bench.stream, {&wrong, 1}), Code::internal, {"3 counts", "come to the whole"});
    wrong.kind = Collective::all_reduce;
    wrong.counts = call.counts;
    rank.fails(bench.group->together(*bench.stream, {&wrong, 1}), Code::internal, {"3 counts"});
  });
}

// matrix[s][r]: what rank s sends to rank r.
std::vector<std::vector<Counts>> matrices(int ranks, bool large) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<std::vector<Counts>> all;
  std::mt19937 random(static_cast<unsigned>(ranks));
  for (int kind = 0; kind < (large ? 5 : 3); ++kind) {
    std::vector<Counts> matrix(n, Counts(n, 0));
    for (size_t s = 0; s < n; ++s) {
      for (size_t r = 0; r < n; ++r) {
        if (kind == 1) matrix[s][r] = random() % 3 == 0 ? 0 : random() % 300;
        if (kind == 2) matrix[s][r] = s == 0 ? 10 * r : 0;                      // one sends all
        if (kind == 3) matrix[s][r] = r == n - 1 ? 300'007 + s : random() % 5;  // one gets nearly all
        if (kind == 4) matrix[s][r] = random() % 90'000;
      }
    }
    all.push_back(matrix);
  }
  return all;
}

void all_to_all_v(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    Bench bench(rank);
    const auto me = static_cast<size_t>(rank.rank());
    uint64_t seed = 2000;
    for (const DType type : kAll) {
      for (const std::vector<Counts>& matrix : matrices(rank.size(), type == DType::f64 || type == DType::u8)) {
        Bytes expected;
        Counts to_counts;
        ++seed;
        for (size_t s = 0; s < matrix.size(); ++s) {
          const Bytes input = make_input(type, total(matrix[s]), seed, static_cast<int>(s));
          const Bytes part = slice(input, before(matrix[s], me) * size_of(type), matrix[s][me] * size_of(type));
          expected.insert(expected.end(), part.begin(), part.end());
          to_counts.push_back(matrix[s][me]);
        }
        const Bytes mine = make_input(type, total(matrix[me]), seed, rank.rank());
        DeviceArray own(rank, mine), to(rank, expected.size());
        rank.must(bench.group->all_to_all_v(*bench.stream, own.data(), matrix[me], to.data(), to_counts, type, {}));
        rank.must(finish(*bench.stream));
        rank.check(to.get() == expected, text("all_to_all_v ", name_of(type), " of ", total(matrix[me]), " to ", total(to_counts)));
        rank.check(own.get() == mine, "all_to_all_v changed its input");
      }
    }
  });
}

// Mixed with each other and with even ones, and with random pauses.
void random_programs(Suite& suite) {
  for (const int size : {2, 3, 4}) {
    suite.run(size, [](Rank& rank) {
      Bench bench(rank);
      const auto n = static_cast<size_t>(rank.size()), me = static_cast<size_t>(rank.rank());
      std::mt19937 shared(static_cast<unsigned>(10 * n)), own(static_cast<unsigned>(100 + me));
      for (uint64_t step = 0; step < 60; ++step) {
        Counts counts(n, 0);
        for (uint64_t& count : counts) count = shared() % 4 == 0 ? 0 : shared() % (shared() % 6 == 0 ? 150'000 : 100);
        const auto kind = shared() % 4;
        const DType type = kAll[shared() % 6];
        const Op op = kOps[shared() % 4];
        std::this_thread::sleep_for(std::chrono::microseconds(own() % 200));
        const size_t width = size_of(type), at = before(counts, me) * width, piece = counts[me] * width;
        std::vector<Bytes> inputs;
        for (int r = 0; r < rank.size(); ++r) inputs.push_back(make_input(type, total(counts), 5000 + step, r));
        DeviceArray whole(rank, inputs[me]);
        Bytes expected = inputs[me];
        if (kind == 0) {
          for (size_t r = 0; r < n; ++r) {
            std::copy_n(inputs[r].begin() + static_cast<ptrdiff_t>(before(counts, r) * width), counts[r] * width,
                        expected.begin() + static_cast<ptrdiff_t>(before(counts, r) * width));
          }
          rank.must(bench.group->all_gather_v(*bench.stream, whole.data() + at, whole.data(), counts, type, {}));
        } else if (kind == 1) {
          const Bytes sum = reduce_arrays(type, op, 1, inputs);
          std::copy_n(sum.begin() + static_cast<ptrdiff_t>(at), piece, expected.begin() + static_cast<ptrdiff_t>(at));
          rank.must(bench.group->reduce_scatter_v(*bench.stream, whole.data(), whole.data() + at, counts, type, op, {}));
        } else if (kind == 2) {  // everyone sends the same to each rank, as much as that one's count
          expected.clear();
          for (size_t s = 0; s < n; ++s) {
            const Bytes part = slice(inputs[s], at, piece);
            expected.insert(expected.end(), part.begin(), part.end());
          }
          DeviceArray to(rank, piece * n);
          rank.must(bench.group->all_to_all_v(*bench.stream, whole.data(), counts, to.data(), Counts(n, counts[me]), type, {}));
          rank.must(finish(*bench.stream));
          rank.check(to.get() == expected, text("step ", step, ": all_to_all_v"));
          continue;
        } else {
          expected = reduce_arrays(type, op, 1, inputs);
          rank.must(bench.group->all_reduce(*bench.stream, whole.data(), whole.data(), total(counts), type, op, {}));
        }
        rank.must(finish(*bench.stream));
        rank.check(whole.get() == expected, text("step ", step, " of kind ", kind, " of ", name_of(type)));
      }
    });
  }
}

void bad_arguments(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray data(rank, 64), other(rank, 64);
    const Counts two = {1, 1}, three = {1, 1, 1};
    rank.fails(bench.group->all_gather_v(*bench.stream, data.data(), other.data(), three, DType::f32, {}), Code::invalid,
               {"all_gather_v", "counts has 3", "2 ranks"});
    rank.fails(bench.group->reduce_scatter_v(*bench.stream, data.data(), other.data(), {}, DType::f32, Op::sum, {}), Code::invalid,
               {"reduce_scatter_v", "counts has 0", "2 ranks"});
    rank.fails(bench.group->all_to_all_v(*bench.stream, data.data(), two, other.data(), three, DType::f32, {}), Code::invalid,
               {"all_to_all_v", "to_counts has 3"});
    rank.must(bench.group->barrier(*bench.stream, {}));
    rank.ok(finish(*bench.stream));
  });
}

// Rank 1 gives another list than the others: of another sum, and of the same.
void different_counts(Suite& suite) {
  for (const bool same_sum : {false, true}) {
    for (const bool sums : {false, true}) {
      suite.run(3, [=](Rank& rank) {
        Bench bench(rank);
        Counts counts = {4, 5, 6};
        if (rank.rank() == 1) counts = same_sum ? Counts{4, 6, 5} : Counts{4, 5, 7};
        DeviceArray from(rank, 64), to(rank, 64);
        Status status = sums ? bench.group->reduce_scatter_v(*bench.stream, from.data(), to.data(), counts, DType::f32, Op::sum, {})
                             : bench.group->all_gather_v(*bench.stream, from.data(), to.data(), counts, DType::f32, {});
        if (status.ok()) status = finish(*bench.stream);  // on a device the others may know it already
        rank.fails(status, Code::desync, {sums ? "reduce_scatter_v" : "all_gather_v"});
        if (!same_sum) rank.fails(status, Code::desync, {"of 15 f32", "of 16 f32"});
        if (on_device(rank)) {  // whoever comes second compares: ranks 0 and 1, or 1 and 2; others may have begun
          rank.fails(status, Code::desync, {"in pieces of 4, 5, 6", same_sum ? "in pieces of 4, 6, 5" : "in pieces of 4, 5, 7"});
        } else {
          rank.fails(status, Code::desync, {"ranks 0 and 1", same_sum ? "counts[1] is 5 and 6" : ""});
          rank.check(status.blame().rank == 1, "the blame is not on rank 1");
          rank.check(to.get() == Bytes(64), "memory was changed");
        }
      });
    }
  }
}

// What rank 2 sends rank 0 is not what rank 0 expects.
void counts_that_do_not_meet(Suite& suite) {
  suite.run(3, [](Rank& rank) {
    Bench bench(rank);
    const Counts from_counts = rank.rank() == 2 ? Counts{7, 1, 1} : Counts{1, 1, 1};
    DeviceArray from(rank, 64), to(rank, 64);
    rank.must(bench.group->all_to_all_v(*bench.stream, from.data(), from_counts, to.data(), {1, 1, 1}, DType::f32, {}));
    const Status status = finish(*bench.stream);
    rank.fails(status, Code::desync, {"rank 2 sends 7 elements to rank 0", "expects 1", "from_counts[0]", "to_counts[2]", "all_to_all_v"});
    rank.check(to.get() == Bytes(64), "memory was changed");
    rank.check(rank.world().failed(), "the world did not learn of it");
  });
}

}  // namespace

std::vector<Case> uneven_cases() {
  return {{"uneven.reduce_scatter_v", reduce_scatter_v},
          {"uneven.large_pieces", large_pieces},
          {"uneven.all_gather_v", all_gather_v},
          {"uneven.all_to_all_v", all_to_all_v},
          {"uneven.random_programs", random_programs},
          {"uneven.bad_arguments", bad_arguments},
          {"uneven.in_windows", in_windows},
          {"uneven.as_f32", as_f32},
          {"uneven.different_pieces", different_pieces},
          {"uneven.different_counts", different_counts},
          {"uneven.counts_that_do_not_meet", counts_that_do_not_meet}};
}

}  // namespace megadp::test
