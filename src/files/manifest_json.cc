// SPDX-License-Identifier: Apache-2.0
#include "files/manifest_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "base/shape.h"
#include "files/checksum.h"

namespace megadp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char *kFormat = "megadp checkpoint", *kModelFormat = "safetensors";
constexpr int kMostNested = 32;
constexpr uint64_t kMostElements = uint64_t{1} << 58;

Json piece_json(const StoredPiece& piece) {
  return Json::array({piece.file, piece.part, piece.begin, piece.end});
}

Json array_json(const StoredArray& array) {
  Json json{{"name", array.name}, {"dtype", array.type_name()}, {"shape", array.shape}};
  if (array.cut.is_cut()) json["cut"] = {{"dim", array.cut.dim}, {"stride", array.cut.stride}, {"sizes", array.cut.sizes}};
  json["kind"] = array.is_frozen ? "frozen" : array.is_param ? "parameter" : "tensor";
  if (array.optimizer >= 0) {
    json["optimizer"] = array.optimizer;
    json["steps"] = array.steps;
  }
  if (!array.tie.empty()) json["tie"] = array.tie;
  if (!array.aliases.empty()) json["aliases"] = array.aliases;
  for (const StoredPiece& piece : array.pieces) json["pieces"].push_back(piece_json(piece));
  return json;
}

Json optimizer_json(const StoredOptimizer& optimizer) {
  Json json = Json::parse(optimizer.info);
  json["ownership"] = "elements";
  return json;
}

// Reads with the first thing that is wrong kept: what comes after it counts no more.
class ManifestReader {
 public:
  const std::string& problem() const { return problem_; }
  bool ok() const { return problem_.empty(); }
  void refuse(std::string sentence) {
    if (ok()) problem_ = std::move(sentence);
  }

  const Json& member(const Json& of, const char* name, const std::string& where) {
    static const Json& kNothing = *new Json;  // never freed: other threads may read at exit
    if (of.is_object()) {
      const auto found = of.find(name);
      if (found != of.end()) return *found;
    }
    refuse(text(where, " has no ", name));
    return kNothing;
  }
  uint64_t number(const Json& json, const std::string& what, uint64_t most = INT64_MAX) {
    if (json.is_number_unsigned() && json.get<uint64_t>() <= most) return json.get<uint64_t>();
    refuse(text(what, " is not a whole number from 0 to ", most));
    return 0;
  }
  std::string string(const Json& json, const std::string& what) {
    if (json.is_string()) return json.get<std::string>();
    refuse(text(what, " is not a string"));
    return {};
  }
  const Json& list(const Json& json, const std::string& what) {
    static const Json& kEmpty = *new Json(Json::array());
    if (json.is_array()) return json;
    refuse(text(what, " is not an array"));
    return kEmpty;
  }
  std::vector<int64_t> sizes(const Json& json, const std::string& what, size_t most) {
    std::vector<int64_t> out;
    const Json& given = list(json, what);
    if (given.size() > most) refuse(text(what, " has ", given.size(), " sizes"));
    for (const Json& each : given) {
      if (!ok()) break;
      out.push_back(static_cast<int64_t>(number(each, what, kMostElements)));
    }
    return out;
  }
  DType dtype(const Json& json, const std::string& what) {
    const std::string name = string(json, what);
    for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8})
      if (name == name_of(type)) return type;
    refuse(text(what, " is ", in_quotes(name), ", which is no element type"));
    return DType::f32;
  }

 private:
  std::string problem_;
};

StoredFile take_file(ManifestReader& reader, const Json& json, const std::string& where) {
  StoredFile file;
  file.name = reader.string(reader.member(json, "name", where), where + ".name");
  if (file.name.empty() || file.name == "." || file.name == ".." || file.name.find_first_of(std::string("/\0", 2)) != std::string::npos) {
    reader.refuse(text(where, ".name is ", in_quotes(file.name), "; it must be a file beside the manifest"));
  }
  file.written.bytes = reader.number(reader.member(json, "bytes", where), where + ".bytes");
  if (!read_digits(reader.string(reader.member(json, "header", where), where + ".header"), &file.written.header_checksum)) {
    reader.refuse(text(where, ".header is not a checksum"));
  }
  file.user_bytes = reader.number(reader.member(json, "user_bytes", where), where + ".user_bytes");
  return file;
}

StoredOptimizer take_optimizer(ManifestReader& reader, const Json& json, const std::string& where) {
  StoredOptimizer optimizer;
  optimizer.rule = reader.string(reader.member(json, "rule", where), where + ".rule");
  optimizer.steps = reader.number(reader.member(json, "steps", where), where + ".steps");
  const std::string ownership = reader.string(reader.member(json, "ownership", where), where + ".ownership");
  if (reader.ok() && ownership != "elements") reader.refuse(text(where, ".ownership is ", in_quotes(ownership), ", not 'elements'"));
  for (const Json& state : reader.list(reader.member(json, "state", where), where + ".state")) {
    if (!reader.ok()) break;
    optimizer.state.push_back({reader.string(reader.member(state, "name", where), where + ".state"),
                               reader.dtype(reader.member(state, "dtype", where), where + ".state")});
  }
  if (reader.ok()) optimizer.info = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return optimizer;
}

Cut take_cut(ManifestReader& reader, const Json& json, const std::string& where, const std::vector<int64_t>& shape) {
  Cut cut;
  if (shape.empty()) {
    reader.refuse(where + " has no dimensions and is cut");
    return cut;
  }
  cut.dim = static_cast<int>(reader.number(reader.member(json, "dim", where), where + ".cut.dim", shape.size() - 1));
  cut.stride = static_cast<int>(reader.number(reader.member(json, "stride", where), where + ".cut.stride", INT32_MAX));
  cut.sizes = reader.sizes(reader.member(json, "sizes", where), where + ".cut.sizes", SIZE_MAX);
  if (!reader.ok()) return cut;
  int64_t sum = 0;
  for (const int64_t size : cut.sizes) {
    if (cut.stride < 1 || size % cut.stride != 0)
      reader.refuse(text(where, ".cut.stride is ", cut.stride, ", which does not divide ", size));
    if (!reader.ok() || __builtin_add_overflow(sum, size, &sum)) break;
  }
  if (cut.sizes.empty() || sum != shape[static_cast<size_t>(cut.dim)]) reader.refuse(where + ".cut.sizes do not add up to its size");
  return cut;
}

void take_pieces(ManifestReader& reader, const Json& json, const std::string& where, size_t files, StoredArray* array) {
  std::vector<uint64_t> elements;
  for (size_t part = 0; part < array->cut.parts(); ++part) {
    uint64_t count = 0;
    size_t at = 0;
    if (!count_elements(array->shape_of(part), kMostElements, &count, &at)) return reader.refuse(where + " has too many elements");
    elements.push_back(count);
  }
  for (const Json& given : reader.list(json, where + ".pieces")) {
    const std::vector<int64_t> numbers = reader.sizes(given, where + ".pieces", 4);
    if (reader.ok() && numbers.size() != 4) reader.refuse(where + ".pieces must be file, part, begin and end");
    if (!reader.ok()) return;
    const StoredPiece piece{static_cast<uint32_t>(numbers[0]), static_cast<uint32_t>(numbers[1]), static_cast<uint64_t>(numbers[2]),
                            static_cast<uint64_t>(numbers[3])};
    if (static_cast<uint64_t>(numbers[0]) >= files || static_cast<uint64_t>(numbers[1]) >= elements.size() || piece.begin >= piece.end ||
        piece.end > elements[piece.part]) {
      return reader.refuse(text(where, " has the piece ", shape_text(numbers), ", which cannot be"));
    }
    // They are searched, and read one after another.
    if (!array->pieces.empty()) {
      const StoredPiece& last = array->pieces.back();
      if (piece.part < last.part || (piece.part == last.part && piece.begin < last.end)) {
        return reader.refuse(text(where, " has the piece ", shape_text(numbers), ", which is out of order, or overlaps"));
      }
    }
    array->pieces.push_back(piece);
  }
}

StoredArray take_array(ManifestReader& reader, const Json& json, const Manifest& manifest) {
  StoredArray array;
  array.name = reader.string(reader.member(json, "name", "an array"), "the name of an array");
  const std::string where = "array " + in_quotes(array.name);
  array.type = reader.dtype(reader.member(json, "dtype", where), where + ".dtype");
  array.shape = reader.sizes(reader.member(json, "shape", where), where + ".shape", kMostDims);
  const std::string kind = reader.string(reader.member(json, "kind", where), where + ".kind");
  array.is_frozen = kind == "frozen";
  array.is_param = kind != "tensor";
  if (!reader.ok()) return array;
  uint64_t elements = 0;
  size_t at = 0;
  if (!count_elements(array.shape, kMostElements, &elements, &at)) reader.refuse(where + " has too many elements");
  if (json.contains("cut")) array.cut = take_cut(reader, json["cut"], where, array.shape);
  if (json.contains("optimizer")) {
    if (manifest.optimizers.empty())
      reader.refuse(where + " has an optimizer that is not there");
    else
      array.optimizer = static_cast<int>(reader.number(json["optimizer"], where + ".optimizer", manifest.optimizers.size() - 1));
    array.steps = reader.number(reader.member(json, "steps", where), where + ".steps");
  }
  if (json.contains("tie")) array.tie = reader.string(json["tie"], where + ".tie");
  if (json.contains("aliases")) {
    for (const Json& alias : reader.list(json["aliases"], where + ".aliases"))
      array.aliases.push_back(reader.string(alias, where + ".aliases"));
  }
  if (reader.ok() && json.contains("pieces")) take_pieces(reader, json["pieces"], where, manifest.files.size(), &array);
  return array;
}

}  // namespace

std::vector<int64_t> StoredArray::shape_of(size_t part) const {
  std::vector<int64_t> out = shape;
  if (cut.is_cut()) out[static_cast<size_t>(cut.dim)] = cut.sizes[part];
  return out;
}

std::string Manifest::json() const {
  Json json{{"format", is_model ? kModelFormat : kFormat},
            {"version", kManifestVersion},
            {"written_by", written_by},
            {"save_id", save_id},
            {"grid", grid}};
  json["shared_bytes"] = shared_bytes;
  json["scaler"] = nullptr;
  json["files"] = json["optimizers"] = json["arrays"] = Json::array();
  for (const StoredFile& file : files) {
    std::string header;
    append_digits(&header, file.written.header_checksum);
    json["files"].push_back({{"name", file.name}, {"bytes", file.written.bytes}, {"header", header}, {"user_bytes", file.user_bytes}});
  }
  for (const StoredOptimizer& optimizer : optimizers) json["optimizers"].push_back(optimizer_json(optimizer));
  for (const StoredArray& array : arrays) json["arrays"].push_back(array_json(array));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Manifest> parse_manifest(std::string_view given) {
  const auto corrupt = [](const std::string& problem) { return Status(Code::corrupt, problem); };
  bool is_deep = false;  // than any manifest: it would be written again by calls that deep
  const auto look = [&is_deep](int depth, Json::parse_event_t, const Json&) {
    is_deep |= depth > kMostNested;
    return depth <= kMostNested;
  };
  const Json json = Json::parse(given, look, false);
  if (is_deep) return corrupt(text("it is nested deeper than ", kMostNested, " levels"));
  if (json.is_discarded()) return corrupt("it is not JSON");
  ManifestReader reader;
  if (reader.string(reader.member(json, "format", "it"), "format") != kFormat) return corrupt("it is not the manifest of a checkpoint");
  const uint64_t version = reader.number(reader.member(json, "version", "it"), "version");
  if (reader.ok() && version > kManifestVersion) {
    return unsupported("it has version ", version, " of the format; this library, ", MEGADP_VERSION_STRING, ", reads up to version ",
                       kManifestVersion);
  }
  Manifest manifest;
  manifest.written_by = reader.string(reader.member(json, "written_by", "it"), "written_by");
  manifest.save_id = reader.string(reader.member(json, "save_id", "it"), "save_id");
  manifest.grid = reader.string(reader.member(json, "grid", "it"), "grid");
  manifest.shared_bytes = reader.number(reader.member(json, "shared_bytes", "it"), "shared_bytes");
  size_t number = 0;
  for (const Json& file : reader.list(reader.member(json, "files", "it"), "files")) {
    if (reader.ok()) manifest.files.push_back(take_file(reader, file, text("files[", number++, "]")));
  }
  if (manifest.files.empty()) reader.refuse("it names no files");
  number = 0;
  for (const Json& optimizer : reader.list(reader.member(json, "optimizers", "it"), "optimizers")) {
    if (reader.ok()) manifest.optimizers.push_back(take_optimizer(reader, optimizer, text("optimizers[", number++, "]")));
  }
  std::set<std::string_view> names;
  for (const Json& array : reader.list(reader.member(json, "arrays", "it"), "arrays")) {
    if (reader.ok()) manifest.arrays.push_back(take_array(reader, array, manifest));
  }
  for (const StoredArray& array : manifest.arrays) {
    if (!names.insert(array.name).second) reader.refuse(text("it has array ", in_quotes(array.name), " twice"));
  }
  if (!reader.ok()) return corrupt(reader.problem());
  return manifest;
}

std::string piece_name(std::string_view state, const StoredPiece& piece, const std::string& array) {
  return text(state, ":", piece.part, ":", piece.begin, ":", array);
}

}  // namespace megadp
