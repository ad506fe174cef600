// SPDX-License-Identifier: Apache-2.0
// A parser with a mistake, so that it is seen that the driver finds one: a length at the edge of what is allowed is believed.
#include "fuzz.h"

using namespace megadp::test;

namespace {

std::string run(const std::string& input) {
  Bytes bytes(input);
  if (bytes.some(4) != "MDPF") return "no magic";
  const auto length = bytes.number<uint16_t>();
  const std::string_view rest = bytes.rest();
  if (length > rest.size() + 8) return "too long";
  must(length <= rest.size(), "the planted mistake was made");
  return "whole";
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz(argc, argv, {{std::string("MDPF\4\0abcd", 10)}, {}, run});
}
