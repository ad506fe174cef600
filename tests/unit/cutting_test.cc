// SPDX-License-Identifier: Apache-2.0
// Cutting against an oracle that lays out every element on its own.
#include <rapidcheck.h>

#include "check.h"
#include "core/cutting.h"

using namespace megadp;
using namespace megadp::test;

namespace {

struct Input {
  StoredArray array;
  std::vector<uint64_t> ends;  // where ranges begin and end, to be taken modulo the elements
};

std::ostream& operator<<(std::ostream& out, const Input& in) {
  out << "shape " << shown(in.array.shape);
  if (in.array.cut.is_cut())
    out << " dim " << in.array.cut.dim << " stride " << in.array.cut.stride << " sizes " << shown(in.array.cut.sizes);
  return out << " ends " << shown(in.ends);
}

rc::Gen<Input> any_input() {
  const auto size = rc::gen::element<int64_t>(0, 1, 1, 2, 3, 5);
  const auto shape =
      rc::gen::mapcat(rc::gen::inRange<size_t>(0, 5), [size](size_t dims) { return rc::gen::container<std::vector<int64_t>>(dims, size); });
  const auto turns = rc::gen::mapcat(rc::gen::inRange<size_t>(0, 5), [](size_t parts) {
    return rc::gen::container<std::vector<int64_t>>(parts, rc::gen::inRange<int64_t>(0, 4));
  });
  const auto ends = rc::gen::container<std::vector<uint64_t>>(2, rc::gen::arbitrary<uint64_t>());
  return rc::gen::map(rc::gen::tuple(shape, turns, rc::gen::inRange(1, 5), rc::gen::inRange<size_t>(0, 4), ends), [](const auto& t) {
    Input in{{}, std::get<4>(t)};
    in.array.shape = std::get<0>(t);
    if (in.array.shape.empty() || std::get<1>(t).empty()) return in;
    Cut& cut = in.array.cut;
    cut.stride = std::get<2>(t);
    cut.dim = static_cast<int>(std::get<3>(t) % in.array.shape.size());
    int64_t sum = 0;
    for (const int64_t length : std::get<1>(t)) {
      cut.sizes.push_back(length * cut.stride);
      sum += cut.sizes.back();
    }
    in.array.shape[static_cast<size_t>(cut.dim)] = sum;
    return in;
  });
}

struct Home {
  size_t part;
  uint64_t at;
};

// Where each element of the whole is, found by giving out rows along the dimension one by one.
std::vector<Home> oracle(const StoredArray& array) {
  uint64_t elements = 1, inner = 1;
  for (const int64_t size : array.shape) elements *= static_cast<uint64_t>(size);
  std::vector<Home> homes(elements);
  if (!array.cut.is_cut()) {
    for (uint64_t i = 0; i < elements; ++i) homes[i] = {0, i};
    return homes;
  }
  const auto dim = static_cast<size_t>(array.cut.dim);
  for (size_t d = dim + 1; d < array.shape.size(); ++d) inner *= static_cast<uint64_t>(array.shape[d]);
  std::vector<Home> rows;
  std::vector<uint64_t> given(array.cut.sizes.size());
  for (int turn = 0; turn < array.cut.stride; ++turn)
    for (size_t part = 0; part < given.size(); ++part)
      for (int64_t i = 0; i < array.cut.sizes[part] / array.cut.stride; ++i) rows.push_back({part, given[part]++});
  // Each part's elements come in the order of the whole's.
  std::vector<uint64_t> part_rows(array.cut.sizes.begin(), array.cut.sizes.end());
  for (uint64_t i = 0; i < elements; ++i) {
    const Home row = rows[i / inner % rows.size()];
    homes[i] = {row.part, (i / inner / rows.size() * part_rows[row.part] + row.at) * inner + i % inner};
  }
  return homes;
}

struct Bounds {
  uint64_t begin, end;
};
Bounds bounds_of(const Input& in, uint64_t elements) {
  const uint64_t a = in.ends[0] % (elements + 1), b = in.ends[1] % (elements + 1);
  return {std::min(a, b), std::max(a, b)};
}

void to_parts_is_the_oracle(const Input& in) {
  const Cutting cutting(in.array);
  const std::vector<Home> homes = oracle(in.array);
  for (const Bounds bounds : {bounds_of(in, homes.size()), Bounds{0, homes.size()}}) {
    uint64_t at = bounds.begin;
    RC_ASSERT(cutting
                  .to_parts(bounds.begin, bounds.end,
                            [&](const Run& run) {
                              RC_ASSERT(run.count > 0U);
                              RC_ASSERT(run.from == at);
                              RC_ASSERT(run.count <= bounds.end - at);
                              for (uint64_t i = 0; i < run.count; ++i, ++at) {
                                RC_ASSERT(run.part == homes[at].part);
                                RC_ASSERT(run.to + i == homes[at].at);
                              }
                              return Status();
                            })
                  .ok());
    RC_ASSERT(at == bounds.end);
  }
}

void to_whole_is_the_oracle(const Input& in) {
  const Cutting cutting(in.array);
  const std::vector<Home> homes = oracle(in.array);
  for (size_t part = 0; part < in.array.cut.parts(); ++part) {
    std::vector<uint64_t> wholes;  // of the part's elements
    for (uint64_t i = 0; i < homes.size(); ++i) {
      if (homes[i].part != part) continue;
      RC_ASSERT(homes[i].at == wholes.size());
      wholes.push_back(i);
    }
    for (const Bounds bounds : {bounds_of(in, wholes.size()), Bounds{0, wholes.size()}}) {
      uint64_t at = bounds.begin;
      RC_ASSERT(cutting
                    .to_whole(part, bounds.begin, bounds.end,
                              [&](const Run& run) {
                                RC_ASSERT(run.count > 0U);
                                RC_ASSERT(run.part == part);
                                RC_ASSERT(run.from == at);
                                RC_ASSERT(run.count <= bounds.end - at);
                                for (uint64_t i = 0; i < run.count; ++i, ++at) RC_ASSERT(run.to + i == wholes[at]);
                                return Status();
                              })
                    .ok());
      RC_ASSERT(at == bounds.end);
    }
  }
}

// Two parts in two turns: runs are as long as they can be, and the first failure ends it.
void by_hand() {
  StoredArray array;
  array.shape = {6, 2};
  array.cut = {0, 2, {2, 4}};
  const Cutting cutting(array);
  std::vector<uint64_t> counts;
  const auto count = [&](const Run& run) {
    counts.push_back(run.count);
    return Status();
  };
  check(cutting.to_parts(1, 12, count).ok(), "to parts");
  check_equal(counts, {1, 4, 2, 4}, "runs of the whole");
  counts.clear();
  check(cutting.to_whole(1, 0, 7, count).ok(), "to the whole");
  check_equal(counts, {4, 3}, "runs of a part");
  const Status failure(Code::corrupt, "told");
  int calls = 0;
  const auto fail = [&](const Run&) {
    ++calls;
    return failure;
  };
  fails(cutting.to_parts(0, 12, fail), Code::corrupt, {"told"});
  fails(cutting.to_whole(1, 0, 8, fail), Code::corrupt, {"told"});
  check_equal(calls, 2, "calls until a failure");
}

}  // namespace

// A manifest may claim any number of turns: they take no memory.
void many_turns() {
  constexpr int64_t most = INT32_MAX;
  StoredArray array;
  array.shape = {2 * most};
  array.cut = {0, static_cast<int>(most), {most, most}};
  const Cutting two(array);
  uint64_t runs = 0;
  const auto count = [&runs](const Run& run) {
    runs += run.count;
    return Status();
  };
  check(two.to_whole(1, most - 3, most, count).ok() && two.to_parts(2 * most - 4, 2 * most, count).ok(), "ends of an array");
  check_equal(runs, 7, "elements of the two");
}

int main() {
  set_property_runs(20000);
  by_hand();
  many_turns();
  check(rc::check("a range of the whole is these of the parts", [] { to_parts_is_the_oracle(*any_input()); }), "to parts");
  check(rc::check("a range of a part is these of the whole", [] { to_whole_is_the_oracle(*any_input()); }), "to the whole");
  return finish();
}
