// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint_export.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/shape.h"
#include "core/checkpoint_source.h"
#include "files/checkpoint_folder.h"
#include "files/json_value.h"
#include "files/model_files.h"
#include "files/safetensors_file.h"

namespace megadp {
namespace {

uint64_t bytes_of(const StoredArray& array) {
  return elements_of(array.shape) * size_of(array.type);
}

class Export {
 public:
  Export(CheckpointSource source, std::string name) : source_(std::move(source)), name_(std::move(name)) {}

  Status take_arrays() {
    size_t frozen = 0;
    for (const StoredArray& array : source_.manifest().arrays) {
      if (!array.foreign.empty()) {
        return unsupported(in_quotes(array.name), " is ", array.foreign, " in ", source_.path(), ", which the library does not have");
      }
      if (array.is_state()) continue;
      if (array.name == kMetadataName)
        return unsupported(in_quotes(array.name), " names no tensor in a safetensors file; register or save it under another name");
      if (array.is_frozen) {
        ++frozen;
      } else {
        arrays_.push_back(&array);
      }
    }
    if (frozen > 0) {
      log(LogLevel::warning, text(source_.path(), " has only the names of ", frozen,
                                  " frozen parameters, and they are not exported; tensors of mdp_checkpoint_config save them"));
    }
    // So that all lie as their type wants.
    std::stable_sort(arrays_.begin(), arrays_.end(),
                     [](const StoredArray* a, const StoredArray* b) { return size_of(a->type) > size_of(b->type); });
    return {};
  }

  // The arrays of each file.
  void distribute(uint64_t most_bytes) {
    files_.resize(1);
    uint64_t bytes = 0;
    for (const StoredArray* const array : arrays_) {
      if (most_bytes > 0 && !files_.back().empty() && bytes + bytes_of(*array) > most_bytes) {
        files_.emplace_back();
        bytes = 0;
      }
      files_.back().push_back(array);
      bytes += bytes_of(*array);
    }
  }

  std::string file_name(size_t of) const { return files_.size() == 1 ? name_ : part_name(name_, of, files_.size()); }
  // In the order in which they are to appear: the index last.
  std::vector<std::string> file_names() const {
    std::vector<std::string> names;
    for (size_t of = 0; of < files_.size(); ++of) names.push_back(file_name(of));
    if (files_.size() > 1) names.push_back(name_ + kIndexSuffix);
    return names;
  }

  Status write(const Folder& folder) {
    for (size_t of = 0; of < files_.size(); ++of) {
      if (Status written = write_file(folder, file_name(of), files_[of]); !written) return written;
    }
    return files_.size() > 1 ? write_index(folder) : Status();
  }

 private:
  Status write_file(const Folder& folder, const std::string& name, const std::vector<const StoredArray*>& arrays) {
    std::vector<TensorToStore> tensors;
    std::map<std::string, std::string> metadata{{"format", "pt"}};  // as readers of models ask for it
    for (const StoredArray* const array : arrays) {
      tensors.push_back({array->name, array->type, array->shape, bytes_of(*array)});
      for (const std::string& alias : array->aliases) metadata[alias] = array->name;
    }
    auto writer = SafetensorsWriter::create_model(folder, name, tensors, metadata);
    if (!writer) return writer.status();
    for (const StoredArray* const array : arrays) {
      if (Status written = write_array(*array, &*writer); !written) return written;
    }
    return writer->finish().status();
  }

  // From parts to the whole, one window after another.
  Status write_array(const StoredArray& array, SafetensorsWriter* writer) {
    StoredArray whole;
    whole.shape = array.shape;
    const Cutting from(array), to(whole);
    const size_t size = size_of(array.type);
    const uint64_t elements = elements_of(array.shape), most = kChunkBytes / size;
    std::vector<char> window(std::min(elements, most) * size);
    for (uint64_t begin = 0; begin < elements; begin += most) {
      const uint64_t end = std::min(elements, begin + most);
      const auto take = [&](uint64_t at, const char* data, uint64_t count) {
        std::copy_n(data, count * size, window.data() + at * size);
        return Status();
      };
      if (Status read = source_.read({&array, &from, &to, 0, begin, end}, kParamState, array.type, take); !read) return read;
      if (Status written = writer->append(window.data(), (end - begin) * size); !written) return written;
    }
    return {};
  }

  Status write_index(const Folder& folder) const {
    uint64_t bytes = 0;
    for (const StoredArray* const array : arrays_) bytes += bytes_of(*array);
    std::string json = text("{\"metadata\":{\"total_size\":", bytes, "},\"weight_map\":{");
    const char* comma = "";
    for (size_t of = 0; of < files_.size(); ++of) {
      for (const StoredArray* const array : files_[of]) {
        json += text(comma, "\n", json_string(array->name), ":", json_string(file_name(of)));
        comma = ",";
      }
    }
    json += "}}\n";
    auto file = folder.create_file(name_ + kIndexSuffix);
    if (!file) return file.status();
    if (Status written = file->write(json.data(), json.size(), 0); !written) return written;
    return file->sync();
  }

  CheckpointSource source_;
  const std::string name_;
  std::vector<const StoredArray*> arrays_;
  std::vector<std::vector<const StoredArray*>> files_;
};

// Before much is written for nothing.
Status check_new(const std::string& folder, const std::vector<std::string>& names) {
  const auto in = Folder::open(folder);
  for (const std::string& name : names) {
    if (in && in->has(name)) return invalid(in->path_of(name), " is there already; nothing is written over");
  }
  return {};
}

}  // namespace

Status export_checkpoint(const std::string& directory, const std::string& path, uint64_t most_bytes) {
  const auto [folder, name] = split_path(path);
  auto source = CheckpointSource::open(directory);
  if (!source) return source.status();
  Export model(*std::move(source), name);
  if (Status taken = model.take_arrays(); !taken) return taken;
  model.distribute(most_bytes);
  const std::vector<std::string> names = model.file_names();
  if (Status is_new = check_new(folder, names); !is_new) return is_new;
  auto id = random_id();
  if (!id) return id.status();
  auto pending = PendingCheckpoint::create(folder, *id);
  if (!pending) return pending.status();
  Status done = attempt([&] { return model.write(pending->folder()); });
  if (done.ok()) done = pending->commit_files(names);
  pending->abandon();
  return done;
}

}  // namespace megadp
