// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint_source.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/hash.h"
#include "base/shape.h"

namespace megadp {
namespace {

constexpr size_t kMostOpen = 64;  // files, each with a chunk
// Of every array of a model four pages, its first and its last among them, or all of a small one. Two trainings of one architecture differ
// in nearly all elements: even if rounding has kept all but one of a thousand, one array's sample finds them. Four reads an array take less
// than a millisecond of a disk, where to load one of 32 MiB takes 10 and more; what is read of a small one the system keeps for the load.
constexpr uint64_t kSamples = 4, kSampleBytes = 4096;

}  // namespace

CheckpointSource::CheckpointSource(Folder folder, OpenManifest opened, std::string path)
    : folder_(std::move(folder)), opened_(std::move(opened)), path_(std::move(path)) {
  const std::vector<StoredArray>& arrays = manifest().arrays;
  for (size_t i = 0; i < arrays.size(); ++i) by_name_.emplace(arrays[i].name, i);
  for (size_t i = 0; i < arrays.size(); ++i) {  // what one file has, another's alias does not hide
    for (const std::string& alias : arrays[i].aliases) by_name_.emplace(alias, i);
  }
}

Result<CheckpointSource> CheckpointSource::open(const std::string& directory) {
  if (is_file(directory)) return of_model(directory);
  auto folder = find_checkpoint(directory);
  if (!folder) {
    const auto model = find_model(directory);
    return model ? of_model(*model) : folder.status();
  }
  auto opened = read_manifest(*folder);
  if (!opened) return opened.status();
  std::string path = folder->path();
  return CheckpointSource(*std::move(folder), *std::move(opened), std::move(path));
}

Result<CheckpointSource> CheckpointSource::of_model(const std::string& path) {
  auto model = open_model(path);
  if (!model) return model.status();
  return CheckpointSource(std::move(model->folder), {std::move(model->manifest), model->digest}, path);
}

Result<uint64_t> CheckpointSource::digest() {
  uint64_t digest = opened_.digest;
  if (!manifest().is_model) return digest;
  for (const StoredArray& array : manifest().arrays) {
    if (Status added = add_sample(array, &digest); !added) return added;
  }
  return digest;
}

Status CheckpointSource::add_sample(const StoredArray& array, uint64_t* digest) {
  if (array.pieces.empty()) return {};
  if (go_on_) {
    if (Status goes_on = go_on_(); !goes_on) return goes_on;
  }
  auto reader = file(array.pieces.front().file);
  if (!reader) return reader.status();
  const StoredTensor* const stored = (*reader)->find(array.name);
  if (stored == nullptr) return {};  // and its file's header is not what was opened, which file() has refused
  const uint64_t bytes = stored->end - stored->begin;
  const bool all = bytes <= kSamples * kSampleBytes;
  std::array<char, kSamples * kSampleBytes> sample;
  for (uint64_t i = 0; i < (all ? 1 : kSamples); ++i) {
    const uint64_t count = all ? bytes : kSampleBytes, begin = stored->begin + (bytes - count) * i / (kSamples - 1);
    if (Status read = (*reader)->read_unchecked(begin, begin + count, sample.data()); !read) return read;
    *digest = hash_bytes(sample.data(), count, *digest);
  }
  return {};
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
  auto reader = manifest().is_model ? SafetensorsReader::open_model(folder_, stored.name)
                                    : SafetensorsReader::open(folder_, stored.name, stored.written);
  if (!reader) return reader.status();
  if (reader->about() != stored.written) return Status(Code::corrupt, text(reader->path(), " has been changed since it was opened"));
  if (open_.size() == kMostOpen) open_.pop_back();
  reader->ask_before_chunks(go_on_);
  open_.emplace_front(number, *std::move(reader));
  return &open_.front().second;
}

Result<const StoredTensor*> CheckpointSource::tensor(const StoredPiece& piece, const std::string& state, DType type,
                                                     const std::string& array, SafetensorsReader** reader) {
  auto opened = file(piece.file);
  if (!opened) return opened.status();
  *reader = *opened;
  const std::string name = manifest().is_model ? array : piece_name(state, piece, array);
  const StoredTensor* const found = (*reader)->find(name);
  const auto wrong = [&](const auto&... words) {
    return Status(Code::corrupt, text((*reader)->path(), " does not fit the manifest: tensor ", in_quotes(name), words...));
  };
  if (found == nullptr) return wrong(" is not in it");
  if (dtype_of_stored(found->dtype) != type) return wrong(" is ", found->dtype, ", not ", stored_name(type));
  if (found->end - found->begin != (piece.end - piece.begin) * size_of(type)) return wrong(" has ", found->end - found->begin, " bytes");
  if (!manifest().is_model && found->begin % size_of(type) != 0) return wrong(" lies askew");
  return found;
}

std::vector<Status> verify_checkpoint(const std::string& directory) {
  auto source = CheckpointSource::open(directory);
  if (!source) return {source.status()};
  std::vector<Status> found;
  source->verify([&found](const Status& one) { found.push_back(one); });
  std::error_code unknown;
  if (!found.empty() && !std::filesystem::exists(source->path(), unknown) && !unknown) {
    return {system_error(text(source->path(), " was removed or renamed while it was read"), ENOENT)};
  }
  return found;
}

void CheckpointSource::verify(const std::function<void(const Status&)>& tell) {
  for (size_t number = 0; number < manifest().files.size(); ++number) {
    auto reader = file(static_cast<uint32_t>(number));
    if (reader) {
      (*reader)->check_data(tell);
    } else {
      tell(reader.status());
    }
  }
  for (const StoredArray& array : manifest().arrays) {
    if (array.is_frozen || !array.foreign.empty()) continue;
    const Cutting cutting(array);
    const auto check_state = [&](const std::string& state, DType type) {
      for (size_t part = 0; part < array.cut.parts(); ++part) {
        const Range range{&array, &cutting, &cutting, part, 0, elements_of(array.shape_of(part))};
        if (Status stored = check(range, state, type); !stored) tell(stored);
      }
    };
    check_state(kParamState, array.type);
    if (array.optimizer < 0) continue;
    for (const StoredState& state : manifest().optimizers[static_cast<size_t>(array.optimizer)].state) {
      if (state.name != kMasterState || array.type != DType::f32) check_state(state.name, state.type);
    }
  }
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
    return reader->read(begin, begin + run.count * size_of(type), size_of(type), [&](const char* data, size_t bytes) {
      const uint64_t count = bytes / size_of(type);
      const Status given = give(at, data, count);
      at += count;
      return given;
    });
  });
}

Status CheckpointSource::read_into(const Range& range, const std::string& state, DType type, std::byte* to) {
  return for_each_run(range, [&](const StoredRun& run) -> Status {
    SafetensorsReader* reader = nullptr;
    auto stored = tensor(*run.piece, state, type, range.source->name, &reader);
    if (!stored) return stored.status();
    const uint64_t begin = (*stored)->begin + run.in_piece * size_of(type);
    return reader->read_into(begin, begin + run.count * size_of(type), reinterpret_cast<char*>(to + run.at * size_of(type)));
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
  return (*reader)->read(found->begin, found->end, 1, [&at](const char* data, size_t count) {
    at = std::copy_n(data, count, at);
    return Status();
  });
}

}  // namespace megadp
