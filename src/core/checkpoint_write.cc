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

Status CheckpointWrite::run(const Status& mine) {
  Status all = with_others(*world, [&] { return run_with_others(mine); });
  if (!all.ok() && pending_) pending_->abandon();
  return all;
}

// What a rank does by itself is an attempt, whose outcome all learn; what is between these is a failure of the World if it fails.
Status CheckpointWrite::run_with_others(Status mine) {
  const Status opened = open_folder();
  if (mine.ok()) mine = opened;
  if (mine.ok()) mine = attempt([this] { return write(); });
  if (Status all = agree_on(mine); !all) return all;
  // Rank 0 must know all files.
  auto told = exchange_as<Told>(*world, members, kSaveCall, Told{written_, user_bytes, shared_bytes}, World::kFilesLine);
  if (!told) return told.status();
  return agree_on(pending_ ? attempt([&] { return commit(*told); }) : Status());
}

Status CheckpointWrite::agree_on(const Status& mine) const {
  const Status all = agree(*world, members, {kSaveCall}, mine, World::kFilesLine);
  // Why the World has failed says more than what has come of it, such as a folder that rank 0 has removed.
  return !all.ok() && world->failed() ? world->failure() : all;
}

// Made by rank 0, and found by the others under a name that nobody can have known before.
Status CheckpointWrite::open_folder() {
  const Status made = rank == 0 ? attempt([this] { return make_folder(); }) : Status();
  auto name = world->broadcast(members, kSaveCall, pending_ ? pending_->name() : std::string(), World::kFilesLine);
  if (!name) return name.status();
  return rank == 0 || name->empty() ? made : attempt([&] { return find_folder(*name); });
}

Status CheckpointWrite::find_folder(const std::string& name) {
  auto opened = Folder::open(directory);
  auto found = opened ? opened->open_folder(name, Folder::Links::refused) : std::move(opened);
  if (!found) {
    return found.status().with_context(text("what rank 0 has made in ", directory, " on ", host(0), " is not there on ", host(rank),
                                            ": the directory must be the same on all hosts", relative_to(directory)));
  }
  folder_ = *std::move(found);
  return {};
}

Status CheckpointWrite::make_folder() {
  auto id = random_id();
  if (!id) return id.status();
  auto pending = PendingCheckpoint::create(directory, *id);
  if (!pending) return pending.status();
  manifest.save_id = *std::move(id);
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

Status CheckpointWrite::commit(const std::vector<Told>& told) {
  for (size_t of = 0; of < told.size(); ++of) {
    manifest.files.push_back({rank_file_name(static_cast<int>(of)), told[of].written, told[of].user_bytes});
  }
  manifest.shared_bytes = told.front().shared_bytes;
  if (Status wanted = check_wanted(); !wanted) return wanted;
  if (Status committed = pending_->commit(manifest); !committed) return committed;
  pending_->remove_old(keep);
  return {};
}

}  // namespace megadp
