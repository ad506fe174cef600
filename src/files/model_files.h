// SPDX-License-Identifier: Apache-2.0
// Ordinary models: whole arrays in safetensors files, as model hubs keep them and other libraries write and read them.
//
//   model.safetensors
//   model-00001-of-00002.safetensors, ..., model.safetensors.index.json, which says where each array is
//
// Of arrays that share memory one is stored; the file's metadata may say which: {"NAME": "STORED NAME"}.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "files/folder.h"
#include "files/manifest_json.h"

namespace megadp {

struct OpenModel {
  Folder folder;
  Manifest manifest;    // as if it were a checkpoint without optimizers
  uint64_t digest = 0;  // of what is stored where
};

// Whether the path is a file, not a folder.
bool is_file(const std::string& path) noexcept;
// The file that a folder's model is in, or begins with.
std::optional<std::string> find_model(const std::string& folder);
// From a file of safetensors, or an index (.json). Code::corrupt if it is neither.
Result<OpenModel> open_model(const std::string& path);

struct PathParts {
  std::string folder, name;
};
PathParts split_path(const std::string& path);

constexpr const char *kModelSuffix = ".safetensors", *kIndexSuffix = ".index.json";  // the index's behind the model's
// The name of number `of` of several files of "model.safetensors", from 0: "model-00001-of-00003.safetensors".
std::string part_name(const std::string& name, size_t of, size_t count);

}  // namespace megadp
