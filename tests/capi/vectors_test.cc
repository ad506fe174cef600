// SPDX-License-Identifier: Apache-2.0
// Runs the acceptance vectors of tests/vectors.json through the public API: plans and groups, which need no communicator. The vectors that
// need several ranks are run by tests/multi; here it is only checked that they are there and whole.
//   vectors_test PATH/vectors.json
#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "megadp.h"

namespace {

using Json = nlohmann::json;

// Counted by hand from the specification: vectors 1-22, 24, 29, 30, 34-38, and their cases.
constexpr size_t kVectors = 30, kCases = 85;

int failures = 0, checks = 0;
std::string now;  // the vector and case being run

void check(bool good, const std::string& what) {
  ++checks;
  if (good) return;
  ++failures;
  std::cerr << now << ": " << what << "\n";
}

void same(const Json& got, const Json& expected, const std::string& what) {
  check(got == expected, what + " is " + got.dump() + ", not " + expected.dump());
}

struct Params {
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  std::vector<mdp_param> items;
};

Params params_of(const std::vector<int64_t>& sizes) {
  Params out;
  out.sizes = sizes;
  for (size_t i = 0; i < sizes.size(); ++i) out.names.push_back(std::string("p").append(std::to_string(i)));
  for (size_t i = 0; i < sizes.size(); ++i) {
    mdp_param param = {};
    param.struct_size = sizeof param;
    param.name = out.names[i].c_str();
    param.shape = &out.sizes[i];
    param.ndim = 1;
    out.items.push_back(param);
  }
  return out;
}

uint32_t dtype_of(const std::string& name) {
  const std::map<std::string, uint32_t> names = {
      {"f32", MDP_DTYPE_F32}, {"bf16", MDP_DTYPE_BF16}, {"f16", MDP_DTYPE_F16}, {"same", MDP_DTYPE_SAME}};
  return names.at(name);
}

mdp_buffer_config config_of(const Json& given) {
  mdp_buffer_config config = {};
  config.struct_size = sizeof config;
  if (given.value("plain", false)) config.sharding = MDP_SHARDING_ZERO_0;
  if (given.value("sharding", "") == "zero_2") config.sharding = MDP_SHARDING_ZERO_2;
  if (given.value("high_bandwidth", false)) config.flags |= MDP_BUFFER_HIGH_BANDWIDTH_PADDING;
  if (given.value("no_overlap", false)) config.flags |= MDP_BUFFER_NO_OVERLAP;
  config.bucket_count = given.value("bucket_count", uint64_t{0});
  const Json size = given.contains("bucket_elements") ? given["bucket_elements"] : Json(0);
  if (size == "all") config.bucket_elements = UINT64_MAX;
  if (size == "reference") config.flags |= MDP_BUFFER_REFERENCE_BUCKETS;
  if (size.is_number()) config.bucket_elements = size.get<uint64_t>();
  return config;
}

// A grid of the sizes that a vector gives; `order` must outlive it.
mdp_grid_config grid_of(const Json& given, const std::string& order) {
  mdp_grid_config grid = {};
  grid.struct_size = sizeof grid;
  grid.tp = given.value("tp", 0);
  grid.cp = given.value("cp", 0);
  grid.ep = given.value("ep", 0);
  grid.pp = given.value("pp", 0);
  grid.expert_tp = given.value("expert_tp", 0);
  grid.instances = given.value("instances", 0);
  grid.order = order.empty() ? nullptr : order.c_str();
  return grid;
}

// The two-call protocol of functions that answer in JSON.
Json ask(const std::function<mdp_status(char*, size_t, size_t*)>& call) {
  size_t needed = 0;
  call(nullptr, 0, &needed);
  std::string text(needed, '\0');
  const mdp_status status = call(text.data(), text.size(), &needed);
  check(status == MDP_OK, std::string(mdp_status_name(status)) + ": " + mdp_last_error());
  if (status != MDP_OK) return {};
  check(needed == text.size() && text.back() == '\0', "needed counts the text and its end");
  text.pop_back();
  return Json::parse(text);
}

Json ask_plan(const mdp_buffer_config& config, int32_t dp, const Params& params) {
  return ask([&](char* json, size_t capacity, size_t* needed) {
    return mdp_plan_json(nullptr, dp, &config, params.items.data(), params.items.size(), nullptr, json, capacity, needed);
  });
}

// ── Layouts ──

struct Owner {
  const Json& arena;
  int64_t dp;

  int64_t begin_of(int64_t bucket) const { return arena["buckets"][static_cast<size_t>(bucket)]["begin"]; }
  int64_t piece_of(int64_t bucket) const {
    return (arena["buckets"][static_cast<size_t>(bucket)]["end"].get<int64_t>() - begin_of(bucket)) / dp;
  }
  int64_t bucket_at(int64_t element) const {
    int64_t bucket = 0;
    while (arena["buckets"][static_cast<size_t>(bucket)]["end"] <= element) ++bucket;
    return bucket;
  }
  // One owned range, said in all the ways that the vectors say it.
  Json describe(const Json& range, int64_t rank) const {
    const int64_t begin = range["begin"], end = range["end"], first = range["param_begin"], bucket = bucket_at(begin);
    const int64_t bucket_begin = begin_of(bucket), piece_begin = bucket_begin + piece_of(bucket) * rank;
    return {{"param", range["param"]},
            {"range", {first, first + end - begin}},
            {"buffer", {begin, end}},
            {"bucket_relative", {begin - bucket_begin, end - bucket_begin}},
            {"local", {begin - piece_begin, end - piece_begin}},
            {"bucket", bucket}};
  }
};

void check_owned(const Json& got, const Json& expected, const std::string& who) {
  check(got.size() == expected.size(), who + " owns " + got.dump() + ", not " + expected.dump());
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i)
    for (const auto& [key, value] : expected[i].items()) same(got[i][key], value, who + ", range " + std::to_string(i) + ", " + key);
}

void check_ownership(const Json& expect, const Owner& owner) {
  const Json& owned = owner.arena["owned"];
  const auto all_of = [&](size_t rank, int64_t bucket) {
    Json out = Json::array();
    for (const Json& range : owned[rank]) {
      const Json described = owner.describe(range, static_cast<int64_t>(rank));
      if (bucket < 0 || described["bucket"] == bucket) out.push_back(described);
    }
    return out;
  };
  const Json whole_ranks = expect.value("owned", Json::object()), buckets_of = expect.value("owned_in_bucket", Json::object());
  for (const auto& [rank, ranges] : whole_ranks.items()) check_owned(all_of(std::stoul(rank), -1), ranges, "rank " + rank);
  for (const auto& [rank, buckets] : buckets_of.items())
    for (const auto& [bucket, ranges] : buckets.items())
      check_owned(all_of(std::stoul(rank), std::stol(bucket)), ranges, "rank " + rank + " in bucket " + bucket);
  if (expect.contains("owns_everything")) {
    const size_t rank = expect["owns_everything"];
    Json whole = Json::array();
    for (const Json& param : owner.arena["params"])
      whole.push_back({{"param", param["index"]}, {"buffer", {param["begin"], param["end"]}}});
    check_owned(all_of(rank, -1), whole, "rank " + std::to_string(rank));
  }
  const Json content_end = expect.value("content_end", Json::object());
  for (size_t rank = 0; rank < owned.size(); ++rank) {
    for (const Json& range : all_of(rank, -1)) {
      check(range["param"] != expect.value("nobody_owns", -1), "rank " + std::to_string(rank) + " owns " + range.dump());
      const std::string bucket = std::to_string(range["bucket"].get<int64_t>());
      if (!content_end.contains(bucket)) continue;
      check(range["buffer"][1] <= content_end[bucket], range.dump() + " lies past the content of its bucket");
    }
  }
}

// Vector 16, which holds for every layout: pieces tile buckets, everything is owned once, all is aligned.
void check_invariants(const Json& arena, const std::vector<int64_t>& sizes, int64_t dp, bool plain) {
  int64_t end = 0;
  for (const Json& bucket : arena["buckets"]) {
    check(bucket["begin"] == end, "buckets do not tile the buffer");
    end = bucket["end"];
    check(plain || (end % dp == 0 && end % 128 == 0), "bucket end " + std::to_string(end) + " is not aligned");
    check((end - bucket["begin"].get<int64_t>()) % dp == 0, "the bucket ending at " + std::to_string(end) + " has no equal pieces");
  }
  same(arena["numel"], end, "numel");
  for (const Json& param : arena["params"]) {
    check(plain || param["begin"].get<int64_t>() % 64 == 0, "a parameter starts at " + param["begin"].dump());
    same(param["end"].get<int64_t>() - param["begin"].get<int64_t>(), sizes[param["index"]], "length of a parameter");
  }
  same(arena["params"].size(), sizes.size(), "number of parameters");
  same(arena["owned"].size(), dp, "number of shards");
  std::vector<std::vector<int>> owners;
  for (const int64_t size : sizes) owners.emplace_back(static_cast<size_t>(size));
  const Owner owner{arena, dp};
  for (size_t rank = 0; rank < arena["owned"].size(); ++rank) {
    for (const Json& range : arena["owned"][rank]) {
      const Json described = owner.describe(range, static_cast<int64_t>(rank));
      const int64_t piece = owner.piece_of(described["bucket"]);
      check(described["local"][0] >= 0 && described["local"][1] <= piece, "rank " + std::to_string(rank) + " owns outside its piece");
      for (int64_t i = described["range"][0]; i < described["range"][1]; ++i) ++owners[range["param"]].at(static_cast<size_t>(i));
    }
  }
  for (const auto& counts : owners) check(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; }), "not owned once");
}

void run_layout(const Json& given) {
  const std::vector<int64_t> sizes = given["sizes"];
  const int32_t dp = given["dp"];
  Params params = params_of(sizes);
  for (const size_t index : given.value("own_bucket", std::vector<size_t>{})) params.items[index].flags |= MDP_PARAM_OWN_BUCKET;
  const Json plan = ask_plan(config_of(given), dp, params);
  same(plan["dp"], dp, "dp");
  same(plan["bytes"].size(), dp, "number of ranks in bytes");
  if (!plan.contains("arenas") || plan["arenas"].size() != 1) return check(false, "there is not one arena in " + plan.dump());
  const Json& arena = plan["arenas"][0];
  const Json& expect = given["expect"];
  for (const Json& param : arena["params"]) {
    const std::string index = std::to_string(param["index"].get<int>());
    if (expect.contains("params") && expect["params"].contains(index))
      same({param["begin"], param["end"]}, expect["params"][index], "range of parameter " + index);
    if (expect.contains("bucket_of") && expect["bucket_of"].contains(index))
      same(param["bucket"], expect["bucket_of"][index], "bucket of parameter " + index);
  }
  const Owner owner{arena, given.value("plain", false) ? 1 : dp};
  Json ranges = Json::array(), unpadded = Json::array(), pieces = Json::array();
  for (const Json& bucket : arena["buckets"]) {
    pieces.push_back(owner.piece_of(static_cast<int64_t>(ranges.size())));
    ranges.push_back({bucket["begin"], bucket["end"]});
    unpadded.push_back(bucket["unpadded"]);
  }
  const std::map<std::string, Json> got = {
      {"buckets", ranges}, {"unpadded", unpadded}, {"piece", pieces}, {"first_bucket", ranges.empty() ? Json() : ranges[0]}};
  for (const auto& [key, value] : got)
    if (expect.contains(key)) same(value, expect[key], key);
  check_ownership(expect, owner);
  check_invariants(arena, sizes, owner.dp, given.value("plain", false));
}

void run_invariants(const Json& given) {
  std::mt19937 random(16);
  const auto below = [&](uint32_t limit) { return random() % limit; };
  for (int i = 0; i < given["random_layouts"]; ++i) {
    std::vector<int64_t> sizes(1 + below(20));
    for (int64_t& size : sizes) size = below(3) == 0 ? 64 * below(8) : below(700);
    const int32_t dp = 1 + static_cast<int32_t>(below(13));
    Params params = params_of(sizes);
    for (mdp_param& param : params.items) param.flags = below(5) == 0 ? MDP_PARAM_OWN_BUCKET : 0;
    mdp_buffer_config config = config_of(Json::object());
    config.bucket_elements = below(3) == 0 ? UINT64_MAX : 1 + below(1500);
    const Json plan = ask_plan(config, dp, params);
    if (plan.contains("arenas")) check_invariants(plan["arenas"].at(0), sizes, dp, false);
  }
}

// ── Bucket sizes, buffers, bytes ──

// The threshold cannot be read from a plan, but seen: one element less does not close a bucket.
void run_threshold(const Json& given) {
  const int32_t dp = given["dp"];
  Json plain = given;
  plain["plain"] = true;
  const mdp_buffer_config config = config_of(plain);
  if (given["expect"] == "one bucket") {
    const Json plan = ask_plan(config, dp, params_of({50000000, 50000000, 50000000}));
    return same(plan["arenas"][0]["buckets"].size(), 1, "number of buckets");
  }
  const int64_t expected = given["expect"];
  // Parameters are placed from the last to the first.
  std::vector<int64_t> sizes = {1, 1, expected - 1};
  if (given.contains("elements")) sizes = std::vector<int64_t>(given["elements"], 1);
  const Json plan = ask_plan(config, dp, params_of(sizes));
  same(plan["arenas"][0]["buckets"][0]["end"], expected, "end of the first bucket");
}

void run_buffers(const Json& given) {
  const Json& described = given["params"];
  Params params = params_of(std::vector<int64_t>(described.size(), 100));
  for (size_t i = 0; i < described.size(); ++i) {
    params.items[i].dtype = dtype_of(described[i]["dtype"]);
    if (described[i].value("expert", false)) params.items[i].param_class = MDP_PARAM_CLASS_EXPERT;
    if (described[i].value("frozen", false)) params.items[i].flags |= MDP_PARAM_FROZEN;
  }
  mdp_buffer_config config = config_of(given);
  config.grad_dtype = dtype_of(given["grad_dtype"]);
  const Json plan = ask_plan(config, 1, params);
  Json got = Json::array();
  for (const Json& arena : plan["arenas"]) {
    std::vector<int64_t> members;
    for (const Json& param : arena["params"]) members.push_back(param["index"]);
    std::sort(members.begin(), members.end());
    std::vector<size_t> indices;
    for (size_t i = 0; i < members.size(); ++i) indices.push_back(i);
    got.push_back({{"param_dtype", arena["param_dtype"]},
                   {"grad_dtype", arena["grad_dtype"]},
                   {"expert", arena.value("expert", false)},
                   {"members", members},
                   {"indices", indices}});
  }
  same(got, given["expect"], "buffers");
}

void run_bytes(const Json& given) {
  const int32_t dp = given["dp"];
  const int64_t elements = 128 * dp * 10;  // nothing is padded
  Params params = params_of({elements});
  params.items[0].dtype = dtype_of(given["param_dtype"]);
  mdp_buffer_config config = config_of(given);
  if (given["grad_dtype"] == given["param_dtype"]) config.grad_dtype = MDP_DTYPE_SAME;
  for (int32_t rank = 0; rank < dp; ++rank) {
    mdp_plan_report report = {};
    report.struct_size = sizeof report;
    const mdp_status status = mdp_plan(nullptr, dp, rank, &config, params.items.data(), 1, nullptr, &report);
    check(status == MDP_OK, mdp_last_error());
    same(report.padding_elements, 0, "padding");
    same(report.owned_elements, elements / dp, "owned elements");
    const uint64_t pool = config.sharding == MDP_SHARDING_ZERO_2 ? report.grad_bytes : 0;
    const uint64_t bytes =
        report.param_bytes + report.grad_bytes - pool + report.grad_shard_bytes + report.master_bytes + report.state_bytes;
    const double each = static_cast<double>(bytes) / static_cast<double>(elements);
    if (given.contains("expect")) same(each, given["expect"].get<double>(), "bytes a parameter");
    if (given.contains("expect_at_most")) check(each > 0 && each <= given["expect_at_most"], "bytes a parameter: " + std::to_string(each));
  }
  same(ask_plan(config, dp, params)["arenas"][0]["grad_dtype"], given["grad_dtype"], "gradient type");
}

// ── Grids ──

uint32_t axes_of(const Json& given) {
  const std::map<std::string, uint32_t> bits = {
      {"tp", MDP_AXIS_TP}, {"cp", MDP_AXIS_CP}, {"ep", MDP_AXIS_EP}, {"dp", MDP_AXIS_DP}, {"pp", MDP_AXIS_PP}};
  uint32_t axes = given.value("expert", false) ? MDP_AXIS_EXPERT_GRID : 0;
  for (const std::string axis : given["axes"]) axes |= bits.at(axis);
  return axes;
}

void run_groups(const Json& given) {
  const std::string order = given.value("order", "");
  const mdp_grid_config grid = grid_of(given, order);
  const int32_t world = given["world"];
  const Json got = ask([&](char* json, size_t capacity, size_t* needed) {
    return mdp_grid_groups_json(&grid, world, axes_of(given), json, capacity, needed);
  });
  if (given.contains("expect")) same(got, given["expect"], "groups");
  const Json first = given.value("first", Json::array());
  for (size_t i = 0; i < first.size(); ++i) same(got.at(i), first[i], "group " + std::to_string(i));
  const Json last = given.value("last", Json::array());
  for (size_t i = 0; i < last.size(); ++i) same(got.at(got.size() - last.size() + i), last[i], "group from the end");
  std::multiset<int> everybody;
  for (const Json& group : got) everybody.insert(group.begin(), group.end());
  same(everybody.size(), world, "ranks in all groups");
  same(std::set<int>(everybody.begin(), everybody.end()).size(), world, "different ranks in all groups");
  same(got.at(0).size() * got.size(), world, "ranks");
  if (given.contains("dp")) {
    const std::vector<int64_t> sizes = {100};
    const Params params = params_of(sizes);
    std::vector<mdp_param> placed = params.items;
    placed[0].placement = MDP_PLACEMENT_REPLICATED;
    const Json plan = ask([&](char* json, size_t capacity, size_t* needed) {
      return mdp_plan_json(&grid, world, nullptr, placed.data(), 1, nullptr, json, capacity, needed);
    });
    same(plan["dp"], given["dp"], "dp");
  }
}

// Nothing here has a communicator; every rank asks and must hear the same.
void run_grid_error(const Json& given) {
  const std::string order = given.value("order", "");
  const mdp_grid_config grid = grid_of(given, order);
  const int32_t world = given["world"];
  const Params params = params_of({100});
  std::set<std::string> sentences;
  for (int32_t rank = 0; rank < world; ++rank) {
    mdp_plan_report report = {};
    report.struct_size = sizeof report;
    check(mdp_plan(&grid, world, rank, nullptr, params.items.data(), 1, nullptr, &report) == MDP_E_INVALID, "mdp_plan took it");
    sentences.insert(mdp_last_error());
    size_t needed = 0;
    check(mdp_grid_groups_json(&grid, world, MDP_AXIS_DP, nullptr, 0, &needed) == MDP_E_INVALID, "mdp_grid_groups_json took it");
    sentences.insert(mdp_last_error());
  }
  same(sentences.size(), 1, "number of different sentences");
  for (const std::string word : given["words"])
    check(sentences.begin()->find(word) != std::string::npos, *sentences.begin() + " -- does not say " + word);
}

// ── Those of several ranks ──

void check_whole(const Json& given, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) check(given.contains(key), "the case has no " + key);
}

void run(const std::string& kind, const Json& given) {
  if (kind == "layout") return run_layout(given);
  if (kind == "invariants") return run_invariants(given);
  if (kind == "threshold") return run_threshold(given);
  if (kind == "buffers") return run_buffers(given);
  if (kind == "bytes") return run_bytes(given);
  if (kind == "groups") return run_groups(given);
  if (kind == "grid_error") return run_grid_error(given);
  if (kind == "microbatches") return check_whole(given, {"microbatches", "not_last", "dp", "sizes", "gradients", "expect"});
  if (kind == "unused_param") return check_whole(given, {"dp", "sizes", "names", "unused", "unused_on", "missing", "gradient", "expect"});
  if (kind == "step") return check_whole(given, {"world", "sizes", "gradients", "expect"});
  check(false, "kind '" + kind + "' is not known");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: vectors_test PATH/vectors.json\n";
    return 2;
  }
  std::ifstream file(argv[1]);
  const Json data = Json::parse(file, nullptr, false);
  if (data.is_discarded()) {
    std::cerr << argv[1] << " cannot be read as JSON\n";
    return 2;
  }
  size_t cases = 0;
  std::set<int> ids;
  for (const Json& vector : data["vectors"]) {
    ids.insert(vector["id"].get<int>());
    for (size_t i = 0; i < vector["cases"].size(); ++i, ++cases) {
      now = "vector " + vector["id"].dump() + ", case " + std::to_string(i);
      const int before = checks;
      try {
        run(vector["kind"], vector["cases"][i]);
      } catch (const std::exception& failure) {  // the JSON is not of the expected form
        check(false, failure.what());
      }
      check(checks > before, "nothing was checked");
    }
  }
  now = argv[1];
  const std::set<int> expected = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                  16, 17, 18, 19, 20, 21, 22, 24, 29, 30, 34, 35, 36, 37, 38};
  check(ids == expected && ids.size() == kVectors, "these are not the vectors that must be there");
  same(data["vectors"].size(), kVectors, "number of vectors");
  same(cases, kCases, "number of cases");
  std::cerr << ids.size() << " vectors, " << cases << " cases, " << checks << " checks, " << failures << " failed\n";
  return failures == 0 ? 0 : 1;
}
