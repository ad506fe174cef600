// SPDX-License-Identifier: Apache-2.0
#include "files/manifest_json.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "base/shape.h"
#include "files/checksum.h"
#include "files/json_value.h"

namespace megadp {
namespace {

constexpr const char *kFormat = "megadp checkpoint", *kModelFormat = "safetensors";
constexpr uint64_t kMostElements = uint64_t{1} << 58;
constexpr std::string_view kChecksum = ",\"checksum\":\"", kEnd = "}\n";

// "[...]"
template <class Range, class Describe>
std::string list_json(const Range& range, const Describe& describe) {
  std::string out = "[";
  for (const auto& each : range) out += text(out.size() == 1 ? "" : ",", describe(each));
  return out + "]";
}

std::string file_json(const StoredFile& file) {
  std::string header;
  append_digits(&header, file.written.header_checksum);
  return text("{\"name\":", json_string(file.name), ",\"bytes\":", file.written.bytes, ",\"header\":\"", header,
              "\",\"user_bytes\":", file.user_bytes, file.has_checksums ? "" : ",\"checksums\":false", "}");
}

// What mdp_optimizer_info says, and who keeps state, unless another has said it.
std::string optimizer_json(const StoredOptimizer& optimizer) {
  const auto info = JsonValue::parse(optimizer.info);
  if (!info || info->find("ownership") != nullptr) return optimizer.info;
  return text(std::string_view(optimizer.info).substr(0, optimizer.info.size() - 1), ",\"ownership\":\"elements\"}");
}

std::string array_json(const StoredArray& array) {
  const auto same = [](int64_t value) { return value; };
  std::string out = text("{\"name\":", json_string(array.name), ",\"dtype\":", json_string(array.type_name()),
                         ",\"shape\":", list_json(array.shape, same));
  if (array.cut.is_cut()) {
    out +=
        text(",\"cut\":{\"dim\":", array.cut.dim, ",\"stride\":", array.cut.stride, ",\"sizes\":", list_json(array.cut.sizes, same), "}");
  }
  out += text(",\"kind\":\"", array.is_state() ? "state" : array.is_frozen ? "frozen" : array.is_param ? "parameter" : "tensor", "\"");
  if (array.is_state()) out += text(",\"of\":", json_string(array.state_of));
  if (array.optimizer >= 0) out += text(",\"optimizer\":", array.optimizer, ",\"steps\":", array.steps);
  if (!array.tie.empty()) out += text(",\"tie\":", json_string(array.tie));
  if (!array.aliases.empty()) out += text(",\"aliases\":", list_json(array.aliases, json_string));
  const auto piece_json = [](const StoredPiece& piece) {
    return text("[", piece.file, ",", piece.part, ",", piece.begin, ",", piece.end, "]");
  };
  if (!array.pieces.empty()) out += text(",\"pieces\":", list_json(array.pieces, piece_json));
  return out + "}";
}

// Reads with the first thing that is wrong kept: what comes after it counts no more.
class ManifestReader {
 public:
  const std::string& problem() const { return problem_; }
  bool ok() const { return problem_.empty(); }
  void refuse(std::string sentence) {
    if (ok()) problem_ = std::move(sentence);
  }

  // Null if it is not there, of which the others then say nothing.
  const JsonValue* member(const JsonValue& of, const char* name, const std::string& where) {
    const JsonValue* const found = of.find(name);
    if (found == nullptr) refuse(text(where, " has no ", name));
    return found;
  }
  uint64_t number(const JsonValue* json, const std::string& what, uint64_t most = INT64_MAX) {
    const auto value = json != nullptr ? json->whole_number() : std::nullopt;
    if (value && *value <= most) return *value;
    refuse(text(what, " is not a whole number from 0 to ", most));
    return 0;
  }
  std::string string(const JsonValue* json, const std::string& what) {
    if (json != nullptr && json->string() != nullptr) return *json->string();
    refuse(text(what, " is not a string"));
    return {};
  }
  std::span<const JsonValue> list(const JsonValue* json, const std::string& what) {
    if (json != nullptr && json->is_array()) return json->items();
    refuse(text(what, " is not an array"));
    return {};
  }
  std::vector<int64_t> sizes(const JsonValue* json, const std::string& what, size_t most) {
    std::vector<int64_t> out;
    const std::span<const JsonValue> given = list(json, what);
    if (given.size() > most) refuse(text(what, " has ", given.size(), " sizes"));
    for (const JsonValue& each : given) {
      if (!ok()) break;
      out.push_back(static_cast<int64_t>(number(&each, what, kMostElements)));
    }
    return out;
  }
  DType dtype(const JsonValue* json, const std::string& what) {
    const std::string name = string(json, what);
    for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8})
      if (name == name_of(type)) return type;
    refuse(text(what, " is ", in_quotes(name), ", which is no element type"));
    return DType::f32;
  }

 private:
  std::string problem_;
};

StoredFile take_file(ManifestReader& reader, const JsonValue& json, const std::string& where) {
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

StoredOptimizer take_optimizer(ManifestReader& reader, const JsonValue& json, const std::string& where) {
  StoredOptimizer optimizer;
  optimizer.rule = reader.string(reader.member(json, "rule", where), where + ".rule");
  optimizer.steps = reader.number(reader.member(json, "steps", where), where + ".steps");
  const std::string ownership = reader.string(reader.member(json, "ownership", where), where + ".ownership");
  if (reader.ok() && ownership != "elements") reader.refuse(text(where, ".ownership is ", in_quotes(ownership), ", not 'elements'"));
  for (const JsonValue& state : reader.list(reader.member(json, "state", where), where + ".state")) {
    if (!reader.ok()) break;
    optimizer.state.push_back({reader.string(reader.member(state, "name", where), where + ".state"),
                               reader.dtype(reader.member(state, "dtype", where), where + ".state")});
  }
  if (reader.ok()) optimizer.info = json.dump();
  return optimizer;
}

Cut take_cut(ManifestReader& reader, const JsonValue& json, const std::string& where, const std::vector<int64_t>& shape) {
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

void take_pieces(ManifestReader& reader, const JsonValue& json, const std::string& where, size_t files, StoredArray* array) {
  std::vector<uint64_t> elements;
  for (size_t part = 0; part < array->cut.parts(); ++part) {
    uint64_t count = 0;
    size_t at = 0;
    if (!count_elements(array->shape_of(part), kMostElements, &count, &at)) return reader.refuse(where + " has too many elements");
    elements.push_back(count);
  }
  for (const JsonValue& given : reader.list(&json, where + ".pieces")) {
    const std::vector<int64_t> numbers = reader.sizes(&given, where + ".pieces", 4);
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

StoredArray take_array(ManifestReader& reader, const JsonValue& json, const Manifest& manifest) {
  StoredArray array;
  array.name = reader.string(reader.member(json, "name", "an array"), "the name of an array");
  const std::string where = "array " + in_quotes(array.name);
  array.type = reader.dtype(reader.member(json, "dtype", where), where + ".dtype");
  array.shape = reader.sizes(reader.member(json, "shape", where), where + ".shape", kMostDims);
  const std::string kind = reader.string(reader.member(json, "kind", where), where + ".kind");
  array.is_frozen = kind == "frozen";
  array.is_param = kind != "tensor" && kind != "state";
  if (kind == "state") {
    array.state_of = reader.string(reader.member(json, "of", where), where + ".of");
    if (array.state_of.empty() || array.type != DType::u8) reader.refuse(where + " is no state of a parameter");
  }
  if (!reader.ok()) return array;
  uint64_t elements = 0;
  size_t at = 0;
  if (!count_elements(array.shape, kMostElements, &elements, &at)) reader.refuse(where + " has too many elements");
  if (const JsonValue* const cut = json.find("cut")) array.cut = take_cut(reader, *cut, where, array.shape);
  if (const JsonValue* const optimizer = json.find("optimizer")) {
    if (manifest.optimizers.empty())
      reader.refuse(where + " has an optimizer that is not there");
    else
      array.optimizer = static_cast<int>(reader.number(optimizer, where + ".optimizer", manifest.optimizers.size() - 1));
    array.steps = reader.number(reader.member(json, "steps", where), where + ".steps");
  }
  if (const JsonValue* const tie = json.find("tie")) array.tie = reader.string(tie, where + ".tie");
  if (const JsonValue* const aliases = json.find("aliases")) {
    for (const JsonValue& alias : reader.list(aliases, where + ".aliases"))
      array.aliases.push_back(reader.string(&alias, where + ".aliases"));
  }
  const JsonValue* const pieces = json.find("pieces");
  if (reader.ok() && pieces != nullptr) take_pieces(reader, *pieces, where, manifest.files.size(), &array);
  return array;
}

// Whether its last member is the checksum of what comes before that.
bool is_as_written(std::string_view given) {
  const size_t at = given.rfind(kChecksum), digits = at + kChecksum.size(), end = digits + kChecksumDigits;
  uint64_t written = 0;
  return at != std::string_view::npos && read_digits(given.substr(digits, kChecksumDigits), &written) && end < given.size() &&
         given[end] == '"' && given.substr(end + 1) == kEnd && written == checksum(given.data(), at);
}

}  // namespace

std::vector<int64_t> StoredArray::shape_of(size_t part) const {
  std::vector<int64_t> out = shape;
  if (cut.is_cut()) out[static_cast<size_t>(cut.dim)] = cut.sizes[part];
  return out;
}

std::string Manifest::json() const {
  return text("{\"format\":", json_string(is_model ? kModelFormat : kFormat), ",\"version\":", kManifestVersion,
              ",\"written_by\":", json_string(written_by), ",\"save_id\":", json_string(save_id), ",\"grid\":", json_string(grid),
              ",\"shared_bytes\":", shared_bytes, ",\"arrays\":", list_json(arrays, array_json),
              ",\"optimizers\":", list_json(optimizers, optimizer_json), ",\"files\":", list_json(files, file_json), kEnd);
}

std::string manifest_text(const Manifest& manifest) {
  std::string out = manifest.json();
  out.resize(out.size() - kEnd.size());
  std::string digits;
  append_digits(&digits, checksum(out.data(), out.size()));
  return text(out, kChecksum, digits, "\"", kEnd);
}

Result<Manifest> parse_manifest(std::string_view given) {
  const auto corrupt = [](const std::string& problem) { return Status(Code::corrupt, problem); };
  const auto parsed = JsonValue::parse(given);
  if (!parsed) return parsed.status();
  const JsonValue& json = *parsed;
  ManifestReader reader;
  if (reader.string(reader.member(json, "format", "it"), "format") != kFormat) return corrupt("it is not the manifest of a checkpoint");
  const uint64_t version = reader.number(reader.member(json, "version", "it"), "version");
  if (reader.ok() && version > kManifestVersion) {
    return unsupported("it has version ", version, " of the format; this library, ", MEGADP_VERSION_STRING, ", reads up to version ",
                       kManifestVersion);
  }
  if (reader.ok() && json.find("checksum") != nullptr && !is_as_written(given)) {
    return corrupt("its checksum is not that of what it says: it is damaged, or somebody has edited it");
  }
  Manifest manifest;
  manifest.written_by = reader.string(reader.member(json, "written_by", "it"), "written_by");
  manifest.save_id = reader.string(reader.member(json, "save_id", "it"), "save_id");
  manifest.grid = reader.string(reader.member(json, "grid", "it"), "grid");
  manifest.shared_bytes = reader.number(reader.member(json, "shared_bytes", "it"), "shared_bytes");
  size_t number = 0;
  for (const JsonValue& file : reader.list(reader.member(json, "files", "it"), "files")) {
    if (reader.ok()) manifest.files.push_back(take_file(reader, file, text("files[", number++, "]")));
  }
  if (manifest.files.empty()) reader.refuse("it names no files");
  number = 0;
  for (const JsonValue& optimizer : reader.list(reader.member(json, "optimizers", "it"), "optimizers")) {
    if (reader.ok()) manifest.optimizers.push_back(take_optimizer(reader, optimizer, text("optimizers[", number++, "]")));
  }
  std::set<std::string_view> names;
  for (const JsonValue& array : reader.list(reader.member(json, "arrays", "it"), "arrays")) {
    if (reader.ok()) manifest.arrays.push_back(take_array(reader, array, manifest));
  }
  for (const StoredArray& array : manifest.arrays) {
    if (!names.insert(array.name).second) reader.refuse(text("it has array ", in_quotes(array.name), " twice"));
  }
  if (!reader.ok()) return corrupt(reader.problem());
  return manifest;
}

std::string param_state_name(std::string_view state, std::string_view param) {
  return text(state, " of ", param);
}

std::string piece_name(std::string_view state, const StoredPiece& piece, const std::string& array) {
  return text(state, ":", piece.part, ":", piece.begin, ":", array);
}

}  // namespace megadp
