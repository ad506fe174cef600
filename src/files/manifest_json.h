// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: what is in it, and in which file. Written last, so that a checkpoint that has one is whole. It comes from
// anywhere: nothing in it is believed before it is checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "files/safetensors_file.h"

namespace megadp {

constexpr const char* kManifestName = "manifest.json";
constexpr uint64_t kManifestVersion = 1;                  // grows if older libraries cannot read it any more
constexpr uint64_t kLongestManifest = uint64_t{1} << 32;  // bytes

// How an array is cut over tensor-parallel ranks. Along `dim` each has `stride` equally long runs, which take turns: first runs of all
// ranks, second runs of all, and so on.
struct Cut {
  int dim = 0, stride = 1;
  std::vector<int64_t> sizes;  // of each rank along dim; empty: not cut

  bool is_cut() const noexcept { return !sizes.empty(); }
  size_t parts() const noexcept { return is_cut() ? sizes.size() : 1; }
};

// Elements begin to end of one part's flattening, of each of the array's states.
struct StoredPiece {
  uint32_t file = 0, part = 0;
  uint64_t begin = 0, end = 0;
};

struct StoredArray {
  std::string name;
  DType type = DType::f32;
  std::vector<int64_t> shape;  // of the whole
  Cut cut;
  bool is_param = true;              // else a tensor of the caller's
  bool is_frozen = false;            // nothing of it is stored
  std::string state_of;              // bytes that an owner keeps: the parameter's name; else empty
  int optimizer = -1;                // that has state of it
  uint64_t steps = 0;                // that it has taken part in
  std::string tie;                   // where it is tied: what its copies are tied as
  std::vector<std::string> aliases;  // names of its copies
  std::vector<StoredPiece> pieces;   // by part and begin
  std::string foreign;               // in a model, its dtype if the library has none such

  // As sentences name it.
  bool is_state() const { return !state_of.empty(); }
  std::string type_name() const { return foreign.empty() ? name_of(type) : foreign; }
  std::vector<int64_t> shape_of(size_t part) const;
};

struct StoredState {
  std::string name;
  DType type = DType::f32;
};
struct StoredOptimizer {
  std::string rule;
  uint64_t steps = 0;
  std::vector<StoredState> state;
  std::string info;  // JSON, as mdp_optimizer_info says it
};

struct StoredFile {
  std::string name;
  WrittenFile written;
  uint64_t user_bytes = 0;    // that its rank has given
  bool has_checksums = true;  // of its data; a model's mostly has none
};

struct Manifest {
  std::string written_by, save_id;  // the version of megadp
  std::string grid;                 // in words
  bool is_model = false;            // ordinary safetensors files, each array under its own name in one of them; nothing else
  std::vector<StoredFile> files;    // of the ranks
  std::vector<StoredOptimizer> optimizers;
  std::vector<StoredArray> arrays;
  uint64_t shared_bytes = 0;  // that the caller has given for all, in file 0

  std::string json() const;
};

// What is written: the JSON, and behind it, as its last member, the checksum of all that comes before that.
std::string manifest_text(const Manifest& manifest);

// Of what was written, by this version or one that wrote no checksum. Code::corrupt, or Code::unsupported for one of a later version.
Result<Manifest> parse_manifest(std::string_view json);

// The array of what the owner of a parameter keeps.
std::string param_state_name(std::string_view state, std::string_view param);

// What one state of a piece is called in its file. "param" is the array itself.
std::string piece_name(std::string_view state, const StoredPiece& piece, const std::string& array);
constexpr const char* kParamState = "param";
constexpr const char* kMasterState = "master";
constexpr const char* kUserData = "user_data";      // bytes of each rank
constexpr const char* kSharedData = "shared_data";  // and for all

}  // namespace megadp
