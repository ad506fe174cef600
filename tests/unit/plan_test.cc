// SPDX-License-Identifier: Apache-2.0
// Plans: arenas, bucket sizes, bytes, the order of launches, what is refused, and that the JSON says what the plan says.
#include "core/plan.h"

#include <rapidcheck.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "check.h"
#include "core/plan_json.h"

using namespace megadp;
using namespace megadp::test;

namespace {

using Json = nlohmann::json;

ParamSpec param(const std::string& name, std::vector<int64_t> shape, DType type = DType::f32) {
  ParamSpec out;
  out.name = name;
  out.dtype = type;
  out.shape = std::move(shape);
  return out;
}

std::vector<ParamSpec> params_of(const std::vector<int64_t>& sizes, DType type = DType::f32) {
  std::vector<ParamSpec> out;
  for (size_t i = 0; i < sizes.size(); ++i) out.push_back(param(text("p", i), {sizes[i]}, type));
  return out;
}

Grid grid_of(int world, GridConfig config = {}) {
  auto grid = Grid::create(config, world);
  check(grid.ok(), grid.status().text());
  return grid ? *grid : Grid();
}

Plan plan_of(int world, const BufferConfig& config, std::vector<ParamSpec> params, GridConfig grid = {}) {
  auto plan = make_plan(grid_of(world, grid), config, std::move(params));
  check(plan.ok(), plan.status().text());
  return plan ? *std::move(plan) : Plan();
}

void refuse(const std::vector<ParamSpec>& params, const std::vector<std::string>& words, int64_t blamed = -1, BufferConfig config = {},
            GridConfig grid = {}, int world = 4, Place at = Place::current()) {
  const Status status = make_plan(grid_of(world, grid), config, params).status();
  fails(status, Code::invalid, words, at);
  check_equal(status.blame().param, blamed, "blamed parameter", at);
}

void refuses_bad_params() {
  const auto good = param("good", {4});
  refuse({}, {"no parameters"});
  refuse({good, param("", {4})}, {"parameter 1", "empty name"}, 1);
  refuse({good, param(std::string(256, 'n'), {4})}, {"parameter 1", "256 bytes", "255"}, 1);
  refuse({good, param("a\xff", {4})}, {"parameter 1", "UTF-8"}, 1);
  refuse({good, param("\xc0\xaf", {4})}, {"UTF-8"}, 1);          // longer than needed
  refuse({good, param("\xed\xa0\x80", {4})}, {"UTF-8"}, 1);      // a surrogate
  refuse({good, param("\xf4\x90\x80\x80", {4})}, {"UTF-8"}, 1);  // beyond the last character
  refuse({good, param("caf\xc3", {4})}, {"UTF-8"}, 1);           // cut off
  refuse({good, param("w", {1}), good}, {"parameter 2 'good'", "same name as parameter 0"}, 2);
  refuse({good, param("w", {1}, DType::f64)}, {"parameter 1 'w'", "f64"}, 1);
  refuse({good, param("w", {1}, DType::u8)}, {"u8"}, 1);
  refuse({good, param("w", std::vector<int64_t>(17, 1))}, {"parameter 1 'w'", "17 dimensions"}, 1);
  refuse({good, param("w", {3, -1})}, {"parameter 1 'w'", "size -1 in dimension 1"}, 1);
  refuse({good, param("w", {INT64_MIN})}, {"size -9223372036854775808"}, 1);
  auto frozen = good;
  frozen.frozen = true;
  refuse({frozen}, {"frozen"});
  auto uses = good;
  uses.uses_per_step = 0;
  refuse({uses}, {"parameter 0 'good'", "uses_per_step 0"}, 0);
  auto group = good;
  group.group = -1;
  refuse({group}, {"parameter 0 'good'", "group -1"}, 0);
  check(make_plan(grid_of(1), {}, {param(std::string(255, 'n'), {2}), param("h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", {})}).ok(),
        "names of 255 bytes and of all lengths of UTF-8");
}

void refuses_huge_params() {
  const auto good = param("good", {4});
  const int64_t huge = int64_t{1} << 62;
  refuse({good, param("w", {huge})}, {"parameter 1 'w'", "4611686018427387904 elements"}, 1);
  refuse({good, param("w", {huge, huge})}, {"parameter 1 'w'", "overflows"}, 1);
  refuse({good, param("w", {huge, huge, 0})}, {"parameter 1 'w'", "overflows"}, 1);  // strides would not fit
  refuse({good, param("w", {INT64_MAX, 2})}, {"overflows"}, 1);
  refuse({good, param("w", {int64_t{1} << 32, int64_t{1} << 32})}, {"overflows"}, 1);
  // Each is fine; together they are not, and the one that goes too far is named.
  std::vector<ParamSpec> many;
  for (int i = 0; i < 20; ++i) many.push_back(param(text("w", i), {int64_t{1} << 52}));
  refuse(many, {"parameter 15 'w15'"}, 15);
  many.resize(15);
  const Plan plan = plan_of(4, {}, many);
  check_equal(plan.memory(0).param, uint64_t{15} << 54, "bytes of a plan near the limit");
  check_equal(plan.memory(0).state, uint64_t{15} << 53);
  // So do padding and a threshold.
  BufferConfig one_each;
  one_each.high_bandwidth_padding = true;
  one_each.bucket_elements = 1;
  const Plan padded = plan_of(3, one_each, {param("a", {1}), param("b", {int64_t{1} << 54})});
  check_equal(padded.arenas[0].layout.buckets.size(), 2U);
  check_equal(padded.arenas[0].layout.numel % (3 * 65536), 0U);
}

void counts_elements() {
  const Plan plan = plan_of(1, {}, {param("scalar", {}), param("empty", {4, 0, 3}), param("matrix", {5, 7}), param("none", {0})});
  check_equal(plan.params[0].numel, 1U);
  check_equal(plan.params[1].numel, 0U);
  check_equal(plan.params[2].numel, 35U);
  check_equal(plan.params[3].numel, 0U);
  check_equal(plan.owned_elements(0), 36U);
}

void refuses_bad_placements() {
  GridConfig tp;
  tp.tp = 2;
  const auto placed = [](Placement placement, int dim, int stride) {
    auto out = param("w", {6, 4});
    out.placement = placement;
    out.shard_dim = dim;
    out.shard_stride = stride;
    return out;
  };
  refuse({placed(Placement::replicated, 0, 1), param("bias", {4})}, {"parameter 1 'bias'", "no placement"}, 1, {}, tp);
  GridConfig ep;
  ep.ep = 2;
  refuse({param("w", {4})}, {"parameter 0 'w'", "no placement"}, 0, {}, ep);
  GridConfig etp;
  etp.expert_tp = 2;
  auto expert = param("w", {4});
  expert.expert = true;
  refuse({expert}, {"no placement"}, 0, {}, etp);
  refuse({placed(Placement::sharded, 2, 1)}, {"parameter 0 'w'", "dimension 2", "2 dimensions"}, 0, {}, tp);
  refuse({placed(Placement::sharded, -1, 1)}, {"dimension -1"}, 0, {}, tp);
  refuse({placed(Placement::sharded, 0, 0)}, {"shard_stride 0"}, 0, {}, tp);
  refuse({placed(Placement::sharded, 0, -3)}, {"shard_stride -3"}, 0, {}, tp);
  refuse({placed(Placement::sharded, 1, 3)}, {"shard_stride 3", "4 elements in dimension 1"}, 0, {}, tp);
  refuse({placed(Placement::replicated, 1, 1)}, {"shard_dim 1", "not placed as sharded"}, 0, {}, tp);
  refuse({placed(Placement::unset, 0, 2)}, {"shard_stride 2", "not placed as sharded"}, 0);
  plan_of(4, {}, {placed(Placement::sharded, 0, 3)}, tp);
  plan_of(4, {}, {placed(Placement::replicated, 0, 1)}, tp);
  plan_of(4, {}, {param("w", {4})});
  plan_of(4, {}, {param("w", {4})}, etp);  // dense: nothing to say
}

void refuses_bad_configs() {
  BufferConfig config;
  config.bucket_elements = 7;
  config.bucket_count = 2;
  refuse({param("w", {4})}, {"bucket_elements is 7", "bucket_count is 2"}, -1, config);
  config.bucket_elements = 0;
  config.reference_buckets = true;
  refuse({param("w", {4})}, {"bucket_count is 2"}, -1, config);
  config.bucket_count = 0;
  config.bucket_elements = UINT64_MAX;
  refuse({param("w", {4})}, {"bucket_elements is 18446744073709551615"}, -1, config);
}

std::vector<uint64_t> bucket_ends(const Plan& plan, size_t arena = 0) {
  std::vector<uint64_t> out;
  for (const BucketRange& bucket : plan.arenas[arena].layout.buckets) out.push_back(bucket.end);
  return out;
}

void sizes_buckets() {
  for (const auto& [dp, expected] : std::vector<std::pair<int, uint64_t>>{
           {1, 40000000}, {8, 40000000}, {40, 40000000}, {41, 41000000}, {64, 64000000}, {512, 512000000}}) {
    check_equal(reference_bucket_elements(dp), expected);
    BufferConfig reference;
    reference.reference_buckets = true;
    check_equal(plan_of(dp, reference, params_of({5})).arenas[0].bucket_elements, expected);
    check_equal(default_bucket_elements(UINT64_MAX, dp), expected, "default for the largest arena");
  }
  // The reference's threshold counts context-parallel ranks too, and is the dense one for experts.
  GridConfig cp;
  cp.cp = 2;
  BufferConfig config;
  config.reference_buckets = true;
  auto expert = param("e", {5});
  expert.expert = true;
  const Plan both = plan_of(120, config, {param("w", {5}), expert}, cp);
  check_equal(both.arenas[0].bucket_elements, 120000000U);
  check_equal(both.arenas[1].bucket_elements, 120000000U);

  config = {};
  config.bucket_count = 7;
  check_equal(plan_of(1, config, params_of(std::vector<int64_t>(1000, 1))).arenas[0].bucket_elements, 142U);
  config.bucket_count = UINT64_MAX;
  check_equal(plan_of(1, config, params_of({3, 5})).arenas[0].bucket_elements, 1U, "more buckets than elements");
  check_equal(plan_of(1, config, params_of({0, 0})).arenas[0].bucket_elements, 1U, "buckets of nothing");
  config.bucket_count = 2;  // of all elements, not of each arena's
  check_equal(plan_of(1, config, {param("a", {300}), param("b", {100}, DType::bf16)}).arenas[1].bucket_elements, 200U);

  config = {};
  config.no_overlap = true;
  config.bucket_elements = 10;
  check_equal(bucket_ends(plan_of(1, config, params_of({100, 200, 300}))), {768}, "ends without overlap");
  config.reference_buckets = true;
  config.bucket_elements = 0;
  check_equal(bucket_ends(plan_of(1, config, params_of({50000000, 50000000}))), {100000000}, "ends without overlap");
  config = {};
  config.bucket_elements = UINT64_MAX;
  check_equal(bucket_ends(plan_of(1, config, params_of({50000000, 50000000}))).size(), 1U);
  // By itself: one bucket if there is next to nothing to hide, six to ten otherwise.
  check_equal(bucket_ends(plan_of(4, {}, params_of({1000, 500, 300}))), {1920});
  for (int count = 10; count < 200; ++count) {
    const size_t buckets = bucket_ends(plan_of(2, {}, params_of(std::vector<int64_t>(static_cast<size_t>(count), 16384)))).size();
    check(buckets >= 6 && buckets <= 10, text(count, " equal parameters make ", buckets, " buckets"));
  }
}

void sorts_arenas() {
  auto expert = param("c", {30}, DType::bf16);
  expert.expert = true;
  auto frozen = param("d", {1000});
  frozen.frozen = true;
  const std::vector<ParamSpec> params = {param("a", {10}, DType::bf16), frozen, param("b", {20}), expert, param("e", {40}, DType::bf16)};
  for (const bool same : {false, true}) {
    BufferConfig config;
    config.grad_same_as_param = same;
    const Plan plan = plan_of(4, config, params);
    if (!check_equal(plan.arenas.size(), 3U, "arenas")) return;
    check_equal(plan.arenas[0].params, {0, 4});
    check_equal(plan.arenas[1].params, {2});
    check_equal(plan.arenas[2].params, {3});
    check(plan.arenas[0].param_type == DType::bf16 && plan.arenas[1].param_type == DType::f32, "parameter types");
    check(plan.arenas[0].grad_type == (same ? DType::bf16 : DType::f32) && plan.arenas[1].grad_type == DType::f32, "gradient types");
    check(!plan.arenas[0].expert && !plan.arenas[1].expert && plan.arenas[2].expert, "classes");
    // Slots speak of registration indices.
    check_equal(plan.arenas[0].layout.slots[0].param, 4U);
    check_equal(plan.arenas[0].layout.slots[1].param, 0U);
    check_equal(owned_ranges(plan.arenas[2].layout, 0)[0].param, 3U);
  }
  // Experts are sharded over their own ranks.
  GridConfig config;
  config.tp = 2;
  config.pp = 2;
  config.ep = 2;
  auto dense = param("w", {5});
  dense.placement = expert.placement = Placement::replicated;
  const Plan plan = plan_of(16, {}, {dense, expert}, config);
  check_equal(plan.arenas[0].shards, 4);
  check_equal(plan.arenas[1].shards, 2);
  check_equal(plan.shard(plan.arenas[0], 6), 3);   // of 0 2 4 6
  check_equal(plan.shard(plan.arenas[1], 14), 1);  // of 10 14
  check_equal(plan.shard(plan.arenas[1], 10), 0);
  BufferConfig plain;
  plain.sharding = Sharding::zero_0;
  const Plan whole = plan_of(16, plain, {dense, expert}, config);
  check_equal(whole.arenas[0].shards, 1);
  check_equal(whole.arenas[0].group_size, 4);
  check_equal(whole.shard(whole.arenas[0], 6), 0);
}

void counts_bytes() {
  struct Case {
    DType type;
    bool same;
    double whole, cut;  // bytes a parameter: whole + cut / d, and whole + cut with nothing sharded
  };
  // f16 gradients are reduced in place: 4 + 12/d, below the 4 + 16/d of a copy in f32.
  for (const Case& c : {Case{DType::bf16, false, 6, 12}, Case{DType::f16, true, 4, 12}, Case{DType::f32, false, 8, 8},
                        Case{DType::f16, false, 6, 12}, Case{DType::bf16, true, 4, 12}, Case{DType::f32, true, 8, 8}}) {
    for (const int d : {1, 2, 8, 16}) {
      for (const Sharding sharding : {Sharding::zero_0, Sharding::zero_1}) {
        BufferConfig config;
        config.grad_same_as_param = c.same;
        config.sharding = sharding;
        const Plan plan = plan_of(d, config, params_of({20480, 40960}, c.type));
        const MemoryPlan m = plan.memory(0);
        const double bytes = static_cast<double>(m.param + m.grad + m.grad_shard + m.master + m.state);
        const double expected = c.whole + c.cut / (sharding == Sharding::zero_1 ? d : 1);
        check(bytes == expected * 61440, text(name_of(c.type), " d ", d, ": ", bytes / 61440, " bytes a parameter, not ", expected));
        check_equal(m.average, m.state / 8 * (4 + size_of(c.type)), "an average, and what a swap keeps aside");
        check_equal(m.master == 0, c.type == DType::f32, "no master copy");
        check_equal(plan.padding_elements(), 0U);
        check_equal(plan.owned_elements(0), sharding == Sharding::zero_1 ? 61440U / static_cast<uint64_t>(d) : 61440U);
      }
    }
  }
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    Plan small = plan_of(8, {}, params_of({20480, 40960}, type));
    small.optimizer.bf16_state = small.optimizer.no_master = true;
    const MemoryPlan m = small.memory(0);
    check_equal(m.state, uint64_t{4} * 61440 / 8, "two bf16 moments");
    check_equal(m.master, type == DType::f16 ? uint64_t{4} * 61440 / 8 : 0, "masters of f16 alone");
  }
  const Plan plan = plan_of(4, {}, params_of({1000, 500, 300}, DType::bf16));
  check_equal(plan.padding_elements(), 120U);
  check_equal(plan.owned_elements(0), 460U);
  check_equal(plan.owned_elements(3), 392U);
}

// Of a device: each part's gradients, its gathers if they are sharded, and the norm's if no part is the whole world.
void counts_communicators() {
  const auto bytes = [](const GridConfig& grid, int world, Sharding sharding, bool experts) {
    BufferConfig config;
    config.sharding = sharding;
    auto first = param("a", {64}), second = param("b", {64});
    first.placement = second.placement = Placement::replicated;
    second.expert = experts;
    return plan_of(world, config, {first, second}, grid).memory(0).communicators;
  };
  constexpr uint64_t kOne = 154'140'672;
  check_equal(bytes({}, 1, Sharding::zero_1, false), 0U, "a rank alone");
  check_equal(bytes({}, 4, Sharding::zero_1, false), 2 * kOne, "gradients and gathers");
  check_equal(bytes({}, 4, Sharding::zero_0, false), kOne, "gradients alone");
  check_equal(bytes({.tp = 2}, 4, Sharding::zero_1, false), 3 * kOne, "and the norm's");
  check_equal(bytes({.tp = 4}, 4, Sharding::zero_1, false), kOne, "the norm's alone");
  check_equal(bytes({.ep = 2}, 4, Sharding::zero_1, true), 4 * kOne, "dense over the world, and experts");
  check_equal(bytes({}, 4, Sharding::zero_1, true), 2 * kOne, "experts that are where the dense are");
}

void orders_launches() {
  BufferConfig config;
  config.bucket_elements = 1;  // every parameter a bucket
  auto expert = param("c", {1});
  expert.expert = true;
  const Plan plan =
      plan_of(2, config, {param("a", {1}), param("b", {1}, DType::bf16), expert, param("d", {1}), param("e", {1}, DType::bf16)});
  std::vector<size_t> order;
  for (const BucketRef ref : plan.launch_order) {
    const Layout& layout = plan.arenas[ref.arena].layout;
    order.push_back(layout.slots[layout.buckets[ref.bucket].first_slot].param);
  }
  check_equal(order, {4, 3, 2, 1, 0}, "order of launches");
  // A bucket waits for its earliest-registered parameter.
  config.bucket_elements = UINT64_MAX;
  const Plan whole = plan_of(2, config, {param("a", {1}), param("b", {1}, DType::bf16), param("c", {1}, DType::bf16), param("d", {1})});
  check_equal(whole.launch_order.size(), 2U);
  check_equal(whole.launch_order[0].arena, 1U);
}

void compares_registrations() {
  const auto describe = [](const std::vector<ParamSpec>& params, BufferConfig config = {}, bool expert = false) {
    return describe_registration(plan_of(2, config, params), expert);
  };
  const auto base = describe({param("v", {2}), param("w", {4, 8})});
  check_equal(first_difference(base, base, 2), "");
  check_equal(first_difference(base, describe({param("v", {2}), param("w", {4, 9})}), 2),
              "parameter 1: 'w' f32[4,8] here, 'w' f32[4,9] on rank 2");
  check_equal(first_difference(base, describe({param("v", {2})}), 1), "parameter 1: 'w' f32[4,8] here, nothing on rank 1");
  check_equal(first_difference(describe({param("v", {2})}), base, 1), "parameter 1: nothing here, 'w' f32[4,8] on rank 1");
  check_equal(first_difference(base, describe({param("w", {4, 8}), param("v", {2})}), 3),
              "parameter 0: 'v' f32[2] here, 'w' f32[4,8] on rank 3");
  // Every property counts.
  const auto differs = [&](auto change) {
    auto changed = param("w", {4, 8});
    change(changed);
    const std::string difference = first_difference(base, describe({param("v", {2}), changed}), 1);
    check(difference.find("parameter 1: 'w' ") == 0, "difference is '" + difference + "'");
  };
  differs([](ParamSpec& p) { p.uses_per_step = 2; });
  differs([](ParamSpec& p) { p.group = 1; });
  differs([](ParamSpec& p) { p.frozen = true; });
  differs([](ParamSpec& p) { p.own_bucket = true; });
  differs([](ParamSpec& p) { p.use_order = -1; });
  differs([](ParamSpec& p) { p.sharding = Sharding::whole; });
  differs([](ParamSpec& p) { p.cost = 0.125; });
  differs([](ParamSpec& p) { p.placement = Placement::replicated; });
  differs([](ParamSpec& p) { p.placement = Placement::sharded; });
  const auto config_differs = [&](auto change, const std::string& word) {
    BufferConfig config;
    change(config);
    const std::string difference = first_difference(base, describe({param("v", {2}), param("w", {4, 8})}, config), 1);
    check(difference.find(word) == 0 && difference.find(" on rank 1") != std::string::npos, "difference is '" + difference + "'");
  };
  config_differs([](BufferConfig& c) { c.sharding = Sharding::zero_0; }, "sharding: zero_1 here, zero_0");
  config_differs([](BufferConfig& c) { c.sharding = Sharding::whole; }, "sharding: zero_1 here, whole");
  config_differs([](BufferConfig& c) { c.missing = MissingPolicy::skip; }, "missing gradients: error here, skip");
  config_differs([](BufferConfig& c) { c.grad_same_as_param = true; }, "gradient type: f32 here");
  config_differs([](BufferConfig& c) { c.high_bandwidth_padding = true; }, "high-bandwidth padding: off here");
  config_differs([](BufferConfig& c) { c.no_overlap = true; }, "overlap: on here");
  config_differs([](BufferConfig& c) { c.bucket_elements = 77; }, "bucket elements of f32 parameters: 8192 here, 77");

  // Ranks that share dense parameters may hold other experts; ranks that share experts must interleave them alike.
  auto expert = param("e", {7});
  expert.expert = true;
  const std::vector<ParamSpec> first = {expert, param("v", {2}), param("w", {4, 8})};
  const std::vector<ParamSpec> last = {param("v", {2}), param("w", {4, 8}), expert};
  check_equal(describe(first), base);
  check_equal(describe(last), base);
  check(first_difference(describe(first, {}, true), describe(last, {}, true), 1).find("parameter 0: 'e' f32[7] here") == 0, "interleaving");
  // Where lines are long, the part that differs is shown.
  const std::string stem(200, '\'');
  const std::string long_difference =
      first_difference(describe({param(stem + "one", std::vector<int64_t>(16, 1))}), describe({param(stem + "two", {})}), 1);
  check(long_difference.find("one' f32[") != std::string::npos && long_difference.find("two' f32[] on rank 1") != std::string::npos,
        "difference is '" + long_difference + "'");
  // Names cannot counterfeit lines.
  check(describe({param("a' f32[1]\nparameter 1: 'b", {1})}) != describe({param("a", {1}), param("b", {1})}), "counterfeit");
  check_equal(describe({param("v\n", {2})}).find("'v\\x0a' f32[2]") != std::string::npos, true, "escapes");
}

// The digests differ where the texts do, whatever comes behind.
void digests_registrations() {
  const auto digest = [](const std::vector<ParamSpec>& params) { return digest_registration(plan_of(2, {}, params)); };
  auto expert = param("e", {7});
  expert.expert = true;
  const auto base = digest({param("v", {2}), expert, param("w", {4, 8})});
  check(base == digest({param("v", {2}), expert, param("w", {4, 8})}), "the same");
  const auto other = digest({param("v", {3}), expert, param("w", {4, 8})});
  check(base[0] != other[0] && base[1] == other[1], "another dense parameter");
  const auto moved = digest({expert, param("v", {2}), param("w", {4, 8})});
  check(base[0] == moved[0] && base[1] != moved[1], "an expert elsewhere");
}

// Of many names each is found, and one that comes twice is refused, wherever the two are.
void finds_names() {
  std::vector<ParamSpec> params;
  for (size_t i = 0; i < 3000; ++i) params.push_back(param(text("p", i), {1}));
  const Plan plan = plan_of(2, {}, params);
  size_t wrong = 0;
  for (size_t i = 0; i < params.size(); ++i) wrong += plan.find(params[i].name) != i;
  check_equal(wrong, 0U, "names not found");
  check(!plan.find("p3000") && !plan.find(""), "a name that is not there");
  for (size_t i = 0; i < params.size(); i += 100) {
    std::vector<ParamSpec> twice = params;
    twice.push_back(params[i]);
    refuse(twice, {"parameter 3000", text("same name as parameter ", i)}, 3000);
  }
}

// Strange text from another rank is only ever a difference.
void compares_anything() {
  const std::string mine = *rc::gen::string<std::string>(), theirs = *rc::gen::string<std::string>();
  const std::string difference = first_difference(mine, theirs, 1);
  if (mine == theirs) RC_ASSERT(difference.empty());
  RC_ASSERT(difference.find('\n') == std::string::npos);
}

Plan any_plan() {
  GridConfig grid;
  grid.tp = *rc::gen::inRange(1, 3);
  grid.cp = *rc::gen::inRange(1, 3);
  grid.ep = *rc::gen::inRange(1, 3);
  grid.pp = *rc::gen::inRange(1, 3);
  const int world = 8 * grid.pp * *rc::gen::inRange(1, 4);
  BufferConfig config;
  config.grad_same_as_param = *rc::gen::arbitrary<bool>();
  config.sharding = *rc::gen::element(Sharding::zero_0, Sharding::zero_1, Sharding::zero_2);
  config.bucket_elements = *rc::gen::oneOf(rc::gen::inRange<uint64_t>(0, 2000), rc::gen::just(UINT64_MAX));
  config.no_overlap = *rc::gen::inRange(0, 10) == 0;
  std::vector<ParamSpec> params = {param("first", {7})};
  const int count = *rc::gen::inRange(0, 30);
  for (int i = 0; i < count; ++i) {
    ParamSpec next = param(text("p", i), {*rc::gen::inRange(0, 30), *rc::gen::inRange(0, 30)});
    next.dtype = *rc::gen::element(DType::f32, DType::bf16, DType::f16);
    next.expert = *rc::gen::arbitrary<bool>();
    next.frozen = *rc::gen::inRange(0, 8) == 0;
    next.own_bucket = *rc::gen::inRange(0, 8) == 0;
    params.push_back(next);
  }
  for (ParamSpec& each : params) each.placement = Placement::replicated;
  return plan_of(world, config, std::move(params), grid);
}

void plans_are_whole() {
  const Plan plan = any_plan();
  std::set<size_t> placed;
  size_t buckets = 0;
  uint64_t elements = 0;
  for (const ArenaPlan& arena : plan.arenas) {
    buckets += arena.layout.buckets.size();
    size_t before = SIZE_MAX;
    for (const Slot& slot : arena.layout.slots) {
      const ParamSpec& spec = plan.params[slot.param];
      RC_ASSERT(spec.dtype == arena.param_type);
      RC_ASSERT(spec.expert == arena.expert);
      RC_ASSERT(!spec.frozen);
      RC_ASSERT(slot.end - slot.begin == spec.numel);
      RC_ASSERT(slot.param < before);  // reverse registration
      before = slot.param;
      RC_ASSERT(placed.insert(slot.param).second);
      elements += spec.numel;
    }
  }
  for (size_t i = 0; i < plan.params.size(); ++i) RC_ASSERT(placed.count(i) == (plan.params[i].frozen ? 0U : 1U));
  // Every bucket is launched once; no bucket before one whose earliest parameter was registered later, but without overlap all dense ones
  // before the experts'.
  std::set<std::pair<uint32_t, uint32_t>> launched;
  size_t before = SIZE_MAX;
  bool experts = false;
  for (const BucketRef ref : plan.launch_order) {
    if (plan.config.no_overlap && plan.arenas[ref.arena].expert != experts) {
      RC_ASSERT(!experts);
      experts = true;
      before = SIZE_MAX;
    }
    size_t earliest = SIZE_MAX;
    for (const Slot& slot : plan.arenas[ref.arena].layout.slots)
      if (slot.bucket == ref.bucket) earliest = std::min(earliest, slot.param);
    RC_ASSERT(earliest < before);
    before = earliest;
    RC_ASSERT(launched.emplace(ref.arena, ref.bucket).second);
  }
  RC_ASSERT(launched.size() == buckets);
  // The ranks of a group own everything between them: counted over the world, each arena as often as it has groups.
  uint64_t owned = 0, expected = 0;
  for (int rank = 0; rank < plan.grid.world(); ++rank) owned += plan.owned_elements(rank);
  for (const ArenaPlan& arena : plan.arenas) {
    const int groups = plan.grid.world() / plan.grid.size(Grid::replica_axes(arena.expert));
    uint64_t sum = 0;
    for (const Slot& slot : arena.layout.slots) sum += slot.end - slot.begin;
    expected += sum * static_cast<uint64_t>(groups) * static_cast<uint64_t>(arena.group_size / arena.shards);
  }
  RC_ASSERT(owned == expected);
  uint64_t whole = 0;
  for (const ArenaPlan& arena : plan.arenas) whole += arena.layout.numel;
  RC_ASSERT(plan.padding_elements() == whole - elements);
}

// Parameters that are used in another order than they are registered in lie and go as the same ones registered in that order; only their
// numbers differ.
void use_order_renames() {
  Plan given = any_plan();
  std::vector<ParamSpec> params = given.params;
  const int32_t span = *rc::gen::element(1, 3, 100), least = *rc::gen::element(0, -50, INT32_MIN, INT32_MAX - 100);
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].use_order = least + *rc::gen::inRange<int32_t>(0, span);
    if (!params[i].frozen && *rc::gen::inRange(0, 8) == 0) params[i].tie = text("tie", i);
  }
  std::vector<size_t> used(params.size());  // by place in the forward pass: the index at registration
  std::iota(used.begin(), used.end(), size_t{0});
  std::stable_sort(used.begin(), used.end(), [&](size_t a, size_t b) { return params[a].use_order < params[b].use_order; });
  std::vector<ParamSpec> in_order;
  for (const size_t i : used) in_order.push_back(params[i]);
  for (ParamSpec& each : in_order) each.use_order = 0;
  const Plan plan = plan_of(given.grid.world(), given.config, params, given.grid.config());
  const Plan other = plan_of(given.grid.world(), given.config, in_order, given.grid.config());

  const auto key = [](const ArenaPlan& arena) { return std::tuple(arena.param_type, arena.grad_type, arena.expert); };
  RC_ASSERT(plan.arenas.size() == other.arenas.size());
  size_t first_before = 0;
  for (const ArenaPlan& arena : plan.arenas) {
    RC_ASSERT(std::is_sorted(arena.params.begin(), arena.params.end()));  // and arenas in order of first registration
    RC_ASSERT(arena.params.front() >= first_before);
    first_before = arena.params.front();
    const auto twin = std::find_if(other.arenas.begin(), other.arenas.end(), [&](const ArenaPlan& one) { return key(one) == key(arena); });
    RC_ASSERT(twin != other.arenas.end());
    RC_ASSERT(arena.bucket_elements == twin->bucket_elements);
    RC_ASSERT(std::tuple(arena.pool_slots, arena.slot_elements, arena.wide_slots, arena.wide_elements) ==
              std::tuple(twin->pool_slots, twin->slot_elements, twin->wide_slots, twin->wide_elements));
    RC_ASSERT(arena.layout.numel == twin->layout.numel);
    RC_ASSERT(arena.layout.slots.size() == twin->layout.slots.size());
    for (size_t i = 0; i < arena.layout.slots.size(); ++i) {
      const Slot &here = arena.layout.slots[i], &there = twin->layout.slots[i];
      RC_ASSERT(here.param == used[there.param]);
      RC_ASSERT(std::tuple(here.begin, here.end, here.bucket) == std::tuple(there.begin, there.end, there.bucket));
    }
    for (int shard = 0; shard < arena.shards; ++shard) {
      const auto here = owned_ranges(arena.layout, shard), there = owned_ranges(twin->layout, shard);
      RC_ASSERT(here.size() == there.size());
      for (size_t i = 0; i < here.size(); ++i) {
        RC_ASSERT(here[i].param == used[there[i].param]);
        RC_ASSERT(std::tuple(here[i].bucket, here[i].begin, here[i].end, here[i].param_begin, here[i].at) ==
                  std::tuple(there[i].bucket, there[i].begin, there[i].end, there[i].param_begin, there[i].at));
      }
    }
  }
  RC_ASSERT(plan.launch_order.size() == other.launch_order.size());
  for (size_t i = 0; i < plan.launch_order.size(); ++i) {
    const BucketRef here = plan.launch_order[i], there = other.launch_order[i];
    RC_ASSERT(here.bucket == there.bucket);
    RC_ASSERT(key(plan.arenas[here.arena]) == key(other.arenas[there.arena]));
  }
  RC_ASSERT(plan.memory(0).scratch == other.memory(0).scratch);
  RC_CLASSIFY(!std::is_sorted(used.begin(), used.end()), "in another order");
}

void json_agrees() {
  const Plan plan = any_plan();
  const std::string line = plan_json(plan);
  RC_ASSERT(line.find('\n') == std::string::npos);
  const Json json = Json::parse(line);
  RC_ASSERT(json["dp"] == plan.grid.size(kDp));
  RC_ASSERT(json["arenas"].size() == plan.arenas.size());
  for (size_t a = 0; a < plan.arenas.size(); ++a) {
    const ArenaPlan& arena = plan.arenas[a];
    const Json& told = json["arenas"][a];
    RC_ASSERT(told["param_dtype"] == name_of(arena.param_type));
    RC_ASSERT(told["grad_dtype"] == name_of(arena.grad_type));
    RC_ASSERT(told["numel"] == arena.layout.numel);
    RC_ASSERT(told.value("expert", false) == arena.expert);
    Json params = Json::array(), buckets = Json::array();
    for (const Slot& s : arena.layout.slots)
      params.push_back({{"index", s.param}, {"begin", s.begin}, {"end", s.end}, {"bucket", s.bucket}});
    for (const BucketRange& b : arena.layout.buckets) buckets.push_back({{"begin", b.begin}, {"end", b.end}, {"unpadded", b.unpadded}});
    RC_ASSERT(told["params"] == params);
    RC_ASSERT(told["buckets"] == buckets);
    RC_ASSERT(told["owned"].size() == static_cast<size_t>(arena.shards));
    for (int shard = 0; shard < arena.shards; ++shard) {
      Json owned = Json::array();
      for (const OwnedRange& r : owned_ranges(arena.layout, shard))
        owned.push_back({{"param", r.param}, {"begin", r.begin}, {"end", r.end}, {"param_begin", r.param_begin}});
      RC_ASSERT(told["owned"][static_cast<size_t>(shard)] == owned);
    }
  }
  RC_ASSERT(json["bytes"].size() == static_cast<size_t>(plan.grid.size(kDp | kCp)));
  for (size_t i = 0; i < json["bytes"].size(); ++i) {
    const MemoryPlan m = plan.memory(0);
    RC_ASSERT(json["bytes"][i] == Json({{"param", m.param},
                                        {"grad", m.grad},
                                        {"grad_shard", m.grad_shard},
                                        {"spill", m.spill},
                                        {"feedback", m.feedback},
                                        {"master", m.master},
                                        {"state", m.state},
                                        {"scratch", m.scratch},
                                        {"communicators", m.communicators},
                                        {"snapshot", m.snapshot},
                                        {"average", m.average}}));
  }
}

// Whatever is registered is a plan or a sentence that names what is wrong with it; nothing overflows, nothing crashes.
void survives_anything() {
  const bool wild = *rc::gen::arbitrary<bool>();  // otherwise only unusual, and mostly in order
  const auto size = wild ? rc::gen::oneOf(rc::gen::inRange<int64_t>(-1, 9), rc::gen::arbitrary<int64_t>(),
                                          rc::gen::element<int64_t>(INT64_MIN, INT64_MAX, int64_t{1} << 62, int64_t{1} << 55, 0))
                         : rc::gen::element<int64_t>(0, 1, 7, 1000, int64_t{1} << 20);
  const auto number = rc::gen::oneOf(rc::gen::inRange(0, 4), rc::gen::inRange(-3, 6), rc::gen::element(INT32_MIN, INT32_MAX));
  const auto bucket = rc::gen::oneOf(rc::gen::just<uint64_t>(0), rc::gen::arbitrary<uint64_t>(), rc::gen::element<uint64_t>(1, UINT64_MAX));
  std::vector<ParamSpec> params(*rc::gen::inRange<size_t>(0, 6));
  for (size_t i = 0; i < params.size(); ++i) {
    ParamSpec& each = params[i];
    each.name = wild && *rc::gen::inRange(0, 4) == 0 ? *rc::gen::string<std::string>() : text("p", i);
    for (int d = *rc::gen::inRange(0, 3); d > 0; --d) each.shape.push_back(*size);
    if (wild && *rc::gen::inRange(0, 30) == 0) each.shape.resize(17, 1);
    each.numel = *rc::gen::arbitrary<uint64_t>();  // of no account
    each.expert = *rc::gen::arbitrary<bool>();
    each.own_bucket = *rc::gen::arbitrary<bool>();
    if (wild && *rc::gen::inRange(0, 3) == 0) {
      each.placement = *rc::gen::element(Placement::unset, Placement::replicated, Placement::sharded);
      each.shard_dim = *number;
      each.shard_stride = *number;
      each.uses_per_step = *number;
      each.group = *number;
    }
  }
  BufferConfig config;
  config.bucket_elements = *bucket;
  config.bucket_count = wild || config.bucket_elements == 0 ? *bucket : 0;
  config.high_bandwidth_padding = *rc::gen::arbitrary<bool>();
  config.sharding = *rc::gen::element(Sharding::zero_0, Sharding::zero_1, Sharding::zero_2, Sharding::whole);
  for (ParamSpec& each : params) {
    if (*rc::gen::inRange(0, 3) == 0) each.sharding = *rc::gen::element(Sharding::zero_1, Sharding::whole, config.sharding);
    if (*rc::gen::inRange(0, 3) == 0) each.cost = *rc::gen::element(0.0, 1e-300, 5.0, 1e30);
  }
  const size_t count = params.size();
  const auto plan = make_plan(grid_of(*rc::gen::element(1, 2, 3, 97, kMaxWorld)), config, std::move(params));
  RC_CLASSIFY(plan.ok(), "laid out");
  if (!plan) {
    RC_ASSERT(plan.status().code() == Code::invalid);
    RC_ASSERT(!plan.status().text().empty());
    RC_ASSERT(plan.status().blame().param < static_cast<int64_t>(count));
    return;
  }
  uint64_t elements = 0, end = 0;
  for (const ParamSpec& each : plan->params) elements += each.numel;
  for (const ArenaPlan& arena : plan->arenas) end += arena.layout.numel;
  RC_ASSERT(end <= kMaxElements);
  RC_ASSERT(plan->padding_elements() == end - elements);
  RC_ASSERT(plan->memory(0).state <= 8 * kMaxElements);
}

// The costliest goes to the shard that has least; so the fullest has no more than an even share and one parameter. What is tied goes by its
// tie, whatever else there is.
void balances_owners() {
  BufferConfig config;
  config.sharding = Sharding::whole;
  config.bucket_elements = *rc::gen::element<uint64_t>(1, 500, UINT64_MAX);
  GridConfig cut;
  cut.pp = *rc::gen::element(1, 2);
  const int shards = *rc::gen::inRange(1, 9);
  std::vector<ParamSpec> params = params_of(*rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 400)));
  for (ParamSpec& each : params) {
    if (*rc::gen::inRange(0, 4) == 0) each.dtype = DType::bf16;
    if (*rc::gen::inRange(0, 4) == 0) each.cost = *rc::gen::inRange(1, 1000);
    if (*rc::gen::inRange(0, 5) == 0) each.sharding = Sharding::zero_1;
  }
  ParamSpec tied = param("tied", {*rc::gen::inRange<int64_t>(1, 300)});
  tied.tie = "embedding";
  params.push_back(tied);
  const Plan plan = plan_of(shards * cut.pp, config, params, cut), alone = plan_of(shards * cut.pp, config, {tied}, cut);
  std::vector<double> load(static_cast<size_t>(shards));
  double largest = 0, sum = 0;
  for (const ArenaPlan& arena : plan.arenas) {
    RC_ASSERT(arena.is_whole() == arena.layout.whole);
    for (const Slot& slot : arena.layout.slots) {
      const ParamSpec& spec = plan.params[slot.param];
      RC_ASSERT(arena.is_whole() == (spec.sharding != Sharding::zero_1));
      if (plan.is_tied(slot.param)) RC_ASSERT(slot.owner == alone.arenas[0].layout.slots[0].owner);
      if (!arena.is_whole()) continue;
      const double cost = spec.cost > 0 ? spec.cost : static_cast<double>(spec.numel);
      load[slot.owner] += cost;
      largest = std::max(largest, cost);
      sum += cost;
    }
  }
  RC_ASSERT(*std::max_element(load.begin(), load.end()) <= sum / shards + largest);
  // What each rank keeps adds up to all.
  uint64_t state = 0, elements = 0;
  for (int rank = 0; rank < shards; ++rank) state += plan.memory(rank).state;
  for (const ArenaPlan& arena : plan.arenas) elements += arena.layout.numel;
  RC_ASSERT(state == elements * 8);
}

void writes_the_documented_line() {
  const std::string line = plan_json(plan_of(4, {}, params_of({1000, 500, 300}, DType::bf16)));
  const std::string start =
      R"({"dp":4,"arenas":[{"param_dtype":"bf16","grad_dtype":"f32","numel":1920,"params":[{"index":2,"begin":0,"end":300,"bucket":0},)"
      R"({"index":1,"begin":320,"end":820,"bucket":0},{"index":0,"begin":832,"end":1832,"bucket":0}],)"
      R"("buckets":[{"begin":0,"end":1920,"unpadded":1832}],)"
      R"("owned":[[{"param":2,"begin":0,"end":300,"param_begin":0},{"param":1,"begin":320,"end":480,"param_begin":0}],)";
  check_equal(line.substr(0, start.size()), start);
  const std::string bytes =
      R"("bytes":[{"param":3840,"grad":7680,"grad_shard":0,"spill":0,"feedback":0,"master":1920,"state":3840,"scratch":)";
  check(line.find(bytes) != std::string::npos, "bytes are missing in " + line);
}

// Thousands of ranks: the cost is that of what is written.
void plans_for_many_ranks() {
  const Plan plan = plan_of(4096, {}, params_of(std::vector<int64_t>(500, 12345)));
  const Json json = Json::parse(plan_json(plan));
  check_equal(json["arenas"][0]["owned"].size(), 4096U);
  check_equal(json["bytes"].size(), 4096U);
}

}  // namespace

int main() {
  set_property_runs(500);
  refuses_bad_params();
  refuses_huge_params();
  counts_elements();
  refuses_bad_placements();
  refuses_bad_configs();
  sizes_buckets();
  sorts_arenas();
  counts_bytes();
  counts_communicators();
  orders_launches();
  compares_registrations();
  digests_registrations();
  finds_names();
  writes_the_documented_line();
  plans_for_many_ranks();
  check(rc::check("plans are whole", plans_are_whole), "whole");
  check(rc::check("owners are balanced", balances_owners), "owners");
  check(rc::check("another order of use is another order of registration", use_order_renames), "order of use");
  check(rc::check("JSON says what the plan says", json_agrees), "json");
  check(rc::check("anything may be registered", survives_anything), "registered");
  check(rc::check("anything may come from another rank", compares_anything), "anything");
  return finish();
}
