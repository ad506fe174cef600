// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: what is accepted must hold everything that the library then relies on.
#include <algorithm>
#include <limits>

#include "base/shape.h"
#include "base/text.h"
#include "files/manifest_json.h"
#include "fuzz.h"

using namespace megadp;
using namespace megadp::test;

namespace {

// What is wrong, without the words and numbers of the input.
std::string refused(const Status& status) {
  const bool known = status.code() == Code::corrupt || status.code() == Code::unsupported;
  must(known && !status.text().empty(), "bad input is neither Code::corrupt nor Code::unsupported, with a sentence");
  std::string words;
  bool quoted = false;
  for (const char c : status.text()) {
    quoted ^= c == '\'';
    if (!quoted) words += c;
  }
  return words;
}

uint64_t elements_of(const std::vector<int64_t>& shape) {
  uint64_t elements = 0;
  size_t at = 0;
  must(std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size >= 0; }), "a size below 0");
  must(count_elements(shape, INT64_MAX / 8, &elements, &at), "more elements than can be counted");
  return elements;
}

void check_cut(const StoredArray& array) {
  const Cut& cut = array.cut;
  must(cut.dim >= 0 && static_cast<size_t>(cut.dim) < array.shape.size(), "a cut along no dimension");
  int64_t sum = 0;
  for (const int64_t size : cut.sizes) {
    must(cut.stride > 0 && size >= 0 && size % cut.stride == 0, "a cut's stride that does not divide a size");
    must(size <= std::numeric_limits<int64_t>::max() - sum, "sizes of a cut that overflow");
    sum += size;
  }
  must(sum == array.shape[static_cast<size_t>(cut.dim)], "sizes of a cut that do not add up");
}

// The library searches the pieces, so they lie in their order, and none over another.
void check_pieces(const StoredArray& array, size_t files) {
  const StoredPiece* last = nullptr;
  for (const StoredPiece& piece : array.pieces) {
    must(piece.file < files, "a piece in a file that is not there");
    must(piece.part < array.cut.parts(), "a piece of a part that is not there");
    must(piece.begin < piece.end && piece.end <= elements_of(array.shape_of(piece.part)), "a piece beyond its part");
    const bool behind = last == nullptr || last->part < piece.part || (last->part == piece.part && last->end <= piece.begin);
    must(behind, "pieces that are out of order, or overlap");
    last = &piece;
  }
}

void check_manifest(const Manifest& manifest) {
  must(!manifest.files.empty(), "no files");
  for (const StoredFile& file : manifest.files) {
    const bool beside = !file.name.empty() && file.name != "." && file.name != ".." && file.name.find('/') == std::string::npos;
    must(beside && file.name.find('\0') == std::string::npos, "a file that is elsewhere");
  }
  std::vector<std::string> names;
  for (const StoredArray& array : manifest.arrays) {
    names.push_back(array.name);
    must(array.optimizer >= -1 && array.optimizer < static_cast<int>(manifest.optimizers.size()), "an optimizer that is not there");
    (void)elements_of(array.shape);
    if (array.cut.is_cut()) check_cut(array);
    check_pieces(array, manifest.files.size());
  }
  std::sort(names.begin(), names.end());
  must(std::adjacent_find(names.begin(), names.end()) == names.end(), "two arrays of one name");
}

std::string run(const std::string& input) {
  const auto manifest = parse_manifest(input);
  if (!manifest) return refused(manifest.status());
  check_manifest(*manifest);
  const std::string json = manifest->json();
  const auto again = parse_manifest(json);
  must(again.ok(), "what was accepted is refused once it was written again");
  must(again->json() == json, "what was accepted is another when it was written and read again");
  std::string outcome = "a manifest";
  for (const StoredArray& array : manifest->arrays) {
    if (array.cut.is_cut()) outcome += ", cut";
    if (!array.pieces.empty()) outcome += ", pieces";
    if (!array.aliases.empty()) outcome += ", aliases";
    if (array.is_state()) outcome += ", kept";
  }
  return outcome;
}

Manifest good() {
  Manifest manifest;
  manifest.written_by = "1.0";
  manifest.save_id = "0123456789abcdef";
  manifest.grid = "tp 2";
  manifest.files = {{"rank-00000.safetensors", {4096, 0xF0}, 3}, {"rank-00001.safetensors", {4096, 0xF1}, 0}};
  manifest.shared_bytes = 5;
  manifest.optimizers.push_back(
      {"adamw", 7, {{"master", DType::f32}}, R"({"rule":"adamw","steps":7,"state":[{"name":"master","dtype":"f32"}],"lr":0.5})"});
  StoredArray cut;
  cut.name = "cut";
  cut.type = DType::bf16;
  cut.shape = {3, 10, 2};
  cut.cut = {1, 2, {4, 6}};
  cut.optimizer = 0;
  cut.steps = 6;
  cut.pieces = {{0, 0, 0, 24}, {0, 1, 0, 18}, {1, 1, 18, 36}};
  StoredArray tied;
  tied.name = "tied";
  tied.shape = {5};
  tied.tie = "embedding";
  tied.aliases = {"copy"};
  tied.pieces = {{0, 0, 0, 3}, {1, 0, 3, 5}};
  StoredArray frozen;
  frozen.name = "frozen";
  frozen.shape = {0, 4};
  frozen.is_frozen = true;
  StoredArray kept;
  kept.name = "rows of cut";
  kept.type = DType::u8;
  kept.shape = {12};
  kept.cut = {0, 1, {4, 8}};
  kept.is_param = false;
  kept.state_of = "cut";
  kept.pieces = {{0, 0, 0, 4}, {1, 1, 0, 8}};
  manifest.arrays = {cut, tied, frozen, kept};
  return manifest;
}

std::string alone() {
  Manifest manifest = good();
  manifest.optimizers.clear();
  manifest.arrays.erase(manifest.arrays.begin());
  return manifest.json();
}

}  // namespace

int main(int argc, char** argv) {
  // Deeper than inputs here get. What writes it again would go as deep.
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  std::string nested = good().json();
  nested.insert(nested.find("\"lr\":"), "\"unknown\":" + deep + ",");
  must(parse_manifest(nested).status().code() == Code::corrupt, "a manifest that is nested deep is taken");
  return fuzz(
      argc, argv,
      {{good().json(), alone()},
       with_json({"9223372036854775807", "288230376151711744", "[0,0,0,3]",        "[1,1,1,2],",   "\"cut\":{",   "\"dim\"",  "\"stride\"",
                  "\"sizes\"",           "\"pieces\"",         "\"optimizer\":0,", "\"steps\":1,", "\"aliases\"", "\"kind\"", "\"of\"",
                  "\"files\"",           "\"arrays\"",         "\"optimizers\"",   "\"shape\":[",  "\\u0000",     "\\/"}),
       run});
}
