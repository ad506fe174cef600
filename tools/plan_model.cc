// SPDX-License-Identifier: Apache-2.0
// The parameters of a model's file, from its header alone, or from the index of a model in several files.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "files/safetensors_json.h"
#include "plan_options.h"

namespace megadp::tool {
namespace {

Status cannot(const std::string& path, const char* what) {
  return system_error(text("--model: ", in_quotes(path), " cannot be ", what), errno);
}

// At most `most` bytes from the front; fewer if the file ends.
Result<std::string> read_front(std::ifstream& file, uint64_t most) {
  std::string bytes;
  std::array<char, 65536> piece;
  while (bytes.size() < most && file) {  // as they come: a length that a file claims is not allocated beforehand
    file.read(piece.data(), static_cast<std::streamsize>(std::min<uint64_t>(piece.size(), most - bytes.size())));
    bytes.append(piece.data(), static_cast<size_t>(file.gcount()));
  }
  return bytes;
}

Result<std::vector<StoredTensor>> read_header(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return cannot(path, "opened");
  auto front = read_front(file, 8);
  if (file.bad()) return cannot(path, "read");
  const auto wrong = [&](const auto&... words) { return invalid("--model: ", in_quotes(path), " is no safetensors file: ", words...); };
  auto length = safetensors_header_bytes(*front);
  if (!length) return wrong(length.status().text());
  auto header = read_front(file, *length);
  if (file.bad()) return cannot(path, "read");
  if (header->size() < *length) return wrong("its header should have ", *length, " bytes, and the file ends after ", header->size());
  auto parsed = parse_safetensors_header(*header);
  if (!parsed) return wrong(parsed.status().text());
  return std::move(parsed->tensors);
}

// F32, BF16 and F16 are what can be trained; nothing: whole numbers and truth values.
Result<std::optional<DType>> dtype_of(const StoredTensor& tensor, const std::string& path, const std::string& asked) {
  if (tensor.dtype.front() != 'F' && tensor.dtype != "BF16") return std::optional<DType>();
  const std::string name = !asked.empty()           ? asked
                           : tensor.dtype == "F32"  ? "f32"
                           : tensor.dtype == "BF16" ? "bf16"
                           : tensor.dtype == "F16"  ? "f16"
                                                    : "";
  if (name.empty()) {
    return invalid("--model: tensor ", in_quotes(tensor.name), " of ", in_quotes(path), " is ", tensor.dtype,
                   "; parameters are f32, bf16 or f16: say with --param-dtype as what it would be trained");
  }
  return std::optional<DType>(name == "bf16" ? DType::bf16 : name == "f16" ? DType::f16 : DType::f32);
}

Status add_tensors(std::vector<StoredTensor> tensors, const std::string& path, const std::string& dtype, ModelFile* model) {
  for (StoredTensor& tensor : tensors) {
    auto type = dtype_of(tensor, path, dtype);
    if (!type) return type.status();
    if (!*type) {
      ++model->left_out;
      continue;
    }
    if (model->params.size() == kMostParams) return invalid("--model: more than ", kMostParams, " parameters");
    ParamSpec param;
    param.name = std::move(tensor.name);
    param.shape = std::move(tensor.shape);
    param.dtype = **type;
    param.placement = Placement::replicated;
    model->params.push_back(std::move(param));
  }
  return {};
}

Result<ModelFile> read_several(const std::string& path, const std::string& dtype) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return cannot(path, "opened");
  auto all = read_front(file, kLongestHeader + 1);
  if (file.bad()) return cannot(path, "read");
  const auto wrong = [&](const auto&... words) {
    return invalid("--model: ", in_quotes(path), " is no index of safetensors files: ", words...);
  };
  if (all->size() > kLongestHeader) return wrong("it has more than ", kLongestHeader, " bytes");
  auto index = parse_safetensors_index(*all);
  if (!index) return wrong(index.status().text());
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  ModelFile model;
  for (const std::string& name : index->files) {
    auto tensors = read_header(folder + name);
    if (!tensors) return tensors.status();
    std::vector<StoredTensor> taken;  // a file may hold more than the model
    for (StoredTensor& tensor : *tensors) {
      const auto found = index->file_of.find(tensor.name);
      if (found == index->file_of.end() || found->second != name) continue;
      index->file_of.erase(found);
      taken.push_back(std::move(tensor));
    }
    if (Status added = add_tensors(std::move(taken), name, dtype, &model); !added) return added;
  }
  if (!index->file_of.empty()) {
    const auto& [tensor, in] = *index->file_of.begin();
    return invalid("--model: ", in_quotes(in), " does not hold tensor ", in_quotes(tensor), ", which ", in_quotes(path), " says it does");
  }
  return model;
}

}  // namespace

Result<ModelFile> read_model(const std::string& path, const std::string& dtype) {
  if (path.size() >= 5 && path.compare(path.size() - 5, 5, ".json") == 0) return read_several(path, dtype);
  auto tensors = read_header(path);
  if (!tensors) return tensors.status();
  ModelFile model;
  if (Status added = add_tensors(*std::move(tensors), path, dtype, &model); !added) return added;
  return model;
}

}  // namespace megadp::tool
