// SPDX-License-Identifier: Apache-2.0
// Each rank writes its own file; rank 0 makes the folder, and of it a checkpoint when all have written.
#include "core/checkpoint_write.h"

#include <algorithm>
#include <utility>

#include "control/agreement.h"

namespace megadp {
namespace {

constexpr uint64_t kBetweenAsks = uint64_t{16} << 20;  // bytes that are written before it is asked again whether they are wanted

}  // namespace

Status CheckpointWrite::run(Status mine) {
  const Status opened = open_folder();
  if (mine.ok()) mine = opened;
  if (mine.ok()) mine = write();
  Status all = agree_on(mine);
  if (all.ok()) all = tell_files();
  if (all.ok()) all = agree_on(pending_ ? commit() : Status());
  if (!all.ok() && pending_) pending_->abandon();
  return all;
}

Status CheckpointWrite::agree_on(const Status& mine) const {
  return agree(*world, members, {kSaveCall}, mine, World::kFilesLine);
}

// Made by rank 0, and found by the others under a name that nobody can have known before.
Status CheckpointWrite::open_folder() {
  const Status made = rank == 0 ? make_folder() : Status();
  auto name = world->broadcast(members, kSaveCall, pending_ ? pending_->name() : std::string(), World::kFilesLine);
  if (!name) return name.status();
  if (rank == 0 || name->empty()) return made;
  auto opened = Folder::open(directory);
  auto found = opened ? opened->open_folder(*name) : std::move(opened);
  if (!found) {
    return found.status().with_context(text("what rank 0 has made in ", directory, " on ", host(0), " is not there on ", host(rank),
                                            ": the directory must be the same on all hosts"));
  }
  folder_ = *std::move(found);
  return {};
}

Status CheckpointWrite::make_folder() {
  auto id = random_id();
  if (!id) return id.status();
  auto pending = PendingCheckpoint::create(directory, *id);
  if (!pending) return pending.status();
  manifest.save_id = *id;
  pending_ = *std::move(pending);
  return {};
}

Status CheckpointWrite::write() {
  if (!pending_ && !folder_) return {};  // rank 0 has no folder, and says why
  std::vector<TensorToStore> tensors;
  tensors.reserve(pieces.size());
  for (const PieceToWrite& piece : pieces) tensors.push_back(piece.tensor);
  auto writer = SafetensorsWriter::create(folder(), rank_file_name(rank), tensors);
  if (!writer) return writer.status();
  for (const PieceToWrite& piece : pieces) {
    if (Status appended = append(piece, &*writer); !appended) return appended;
  }
  if (Status wanted = check_wanted(); !wanted) return wanted;
  auto written = writer->finish();
  if (!written) return written.status();
  written_ = *written;
  return {};
}

Status CheckpointWrite::append(const PieceToWrite& piece, SafetensorsWriter* writer) {
  for (uint64_t at = 0; at < piece.tensor.bytes;) {
    if (Status wanted = check_wanted(); !wanted) return wanted;
    const size_t count = std::min(piece.device != nullptr ? kChunkBytes : kBetweenAsks, piece.tensor.bytes - at);
    const std::byte* from = piece.data + at;
    if (piece.device != nullptr) {
      staging_.resize(count);
      if (Status read = piece.device->read(staging_.data(), from, count); !read) return read;
      from = staging_.data();
    }
    if (Status appended = writer->append(from, count); !appended) return appended;
    at += count;
  }
  return {};
}

// Rank 0 must know all files.
Status CheckpointWrite::tell_files() {
  struct Told {
    WrittenFile written;
    uint64_t user_bytes, shared_bytes;
  };
  auto told = exchange_as<Told>(*world, members, kSaveCall, Told{written_, user_bytes, shared_bytes}, World::kFilesLine);
  if (!told) return told.status();
  for (size_t of = 0; of < told->size(); ++of) {
    manifest.files.push_back({rank_file_name(static_cast<int>(of)), (*told)[of].written, (*told)[of].user_bytes});
  }
  manifest.shared_bytes = told->front().shared_bytes;
  return {};
}

Status CheckpointWrite::commit() {
  if (Status wanted = check_wanted(); !wanted) return wanted;
  auto name = pending_->commit(manifest);
  if (!name) return name.status();
  pending_->remove_old(keep);
  return {};
}

}  // namespace megadp
