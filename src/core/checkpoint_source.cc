// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint_source.h"

#include <algorithm>

namespace megadp {
namespace {

constexpr size_t kMostOpen = 64;  // files, each with a chunk

}  // namespace

CheckpointSource::CheckpointSource(Folder folder, OpenManifest opened) : folder_(std::move(folder)), opened_(std::move(opened)) {
  for (size_t i = 0; i < manifest().arrays.size(); ++i) {
    by_name_.emplace(manifest().arrays[i].name, i);
    for (const std::string& alias : manifest().arrays[i].aliases) by_name_.emplace(alias, i);
  }
}

Result<CheckpointSource> CheckpointSource::open(const std::string& directory) {
  auto folder = find_checkpoint(directory);
  if (!folder) return folder.status();
  auto opened = read_manifest(*folder);
  if (!opened) return opened.status();
  return CheckpointSource(*std::move(folder), *std::move(opened));
}

const StoredArray* CheckpointSource::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &manifest().arrays[found->second];
}

const DType* CheckpointSource::type_of(const StoredArray& array, const std::string& state) const {
  if (state == kParamState) return &array.type;
  if (array.optimizer < 0 || (state == kMasterState && array.type == DType::f32)) return nullptr;
  for (const StoredState& each : manifest().optimizers[static_cast<size_t>(array.optimizer)].state)
    if (each.name == state) return &each.type;
  return nullptr;
}

Status CheckpointSource::for_each_run(const Range& range, const std::function<Status(const StoredRun&)>& each) {
  const std::vector<StoredPiece>& pieces = range.source->pieces;
  const auto in_part = [&](const Run& run, uint64_t at) -> Status {
    uint64_t begin = run.to;
    const uint64_t end = run.to + run.count;
    auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const StoredPiece& one) {
      return one.part != run.part ? one.part < run.part : one.end <= begin;
    });
    for (; begin < end; ++piece) {
      if (piece == pieces.end() || piece->part != run.part || piece->begin > begin) {
        return Status(Code::corrupt, text("element ", begin, " of ", in_quotes(range.source->name), " is nowhere stored"));
      }
      const uint64_t count = std::min(end, piece->end) - begin;
      if (Status status = each({&*piece, begin - piece->begin, at + (begin - run.to), count}); !status) return status;
      begin += count;
    }
    return {};
  };
  return range.to->to_whole(range.part, range.begin, range.end, [&](const Run& whole) {
    return range.from->to_parts(whole.to, whole.to + whole.count,
                                [&](const Run& run) { return in_part(run, whole.from - range.begin + (run.from - whole.to)); });
  });
}

Result<SafetensorsReader*> CheckpointSource::file(uint32_t number) {
  const auto known = std::find_if(open_.begin(), open_.end(), [number](const auto& one) { return one.first == number; });
  if (known != open_.end()) {
    open_.splice(open_.begin(), open_, known);
    return &open_.front().second;
  }
  const StoredFile& stored = manifest().files[number];
  auto reader = SafetensorsReader::open(folder_, stored.name, stored.written);
  if (!reader) return reader.status();
  if (open_.size() == kMostOpen) open_.pop_back();
  open_.emplace_front(number, *std::move(reader));
  return &open_.front().second;
}

Result<const StoredTensor*> CheckpointSource::tensor(const StoredPiece& piece, const std::string& state, DType type,
                                                     const std::string& array, SafetensorsReader** reader) {
  auto opened = file(piece.file);
  if (!opened) return opened.status();
  *reader = *opened;
  const std::string name = piece_name(state, piece, array);
  const StoredTensor* const found = (*reader)->find(name);
  const auto wrong = [&](const auto&... words) {
    return Status(Code::corrupt, text((*reader)->path(), " does not fit the manifest: tensor ", in_quotes(name), words...));
  };
  if (found == nullptr) return wrong(" is not in it");
  if (dtype_of_stored(found->dtype) != type) return wrong(" is ", found->dtype, ", not ", stored_name(type));
  if (found->end - found->begin != (piece.end - piece.begin) * size_of(type)) return wrong(" has ", found->end - found->begin, " bytes");
  if (found->begin % size_of(type) != 0) return wrong(" lies askew");
  return found;
}

Status CheckpointSource::check(const Range& range, const std::string& state, DType type) {
  return for_each_run(range, [&](const StoredRun& run) -> Status {
    SafetensorsReader* reader = nullptr;
    return tensor(*run.piece, state, type, range.source->name, &reader).status();
  });
}

Status CheckpointSource::read(const Range& range, const std::string& state, DType type,
                              const std::function<Status(uint64_t at, const char* data, uint64_t count)>& give) {
  return for_each_run(range, [&](const StoredRun& run) -> Status {
    SafetensorsReader* reader = nullptr;
    auto stored = tensor(*run.piece, state, type, range.source->name, &reader);
    if (!stored) return stored.status();
    const uint64_t begin = (*stored)->begin + run.in_piece * size_of(type);
    uint64_t at = run.at;
    return reader->read(begin, begin + run.count * size_of(type), [&](const char* data, size_t bytes) {
      const uint64_t count = bytes / size_of(type);
      const Status given = give(at, data, count);
      at += count;
      return given;
    });
  });
}

Status CheckpointSource::read_bytes(uint32_t number, const std::string& name, uint64_t bytes, void* to) {
  auto reader = file(number);
  if (!reader) return reader.status();
  const StoredTensor* const found = (*reader)->find(name);
  if (found == nullptr || found->end - found->begin != bytes) {
    return Status(Code::corrupt, text((*reader)->path(), " does not fit the manifest: ", name, " has not ", bytes, " bytes"));
  }
  auto* at = static_cast<char*>(to);
  return (*reader)->read(found->begin, found->end, [&at](const char* data, size_t count) {
    at = std::copy_n(data, count, at);
    return Status();
  });
}

}  // namespace megadp
