// SPDX-License-Identifier: Apache-2.0
// The JSON of safetensors files, read piece by piece: what is kept is bounded by the tensors found, not by what the text claims.
#include "files/safetensors_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/shape.h"
#include "base/text.h"

namespace megadp {
namespace {

using Json = nlohmann::json;

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

constexpr std::pair<DType, const char*> kStoredNames[] = {{DType::f32, "F32"}, {DType::bf16, "BF16"}, {DType::f16, "F16"},
                                                          {DType::f64, "F64"}, {DType::i64, "I64"},   {DType::u8, "U8"}};

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
  SafetensorsHeader header;

  bool start_object(std::size_t) override {
    if (depth_ == 2 || (depth_ == 1 && in_array_)) return unexpected("an object");
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      is_metadata_ = name == kMetadataName;
      if (is_metadata_) return true;
      if (header.tensors.size() == kMostStored) return refuse(text("it has more than ", kMostStored, " tensors"));
      header.tensors.emplace_back();
      header.tensors.back().name = name;
      has_shape_ = false;
      offsets_.clear();
      return true;
    }
    member_ = name;
    if (!is_metadata_ && name != "dtype" && name != "shape" && name != "data_offsets")
      return refuse(text("tensor ", in_quotes(header.tensors.back().name), " has a member ", in_quotes(name),
                         ", which is neither dtype, shape nor data_offsets"));
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ != 2 || in_array_) return unexpected("a string");
    if (is_metadata_) {
      header.metadata[member_] = value;
      return true;
    }
    if (member_ != "dtype") return unexpected("a string");
    header.tensors.back().dtype = value;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_array_ || is_metadata_ || member_ == "dtype") return unexpected("an array");
    StoredTensor& tensor = header.tensors.back();
    const bool again = member_ == "shape" ? has_shape_ : !offsets_.empty();
    if (again) return refuse(text("tensor ", in_quotes(tensor.name), " has ", member_, " twice"));
    in_array_ = true;
    has_shape_ |= member_ == "shape";
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return unexpected("a number");
    StoredTensor& tensor = header.tensors.back();
    if (member_ == "data_offsets") {
      if (offsets_.size() == 2) return refuse(text("tensor ", in_quotes(tensor.name), " has more than two data_offsets"));
      offsets_.push_back(value);
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
    return check(header.tensors.back());
  }

 protected:
  bool unexpected(const char* what) override {
    return depth_ == 0 || header.tensors.empty() || is_metadata_
               ? Reader::unexpected(what)
               : refuse(text(what, " stands where none belongs in tensor ", in_quotes(header.tensors.back().name)));
  }

 private:
  bool check(StoredTensor& tensor) {
    const std::string name = "tensor " + in_quotes(tensor.name);
    if (tensor.dtype.empty()) return refuse(name + " has no dtype");
    if (!has_shape_) return refuse(name + " has no shape");
    if (offsets_.size() != 2) return refuse(name + " has no pair of data_offsets");
    uint64_t elements = 0, bytes = 0;
    size_t at = 0;
    if (!count_elements(tensor.shape, INT64_MAX / 8, &elements, &at)) return refuse(name + " has more elements than can be counted");
    const uint64_t bits = bits_of(tensor.dtype);
    if (bits == 0) return refuse(text(name, " has dtype ", in_quotes(tensor.dtype), ", which is not known"));
    bytes = elements * (bits / 8);
    if (offsets_[1] < offsets_[0] || offsets_[1] - offsets_[0] != bytes)
      return refuse(text(name, " has ", elements, " elements of ", tensor.dtype, ", which is ", bytes, " bytes; its data_offsets are ",
                         offsets_[0], " and ", offsets_[1]));
    tensor.begin = offsets_[0];
    tensor.end = offsets_[1];
    return true;
  }

  int depth_ = 0;
  bool is_metadata_ = false, in_array_ = false;
  std::string member_;
  // Of the last tensor, so far.
  bool has_shape_ = false;
  std::vector<uint64_t> offsets_;
};

// {"metadata":{...},"weight_map":{"NAME":"FILE",...}}
class IndexReader : public Reader {
 public:
  SafetensorsIndex index;

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
    if (index.file_of.size() == kMostStored) return refuse(text("it names more than ", kMostStored, " tensors"));
    if (!index.file_of.emplace(member_, file).second) return refuse(text("weight_map names tensor ", in_quotes(member_), " twice"));
    if (seen_.insert(file).second) index.files.push_back(file);
    return true;
  }

 private:
  bool anything() { return depth_ >= 1 && !(depth_ == 2 && in_map_) ? true : unexpected("something else"); }

  int depth_ = 0;
  bool in_map_ = false;
  std::string member_;
  std::set<std::string> seen_;
};

template <class Kind>
Status read(std::string_view json, Kind* reader) {
  if (Json::sax_parse(json, reader)) return {};
  return Status(Code::corrupt, reader->problem());
}

}  // namespace

Result<uint64_t> safetensors_header_bytes(std::string_view front) {
  if (front.size() < 8) {
    return Status(Code::corrupt, text("it has ", front.size(), " bytes, and the length of the header alone takes 8"));
  }
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(front[i]);
  if (length <= kLongestHeader) return length;
  return Status(Code::corrupt, text("its header would have ", length, " bytes, and at most ", kLongestHeader, " are allowed"));
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view header) {
  if (header.empty() || header.front() != '{') return Status(Code::corrupt, "its header does not begin with {");
  HeaderReader reader;
  if (Status parsed = read(header, &reader); !parsed) return parsed;
  return std::move(reader.header);
}

const char* stored_name(DType type) noexcept {
  for (const auto& [known, name] : kStoredNames)
    if (known == type) return name;
  return "?";
}

std::optional<DType> dtype_of_stored(std::string_view given) noexcept {
  for (const auto& [type, name] : kStoredNames)
    if (given == name) return type;
  return {};
}

Result<SafetensorsIndex> parse_safetensors_index(std::string_view json) {
  IndexReader reader;
  if (Status parsed = read(json, &reader); !parsed) return parsed;
  if (reader.index.files.empty()) return Status(Code::corrupt, "it has no weight_map with files");
  return std::move(reader.index);
}

}  // namespace megadp
