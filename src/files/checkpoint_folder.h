// SPDX-License-Identifier: Apache-2.0
// The folder of checkpoints, and how one comes to be in it.
//
//   DIR/checkpoint-000007/manifest.json, rank-00000.safetensors, ...   whole
//   DIR/.saving-HOST-ID/                                               being saved, or left by a process that died
//   DIR/.removing-ID/                                                  likewise
//
// All is written and synced under the second name, the manifest last; then one rename makes it a checkpoint. So there are no half ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "files/folder.h"
#include "files/manifest_json.h"

namespace megadp {

// A checkpoint that is being saved: on one rank; the others open its folder by name. Or files of an export.
class PendingCheckpoint {
 public:
  // Makes the directory if it is not there, and removes what processes of this host that have died have left in it.
  static Result<PendingCheckpoint> create(const std::string& directory, const std::string& save_id);
  const std::string& name() const noexcept { return name_; }
  const Folder& folder() const noexcept { return folder_; }
  // When all files are written and synced: it is a checkpoint then, with the next free number, and stays one.
  Status commit(const Manifest& manifest);
  // All but the newest `keep` go. Failures are logged: the new checkpoint is there already.
  void remove_old(uint64_t keep) noexcept;
  // Of an export: its files become the directory's, one after another, all or none. Code::invalid if the directory has one of them already.
  Status commit_files(const std::vector<std::string>& files);
  // Its folder goes, unless it has become a checkpoint. What cannot be removed now the next save removes.
  void abandon() noexcept;

 private:
  PendingCheckpoint(Folder directory, Folder folder, std::string name)
      : directory_(std::move(directory)), folder_(std::move(folder)), name_(std::move(name)) {}
  Folder directory_, folder_;
  std::string name_;
  bool is_committed_ = false;
};

std::string rank_file_name(int rank);

// 64 random bits as 16 digits.
Result<std::string> random_id();

// The directory itself if it is a checkpoint, otherwise the newest one in it.
Result<Folder> find_checkpoint(const std::string& directory);

struct OpenManifest {
  Manifest manifest;
  uint64_t digest = 0;  // of its text
};
Result<OpenManifest> read_manifest(const Folder& checkpoint);

}  // namespace megadp
