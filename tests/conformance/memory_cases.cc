// SPDX-License-Identifier: Apache-2.0
// Collectives on any memory: every rank count, element type, operation and count, in place and not, compared bit for bit.
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
    stream = rank.must(rank.backend().create_stream("memory cases"));
    group = rank.must(rank.backend().create_group(rank.everyone()));
  }
};

std::vector<size_t> counts(int size, bool large) {
  std::vector<size_t> all = {0, 1, static_cast<size_t>(size), 63, 64, 65, 1000};
  if (large) all.insert(all.end(), {20'011, 100'003});
  return all;
}

std::vector<Bytes> inputs_of(Rank& rank, DType type, size_t count, uint64_t seed) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < rank.size(); ++r) inputs.push_back(make_input(type, count, seed, r));
  return inputs;
}

Bytes slice(const Bytes& whole, size_t from, size_t bytes) {
  const auto first = whole.begin() + static_cast<ptrdiff_t>(from);
  return Bytes(first, first + static_cast<ptrdiff_t>(bytes));
}

void same(Rank& rank, const std::string& what, const Bytes& got, const Bytes& expected) {
  rank.check(got == expected, what + ": wrong result");
}

template <class Body>
void on_all_sizes(Suite& suite, Body body) {
  for (const int size : kRankCounts) suite.run(size, body);
}

template <class One>
void for_reductions(Rank& rank, One one) {
  Bench bench(rank);
  uint64_t seed = 100;
  for (const DType type : kAll) {
    for (const Op op : kOps) {
      for (const size_t count : counts(rank.size(), type == DType::f32 && op == Op::sum)) {
        one(bench, type, op, count, ++seed, text(name_of(type), " op ", static_cast<int>(op), " count ", count));
      }
    }
  }
}

template <class One>
void for_copies(Rank& rank, One one) {
  Bench bench(rank);
  uint64_t seed = 1000;
  for (const DType type : kAll) {
    for (const size_t count : counts(rank.size(), type == DType::f64)) {
      one(bench, type, count, ++seed, text(name_of(type), " count ", count));
    }
  }
}

void all_reduce(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_reductions(rank, [&](Bench& bench, DType type, Op op, size_t count, uint64_t seed, const std::string& name) {
      const std::vector<Bytes> inputs = inputs_of(rank, type, count, seed);
      const Bytes expected = reduce_arrays(type, op, 1, inputs);
      DeviceArray own(rank, inputs[static_cast<size_t>(rank.rank())]), to(rank, own.bytes());
      rank.must(bench.group->all_reduce(*bench.stream, own.data(), to.data(), count, type, op, {}));
      rank.must(finish(*bench.stream));
      same(rank, "all_reduce " + name, to.get(), expected);
      rank.check(own.get() == inputs[static_cast<size_t>(rank.rank())], "all_reduce " + name + ": changed its input");
      rank.must(bench.group->all_reduce(*bench.stream, own.data(), own.data(), count, type, op, {}));
      rank.must(finish(*bench.stream));
      same(rank, "all_reduce in place " + name, own.get(), expected);
      if (op != Op::sum || type == DType::i64 || type == DType::u8) return;
      DeviceArray again(rank, inputs[static_cast<size_t>(rank.rank())]);
      rank.must(bench.group->all_reduce(*bench.stream, again.data(), again.data(), count, type, op, {}, 3));
      rank.must(finish(*bench.stream));
      same(rank, "all_reduce divided " + name, again.get(), reduce_arrays(type, op, 3, inputs));
    });
  });
}

// More than one turn of whatever staging a backend has.
void large(Suite& suite) {
  for (const int size : {2, 3, 4, 6}) {
    suite.run(size, [](Rank& rank) {
      Bench bench(rank);
      const auto me = static_cast<size_t>(rank.rank());
      const size_t count = 700'001, ranks = static_cast<size_t>(rank.size());
      const std::vector<Bytes> inputs = inputs_of(rank, DType::f32, count, 5);
      DeviceArray own(rank, inputs[me]);
      rank.must(bench.group->all_reduce(*bench.stream, own.data(), own.data(), count, DType::f32, Op::avg, {}));
      rank.must(finish(*bench.stream));
      same(rank, "all_reduce of 700001", own.get(), reduce_arrays(DType::f32, Op::avg, 1, inputs));

      DeviceArray sent(rank, inputs[me]);
      rank.must(bench.group->broadcast(*bench.stream, sent.data(), count, DType::f32, 1, {}));
      rank.must(finish(*bench.stream));
      same(rank, "broadcast of 700001", sent.get(), inputs[1]);

      const size_t piece = 300'001, bytes = piece * size_of(DType::bf16);
      const std::vector<Bytes> arrays = inputs_of(rank, DType::bf16, piece * ranks, 6);
      std::vector<Bytes> pieces;
      for (const Bytes& array : arrays) pieces.push_back(slice(array, me * bytes, bytes));
      DeviceArray array(rank, arrays[me]), gathered(rank, piece * ranks * size_of(DType::bf16));
      rank.must(bench.group->reduce_scatter(*bench.stream, array.data(), array.data() + me * bytes, piece, DType::bf16, Op::sum, {}));
      rank.must(bench.group->all_gather(*bench.stream, array.data() + me * bytes, gathered.data(), piece, DType::bf16, {}));
      rank.must(finish(*bench.stream));
      same(rank, "reduce_scatter of 300001 each", slice(array.get(), me * bytes, bytes), reduce_arrays(DType::bf16, Op::sum, 1, pieces));
      same(rank, "all_gather of 300001 each", gathered.get(), reduce_arrays(DType::bf16, Op::sum, 1, arrays));
    });
  }
}

void reduce_scatter(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_reductions(rank, [&](Bench& bench, DType type, Op op, size_t count, uint64_t seed, const std::string& name) {
      const auto me = static_cast<size_t>(rank.rank());
      const std::vector<Bytes> inputs = inputs_of(rank, type, count * static_cast<size_t>(rank.size()), seed);
      const size_t piece = count * size_of(type);
      std::vector<Bytes> pieces;
      for (const Bytes& input : inputs) pieces.push_back(slice(input, me * piece, piece));
      const Bytes expected = reduce_arrays(type, op, 1, pieces);
      DeviceArray own(rank, inputs[me]), to(rank, piece);
      rank.must(bench.group->reduce_scatter(*bench.stream, own.data(), to.data(), count, type, op, {}));
      rank.must(finish(*bench.stream));
      same(rank, "reduce_scatter " + name, to.get(), expected);
      rank.check(own.get() == inputs[me], "reduce_scatter " + name + ": changed its input");
      rank.must(bench.group->reduce_scatter(*bench.stream, own.data(), own.data() + me * piece, count, type, op, {}));
      rank.must(finish(*bench.stream));
      same(rank, "reduce_scatter into the own piece " + name, slice(own.get(), me * piece, piece), expected);
      own.set(inputs[me]);
      rank.must(bench.group->reduce_scatter(*bench.stream, own.data(), own.data(), count, type, op, {}));
      rank.must(finish(*bench.stream));
      same(rank, "reduce_scatter to == from " + name, slice(own.get(), 0, piece), expected);
    });
  });
}

void all_gather(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_copies(rank, [&](Bench& bench, DType type, size_t count, uint64_t seed, const std::string& name) {
      const auto me = static_cast<size_t>(rank.rank());
      const std::vector<Bytes> inputs = inputs_of(rank, type, count, seed);
      Bytes expected;
      for (const Bytes& input : inputs) expected.insert(expected.end(), input.begin(), input.end());
      DeviceArray own(rank, inputs[me]), to(rank, expected.size());
      rank.must(bench.group->all_gather(*bench.stream, own.data(), to.data(), count, type, {}));
      rank.must(finish(*bench.stream));
      same(rank, "all_gather " + name, to.get(), expected);
      DeviceArray whole(rank, expected.size());
      std::byte* const piece = whole.data() + me * inputs[me].size();
      put(rank, piece, inputs[me]);
      rank.must(bench.group->all_gather(*bench.stream, piece, whole.data(), count, type, {}));
      rank.must(finish(*bench.stream));
      same(rank, "all_gather from the own piece " + name, whole.get(), expected);
      whole.set(inputs[me]);
      rank.must(bench.group->all_gather(*bench.stream, whole.data(), whole.data(), count, type, {}));
      rank.must(finish(*bench.stream));
      same(rank, "all_gather to == from " + name, whole.get(), expected);
    });
  });
}

void all_to_all(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_copies(rank, [&](Bench& bench, DType type, size_t count, uint64_t seed, const std::string& name) {
      const auto me = static_cast<size_t>(rank.rank());
      const size_t piece = count * size_of(type);
      const std::vector<Bytes> inputs = inputs_of(rank, type, count * static_cast<size_t>(rank.size()), seed);
      Bytes expected;
      for (const Bytes& input : inputs) {
        const Bytes part = slice(input, me * piece, piece);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      DeviceArray own(rank, inputs[me]), to(rank, expected.size());
      rank.must(bench.group->all_to_all(*bench.stream, own.data(), to.data(), count, type, {}));
      rank.must(finish(*bench.stream));
      same(rank, "all_to_all " + name, to.get(), expected);
      rank.check(own.get() == inputs[me], "all_to_all " + name + ": changed its input");
      rank.must(bench.group->all_to_all(*bench.stream, own.data(), own.data(), count, type, {}));
      rank.must(finish(*bench.stream));
      same(rank, "all_to_all in place " + name, own.get(), expected);
    });
  });
}

void broadcast(Suite& suite) {
  on_all_sizes(suite, [](Rank& rank) {
    for_copies(rank, [&](Bench& bench, DType type, size_t count, uint64_t seed, const std::string& name) {
      const int root = static_cast<int>(seed) % rank.size();
      const std::vector<Bytes> inputs = inputs_of(rank, type, count, seed);
      DeviceArray data(rank, inputs[static_cast<size_t>(rank.rank())]);
      rank.must(bench.group->broadcast(*bench.stream, data.data(), count, type, root, {}));
      rank.must(finish(*bench.stream));
      same(rank, "broadcast " + name, data.get(), inputs[static_cast<size_t>(root)]);
    });
  });
}

// Rank 0 comes last; nobody passes the barrier before it.
void barrier(Suite& suite) {
  suite.run(4, [](Rank& rank) {
    Bench bench(rank);
    uint64_t came_ns = 0;
    if (rank.rank() == 0) {
      for (const Deadline later = Deadline::after_ns(50'000'000); !later.passed();) {
      }
      came_ns = now_ns();
    }
    rank.must(bench.group->barrier(*bench.stream, {}));
    auto passed = rank.must(bench.stream->record());
    rank.must(passed->wait(Deadline::never()));
    // One clock for all ranks of a node.
    DeviceArray shared(rank, sizeof came_ns);
    put_values<uint64_t>(rank, shared.data(), {came_ns});
    rank.must(bench.group->broadcast(*bench.stream, shared.data(), 1, DType::i64, 0, {}));
    rank.must(finish(*bench.stream));
    came_ns = get_values<uint64_t>(rank, shared.data(), 1)[0];
    rank.check(passed->time_ns() >= came_ns && came_ns > 0, "a rank passed the barrier before rank 0 came");
  });
}

void bad_arguments(Suite& suite) {
  suite.run(2, [](Rank& rank) {
    Bench bench(rank);
    DeviceArray data(rank, 8);
    rank.fails(bench.group->broadcast(*bench.stream, data.data(), 2, DType::f32, 2, {}), Code::invalid, {"root is 2", "ranks 0 to 1"});
    rank.fails(bench.group->broadcast(*bench.stream, data.data(), 2, DType::f32, -1, {}), Code::invalid, {"root is -1"});
    rank.must(bench.group->barrier(*bench.stream, {}));
    rank.ok(finish(*bench.stream));
  });
}

}  // namespace

std::vector<Case> memory_cases() {
  return {{"memory.all_reduce", all_reduce},
          {"memory.large", large},
          {"memory.reduce_scatter", reduce_scatter},
          {"memory.all_gather", all_gather},
          {"memory.all_to_all", all_to_all},
          {"memory.broadcast", broadcast},
          {"memory.barrier", barrier},
          {"memory.bad_arguments", bad_arguments}};
}

}  // namespace megadp::test
