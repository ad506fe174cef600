// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, and the index of a model in several of them. They come from anywhere: nothing in them is believed
// before it is checked. What is wrong is Code::corrupt, with a sentence that goes on from "...: ".
//
//   | length of the header, 8 bytes, little-endian | {"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...,"__metadata__":{...}}
//   | data |
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace megadp {

constexpr uint64_t kLongestHeader = 100'000'000;  // what the format's own readers take
constexpr size_t kMostStored = size_t{1} << 24;   // tensors
constexpr size_t kMostDims = 16;
constexpr const char* kMetadataName = "__metadata__";  // of what is no tensor in a header

// The dtype is one of the format's, and the bytes are as many as it and the shape want.
struct StoredTensor {
  std::string name, dtype;  // "F32"
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes of the data
};

// From the first 8 bytes of a file (fewer if it has no more): how many bytes the header behind them takes.
Result<uint64_t> safetensors_header_bytes(std::string_view front);
// The tensors in the order of the header. Names may come twice.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};
Result<SafetensorsHeader> parse_safetensors_header(std::string_view header);

// The format's name of an element type; and back, none for one that the library does not have.
const char* stored_name(DType type) noexcept;
std::optional<DType> dtype_of_stored(std::string_view name) noexcept;

// {"metadata":{...},"weight_map":{"NAME":"FILE",...}}
struct SafetensorsIndex {
  std::map<std::string, std::string> file_of;  // names without a folder
  std::vector<std::string> files;              // in the order in which they are first named; at least one
};
Result<SafetensorsIndex> parse_safetensors_index(std::string_view json);

}  // namespace megadp
