// SPDX-License-Identifier: Apache-2.0
// Saving. Each rank writes its own file; rank 0 makes the folder, and of it a checkpoint when all have written. What waits for files waits
// for as long as a file system takes, not for the communicator's timeout.
#include <algorithm>
#include <optional>
#include <utility>

#include "control/agreement.h"
#include "core/checkpoint_arrays.h"
#include "files/checkpoint_folder.h"

namespace megadp {
namespace {

constexpr const char* kSave = "mdp_checkpoint_save";

// What this rank writes: one state of one piece, or bytes of the caller's.
struct Item {
  TensorToStore tensor;
  const std::byte* data;
  bool on_device;
  size_t state;  // its number: each lies together, as it is loaded
};

class Save {
 public:
  explicit Save(const CheckpointConfig& config) : config_(config), world_(*config.context().world), rank_(config.grid()->world()->rank()) {}

  Status run() {
    if (Status same = compare_checkpoint_configs(config_, kSave); !same) return same;
    auto arrays = gather_arrays(config_, kSave);
    if (Status all = agree_on(arrays.status()); !all) return all;
    arrays_ = *std::move(arrays);
    Status mine = open_folder();
    if (mine.ok()) mine = write();
    Status all = agree_on(mine);
    if (all.ok()) all = tell_files();
    if (all.ok()) all = agree_on(pending_ ? commit() : Status());
    if (!all.ok() && pending_) pending_->abandon();
    return all;
  }

 private:
  Status agree_on(const Status& mine) { return agree(world_, config_.members(), {kSave}, mine, World::kFilesLine); }
  const std::string& host(int rank) const { return world_.host_name(config_.members()[static_cast<size_t>(rank)]); }
  const Folder& folder() const { return pending_ ? pending_->folder() : *folder_; }

  // Made by rank 0, and found by the others under a name that nobody can have known before.
  Status open_folder() {
    const Status made = rank_ == 0 ? make_folder() : Status();
    auto name = world_.broadcast(config_.members(), kSave, pending_ ? pending_->name() : std::string(), World::kFilesLine);
    if (!name) return name.status();
    if (rank_ == 0 || name->empty()) return made;
    auto directory = Folder::open(config_.directory);
    auto found = directory ? directory->open_folder(*name) : std::move(directory);
    if (!found) {
      return found.status().with_context(text("what rank 0 has made in ", config_.directory, " on ", host(0), " is not there on ",
                                              host(rank_), ": the directory must be the same on all hosts"));
    }
    folder_ = *std::move(found);
    return {};
  }

  Status make_folder() {
    auto id = random_id();
    if (!id) return id.status();
    auto pending = PendingCheckpoint::create(config_.directory, *id);
    if (!pending) return pending.status();
    manifest_.save_id = *id;
    pending_ = *std::move(pending);
    return {};
  }

  Status write() {
    if (!pending_ && !folder_) return {};  // rank 0 has no folder, and says why
    if (Status collected = collect(); !collected) return collected;
    std::vector<TensorToStore> tensors;
    tensors.reserve(items_.size());
    for (const Item& item : items_) tensors.push_back(item.tensor);
    auto writer = SafetensorsWriter::create(folder(), rank_file_name(rank_), tensors);
    if (!writer) return writer.status();
    for (const Item& item : items_) {
      if (Status appended = append(item, &*writer); !appended) return appended;
    }
    auto written = writer->finish();
    if (!written) return written.status();
    written_ = *written;
    return {};
  }

  Status append(const Item& item, SafetensorsWriter* writer) {
    if (!item.on_device) return writer->append(item.data, item.tensor.bytes);
    staging_.resize(kChunkBytes);
    for (uint64_t at = 0; at < item.tensor.bytes;) {
      const size_t count = std::min<uint64_t>(staging_.size(), item.tensor.bytes - at);
      if (Status read = config_.context().backend->read(staging_.data(), item.data + at, count); !read) return read;
      if (Status appended = writer->append(staging_.data(), count); !appended) return appended;
      at += count;
    }
    return {};
  }

  // Everything that this rank is to write, in the order of the file: the largest elements first.
  Status collect() {
    for (const StoredArray& array : arrays_.arrays) {
      for (const StoredPiece& piece : array.pieces) {
        if (piece.file != static_cast<uint32_t>(rank_)) continue;
        const auto local = find_local(config_, array.name, array.cut);
        if (!local) return internal_error(kSave, ": '", array.name, "' is to be written by rank ", rank_, ", which does not have it");
        if (Status added = local->part != nullptr ? add_param(array, piece, *local) : add_tensor(array, piece, local->index); !added)
          return added;
      }
    }
    const auto add_bytes = [this](const char* name, std::span<const std::byte> bytes) {
      if (bytes.empty()) return;
      items_.push_back({{name, DType::u8, {static_cast<int64_t>(bytes.size())}, bytes.size()}, bytes.data(), false, 0});
    };
    add_bytes(kUserData, config_.rank_data);
    if (rank_ == 0) add_bytes(kSharedData, config_.shared_data);
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
      const size_t a_size = size_of(a.tensor.type), b_size = size_of(b.tensor.type);
      return a_size != b_size ? a_size > b_size : a.state < b.state;
    });
    return {};
  }

  void add(const char* state, size_t number, DType type, const StoredArray& array, const StoredPiece& piece, const void* data,
           bool on_device) {
    const uint64_t count = piece.end - piece.begin;
    items_.push_back({{piece_name(state, piece, array.name), type, {static_cast<int64_t>(count)}, count * size_of(type)},
                      static_cast<const std::byte*>(data),
                      on_device,
                      number});
  }

  Status add_param(const StoredArray& array, const StoredPiece& piece, const LocalArray& local) {
    const Arenas& arenas = local.part->buffer->arenas();
    const bool on_device = arenas.backend().place().type != DeviceType::cpu;
    const Arena& arena = arenas.arena_of(local.index);
    add(kParamState, 0, array.type, array, piece, arena.param_at(arenas.place(local.index).begin + piece.begin), on_device);
    if (!local.part->optimizer) return {};
    const OwnedRange* const owned = arenas.owned(local.index);
    size_t number = 0;
    for (const StoredState& state : arrays_.optimizers[static_cast<size_t>(array.optimizer)].state) {
      ++number;
      if (state.name == kMasterState && !Plan::has_master(*arena.plan)) continue;
      auto slice = local.part->optimizer->state(local.index, state.name);
      if (!slice) return slice.status();
      const auto* const data = static_cast<const std::byte*>(slice->data) + (piece.begin - owned->param_begin) * size_of(slice->type);
      add(state.name.c_str(), number, slice->type, array, piece, data, on_device);
    }
    return {};
  }

  Status add_tensor(const StoredArray& array, const StoredPiece& piece, size_t index) {
    const CheckpointTensor& tensor = config_.tensors[index];
    const auto* data = static_cast<const std::byte*>(tensor.array.data);
    if (tensor.where != DeviceType::cpu || tensor.array.strides != dense_strides(tensor.array.shape)) {
      copies_.emplace_back(elements_of(tensor.array.shape) * size_of(tensor.array.type));
      if (Status copied = copy_tensor(config_, tensor, copies_.back(), Copy::to_dense); !copied) return copied;
      data = copies_.back().data();
    }
    add(kParamState, 0, array.type, array, piece, data + piece.begin * size_of(array.type), false);
    return {};
  }

  // Rank 0 must know all files.
  Status tell_files() {
    struct Told {
      WrittenFile written;
      uint64_t user_bytes, shared_bytes;
    };
    const Told mine{written_, config_.rank_data.size(), config_.shared_data.size()};
    auto told = exchange_as<Told>(world_, config_.members(), kSave, mine, World::kFilesLine);
    if (!told) return told.status();
    for (size_t rank = 0; rank < told->size(); ++rank) {
      manifest_.files.push_back({rank_file_name(static_cast<int>(rank)), (*told)[rank].written, (*told)[rank].user_bytes});
    }
    manifest_.shared_bytes = told->front().shared_bytes;
    return {};
  }

  Status commit() {
    manifest_.written_by = MEGADP_VERSION_STRING;
    const GridConfig& grid = config_.grid()->grid().config();
    manifest_.grid =
        text("tp ", grid.tp, " cp ", grid.cp, " ep ", grid.ep, " pp ", grid.pp, " expert_tp ", grid.expert_tp, " order ", grid.order);
    manifest_.optimizers = std::move(arrays_.optimizers);
    manifest_.arrays = std::move(arrays_.arrays);
    auto name = pending_->commit(manifest_);
    if (!name) return name.status();
    pending_->remove_old(config_.keep);
    return {};
  }

  const CheckpointConfig& config_;
  World& world_;
  const int rank_;
  CheckpointArrays arrays_;
  std::optional<PendingCheckpoint> pending_;  // on rank 0
  std::optional<Folder> folder_;              // on the others
  std::vector<Item> items_;
  std::vector<std::vector<std::byte>> copies_;
  std::vector<std::byte> staging_;
  WrittenFile written_;
  Manifest manifest_;
};

}  // namespace

Status save_checkpoint(const CheckpointConfig& config) {
  return Save(config).run();
}

}  // namespace megadp
