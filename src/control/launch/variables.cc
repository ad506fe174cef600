// SPDX-License-Identifier: Apache-2.0
// Reading and checking variables.
#include "control/launch/variables.h"

#include <charconv>
#include <cstdlib>

#include "base/text.h"

namespace megadp {
namespace {

bool parse_int(std::string_view value, int* out) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *out);
  return error == std::errc() && end == value.data() + value.size();
}

}  // namespace

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == 0) return std::nullopt;
  return std::string(value);
}

std::optional<std::string> Variables::optional_text(const char* name) {
  auto value = variable(name);
  if (value) claim_->found.push_back(text(name, "=", std::string_view(name) == "MEGADP_SECRET" ? "..." : *value));
  return value;
}

std::optional<std::string> Variables::required_text(const char* name) {
  auto value = optional_text(name);
  if (!value) claim_->missing.push_back(name);
  return value;
}

std::optional<int> Variables::parse(const char* name, const std::optional<std::string>& value, int low, int high) {
  if (!value) return std::nullopt;
  int number = 0;
  if (parse_int(*value, &number) && number >= low && number <= high) return number;
  claim_->wrong.push_back(text(name, "=", *value, " (a whole number from ", low, " to ", high, " is expected)"));
  return std::nullopt;
}

std::optional<int> Variables::optional_number(const char* name, int low, int high) {
  return parse(name, optional_text(name), low, high);
}

std::optional<int> Variables::required_number(const char* name, int low, int high) {
  return parse(name, required_text(name), low, high);
}

std::optional<std::string> Variables::any_text(const std::vector<const char*>& names, bool required) {
  for (const char* name : names) {
    if (variable(name)) return optional_text(name);
  }
  if (required) claim_->missing.push_back(names.front());
  return std::nullopt;
}

std::optional<int> Variables::any_number(const std::vector<const char*>& names, int low, int high) {
  for (const char* name : names) {
    if (variable(name)) return optional_number(name, low, high);
  }
  claim_->missing.push_back(names.front());
  return std::nullopt;
}

void Variables::ranks(const char* rank_name, std::optional<int> rank, const char* size_name, std::optional<int> size) {
  claim_->rank = rank;
  claim_->nranks = size;
  if (rank) claim_->launch.rank = *rank;
  if (size) claim_->launch.nranks = *size;
  if (rank && size && *rank >= *size) claim_->wrong.push_back(text(rank_name, "=", *rank, " is not below ", size_name, "=", *size));
}

void Variables::local_ranks(const char* rank_name, std::optional<int> rank, const char* size_name, std::optional<int> size) {
  if (rank && size && *rank >= *size) claim_->wrong.push_back(text(rank_name, "=", *rank, " is not below ", size_name, "=", *size));
  if (rank && claim_->nranks && *rank >= *claim_->nranks) {
    claim_->wrong.push_back(text(rank_name, "=", *rank, " is not below the number of ranks, ", *claim_->nranks));
  }
  if (!size || !claim_->nranks) return;
  if (*size > *claim_->nranks) claim_->wrong.push_back(text(size_name, "=", *size, " is more than all ranks, ", *claim_->nranks));
  claim_->several_nodes = *size < *claim_->nranks;
}

void Variables::ranks(const char* rank_name, const char* size_name) {
  const auto rank = required_number(rank_name, 0, kMaxRanks);
  ranks(rank_name, rank, size_name, required_number(size_name, 1, kMaxRanks));
}

void Variables::local_ranks(const char* rank_name, const char* size_name) {
  const auto rank = required_number(rank_name, 0, kMaxRanks);
  local_ranks(rank_name, rank, size_name, required_number(size_name, 1, kMaxRanks));
}

Result<RootAddress> parse_root(std::string_view value) {
  const size_t colon = value.rfind(':');
  std::string_view host = value.substr(0, colon == std::string_view::npos ? 0 : colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  int port = 0;
  const bool port_read = colon != std::string_view::npos && parse_int(value.substr(colon + 1), &port);
  if (bracketed) host = host.substr(1, host.size() - 2);
  // An IPv6 address without brackets could end in what looks like a port.
  const bool unclear = !bracketed && host.find(':') != std::string_view::npos;
  if (host.empty() || unclear || !port_read || port < 1 || port > 65535) {
    return invalid("\"", value, "\" is no root address: host:port is expected, with an IPv6 host in brackets and a port from 1 to 65535");
  }
  return RootAddress{std::string(host), static_cast<uint16_t>(port)};
}

Result<RootAddress> root_from_environment() {
  const auto value = variable("MEGADP_ROOT");
  if (!value) return RootAddress{};
  auto root = parse_root(*value);
  if (!root.ok()) return root.status().with_context("MEGADP_ROOT");
  return root;
}

}  // namespace megadp
