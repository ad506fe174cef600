// SPDX-License-Identifier: Apache-2.0
// CheckpointSource: a checkpoint or a model that is there, to be read by ranges of its arrays, wherever they lie.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/cutting.h"
#include "files/checkpoint_folder.h"
#include "files/model_files.h"

namespace megadp {

class CheckpointSource {
 public:
  // The directory's newest checkpoint, or the directory itself if it is one; without any, the model in it; or a file of a model.
  static Result<CheckpointSource> open(const std::string& directory);

  const std::string& path() const noexcept { return path_; }
  const Manifest& manifest() const noexcept { return opened_.manifest; }
  // Of what is stored where; of a model, whose headers say nothing of the data, also of a sample of these.
  Result<uint64_t> digest();
  // Asked between the pieces that are read; a failure ends the read.
  void ask_between_pieces(std::function<Status()> go_on) { go_on_ = std::move(go_on); }
  // By its name, or that of a copy; null: it is not there.
  const StoredArray* find(const std::string& name) const;
  // Whether it has this state of the array, and of what type. "param" is the array itself.
  const DType* type_of(const StoredArray& array, const std::string& state) const;

  // A range of elements of one part of an array as it is cut here, which may be another cut than it had.
  struct Range {
    const StoredArray* source;
    const Cutting *from, *to;  // of the source, and as it is cut here
    size_t part;               // of `to`
    uint64_t begin, end;
  };
  // Each stored run of it: `at` counts elements from the range's beginning. Code::corrupt if something of it is nowhere stored.
  struct StoredRun {
    const StoredPiece* piece;
    uint64_t in_piece, at, count;
  };
  static Status for_each_run(const Range& range, const std::function<Status(const StoredRun&)>& each);

  // Whether the files have what the manifest says, without reading data.
  Status check(const Range& range, const std::string& state, DType type);
  // Elements of one state, in pieces; each is checked before it is handed out.
  Status read(const Range& range, const std::string& state, DType type,
              const std::function<Status(uint64_t at, const char* data, uint64_t count)>& give);
  // All of them into `to`, where a damaged one is not to be used.
  Status read_into(const Range& range, const std::string& state, DType type, std::byte* to);
  // Looks at all that is stored; what is damaged is told piece by piece.
  void verify(const std::function<void(const Status&)>& tell);
  // Bytes of a tensor that is whole in one file.
  Status read_bytes(uint32_t file, const std::string& name, uint64_t bytes, void* to);

 private:
  CheckpointSource(Folder folder, OpenManifest opened, std::string path);
  static Result<CheckpointSource> of_model(const std::string& path);
  Result<SafetensorsReader*> file(uint32_t number);
  Status add_sample(const StoredArray& array, uint64_t* digest);
  Result<const StoredTensor*> tensor(const StoredPiece& piece, const std::string& state, DType type, const std::string& array,
                                     SafetensorsReader** reader);

  Folder folder_;
  OpenManifest opened_;
  std::string path_;  // by which it can be opened again
  std::unordered_map<std::string, size_t> by_name_;
  std::function<Status()> go_on_;
  std::list<std::pair<uint32_t, SafetensorsReader>> open_;  // the last used first
};

// What is damaged of what CheckpointSource::open finds; nothing: it is whole.
std::vector<Status> verify_checkpoint(const std::string& directory);

}  // namespace megadp
