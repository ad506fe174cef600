// SPDX-License-Identifier: Apache-2.0
// What ranks must agree on, written as text: equal text means equal layouts, buckets and order of launches.
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/utf8.h"
#include "core/plan.h"

namespace megadp {
namespace {

constexpr std::string_view kAfterParams = "bucket elements of ";  // how the lines after those of the parameters begin

// In quotes, with nothing in it that could be taken for the end of a line.
void append_escaped(std::string* out, const std::string& name) {
  constexpr char kHex[] = "0123456789abcdef";
  *out += '\'';
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      *out += "\\x";
      *out += kHex[byte >> 4];
      *out += kHex[byte & 15];
    } else {
      if (c == '\\' || c == '\'') *out += '\\';
      *out += c;
    }
  }
  *out += '\'';
}

void append_param(std::string* out, const ParamSpec& param) {
  append_escaped(out, param.name);
  append_all(out, " ", name_of(param.dtype));
  append_shape(out, param.shape);
  // What is said of few parameters only is left out of the others' lines.
  if (param.uses_per_step != 1) append_all(out, " used ", param.uses_per_step, " times");
  if (param.placement != Placement::unset) append_all(out, " ", name_of(param.placement));
  if (param.placement == Placement::sharded) append_all(out, " on dimension ", param.shard_dim, " by ", param.shard_stride);
  if (param.group != 0) append_all(out, " group ", param.group);
  if (param.frozen) *out += " frozen";
  if (param.own_bucket) *out += " own bucket";
  if (param.use_order != 0) append_all(out, " use order ", param.use_order);
  if (param.sharding != Sharding::unset) append_all(out, " ", name_of(param.sharding));
  if (param.cost != 0) append_all(out, " cost ", exactly(param.cost));
  if (param.tie.empty()) return;
  *out += " tied as ";
  append_escaped(out, param.tie);
}

std::string describe_config(const Grid& grid, const BufferConfig& config) {
  const GridConfig& g = grid.config();
  constexpr const char* kMissing[] = {"error", "zero", "skip"};
  constexpr const char* kScaling[] = {"mean", "sum", "tokens"};
  return text("grid: tp ", g.tp, " cp ", g.cp, " ep ", g.ep, " pp ", g.pp, " expert_tp ", g.expert_tp, " instances ", g.instances,
              " order ", g.order, " of ", grid.world(), " ranks\n",  //
              "gradient type: ", config.grad_same_as_param ? "the parameter's" : "f32", "\n", "sharding: ", name_of(config.sharding),
              "\n",  //
              "missing gradients: ", kMissing[std::min<size_t>(static_cast<size_t>(config.missing), 2)], "\n",
              "scaling: ", kScaling[static_cast<size_t>(config.scaling)], "\n",                //
              "high-bandwidth padding: ", config.high_bandwidth_padding ? "on" : "off", "\n",  //
              "overlap: ", config.no_overlap ? "off" : "on", "\n",                             //
              "gradients between ranks: ", config.wire_bf16 ? "bf16" : "their own type", config.error_feedback ? " with feedback" : "",
              "\n", "checks: ", config.check_finite ? "finite " : "", config.check_large ? "large" : "", "\n",
              "pool buckets: ", config.pool_buckets == 0 ? kPoolBuckets : config.pool_buckets, "\n");
}

struct Line {
  std::string_view what, value;
};

Line split(std::string_view line) {
  const size_t colon = line.find(": ");
  if (colon == std::string_view::npos) return {line, {}};
  return {line.substr(0, colon), line.substr(colon + 2)};
}

// A value for a sentence; another rank's may be anything and of any length. Of long ones the part from `from` on is shown.
std::string shown(std::string_view value, size_t from = 0) {
  constexpr size_t kShown = 160;
  if (value.empty()) return "nothing";
  const std::string_view left_out = utf8_prefix(value, from);
  const std::string_view part = utf8_prefix(value.substr(left_out.size()), kShown);
  std::string out = left_out.empty() ? "" : "...";
  for (const char c : part) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return left_out.size() + part.size() < value.size() ? out + "..." : out;
}

// Where two values begin to differ, less some characters that say where one is; 0 while that is near the front.
size_t window(std::string_view a, std::string_view b) {
  constexpr size_t kNear = 100, kBefore = 20;
  size_t at = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
  return at <= kNear ? 0 : at - kBefore;
}

// take(expert, lines): a line or several at a time. Of hundreds of thousands of parameters the whole text is tens of megabytes.
template <class Take>
void tell_registration(const Plan& plan, const Take& take) {
  std::string line = describe_config(plan.grid, plan.config);
  for (const bool expert : {false, true}) take(expert, line);
  size_t number = 0;
  for (size_t i = 0; i < plan.params.size(); ++i) {
    const bool expert = plan.params[i].expert;
    line.clear();
    append_all(&line, "parameter ", expert ? i : number++, ": ");
    append_param(&line, plan.params[i]);
    line += '\n';
    take(expert, line);
  }
  // Last, because they follow from the parameters: where those differ too, they are what is to be told.
  for (const ArenaPlan& arena : plan.arenas) {
    take(arena.expert, text(kAfterParams, name_of(arena.param_type), " parameters: ", arena.bucket_elements, "\n"));
  }
}

}  // namespace

std::string describe_registration(const Plan& plan, bool expert) {
  std::string out;
  tell_registration(plan, [&](bool of_expert, const std::string& lines) {
    if (of_expert == expert) out += lines;
  });
  return out;
}

std::array<uint64_t, 2> digest_registration(const Plan& plan) {
  std::array<uint64_t, 2> digests{};
  tell_registration(plan, [&digests](bool expert, const std::string& lines) {
    uint64_t& digest = digests[expert ? 1 : 0];
    digest = hash_bytes(lines.data(), lines.size(), digest);
  });
  return digests;
}

std::string describe_partial(const Plan& plan, bool expert) {
  if (!plan.has_partial(expert)) return {};
  std::vector<std::pair<size_t, std::string>> lines;
  for (const ArenaPlan& arena : plan.arenas) {
    if (arena.expert != expert) continue;
    for (const Slot& slot : arena.layout.slots) {
      const ParamSpec& param = plan.params[slot.param];
      if (!is_partial(param.placement)) continue;
      const BucketRange& bucket = arena.layout.buckets[slot.bucket];
      std::string line = "partial ";
      append_param(&line, param);
      append_all(&line, ": at element ", slot.begin - bucket.begin, " of a bucket of ", bucket.end - bucket.begin);
      if (arena.is_whole()) append_all(&line, ", owned by shard ", slot.owner);
      line += '\n';
      lines.emplace_back(slot.param, std::move(line));
    }
  }
  std::sort(lines.begin(), lines.end());
  std::string out;
  for (const auto& [param, line] : lines) out += line;
  return out;
}

std::string first_difference(const std::string& mine, const std::string& theirs, int their_rank) {
  std::string_view left = mine, right = theirs;
  while (!left.empty() || !right.empty()) {
    const std::string_view my_line = take_line(&left), their_line = take_line(&right);
    if (my_line == their_line) continue;
    const Line here = split(my_line), there = split(their_line);
    if (here.what == there.what) {
      const size_t from = window(here.value, there.value);
      return text(shown(here.what), ": ", shown(here.value, from), " here, ", shown(there.value, from), " on rank ", their_rank);
    }
    // One has come to the end of its parameters before the other.
    const auto is_past = [](const Line& line) { return line.what.empty() || line.what.substr(0, kAfterParams.size()) == kAfterParams; };
    if (is_past(there)) return text(shown(my_line), " here, nothing on rank ", their_rank);
    if (is_past(here)) return text(shown(there.what), ": nothing here, ", shown(there.value), " on rank ", their_rank);
    return text(shown(my_line), " here, ", shown(their_line), " on rank ", their_rank);
  }
  return {};
}

}  // namespace megadp
