// SPDX-License-Identifier: Apache-2.0
// Sizes of parameters as people write them.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iostream>

#include "plan_options.h"

namespace megadp::tool {
namespace {

constexpr size_t kLongestLine = 4096;

ParamSpec param_of(std::string name, std::vector<int64_t> shape, DType dtype) {
  ParamSpec param;
  param.name = std::move(name);
  param.shape = std::move(shape);
  param.dtype = dtype;
  param.placement = Placement::replicated;
  return param;
}

bool read_size(std::string_view word, int64_t* out) {
  uint64_t number = 0;
  if (!read_number(word, INT64_MAX, &number)) return false;
  *out = static_cast<int64_t>(number);
  return true;
}

// "1000x500"
bool read_shape(std::string_view word, std::vector<int64_t>* shape) {
  for (;;) {
    const size_t x = word.find('x');
    shape->push_back(0);
    if (!read_size(word.substr(0, x), &shape->back())) return false;
    if (x == std::string_view::npos) return true;
    word.remove_prefix(x + 1);
  }
}

// One line of a list; adds nothing when the line says nothing.
Status read_line(std::string_view line, const std::string& where, DType dtype, std::vector<ParamSpec>* params) {
  std::string_view left = line;
  const std::string_view first = next_word(&left), second = next_word(&left);
  if (first.empty()) return {};
  std::vector<int64_t> shape;
  if (!next_word(&left).empty() || !read_shape(second.empty() ? first : second, &shape))
    return invalid(where, " is ", in_quotes(line), ": it must be a size (1000 or 1000x500), or a name and a size");
  if (params->size() == kMostParams) return invalid(where, " is one too many: at most ", kMostParams, " parameters are taken");
  params->push_back(param_of(second.empty() ? text(params->size()) : std::string(first), std::move(shape), dtype));
  return {};
}

Status read_lines(std::istream& from, const std::string& option, const std::string& source, const TakeLine& take) {
  std::string line;
  size_t number = 0;
  for (int c = from.get();; c = from.get()) {  // not getline: a file without line ends must not fill the memory
    const bool ends = c == std::istream::traits_type::eof();
    if (!ends && c != '\n' && line.size() <= kLongestLine) line += static_cast<char>(c);
    if (!ends && c != '\n' && line.size() <= kLongestLine) continue;
    ++number;
    const std::string where = text(option, ": line ", number, " of ", source);
    if (line.size() > kLongestLine) return invalid(where, " is longer than ", kLongestLine, " bytes");
    if (Status taken = take(std::string_view(line).substr(0, line.find('#')), where); !taken) return taken;
    line.clear();
    if (ends) break;
  }
  if (from.bad()) return system_error(option + ": " + source + " cannot be read", errno);
  return {};
}

}  // namespace

bool read_number(std::string_view word, uint64_t most, uint64_t* out) {
  const char* end = word.data() + word.size();
  const auto parsed = std::from_chars(word.data(), end, *out);
  return parsed.ec == std::errc() && parsed.ptr == end && *out <= most;
}

std::string_view next_word(std::string_view* line) {
  constexpr const char* kBlank = " \t\r";
  line->remove_prefix(std::min(line->find_first_not_of(kBlank), line->size()));
  const std::string_view word = line->substr(0, line->find_first_of(kBlank));
  line->remove_prefix(word.size());
  return word;
}

bool is_list(const std::string& given) {
  return given == "-" || (!given.empty() && given.front() == '@');
}

std::string name_of_list(const std::string& given) {
  return given == "-" ? "standard input" : in_quotes(given.substr(1));
}

Status read_list(const std::string& option, const std::string& given, const TakeLine& take) {
  const std::string source = name_of_list(given);
  if (given == "-") return read_lines(std::cin, option, source, take);
  errno = 0;
  std::ifstream file(given.substr(1));
  if (!file) return system_error(option + ": " + source + " cannot be opened", errno);
  file.peek();  // a folder opens, and cannot be read
  if (file.bad()) return system_error(option + ": " + source + " cannot be read", errno);
  file.clear();
  return read_lines(file, option, source, take);
}

Result<std::vector<ParamSpec>> read_sizes(const std::string& given, DType dtype) {
  std::vector<ParamSpec> params;
  if (is_list(given)) {
    const auto take = [&](std::string_view line, const std::string& where) { return read_line(line, where, dtype, &params); };
    if (Status read = read_list("--sizes", given, take); !read) return read;
    if (params.empty()) return invalid("--sizes: ", name_of_list(given), " holds no sizes");
    return params;
  }
  for (std::string_view left = given;;) {
    const size_t comma = left.find(',');
    const std::string_view word = left.substr(0, comma);
    int64_t size = 0;
    if (!read_size(word, &size)) {
      return invalid("--sizes is ", in_quotes(given), ": ", in_quotes(word), " is not a whole number from 0 to ", INT64_MAX,
                     " (sizes from a file: @FILE; from standard input: -)");
    }
    params.push_back(param_of(text(params.size()), {size}, dtype));
    if (comma == std::string_view::npos) return params;
    left.remove_prefix(comma + 1);
  }
}

}  // namespace megadp::tool
