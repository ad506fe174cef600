// SPDX-License-Identifier: Apache-2.0
// Saving: what each rank has to write is agreed on and collected here, then written (CheckpointWrite): at once, or, from a copy, on a
// thread while the training goes on.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "control/agreement.h"
#include "control/memory_check.h"
#include "core/checkpoint_arrays.h"
#include "core/checkpoint_write.h"
#include "core/replicas.h"
#include "core/request.h"
#include "core/saves.h"
#include "files/checksum.h"

namespace megadp {
namespace {

class Save {
 public:
  explicit Save(const CheckpointConfig& config) : config_(config), context_(config.context()) {
    write_->world = context_.world;
    write_->members = config.members();
    write_->rank = config.grid()->world()->rank();
    write_->directory = config.directory;
    write_->keep = config.keep;
    write_->user_bytes = config.rank_data.size();
    write_->shared_bytes = config.shared_data.size();
  }

  Status run() {
    if (Status ready = prepare(); !ready) return ready;
    return write_->run(attempt([this] { return collect(); }));
  }

  // In the background, from a copy. The others write also if this rank cannot, and learn of it.
  Result<std::shared_ptr<Request>> start() {
    if (Status ready = prepare(); !ready) return ready;
    std::error_code unknown;  // where the program is now: it may go elsewhere before the thread writes
    const std::filesystem::path here = std::filesystem::absolute(config_.directory, unknown);
    if (!unknown) write_->directory = here.string();
    Status mine = attempt([this]() -> Status {
      write_->given_up = given_up();
      return collect();
    });
    const uint64_t bytes = mine.ok() ? bytes_of_copy() : 0;
    if (Status room = check_room(bytes); !room) return room;
    if (mine.ok()) mine = attempt([&] { return copy_pieces(bytes); });
    return context_.saves.submit(config_.parts.front().buffer->arenas().shared_context(), write_, mine);
  }

 private:
  std::vector<PieceToWrite>& pieces() { return write_->pieces; }
  Status agree_on(const Status& mine) const { return agree(*context_.world, config_.members(), {kSaveCall}, mine, World::kFilesLine); }

  Status prepare() {
    const Status waited = attempt([this] { return context_.saves.wait(); });
    if (Status same = compare_checkpoint_configs(config_, kSaveCall); !same) return same;
    const auto begin = [this] {
      const Status before = context_.saves.unseen_failure();
      return before.ok() ? check_directory() : before;
    };
    if (Status all = agree_on(waited.ok() ? attempt(begin) : waited); !all) return all;
    auto arrays = gather_arrays(config_, kSaveCall);
    if (Status all = agree_on(arrays.status()); !all) return all;
    arrays_ = *std::move(arrays);
    return compare_tensors();
  }

  // A load takes what has a manifest for the checkpoint itself, and would not see what is saved in it.
  Status check_directory() const {
    const auto in = Folder::open(config_.directory);
    if (!in || in->entry(kManifestName) != Folder::Entry::other) return {};
    return invalid("directory is ", config_.directory, ", which has a ", kManifestName,
                   ": it is a checkpoint itself, or another program's; give the folder that checkpoints are to be in");
  }

  // Each of the ranks that hold a tensor alike writes a part of it: where they do not, nobody's would be saved. Ranks may list them in any
  // order.
  struct TensorDigest {
    uint64_t name, values;
  };
  Status compare_tensors() {
    std::vector<size_t> by_name(config_.tensors.size());
    std::iota(by_name.begin(), by_name.end(), size_t{0});
    std::sort(by_name.begin(), by_name.end(), [&](size_t a, size_t b) { return config_.tensors[a].name < config_.tensors[b].name; });
    std::string digests, of_uncut;
    const Status digested = attempt([&]() -> Status {
      std::vector<std::byte> copy;
      for (const size_t i : by_name) {
        auto values = dense(i, &copy);
        if (!values) return values.status();
        const std::string& name = config_.tensors[i].name;
        TensorDigest digest{hash_bytes(name), checksum(values->data(), values->size())};
        digests.append(reinterpret_cast<const char*>(&digest), sizeof digest);
        if (config_.tensors[i].placement == Placement::sharded) digest.values = 0;
        of_uncut.append(reinterpret_cast<const char*>(&digest), sizeof digest);
      }
      return {};
    });
    if (Status all = agree_on(digested); !all) return all;
    const Status same = compare_tensors(by_name, digests, &Grid::replica_axes);
    if (!same || config_.grid()->grid().size(Grid::tp_axes(false)) == 1) return same;
    return compare_tensors(by_name, of_uncut, [](bool expert) { return Grid::replica_axes(expert) | Grid::tp_axes(expert); });
  }

  Status compare_tensors(const std::vector<size_t>& by_name, const std::string& digests, Axes (*axes)(bool expert)) {
    const Replica held{.call = kSaveCall, .digests = {hash_bytes(digests), 0}, .detail = [&](bool) { return digests; }, .axes = axes};
    return compare_replicas(*config_.grid(), held, [&](const ReplicaPair& pair) {
      const std::string &a = pair.first_detail, &b = pair.other_detail;
      const auto at = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
      const size_t number = at / sizeof(TensorDigest);
      if (number >= by_name.size() || at % sizeof(TensorDigest) < sizeof(uint64_t)) {
        return Explanation{
            text(kSaveCall, ": ranks ", pair.first, " and ", pair.other, ", which are to have the same tensors, give other ones")};
      }
      return Explanation{text(kSaveCall, ": tensor ", in_quotes(config_.tensors[by_name[number]].name), " differs between ranks ",
                              pair.first, " and ", pair.other,
                              ", which are to have the same and write a part of it each; broadcast it first, or give ",
                              "each rank's own as rank_data")};
    });
  }

  // The tensor's bytes, in their order in memory: its own, or those of `copy`, which it then is in.
  Result<std::span<const std::byte>> dense(size_t index, std::vector<std::byte>* copy) const {
    const CheckpointTensor& tensor = config_.tensors[index];
    const size_t bytes = elements_of(tensor.array.shape) * size_of(tensor.array.type);
    if (tensor.where == DeviceType::cpu && tensor.array.strides == dense_strides(tensor.array.shape)) {
      return std::span(static_cast<const std::byte*>(tensor.array.data), bytes);
    }
    copy->resize(bytes);
    if (Status copied = copy_tensor(config_, tensor, *copy, Copy::to_dense); !copied) return copied;
    return std::span<const std::byte>(*copy);
  }

  // What the other half has to know, which nothing of the buffers is needed for then.
  Status collect() {
    if (Status collected = collect_pieces(); !collected) return collected;
    Manifest& manifest = write_->manifest;
    manifest.written_by = MEGADP_VERSION_STRING;
    const GridConfig& grid = config_.grid()->grid().config();
    manifest.grid =
        text("tp ", grid.tp, " cp ", grid.cp, " ep ", grid.ep, " pp ", grid.pp, " expert_tp ", grid.expert_tp, " order ", grid.order);
    manifest.optimizers = std::move(arrays_.optimizers);
    manifest.arrays = std::move(arrays_.arrays);
    return {};
  }

  // Everything that this rank is to write, in the order of the file: the largest elements first.
  Status collect_pieces() {
    for (const CheckpointPart& part : config_.parts) {
      if (!part.optimizer) continue;
      if (Status begun = part.optimizer->settle_owned(); !begun) return begun;
    }
    for (const StoredArray& array : arrays_.arrays) {
      for (const StoredPiece& piece : array.pieces) {
        if (piece.file != static_cast<uint32_t>(write_->rank)) continue;
        const auto local = find_local(config_, array.name, array.cut);
        if (!local)
          return internal_error(kSaveCall, ": '", array.name, "' is to be written by rank ", write_->rank, ", which does not have it");
        const Status added = local->state             ? add_param_state(array, piece, *local)
                             : local->part != nullptr ? add_param(array, piece, *local)
                                                      : add_tensor(array, piece, local->index);
        if (!added) return added;
      }
    }
    const auto add_bytes = [this](const char* name, std::span<const std::byte> bytes) {
      if (bytes.empty()) return;
      pieces().push_back({{name, DType::u8, {static_cast<int64_t>(bytes.size())}, bytes.size()}, bytes.data(), nullptr, 0});
    };
    add_bytes(kUserData, config_.rank_data);
    if (write_->rank == 0) add_bytes(kSharedData, config_.shared_data);
    std::stable_sort(pieces().begin(), pieces().end(), [](const PieceToWrite& a, const PieceToWrite& b) {
      const size_t a_size = size_of(a.tensor.type), b_size = size_of(b.tensor.type);
      return a_size != b_size ? a_size > b_size : a.state < b.state;
    });
    return {};
  }

  void add(const char* state, size_t number, DType type, const StoredArray& array, const StoredPiece& piece, const void* data,
           Backend* device) {
    const uint64_t count = piece.end - piece.begin;
    pieces().push_back({{piece_name(state, piece, array.name), type, {static_cast<int64_t>(count)}, count * size_of(type)},
                        static_cast<const std::byte*>(data),
                        device,
                        number});
  }

  Status add_param(const StoredArray& array, const StoredPiece& piece, const LocalArray& local) {
    const Arenas& arenas = local.part->buffer->arenas();
    Backend* const device = config_.context().on_device() ? &arenas.backend() : nullptr;
    const Arena& arena = arenas.arena_of(local.index);
    add(kParamState, 0, array.type, array, piece, arena.param_at(arenas.place(local.index).begin + piece.begin), device);
    if (array.optimizer < 0) return {};
    const OwnedRange* const owned = arenas.owned(local.index);
    size_t number = 0;
    for (const StoredState& state : arrays_.optimizers[static_cast<size_t>(array.optimizer)].state) {
      ++number;
      if (state.name == kMasterState && !Plan::has_master(*arena.plan)) continue;
      auto slice = local.part->optimizer->state(local.index, state.name);
      if (!slice) return slice.status();
      const auto* const data = static_cast<const std::byte*>(slice->data) + (piece.begin - owned->param_begin) * size_of(slice->type);
      add(state.name.c_str(), number, slice->type, array, piece, data, device);
    }
    return {};
  }

  Status add_param_state(const StoredArray& array, const StoredPiece& piece, const LocalArray& local) {
    const Slice slice = local.part->optimizer->param_state(*local.state, local.index);
    if (static_cast<uint64_t>(slice.shape->front()) < piece.end) {
      return invalid(in_quotes(array.name), " has ", slice.shape->front(), " bytes here, and more on another rank; give all the same");
    }
    Backend* const device = config_.context().on_device() ? config_.context().backend.get() : nullptr;
    add(kParamState, 0, DType::u8, array, piece, static_cast<const std::byte*>(slice.data) + piece.begin, device);
    return {};
  }

  Status add_tensor(const StoredArray& array, const StoredPiece& piece, size_t index) {
    auto values = dense(index, &copies_.emplace_back());
    if (!values) return values.status();
    add(kParamState, 0, array.type, array, piece, values->data() + piece.begin * size_of(array.type), nullptr);
    return {};
  }

  static uint64_t rounded(uint64_t bytes) {
    constexpr uint64_t alignment = 64;
    return (bytes + alignment - 1) / alignment * alignment;
  }
  uint64_t bytes_of_copy() {
    uint64_t bytes = 0;
    for (const PieceToWrite& piece : pieces()) bytes += rounded(piece.tensor.bytes);
    return bytes;
  }

  // Collective: ranks of one machine take theirs at once.
  Status check_room(uint64_t bytes) const {
    const bool anyway = std::any_of(config_.parts.begin(), config_.parts.end(),
                                    [](const CheckpointPart& part) { return part.buffer->plan().config.ignore_memory; });
    return check_memory(*context_.world, config_.members(), kSaveCall, context_.saves.more_for(bytes), anyway, World::kFilesLine)
        .with_context("mdp_checkpoint_save with a request, which writes from a copy (one without takes none)");
  }

  // All of it into memory of the saves', so that the training may write to its own.
  Status copy_pieces(uint64_t bytes) {
    auto room = context_.saves.room(*context_.backend, bytes);
    if (!room) return room.status();
    std::byte* to = *room;
    for (PieceToWrite& piece : pieces()) {
      if (piece.device == nullptr) {
        std::memcpy(to, piece.data, piece.tensor.bytes);
      } else if (Status read = piece.device->read(to, piece.data, piece.tensor.bytes); !read) {
        return read;
      }
      piece.data = to;
      piece.device = nullptr;
      to += rounded(piece.tensor.bytes);
    }
    copies_.clear();
    return {};
  }

  // Where one of what it is of is destroyed before it is whole, nobody waits for it any more.
  std::function<Status()> given_up() const {
    std::vector<std::weak_ptr<const void>> parts;
    for (const CheckpointPart& part : config_.parts) {
      parts.emplace_back(part.buffer);
      if (part.optimizer) parts.emplace_back(part.optimizer);
    }
    return [parts = std::move(parts)]() -> Status {
      if (std::none_of(parts.begin(), parts.end(), [](const auto& part) { return part.expired(); })) return {};
      return Status(Code::aborted, "a buffer or an optimizer was destroyed before its checkpoint was written; wait for the save first");
    };
  }

  const CheckpointConfig& config_;
  Context& context_;
  CheckpointArrays arrays_;
  std::vector<std::vector<std::byte>> copies_;  // of tensors that are not dense in the host's memory
  const std::shared_ptr<CheckpointWrite> write_ = std::make_shared<CheckpointWrite>();
};

}  // namespace

Status save_checkpoint(const CheckpointConfig& config) {
  return Save(config).run();
}

Result<std::shared_ptr<Request>> start_saving_checkpoint(const CheckpointConfig& config) {
  return Save(config).start();
}

}  // namespace megadp
