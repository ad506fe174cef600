// SPDX-License-Identifier: Apache-2.0
// Safetensors files. Those of checkpoints have checksums: one for every MiB of the data, in the header's metadata, and one for the header,
// which is kept elsewhere. Those of models, which others write and read, have none.
//
//   | length | {"__metadata__":{"megadp.checksums":"<16 digits for each MiB>"},"NAME":{...},...}, spaces | data, tensor after tensor |
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "files/folder.h"
#include "files/safetensors_json.h"

namespace megadp {

constexpr size_t kChunkBytes = size_t{1} << 20;  // that a checksum is of

struct TensorToStore {
  std::string name;
  DType type = DType::f32;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};

struct WrittenFile {
  uint64_t bytes = 0;  // with the header
  uint64_t header_checksum = 0;

  bool operator==(const WrittenFile&) const = default;
};

// Takes the data of the tensors one after another, in pieces of any size. The largest element type must come first: then all lie as
// their type wants. What is not finished is not a file that a reader takes.
class SafetensorsWriter {
 public:
  // Code::unsupported if the header would be longer than readers take.
  static Result<SafetensorsWriter> create(const Folder& in, const std::string& name, std::span<const TensorToStore> tensors);
  // Of a model: without checksums.
  static Result<SafetensorsWriter> create_model(const Folder& in, const std::string& name, std::span<const TensorToStore> tensors,
                                                const std::map<std::string, std::string>& metadata);
  Status append(const void* data, size_t bytes);
  Result<WrittenFile> finish();

 private:
  // Without metadata: with checksums.
  static Result<SafetensorsWriter> create(const Folder& in, const std::string& name, std::span<const TensorToStore> tensors,
                                          const std::map<std::string, std::string>* metadata);
  SafetensorsWriter(File file, std::string tensors, std::string metadata, bool has_checksums, uint64_t data_bytes);
  Status write_chunk(const void* data, size_t bytes);
  std::string header(const std::string& checksums) const;

  File file_;
  std::string tensors_, metadata_;  // of the header
  bool has_checksums_;
  uint64_t data_bytes_, header_bytes_ = 0, written_ = 0, written_back_ = 0;
  std::string checksums_;
  std::vector<char> chunk_;  // what is not a whole one yet
};

class SafetensorsReader {
 public:
  // With what its writer said of it. Code::corrupt if it is not that any more.
  static Result<SafetensorsReader> open(const Folder& in, const std::string& name, const WrittenFile& expected);
  // A model's, of any writer: without checksums in its header, which other writers do not write, its data are handed out unchecked.
  static Result<SafetensorsReader> open_model(const Folder& in, const std::string& name);

  const std::string& path() const noexcept { return file_.path(); }
  const StoredTensor* find(const std::string& name) const;
  const std::vector<StoredTensor>& tensors() const noexcept { return tensors_; }
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  uint64_t data_bytes() const noexcept { return data_bytes_; }
  bool has_checksums() const noexcept { return has_checksums_; }
  // Asked before each chunk is read; a failure ends the read. Reading takes minutes, in which the reader may be told to leave off.
  void ask_before_chunks(std::function<Status()> go_on) { go_on_ = std::move(go_on); }
  const WrittenFile& about() const noexcept { return about_; }
  // Hands out bytes begin to end of the data, in pieces, one after another. Chunks are read whole, and compared with their checksums before
  // anything of them is handed out; the last one is kept. No element is handed out in two: where another writer has put a tensor askew,
  // chunks lie so too.
  Status read(uint64_t begin, uint64_t end, size_t element_bytes, const std::function<Status(const char* data, size_t bytes)>& give);
  // Bytes begin to end into `to`, whole chunks with no copy between: what a damaged one leaves there is not to be used.
  Status read_into(uint64_t begin, uint64_t end, char* to);
  // Bytes begin to end into `to`, and no others of their chunks, which are so not checked.
  Status read_unchecked(uint64_t begin, uint64_t end, char* to) const { return file_.read(to, end - begin, data_begin_ + begin); }
  // Reads all of it; what cannot be read, or differs from its checksum, is told piece by piece.
  void check_data(const std::function<void(const Status&)>& tell);

 private:
  static constexpr uint64_t kNoChunk = UINT64_MAX;
  explicit SafetensorsReader(File file) : file_(std::move(file)) {}
  static Result<SafetensorsReader> open(const Folder& in, const std::string& name, const WrittenFile* expected);
  Status take_header(std::string_view header, uint64_t file_bytes);
  Status take_checksums(std::string_view digits);
  uint64_t chunk_bytes(uint64_t begin) const noexcept { return std::min<uint64_t>(kChunkBytes, data_bytes_ - begin); }
  Status load_chunk(uint64_t begin);
  Status read_chunk(uint64_t begin, char* to);

  File file_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
  WrittenFile about_;
  bool has_checksums_ = false;
  std::vector<uint64_t> checksums_;
  uint64_t data_begin_ = 0, data_bytes_ = 0;
  std::function<Status()> go_on_;
  std::vector<char> chunk_;
  uint64_t chunk_begin_ = kNoChunk;  // of what is in chunk_
};

}  // namespace megadp
