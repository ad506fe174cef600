// SPDX-License-Identifier: Apache-2.0
#include "files/json_value.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace megadp {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostNested = 32;

template <class Number>
std::optional<Number> read_number(const std::string& text) noexcept {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

// What nlohmann's parser finds, put together.
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  JsonValue root{JsonValue::Kind::literal, "null"};
  std::string problem = "it is not JSON";

  bool null() override { return add(JsonValue::Kind::literal, "null"); }
  bool boolean(bool value) override { return add(JsonValue::Kind::literal, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return add(JsonValue::Kind::number, std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(JsonValue::Kind::number, std::to_string(value)); }
  // As it stands there: the parser has put the decimal point of the process's locale into it.
  bool number_float(number_float_t, const string_t& given) override {
    std::string text = given;
    const auto is_point = [](char c) { return std::string_view("+-0123456789eE").find(c) == std::string_view::npos; };
    std::replace_if(text.begin(), text.end(), is_point, '.');
    return add(JsonValue::Kind::number, std::move(text));
  }
  bool string(string_t& text) override { return add(JsonValue::Kind::string, std::move(text)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonValue::Kind::object); }
  bool start_array(std::size_t) override { return open(JsonValue::Kind::array); }
  bool key(string_t& name) override { return add(JsonValue::Kind::string, std::move(name)); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  JsonValue& put(JsonValue value) {
    if (open_.empty()) return root = std::move(value);
    return open_.back()->items_.emplace_back(std::move(value));
  }
  bool add(JsonValue::Kind kind, std::string text) {
    put({kind, std::move(text)});
    return true;
  }
  bool open(JsonValue::Kind kind) {
    if (open_.size() == kMostNested) {  // it is written again, and destroyed, by calls that deep
      problem = text("it is nested deeper than ", kMostNested, " levels");
      return false;
    }
    open_.push_back(&put({kind, ""}));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<JsonValue*> open_;  // each the last item of the one before, which gets no more until it is closed
};

Result<JsonValue> JsonValue::parse(std::string_view text) {
  JsonBuilder builder;
  if (!Json::sax_parse(text, &builder)) return Status(Code::corrupt, builder.problem);
  return std::move(builder.root);
}

const JsonValue* JsonValue::find(std::string_view name) const noexcept {
  for (size_t at = is_object() ? items_.size() : 0; at > 0; at -= 2) {
    if (items_[at - 2].text_ == name) return &items_[at - 1];
  }
  return nullptr;
}

std::optional<uint64_t> JsonValue::whole_number() const noexcept {
  return kind_ == Kind::number ? read_number<uint64_t>(text_) : std::nullopt;
}

std::optional<double> JsonValue::number() const noexcept {
  return kind_ == Kind::number ? read_number<double>(text_) : std::nullopt;
}

std::string JsonValue::dump() const {
  std::string out;
  dump(&out);
  return out;
}

void JsonValue::dump(std::string* out) const {
  if (kind_ == Kind::string) *out += json_string(text_);
  if (kind_ == Kind::literal || kind_ == Kind::number) *out += text_;
  if (!is_array() && !is_object()) return;
  *out += is_array() ? '[' : '{';
  for (size_t at = 0; at < items_.size(); ++at) {
    if (at > 0) *out += is_object() && at % 2 == 1 ? ':' : ',';
    items_[at].dump(out);
  }
  *out += is_array() ? ']' : '}';
}

std::string json_string(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_number(double value) {
  return Json(value).dump();
}

}  // namespace megadp
