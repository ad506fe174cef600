// SPDX-License-Identifier: Apache-2.0
// Random programs: a list of collectives on windows and plain memory, run by every rank with random pauses and compared after each step
// with what the oracle makes of it. The result must not depend on who comes late.
#include <rapidcheck.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "device_array.h"
#include "oracle.h"
#include "suite.h"

namespace megadp::test {
namespace {

struct Step {
  int what;  // 0 to 8
  DType type;
  Op op;
  size_t begin, count;
  int root;
  float divisor;
  uint64_t pauses;  // two bits per rank: how late it comes
};

std::ostream& operator<<(std::ostream& out, const Step& s) {
  return out << "{kind " << s.what << " " << name_of(s.type) << " op " << static_cast<int>(s.op) << " begin " << s.begin << " count "
             << s.count << " root " << s.root << " divisor " << s.divisor << " pauses " << s.pauses << "}";
}

constexpr size_t kElements = 40'000;

rc::Gen<Step> any_step() {
  return rc::gen::apply([](int what, DType type, Op op, size_t begin, size_t count, int root, float divisor,
                           uint64_t pauses) { return Step{what, type, op, begin, count, root, divisor, pauses}; },
                        rc::gen::inRange(0, 9), rc::gen::element(DType::f32, DType::bf16, DType::f16, DType::f64),
                        rc::gen::element(Op::sum, Op::avg, Op::max, Op::min), rc::gen::inRange<size_t>(0, 200),
                        rc::gen::weightedOneOf<size_t>({{3, rc::gen::inRange<size_t>(0, 300)}, {1, rc::gen::inRange<size_t>(0, 30'000)}}),
                        rc::gen::inRange(0, 8), rc::gen::element(1.0F, 2.0F, 3.0F, 0.7F), rc::gen::arbitrary<uint64_t>());
}

// Everyone's memory, computed by every rank for all.
class Model {
 public:
  explicit Model(int size) {
    for (int rank = 0; rank < size; ++rank) parts_.push_back(make_input(DType::u8, kElements * 8, 0, rank));
  }
  std::vector<Bytes>& parts() { return parts_; }

  // Fresh elements of `type` in [begin, begin + count).
  void fill(DType type, size_t begin, size_t count, uint64_t seed) {
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      put(rank, type, begin, make_input(type, count, seed, static_cast<int>(rank)));
    }
  }
  std::vector<Bytes> get(DType type, size_t begin, size_t count) const {
    std::vector<Bytes> all;
    for (const Bytes& part : parts_) {
      const auto first = part.begin() + static_cast<ptrdiff_t>(begin * size_of(type));
      all.emplace_back(first, first + static_cast<ptrdiff_t>(count * size_of(type)));
    }
    return all;
  }
  void put(size_t rank, DType type, size_t begin, const Bytes& bytes) {
    if (!bytes.empty()) std::memcpy(parts_[rank].data() + begin * size_of(type), bytes.data(), bytes.size());
  }

 private:
  std::vector<Bytes> parts_;
};

Bytes slice(const Bytes& whole, size_t piece, size_t index) {
  const auto first = whole.begin() + static_cast<ptrdiff_t>(piece * index);
  return Bytes(first, first + static_cast<ptrdiff_t>(piece));
}

// One rank's run of a program, on a window (steps 0 to 3) or on plain memory that mirrors it (4 to 8).
class Run {
 public:
  Run(Rank& rank, Stream& stream, Group& group, Window& window)
      : rank_(rank), stream_(stream), group_(group), window_(window), model_(rank.size()), size_(static_cast<size_t>(rank.size())) {
    put(rank, window.data(), own());
  }

  void step(const Step& s, uint64_t seed) {
    const bool in_pieces = s.what == 0 || s.what == 2 || s.what >= 6;
    const size_t count = in_pieces ? s.count / size_ * size_ : s.count;
    const auto root = static_cast<size_t>(s.root) % size_;
    model_.fill(s.type, s.begin, count, seed);
    put(rank_, window_.data(), own());
    std::this_thread::sleep_for(std::chrono::microseconds(100 * ((s.pauses >> (2 * rank_.rank())) & 3)));
    submit(s, count, static_cast<int>(root));
    predict(s, count, root);
    rank_.must(finish(stream_));
    rank_.check(get(rank_, window_.data(), own().size()) == own(),
                text("step of kind ", s.what, " ", name_of(s.type), " begin ", s.begin, " count ", count, " differs"));
  }

 private:
  Bytes& own() { return model_.parts()[static_cast<size_t>(rank_.rank())]; }

  void submit(const Step& s, size_t count, int root) {
    std::byte* const data = window_.data() + s.begin * size_of(s.type);
    switch (s.what) {
      case 0:
        return rank_.must(group_.reduce_scatter(stream_, window_, s.type, s.begin, count, s.divisor, {}));
      case 1:
        return rank_.must(group_.all_reduce(stream_, window_, s.type, s.begin, count, s.divisor, {}));
      case 2:
        return rank_.must(group_.all_gather(stream_, window_, s.type, s.begin, count, {}));
      case 3:
        return rank_.must(group_.broadcast(stream_, window_, s.type, s.begin, count, root, {}));
      case 4:
        return rank_.must(group_.all_reduce(stream_, data, data, count, s.type, s.op, {}));
      case 5:
        return rank_.must(group_.broadcast(stream_, data, count, s.type, root, {}));
      case 6:
        return rank_.must(group_.all_to_all(stream_, data, data, count / size_, s.type, {}));
      case 7:
        return rank_.must(group_.all_gather(stream_, piece(data, s, count), data, count / size_, s.type, {}));
      default:
        return rank_.must(group_.reduce_scatter(stream_, data, piece(data, s, count), count / size_, s.type, s.op, {}));
    }
  }
  std::byte* piece(std::byte* data, const Step& s, size_t count) const {
    return data + count / size_ * static_cast<size_t>(rank_.rank()) * size_of(s.type);
  }

  void predict(const Step& s, size_t count, size_t root) {
    const std::vector<Bytes> before = model_.get(s.type, s.begin, count);
    const size_t bytes = count / size_ * size_of(s.type);
    const bool reduces = s.what == 0 || s.what == 1 || s.what == 4 || s.what == 8;
    const Bytes sum = reduces ? reduce_arrays(s.type, s.what >= 4 ? s.op : Op::sum, s.what >= 4 ? 1 : s.divisor, before) : Bytes();
    for (size_t rank = 0; rank < size_; ++rank) {
      Bytes after = before[rank];
      for (size_t r = 0; r < size_ && bytes > 0; ++r) {
        if (s.what == 2 || s.what == 7) std::memcpy(after.data() + r * bytes, before[r].data() + r * bytes, bytes);
        if (s.what == 6) std::memcpy(after.data() + r * bytes, before[r].data() + rank * bytes, bytes);
      }
      if (s.what == 1 || s.what == 4) after = sum;
      if (s.what == 3 || s.what == 5) after = before[root];
      if ((s.what == 0 || s.what == 8) && bytes > 0) std::memcpy(after.data() + rank * bytes, sum.data() + rank * bytes, bytes);
      // The rest of a reduce_scatter's range in a window is not specified: take it as it came out.
      if (s.what == 0 && static_cast<int>(rank) == rank_.rank()) keep_rest(s, rank, bytes, count, &after);
      model_.put(rank, s.type, s.begin, after);
    }
  }
  void keep_rest(const Step& s, size_t rank, size_t bytes, size_t count, Bytes* after) {
    rank_.must(finish(stream_));
    const Bytes mine = bytes > 0 ? slice(*after, bytes, rank) : Bytes();
    *after = get(rank_, window_.data() + s.begin * size_of(s.type), count * size_of(s.type));
    if (bytes > 0) std::memcpy(after->data() + rank * bytes, mine.data(), bytes);
  }

  Rank& rank_;
  Stream& stream_;
  Group& group_;
  Window& window_;
  Model model_;
  const size_t size_;
};

void programs(Suite& suite) {
  const bool good = rc::check("random programs", [&suite] {
    const int size = *rc::gen::element(1, 2, 3, 4, 5);
    const auto steps = *rc::gen::container<std::vector<Step>>(12, any_step());
    const Outcome outcome = run_ranks(suite.setting(), size, [&steps](Rank& rank) {
      auto stream = rank.must(rank.backend().create_stream("random"));
      auto group = rank.must(rank.backend().create_group(rank.everyone()));
      auto window = rank.must(group->allocate_window(kElements * 8));
      Run run(rank, *stream, *group, *window);
      uint64_t seed = 0;
      for (const Step& step : steps) run.step(step, ++seed);
    });
    for (const std::string& finding : outcome.findings) RC_LOG() << finding << "\n";
    RC_ASSERT(outcome.findings.empty() && outcome.checks > 0);
  });
  suite.record(good, "a random program went wrong; rapidcheck says which");
}

}  // namespace

std::vector<Case> random_cases() {
  return {{"random.programs", programs}};
}

}  // namespace megadp::test
