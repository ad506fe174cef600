// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, and the index of a model in several: an input is a file, whose first byte says which of the two
// follows.
#include "base/shape.h"
#include "base/text.h"
#include "files/safetensors_json.h"
#include "fuzz.h"

using namespace megadp;
using namespace megadp::test;

namespace {

// What is wrong, without the words and numbers of the input.
std::string refused(const Status& status) {
  must(status.code() == Code::corrupt && !status.text().empty(), "bad input is not Code::corrupt, with a sentence");
  std::string words;
  bool quoted = false;
  for (const char c : status.text()) {
    quoted ^= c == '\'';
    if (!quoted) words += c;
  }
  return words;
}

std::string run_index(std::string_view json) {
  const auto index = parse_safetensors_index(json);
  if (!index) return refused(index.status());
  must(!index->files.empty() && index->files.size() <= index->file_of.size(), "as many files as tensors at most");
  for (const std::string& file : index->files) must(!file.empty() && file.find('/') == std::string::npos, "a file that is elsewhere");
  return text("an index of ", index->files.size());
}

std::string run(const std::string& input) {
  Bytes bytes(input);
  if (bytes.number<char>() == 'i') return run_index(bytes.rest());
  const auto length = safetensors_header_bytes(bytes.some(8));
  if (!length) return refused(length.status());
  must(*length <= kLongestHeader, "a header that is too long");
  const auto header = parse_safetensors_header(bytes.some(*length));
  if (!header) return refused(header.status());
  for (const StoredTensor& tensor : header->tensors) {
    uint64_t elements = 0;
    size_t at = 0;
    must(count_elements(tensor.shape, INT64_MAX / 8, &elements, &at), "more elements than can be counted");
    must(tensor.end >= tensor.begin && (elements == 0 || (tensor.end - tensor.begin) % elements == 0), "bytes that are not the elements'");
  }
  return text("a header of ", header->tensors.size());
}

std::string file(const std::string& header) {
  return "h" + bytes_of(static_cast<uint64_t>(header.size())) + header;
}

const std::string kGood = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

}  // namespace

int main(int argc, char** argv) {
  return fuzz(argc, argv,
              {{file("{}"), file(R"({"a":)" + kGood + "}"),
                file(R"({"__metadata__":{"format":"pt"},"a":)" + kGood + R"(,"b\u0000":)" + kGood + "}"),
                file(R"({"a":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},"b":{"dtype":"I64","shape":[0,7],"data_offsets":[0,0]}})"),
                R"(i{"metadata":{"total_size":60,"more":[1,null,true,0.5,-1]},"weight_map":{"c":"2.safetensors","a":"1.safetensors"}})"},
               {"{",
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
                "18446744073709551615",
                "9223372036854775808",
                "4294967296",
                "[[[[[[[[",
                "\\ud800",
                "\xff",
                kGood,
                "\"shape\"",
                "\"dtype\"",
                "\"data_offsets\"",
                "\"__metadata__\"",
                "\"weight_map\"",
                "\"F64\"",
                "../x"},
               run});
}
