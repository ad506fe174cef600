// SPDX-License-Identifier: Apache-2.0
// A JSON text, read whole. Unlike nlohmann's it is destroyed without memory, so that what reads or writes a checkpoint may run out of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace megadp {

class JsonValue {
 public:
  // Code::corrupt: it is no JSON, or nested deeper than anything that the library reads.
  static Result<JsonValue> parse(std::string_view text);

  bool is_object() const noexcept { return kind_ == Kind::object; }
  bool is_array() const noexcept { return kind_ == Kind::array; }
  // Of an object; null: it has none of that name, or is none. The last one counts.
  const JsonValue* find(std::string_view name) const noexcept;
  // Of an array.
  const std::vector<JsonValue>& items() const noexcept { return items_; }
  // Null: it is none.
  const std::string* string() const noexcept { return kind_ == Kind::string ? &text_ : nullptr; }
  std::optional<uint64_t> whole_number() const noexcept;
  std::optional<double> number() const noexcept;
  // On one line.
  std::string dump() const;

 private:
  friend class JsonBuilder;
  enum class Kind : uint8_t {
    literal,  // null, true, false
    number,
    string,
    array,
    object
  };
  JsonValue(Kind kind, std::string text) : kind_(kind), text_(std::move(text)) {}
  void dump(std::string* out) const;

  Kind kind_ = Kind::literal;
  std::string text_;              // of what has no items
  std::vector<JsonValue> items_;  // of an object: names and values in turn
};

// With its quotation marks.
std::string json_string(const std::string& text);
// In as few digits as tell it.
std::string json_number(double value);

}  // namespace megadp
