// SPDX-License-Identifier: Apache-2.0
// The driver of the fuzz targets. It knows nothing of what its compiler could tell about covered code: an input is kept when what came of
// it, said by the target in words, has not been seen before.
#include "fuzz.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace megadp::test {
namespace {

constexpr size_t kLongest = 4096;
constexpr size_t kMostKept = 2000;
constexpr unsigned kPatience = 20;  // seconds for one input

const std::string* running = nullptr;

// Nothing is allocated: the program is about to end, perhaps in malloc.
void say_input() {
  if (running == nullptr) return;
  const std::string& input = *std::exchange(running, nullptr);
  const char start[] = "the input was --input=";
  (void)!::write(2, start, sizeof start - 1);
  for (const char byte : input) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    (void)!::write(2, digits, 2);
  }
  (void)!::write(2, "\n", 1);
}

void end_by(int signal) {
  const char late[] = "an input took too long\n";
  if (signal == SIGALRM) (void)!::write(2, late, sizeof late - 1);
  say_input();
  ::_exit(1);
}

class Mutator {
 public:
  Mutator(uint64_t seed, const FuzzTarget& target) : random_(seed), words_(target.words), valid_(target.valid.size()) {}

  std::string change(const std::vector<std::string>& inputs) {
    // The valid ones come first, and stay the likeliest to get far.
    std::string input = inputs[below(below(2) == 0 ? valid_ : inputs.size())];
    do change_once(&input, inputs[below(inputs.size())]);
    while (below(3) != 0);
    if (input.size() > kLongest) input.resize(kLongest);
    return input;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  // Little-endian, as everything is: the numbers that break arithmetic, and those that nearly fit.
  std::string number(const std::string& input) {
    const uint64_t values[] = {0,
                               1,
                               2,
                               0x7F,
                               0x80,
                               0xFF,
                               0x7FFF,
                               0x8000,
                               0xFFFF,
                               0x10000,
                               0x7FFFFFFF,
                               0x80000000,
                               0xFFFFFFFF,
                               INT64_MAX,
                               1ULL << 63,
                               UINT64_MAX,
                               1ULL << 40,
                               input.size(),
                               input.size() + 1,
                               input.size() / 2,
                               below(64),
                               below(1024),
                               random_(),
                               below(65536)};
    uint64_t value = values[below(std::size(values))];
    return bytes_of(value).substr(0, size_t{1} << below(4));
  }

  void overwrite(std::string* input, const std::string& bytes) {
    const size_t at = below(input->size());
    if (at + bytes.size() > input->size()) input->resize(at + bytes.size());
    input->replace(at, bytes.size(), bytes);
  }

  void change_byte(char* byte) {
    const bool digit = *byte > '0' && *byte < '9';
    if (digit) {
      *byte = static_cast<char>(*byte + (below(2) == 0 ? 1 : -1));
    } else {
      *byte ^= static_cast<char>(1U << below(8));
    }
  }

  void change_once(std::string* input, const std::string& other) {
    const size_t at = below(input->size() + 1), count = 1 + below(below(4) == 0 ? 64 : 8);
    switch (below(10)) {
      case 0:
        if (!input->empty()) change_byte(&(*input)[below(input->size())]);
        return;
      case 1:
        return overwrite(input, bytes_of(static_cast<uint8_t>(below(256))));
      case 2:
      case 3:
        return overwrite(input, number(*input));
      case 4:
        input->erase(at, count);
        return;
      case 5:
        input->insert(at, count, static_cast<char>(below(256)));
        return;
      case 6:
        input->insert(at, input->substr(below(input->size() + 1), count));
        return;
      case 7:
        *input = input->substr(0, at) + other.substr(below(other.size() + 1));
        return;
      case 8:
        input->resize(at);
        return;
      default:
        if (words_.empty()) return overwrite(input, number(*input));
        input->insert(at, words_[below(words_.size())]);
    }
  }

  std::mt19937_64 random_;
  const std::vector<std::string>& words_;
  size_t valid_;
};

std::string without_digits(std::string words) {
  std::erase_if(words, [](char c) { return c >= '0' && c <= '9'; });
  return words;
}

std::string from_hex_digits(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::strtol(std::string(hex.substr(i, 2)).c_str(), nullptr, 16)));
  }
  return bytes;
}

std::string run_one(const FuzzTarget& target, const std::string& input) {
  running = &input;
  ::alarm(kPatience);
  std::string outcome = without_digits(target.run(input));
  running = nullptr;
  return outcome;
}

void watch_for_the_end() {
  for (const int signal : {SIGALRM, SIGABRT}) ::signal(signal, end_by);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(say_input);
#else
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE}) ::signal(signal, end_by);
#endif
}

}  // namespace

std::vector<std::string> with_json(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"{",
                                  "}",
                                  "[",
                                  "]",
                                  ":",
                                  ",",
                                  "\"",
                                  "null",
                                  "true",
                                  "-1",
                                  "0.5",
                                  "1e400",
                                  "\\ud800",
                                  "\xff",
                                  "[[[[[[[[",
                                  "../x",
                                  "4294967296",
                                  "9223372036854775808",
                                  "18446744073709551615"};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

void must(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "%.*s\n", static_cast<int>(what.size()), what.data());
  say_input();
  std::_Exit(1);
}

int fuzz(int argc, char** argv, const FuzzTarget& target) {
  uint64_t seconds = 1, seed = std::random_device()();
  watch_for_the_end();
  set_log([](auto...) {}, nullptr);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string value(argument.substr(std::min(argument.find('=') + 1, argument.size())));
    if (argument.starts_with("--seconds=")) {
      seconds = std::strtoull(value.c_str(), nullptr, 10);
    } else if (argument.starts_with("--seed=")) {
      seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (argument.starts_with("--input=")) {
      std::printf("%s\n", target.run(from_hex_digits(value)).c_str());
      return 0;
    } else {
      std::fprintf(stderr, "usage: %s [--seconds=N] [--seed=N] [--input=HEX]\n", argv[0]);
      return 2;
    }
  }
  std::fprintf(stderr, "--seed=%llu\n", static_cast<unsigned long long>(seed));
  std::set<std::string> outcomes;
  std::vector<std::string> inputs = target.valid;
  for (const std::string& input : target.valid) outcomes.insert(run_one(target, input));
  const size_t at_first = outcomes.size();
  Mutator mutator(seed, target);
  uint64_t tried = 0;
  for (const Deadline end = Deadline::after_ns(seconds * 1'000'000'000); !end.passed(); ++tried) {
    std::string input = mutator.change(inputs);
    if (outcomes.insert(run_one(target, input)).second && inputs.size() < kMostKept) inputs.push_back(std::move(input));
  }
  ::alarm(0);
  std::printf("%llu inputs; %zu outcomes, %zu of valid inputs\n", static_cast<unsigned long long>(tried), outcomes.size(), at_first);
  if (outcomes.size() > at_first) return 0;
  std::fprintf(stderr, "no changed input had an outcome that the valid ones do not have: run longer, or let the target tell more apart\n");
  return 1;
}

}  // namespace megadp::test
