// SPDX-License-Identifier: Apache-2.0
// What every fuzz target is made of: valid inputs, and a function that takes bytes from outside to where they are parsed. fuzz.cc is the
// driver: it changes the inputs at random until its time has passed. Sanitizers find what goes wrong by itself, must() what does not.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megadp::test {

struct FuzzTarget {
  std::vector<std::string> valid;  // inputs that get far
  std::vector<std::string> words;  // of the input's language: inserted now and then
  // Parses an input and says what came of it. Numbers in that do not count: an input with an outcome that is new is itself changed further.
  std::function<std::string(const std::string& input)> run;
};

// The words that all JSON has, and paths and numbers that go wrong; and those of one target.
std::vector<std::string> with_json(const std::vector<std::string>& words);

// main() of a target. Arguments: --seconds=N, --seed=N (one is drawn and printed otherwise), --input=HEX (that input alone).
int fuzz(int argc, char** argv, const FuzzTarget& target);

// Ends the program with the input that is being run unless it holds.
void must(bool holds, std::string_view what);

// Takes an input apart. What is missing at its end is zero.
class Bytes {
 public:
  explicit Bytes(std::string_view input) : left_(input) {}
  template <class T>
  T number() {
    T value{};
    const std::string_view bytes = some(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string_view some(size_t count) {
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(bytes.size());
    return bytes;
  }
  std::string_view rest() { return some(left_.size()); }

 private:
  std::string_view left_;
};

// Puts one together.
template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace megadp::test
