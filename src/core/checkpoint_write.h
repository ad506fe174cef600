// SPDX-License-Identifier: Apache-2.0
// CheckpointWrite: the second half of a save, which waits for files. It has all that it needs of the buffers, so that it can also run on a
// thread beside the training; what waits for files waits for as long as a file system takes, not for the communicator's timeout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "control/world.h"
#include "files/checkpoint_folder.h"
#include "files/safetensors_file.h"

namespace megadp {

constexpr const char* kSaveCall = "mdp_checkpoint_save";

// One state of one piece, or bytes of the caller's.
struct PieceToWrite {
  TensorToStore tensor;
  const std::byte* data = nullptr;
  Backend* device = nullptr;  // whose memory it is; null: the host's
  size_t state = 0;           // its number: each lies together, as it is loaded
};

class CheckpointWrite {
 public:
  std::shared_ptr<World> world;
  std::vector<int> members;
  int rank = 0;  // among them
  std::string directory;
  uint64_t keep = 0;
  uint64_t user_bytes = 0, shared_bytes = 0;
  std::vector<PieceToWrite> pieces;  // as they are to lie in this rank's file
  Manifest manifest;                 // but for the files and the id
  std::function<Status()> given_up;  // asked now and then: why it is not to be a checkpoint any more

  // Collective over the members. mine: what this rank has had to say before. Throws nothing.
  Status run(const Status& mine);

 private:
  Status run_with_others(Status mine);
  Status agree_on(const Status& mine) const;
  const std::string& host(int of) const { return world->host_name(members[static_cast<size_t>(of)]); }
  const Folder& folder() const { return pending_ ? pending_->folder() : *folder_; }
  Status open_folder();
  Status find_folder(const std::string& name);
  Status make_folder();
  Status write();
  Status append(const PieceToWrite& piece, SafetensorsWriter* writer);
  Status check_wanted() const { return given_up ? given_up() : Status(); }
  struct Told {  // of each rank's file
    WrittenFile written;
    uint64_t user_bytes, shared_bytes;
  };
  Status commit(const std::vector<Told>& told);

  std::optional<PendingCheckpoint> pending_;  // on rank 0
  std::optional<Folder> folder_;              // on the others
  std::vector<std::byte> staging_;
  WrittenFile written_;
};

}  // namespace megadp
