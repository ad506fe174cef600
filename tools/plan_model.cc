// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, and the index of a model in several of them. They come from anywhere: nothing in them is believed
// before it is checked, and what is kept while reading is bounded by the tensors found, not by what the file claims.
//
//   | length of the header, 8 bytes, little-endian | {"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...,"__metadata__":{...}}
//   | data |
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/shape.h"
#include "plan_options.h"

namespace megadp::tool {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLongestHeader = 100'000'000;  // what the format's own readers take
constexpr size_t kMostDims = 16;

// The parts of JSON that both files consist of; what a file does not hold is refused where it stands, and nothing of it is kept.
class Reader : public nlohmann::json_sax<Json> {
 public:
  const std::string& problem() const { return problem_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a number that is not whole, or too large"); }
  bool string(string_t&) override { return unexpected("a string"); }
  bool binary(binary_t&) override { return unexpected("bytes"); }
  bool start_array(std::size_t) override { return unexpected("an array"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse(text("it is not JSON: at byte ", position));
  }

 protected:
  bool refuse(std::string sentence) {
    problem_ = std::move(sentence);
    return false;
  }
  virtual bool unexpected(const char* what) { return refuse(text(what, " stands where none belongs")); }

 private:
  std::string problem_;
};

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
};

uint64_t bits_of(std::string_view dtype) {
  constexpr std::pair<std::string_view, uint64_t> kBits[] = {
      {"BOOL", 8}, {"U8", 8},    {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16},
      {"F16", 16}, {"BF16", 16}, {"I32", 32}, {"U32", 32},    {"F32", 32},    {"I64", 64},    {"U64", 64}, {"F64", 64}};
  for (const auto& [name, bits] : kBits)
    if (name == dtype) return bits;
  return 0;
}

class HeaderReader : public Reader {
 public:
  std::vector<Tensor> tensors;

  bool start_object(std::size_t) override {
    if (depth_ == 2 || (depth_ == 1 && in_array_)) return unexpected("an object");
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      is_metadata_ = name == "__metadata__";
      if (is_metadata_) return true;
      if (tensors.size() == kMostParams) return refuse(text("it has more than ", kMostParams, " tensors"));
      tensors.push_back({name, {}, {}, {}, false});
      return true;
    }
    member_ = name;
    if (!is_metadata_ && name != "dtype" && name != "shape" && name != "data_offsets")
      return refuse(text("tensor ", in_quotes(tensors.back().name), " has a member ", in_quotes(name),
                         ", which is neither dtype, shape nor data_offsets"));
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ != 2 || in_array_) return unexpected("a string");
    if (is_metadata_) return true;
    if (member_ != "dtype") return unexpected("a string");
    tensors.back().dtype = value;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_array_ || is_metadata_ || member_ == "dtype") return unexpected("an array");
    Tensor& tensor = tensors.back();
    const bool again = member_ == "shape" ? tensor.has_shape : !tensor.offsets.empty();
    if (again) return refuse(text("tensor ", in_quotes(tensor.name), " has ", member_, " twice"));
    in_array_ = true;
    tensor.has_shape |= member_ == "shape";
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return unexpected("a number");
    Tensor& tensor = tensors.back();
    if (member_ == "data_offsets") {
      if (tensor.offsets.size() == 2) return refuse(text("tensor ", in_quotes(tensor.name), " has more than two data_offsets"));
      tensor.offsets.push_back(value);
      return true;
    }
    if (tensor.shape.size() == kMostDims)
      return refuse(text("tensor ", in_quotes(tensor.name), " has more than ", kMostDims, " dimensions"));
    if (value > INT64_MAX) return refuse(text("tensor ", in_quotes(tensor.name), " has size ", value, " in a dimension"));
    tensor.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool end_object() override {
    if (depth_-- != 2 || is_metadata_) return true;
    return check(tensors.back());
  }

 protected:
  bool unexpected(const char* what) override {
    return depth_ == 0 || tensors.empty() || is_metadata_
               ? Reader::unexpected(what)
               : refuse(text(what, " stands where none belongs in tensor ", in_quotes(tensors.back().name)));
  }

 private:
  bool check(const Tensor& tensor) {
    const std::string name = "tensor " + in_quotes(tensor.name);
    if (tensor.dtype.empty()) return refuse(name + " has no dtype");
    if (!tensor.has_shape) return refuse(name + " has no shape");
    if (tensor.offsets.size() != 2) return refuse(name + " has no pair of data_offsets");
    uint64_t elements = 0, bytes = 0;
    size_t at = 0;
    if (!count_elements(tensor.shape, INT64_MAX / 8, &elements, &at)) return refuse(name + " has more elements than can be counted");
    const uint64_t bits = bits_of(tensor.dtype);
    if (bits == 0) return refuse(text(name, " has dtype ", in_quotes(tensor.dtype), ", which is not known"));
    bytes = elements * (bits / 8);
    if (tensor.offsets[1] < tensor.offsets[0] || tensor.offsets[1] - tensor.offsets[0] != bytes)
      return refuse(text(name, " has ", elements, " elements of ", tensor.dtype, ", which is ", bytes, " bytes; its data_offsets are ",
                         tensor.offsets[0], " and ", tensor.offsets[1]));
    return true;
  }

  int depth_ = 0;
  bool is_metadata_ = false, in_array_ = false;
  std::string member_;
};

// {"metadata":{...},"weight_map":{"NAME":"FILE",...}}
class IndexReader : public Reader {
 public:
  std::map<std::string, std::string> file_of;
  std::vector<std::string> files;  // in the order in which they are first named

  bool null() override { return anything(); }
  bool boolean(bool) override { return anything(); }
  bool number_integer(number_integer_t) override { return anything(); }
  bool number_unsigned(number_unsigned_t) override { return anything(); }
  bool number_float(number_float_t, const string_t&) override { return anything(); }
  bool start_array(std::size_t) override { return anything(); }
  bool start_object(std::size_t) override {
    if (depth_ == 2) return unexpected("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) in_map_ = name == "weight_map";
    member_ = name;
    return true;
  }
  bool string(string_t& file) override {
    if (depth_ != 2 || !in_map_) return anything();
    if (file.empty() || file.find('/') != std::string::npos || file.find('\0') != std::string::npos)
      return refuse(text("weight_map has ", in_quotes(file), " for tensor ", in_quotes(member_), ": it must be a file beside the index"));
    if (file_of.size() == kMostParams) return refuse(text("it names more than ", kMostParams, " tensors"));
    if (!file_of.emplace(member_, file).second) return refuse(text("weight_map names tensor ", in_quotes(member_), " twice"));
    if (seen_.insert(file).second) files.push_back(file);
    return true;
  }

 private:
  bool anything() { return depth_ >= 1 && !(depth_ == 2 && in_map_) ? true : unexpected("something else"); }

  int depth_ = 0;
  bool in_map_ = false;
  std::string member_;
  std::set<std::string> seen_;
};

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

Result<std::vector<Tensor>> read_header(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return cannot(path, "opened");
  auto front = read_front(file, 8);
  if (file.bad()) return cannot(path, "read");
  const auto wrong = [&](const auto&... words) { return invalid("--model: ", in_quotes(path), " is no safetensors file: ", words...); };
  if (front->size() < 8) return wrong("it has ", front->size(), " bytes, and the length of the header alone takes 8");
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>((*front)[i]);
  if (length > kLongestHeader) return wrong("its header would have ", length, " bytes, and at most ", kLongestHeader, " are allowed");
  auto header = read_front(file, length);
  if (file.bad()) return cannot(path, "read");
  if (header->size() < length) return wrong("its header should have ", length, " bytes, and the file ends after ", header->size());
  if (header->empty() || header->front() != '{') return wrong("its header does not begin with {");
  HeaderReader reader;
  if (!Json::sax_parse(*header, &reader)) return wrong(reader.problem());
  return std::move(reader.tensors);
}

// F32, BF16 and F16 are what can be trained; nothing: whole numbers and truth values.
Result<std::optional<DType>> dtype_of(const Tensor& tensor, const std::string& path, const std::string& asked) {
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

Status add_tensors(std::vector<Tensor> tensors, const std::string& path, const std::string& dtype, ModelFile* model) {
  for (Tensor& tensor : tensors) {
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
  IndexReader index;
  if (!Json::sax_parse(*all, &index)) return wrong(index.problem());
  if (index.files.empty()) return wrong("it has no weight_map with files");
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  ModelFile model;
  for (const std::string& name : index.files) {
    auto tensors = read_header(folder + name);
    if (!tensors) return tensors.status();
    std::vector<Tensor> taken;  // a file may hold more than the model
    for (Tensor& tensor : *tensors) {
      const auto found = index.file_of.find(tensor.name);
      if (found == index.file_of.end() || found->second != name) continue;
      index.file_of.erase(found);
      taken.push_back(std::move(tensor));
    }
    if (Status added = add_tensors(std::move(taken), name, dtype, &model); !added) return added;
  }
  if (!index.file_of.empty()) {
    const auto& [tensor, in] = *index.file_of.begin();
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
