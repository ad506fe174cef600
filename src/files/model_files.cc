// SPDX-License-Identifier: Apache-2.0
#include "files/model_files.h"

#include <sys/stat.h>

#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/shape.h"
#include "files/checksum.h"
#include "files/safetensors_json.h"

namespace megadp {
namespace {

std::string five_digits(size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(5 - std::min<size_t>(digits.size(), 5), '0') + digits;
}

StoredArray array_of(const StoredTensor& tensor, uint32_t file) {
  StoredArray array;
  array.name = tensor.name;
  array.shape = tensor.shape;
  const std::optional<DType> type = dtype_of_stored(tensor.dtype);
  array.type = type.value_or(DType::u8);
  if (!type) array.foreign = tensor.dtype;
  if (const uint64_t elements = elements_of(tensor.shape); elements > 0) array.pieces.push_back({file, 0, 0, elements});
  return array;
}

// The arrays of one file: all, or those that an index says are in it.
Status add_file(const Folder& folder, const std::string& name, const SafetensorsIndex* index, Manifest* model) {
  auto reader = SafetensorsReader::open_model(folder, name);
  if (!reader) return reader.status();
  const auto number = static_cast<uint32_t>(model->files.size());
  model->files.push_back({name, reader->about(), 0, reader->has_checksums()});
  std::unordered_map<std::string_view, size_t> number_of;  // of its arrays
  for (const StoredTensor& tensor : reader->tensors()) {
    if (index != nullptr) {
      const auto listed = index->file_of.find(tensor.name);
      if (listed == index->file_of.end() || listed->second != name) continue;
    }
    number_of.emplace(tensor.name, model->arrays.size());
    model->arrays.push_back(array_of(tensor, number));
  }
  for (const auto& [alias, stored] : reader->metadata()) {
    const auto at = number_of.find(stored);
    if (at != number_of.end() && reader->find(alias) == nullptr) model->arrays[at->second].aliases.push_back(alias);
  }
  return {};
}

Result<SafetensorsIndex> read_index(const Folder& folder, const std::string& name) {
  auto file = folder.open_file(name);
  if (!file) return file.status();
  auto bytes = file->bytes();
  if (!bytes) return bytes.status();
  if (*bytes > kLongestHeader) return Status(Code::corrupt, text(file->path(), " has ", *bytes, " bytes, more than any index"));
  std::string json(*bytes, '\0');
  if (Status read = file->read(json.data(), json.size(), 0); !read) return read;
  auto index = parse_safetensors_index(json);
  if (!index) return Status(Code::corrupt, text(file->path(), " is no index of a model: ", index.status().text()));
  return index;
}

// What the index names must be there.
Status check_index(const SafetensorsIndex& index, const std::string& path, const Manifest& model) {
  if (model.arrays.size() == index.file_of.size()) return {};
  std::map<std::string, std::string> missing = index.file_of;
  for (const StoredArray& array : model.arrays) missing.erase(array.name);
  const auto& [name, file] = *missing.begin();
  return Status(Code::corrupt, text(path, " says that ", in_quotes(name), " is in ", file, ", and it is not"));
}

}  // namespace

bool is_file(const std::string& path) noexcept {
  struct stat about;
  return ::stat(path.c_str(), &about) == 0 && !S_ISDIR(about.st_mode);
}

std::optional<std::string> find_model(const std::string& folder) {
  for (const char* const name : {"model.safetensors.index.json", "model.safetensors"}) {
    std::string path = text(folder, "/", name);
    if (is_file(path)) return path;
  }
  return {};
}

PathParts split_path(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

std::string part_name(const std::string& name, size_t of, size_t count) {
  const std::string front = name.substr(0, name.size() - std::string_view(kModelSuffix).size());
  return text(front, "-", five_digits(of + 1), "-of-", five_digits(count), kModelSuffix);
}

Result<OpenModel> open_model(const std::string& path) {
  const PathParts parts = split_path(path);
  auto folder = Folder::open(parts.folder);
  if (!folder) return folder.status();
  OpenModel out{*std::move(folder), {}};
  Manifest& model = out.manifest;
  model.is_model = true;
  if (!std::string_view(parts.name).ends_with(".json")) {
    if (Status added = add_file(out.folder, parts.name, nullptr, &model); !added) return added;
  } else {
    auto index = read_index(out.folder, parts.name);
    if (!index) return index.status();
    for (const std::string& name : index->files) {
      if (Status added = add_file(out.folder, name, &*index, &model); !added) return added;
    }
    if (Status complete = check_index(*index, path, model); !complete) return complete;
  }
  const std::string described = model.json();
  out.digest = checksum(described.data(), described.size());
  return out;
}

}  // namespace megadp
