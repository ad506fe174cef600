// SPDX-License-Identifier: Apache-2.0
// `megadp plan`: how parameters of given sizes would be laid out, cut into buckets and owned, and what memory that takes. Nothing is
// allocated and no other rank is needed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "answer.h"
#include "commands.h"

namespace megadp::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownRanks = 16, kShownPieces = 8, kShownParams = 12;

struct Options {
  std::string sizes;
  int32_t dp = 1;
  std::string param_dtype = "f32", grad_dtype = "f32", bucket_size;
  bool high_bandwidth = false, json = false;
  std::vector<std::string> own_bucket;
  int sharding = 1;
};

struct Question {  // what the library is asked
  mdp_buffer_config config{};
  std::vector<int64_t> sizes;
  std::vector<std::string> names;
  std::vector<mdp_param> params;
};

mdp_dtype dtype_of(const std::string& name) {
  return name == "bf16" ? MDP_DTYPE_BF16 : name == "f16" ? MDP_DTYPE_F16 : MDP_DTYPE_F32;
}

template <class Number>
bool read_number(std::string_view word, Number* out) {
  const char* end = word.data() + word.size();
  const auto parsed = std::from_chars(word.data(), end, *out);
  return parsed.ec == std::errc() && parsed.ptr == end && *out >= 0;
}

// "1000,500,300"
template <class Number>
Status read_numbers(const char* option, std::string_view given, std::vector<Number>* out) {
  for (std::string_view left = given;;) {
    const size_t comma = left.find(',');
    out->push_back(0);
    if (!read_number(left.substr(0, comma), &out->back()))
      return invalid(option, " is '", given, "': '", left.substr(0, comma), "' is not a whole number from 0 to ",
                     std::numeric_limits<Number>::max());
    if (comma == std::string_view::npos) return {};
    left.remove_prefix(comma + 1);
  }
}

Status take_bucket_size(const std::string& given, mdp_buffer_config* config) {
  if (given.empty()) return {};
  if (given == "reference") {
    config->flags |= MDP_BUFFER_REFERENCE_BUCKETS;
    return {};
  }
  if (given == "all") {
    config->bucket_elements = UINT64_MAX;
    return {};
  }
  if (read_number(given, &config->bucket_elements) && config->bucket_elements > 0) return {};
  return invalid("--bucket-size is '", given, "': it must be a number of elements from 1 on, reference or all");
}

Status take_params(const Options& options, Question* question) {
  if (Status read = read_numbers("--sizes", options.sizes, &question->sizes); !read) return read;
  const size_t count = question->sizes.size();
  for (size_t i = 0; i < count; ++i) question->names.push_back(std::to_string(i));
  for (size_t i = 0; i < count; ++i) {
    mdp_param param{};
    param.struct_size = sizeof param;
    param.dtype = dtype_of(options.param_dtype);
    param.name = question->names[i].c_str();
    param.shape = &question->sizes[i];
    param.ndim = 1;
    param.placement = MDP_PLACEMENT_REPLICATED;
    question->params.push_back(param);
  }
  std::vector<uint64_t> own;
  for (const std::string& numbers : options.own_bucket)
    if (Status read = read_numbers("--own-bucket", numbers, &own); !read) return read;
  for (const uint64_t i : own) {
    if (i >= count) return invalid("--own-bucket is ", i, ", but there are ", count, " parameters, counted from 0");
    question->params[i].flags |= MDP_PARAM_OWN_BUCKET;
  }
  return {};
}

Status put_question(const Options& options, Question* question) {
  mdp_buffer_config& config = question->config;
  config.struct_size = sizeof config;
  config.sharding = options.sharding == 0 ? MDP_SHARDING_ZERO_0 : MDP_SHARDING_ZERO_1;
  if (options.high_bandwidth) config.flags |= MDP_BUFFER_HIGH_BANDWIDTH_PADDING;
  if (Status taken = take_bucket_size(options.bucket_size, &config); !taken) return taken;
  if (options.grad_dtype == "same" || options.grad_dtype == options.param_dtype)
    config.grad_dtype = MDP_DTYPE_SAME;
  else if (options.grad_dtype == "f32")
    config.grad_dtype = MDP_DTYPE_F32;
  else
    return invalid("--grad-dtype is ", options.grad_dtype, ", but the parameters are ", options.param_dtype,
                   ": gradients are f32 or of the parameters' type");
  return take_params(options, question);
}

// "4,3,2", cut short.
std::string shortened(const std::vector<std::string>& all, size_t shown) {
  if (all.size() <= shown) return fmt::format("{}", fmt::join(all, " "));
  return fmt::format("{} and {} more", fmt::join(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown), " "), all.size() - shown);
}

void print_arena(const Json& arena) {
  std::map<uint64_t, std::vector<std::string>> in_bucket;
  for (const Json& param : arena.at("params")) in_bucket[param.at("bucket")].push_back(param.at("index").dump());
  fmt::print("\n{} parameters, {} gradients: {} elements with padding\n", arena.at("param_dtype").get<std::string>(),
             arena.at("grad_dtype").get<std::string>(), arena.at("numel").get<uint64_t>());
  fmt::print("  {:>6} {:>16} {:>16} {:>16}   {}\n", "bucket", "begin", "end", "unpadded", "parameters");
  for (size_t i = 0; i < arena.at("buckets").size(); ++i) {
    const Json& bucket = arena.at("buckets")[i];
    fmt::print("  {:>6} {:>16} {:>16} {:>16}   {}\n", i, bucket.at("begin").get<uint64_t>(), bucket.at("end").get<uint64_t>(),
               bucket.at("unpadded").get<uint64_t>(), shortened(in_bucket[i], kShownParams));
  }
  const Json& owned = arena.at("owned");
  fmt::print("  {:>6}   {}\n", "rank", "owns parameter[from:to]");
  for (size_t rank = 0; rank < std::min(owned.size(), kShownRanks); ++rank) {
    std::vector<std::string> pieces;
    for (const Json& piece : owned[rank]) {
      const uint64_t from = piece.at("param_begin"), length = piece.at("end").get<uint64_t>() - piece.at("begin").get<uint64_t>();
      pieces.push_back(fmt::format("{}[{}:{}]", piece.at("param").get<uint64_t>(), from, from + length));
    }
    const std::string label = owned.size() == 1 ? "each" : std::to_string(rank);
    fmt::print("  {:>6}   {}\n", label, pieces.empty() ? "nothing" : shortened(pieces, kShownPieces));
  }
  if (owned.size() > kShownRanks) fmt::print("  {:>6}   {} more ranks\n", "...", owned.size() - kShownRanks);
}

void print_bytes(const Json& bytes, uint64_t elements) {
  fmt::print("\nBytes of each rank, before rounding each allocation up to a page; the last column leaves out scratch\n");
  fmt::print("  {:>9} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14}\n", "rank", "param", "grad", "grad_shard", "master", "state",
             "scratch", "total", "per parameter");
  for (size_t first = 0; first < bytes.size();) {
    size_t next = first + 1;  // ranks that need the same make one row
    while (next < bytes.size() && bytes[next] == bytes[first]) ++next;
    const auto of = [&](const char* name) { return bytes[first].at(name).get<uint64_t>(); };
    const uint64_t kept = of("param") + of("grad") + of("grad_shard") + of("master") + of("state");
    fmt::print("  {:>9} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14.3f}\n",
               next == first + 1 ? std::to_string(first) : fmt::format("{}-{}", first, next - 1), of("param"), of("grad"), of("grad_shard"),
               of("master"), of("state"), of("scratch"), kept + of("scratch"),
               elements == 0 ? 0.0 : static_cast<double>(kept) / static_cast<double>(elements));
    first = next;
  }
}

int plan(const Options& options) {
  Question question;  // not copied: shapes and names point into it
  if (Status put = put_question(options, &question); !put) return used_wrongly("plan", put.text() + ".");
  const std::vector<mdp_param>& params = question.params;
  const Result<std::string> json = answer([&](char* text, size_t capacity, size_t* needed) {
    return mdp_plan_json(nullptr, options.dp, &question.config, params.data(), params.size(), text, capacity, needed);
  });
  // Everything the library can object to came from the command line.
  if (!json)
    return json.status().code() == Code::invalid ? used_wrongly("plan", json.status().text() + ".") : failed("plan", json.status().text());
  if (options.json) {
    fmt::print("{}\n", *json);
    return written("plan");
  }
  mdp_plan_report report{};
  report.struct_size = sizeof report;
  if (Status told = api_status(mdp_plan(nullptr, options.dp, 0, &question.config, params.data(), params.size(), &report)); !told)
    return failed("plan", told.text());
  uint64_t elements = 0;
  for (const int64_t size : question.sizes) elements += static_cast<uint64_t>(size);
  const Json parsed = Json::parse(*json);
  const auto plural = [](size_t n) { return n == 1 ? "" : "s"; };
  fmt::print("{} parameter{} of {} elements over {} data-parallel rank{}, {}: {} bucket{}, {} elements of padding\n", params.size(),
             plural(params.size()), elements, options.dp, plural(static_cast<size_t>(options.dp)),
             options.sharding == 0 ? "nothing sharded" : "optimizer sharded", report.buckets, plural(report.buckets),
             report.padding_elements);
  for (const Json& arena : parsed.at("buffers")) print_arena(arena);
  print_bytes(parsed.at("bytes"), elements);
  return written("plan");
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("plan", "How parameters would be laid out, bucketed and owned, and the memory of each rank");
  sub->add_option("--sizes", options->sizes, "Elements of each parameter, in order of registration: 1000,500,300")->required();
  sub->add_option("--dp", options->dp, "Data-parallel ranks (default 1)")->check(CLI::Range(1, 1 << 20));
  sub->add_option("--param-dtype", options->param_dtype, "Of the parameters (default f32)")->check(CLI::IsMember({"f32", "bf16", "f16"}));
  sub->add_option("--grad-dtype", options->grad_dtype, "Of the gradients: f32 (default) or the parameters'")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "same"}));
  sub->add_option(
      "--bucket-size", options->bucket_size,
      "Elements at which a bucket closes; reference: max(40,000,000, 1,000,000 x dp); all: one bucket; default: the library decides");
  sub->add_flag("--pad-high-bandwidth", options->high_bandwidth, "Pad buckets to multiples of 65536 elements too");
  sub->add_option("--own-bucket", options->own_bucket, "Number of a parameter that gets a bucket to itself; more of them: 0,2")
      ->delimiter(',');
  sub->add_option("--sharding", options->sharding, "1 (default): optimizer state is sharded; 0: every rank keeps everything")
      ->check(CLI::IsMember({0, 1}));
  sub->add_flag("--json", options->json, "One line: {\"dp\",\"buffers\":[{\"params\",\"buckets\",\"owned\",...}],\"bytes\":[...]}");
  return [options](const std::vector<std::string>& rest) {
    if (!rest.empty()) return used_wrongly("plan", "nothing may follow --.");
    return plan(*options);
  };
}

}  // namespace megadp::tool
