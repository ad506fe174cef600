// SPDX-License-Identifier: Apache-2.0
#include "files/checkpoint_folder.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "files/checksum.h"

namespace megadp {
namespace {

constexpr std::string_view kCheckpoint = "checkpoint-", kSaving = ".saving-", kRemoving = ".removing-";
constexpr size_t kNumberDigits = 6;  // at least
constexpr size_t kIdDigits = 16;     // of random_id()
constexpr time_t kQuietSeconds = 3600;
constexpr int kMostLists = 8;  // of a folder whose checkpoints go while they are looked at

std::string numbered(std::string_view front, uint64_t number, size_t digits) {
  const std::string value = std::to_string(number);
  return std::string(front) + std::string(digits - std::min(digits, value.size()), '0') + value;
}

// Of "checkpoint-000007" 7.
std::optional<uint64_t> number_of(std::string_view name) {
  if (!name.starts_with(kCheckpoint)) return {};
  const std::string_view digits = name.substr(kCheckpoint.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.size() < kNumberDigits) return {};
  return number;
}

// From the newest on.
Result<std::vector<uint64_t>> checkpoints_in(const Folder& directory) {
  auto names = directory.list();
  if (!names) return names.status();
  std::vector<uint64_t> numbers;
  for (const std::string& name : *names) {
    if (const auto number = number_of(name)) numbers.push_back(*number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
}

// A part of a file name, whatever the host is called.
std::string host_name() {
  char name[256] = "";
  (void)::gethostname(name, sizeof name - 1);
  std::string out = name;
  for (char& c : out)
    if (c == '/') c = '-';
  return out;
}

bool is_id(std::string_view digits) {
  return digits.size() == kIdDigits && digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Of ".saving-HOST-0123456789abcdef", and of the same with "-1" behind it, HOST, in which there may be dashes.
std::optional<std::string_view> host_of(std::string_view name) {
  if (!name.starts_with(kSaving)) return {};
  std::string_view host = name.substr(kSaving.size());
  const auto cut_last = [&host] {  // what comes behind its last dash
    const size_t dash = host.rfind('-');
    const std::string_view last = dash == std::string_view::npos ? "" : host.substr(dash + 1);
    host = host.substr(0, dash);
    return last;
  };
  std::string_view id = cut_last();
  if (!is_id(id) && id.find_first_not_of("0123456789") == std::string_view::npos) id = cut_last();
  return is_id(id) ? std::optional(host) : std::nullopt;
}

// Not all file systems tell hosts of each other's locks, so another's save may be under way, and its folder is left alone. Where hosts get
// new names as they start anew (containers), nobody ever removes it: that is said, once, of one that nothing was written into for an hour.
void tell_of_another_host(const Folder& directory, const std::string& name, std::string_view host) {
  static std::atomic<bool> is_told{false};
  if (is_told) return;
  auto folder = directory.open_folder(name, Folder::Links::refused);
  auto files = folder ? folder->list() : folder.status();
  struct stat found {};
  if (!files || ::lstat(directory.path_of(name).c_str(), &found) != 0) return;
  time_t written = found.st_mtime;
  uint64_t bytes = 0;
  for (const std::string& each : *files) {
    if (::lstat(folder->path_of(each).c_str(), &found) != 0) continue;
    written = std::max(written, found.st_mtime);
    bytes += static_cast<uint64_t>(found.st_size);
  }
  if (written > ::time(nullptr) - kQuietSeconds || is_told.exchange(true)) return;
  log(LogLevel::warning, text(directory.path_of(name), " was left by host ", host, " in the middle of a save, and takes ", bytes,
                              " bytes: only a save on a host of that name removes it. If there is none any more, remove this folder, and "
                              "others like it"));
}

// Who saves holds a lock on its folder, which the system takes back when the process dies.
void remove_left_behind(const Folder& directory) {
  auto names = directory.list();
  if (!names) return;
  const std::string here = host_name();
  for (const std::string& name : *names) {
    const auto host = host_of(name);
    if (host && *host != here) tell_of_another_host(directory, name, *host);
    if (host != here && !name.starts_with(kRemoving)) continue;
    auto folder = directory.open_folder(name, Folder::Links::refused);
    if (!folder || folder->lock() != Folder::Lock::mine) continue;
    if (Status removed = directory.remove_folder(name); !removed && directory.has(name)) {  // another job may have been faster
      log(LogLevel::warning, text("what a process that died has left cannot be removed: ", removed.text()));
    }
  }
}

}  // namespace

std::string rank_file_name(int rank) {
  return numbered("rank-", static_cast<uint64_t>(rank), 5) + ".safetensors";
}

Result<std::string> random_id() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits) return system_error("getrandom", errno);
  std::string digits;
  append_digits(&digits, bits);
  return digits;
}

Result<PendingCheckpoint> PendingCheckpoint::create(const std::string& directory, const std::string& save_id) {
  auto in = Folder::make(directory);
  if (!in) return in.status();
  remove_left_behind(*in);
  for (int attempt = 0;; ++attempt) {
    std::string name = text(kSaving, host_name(), "-", save_id, attempt == 0 ? "" : text("-", attempt));
    auto made = in->make_folder(name);
    if (!made) return made.status();
    // Another process may have taken it for one left behind, before it was locked: it removes it then, or has done so.
    if (!*made) continue;
    Folder& folder = **made;
    const Folder::Lock lock = folder.lock();
    if (lock == Folder::Lock::unknown || (lock == Folder::Lock::mine && folder.is_named(*in, name)))
      return PendingCheckpoint(*std::move(in), std::move(folder), std::move(name));
  }
}

Status PendingCheckpoint::commit(const Manifest& manifest) {
  auto file = folder_.create_file(kManifestName);
  if (!file) return file.status();
  const std::string json = manifest_text(manifest);
  if (Status written = file->write(json.data(), json.size(), 0); !written) return written;
  if (Status synced = file->sync(); !synced) return synced;
  if (Status synced = folder_.sync(); !synced) return synced;
  for (;;) {
    auto numbers = checkpoints_in(directory_);
    if (!numbers) return numbers.status();
    const uint64_t last = numbers->empty() ? 0 : numbers->front();
    if (last == UINT64_MAX)
      return invalid(directory_.path_of(numbered(kCheckpoint, last, kNumberDigits)), " leaves no number for another checkpoint; rename it");
    const std::string name = numbered(kCheckpoint, last + 1, kNumberDigits);
    auto renamed = directory_.rename_new(name_, name);
    if (!renamed) return renamed.status();
    if (!*renamed) continue;  // another job's
    if (Status synced = directory_.sync(); !synced) {
      (void)directory_.rename_new(name, name_);
      return synced;
    }
    is_committed_ = true;
    return {};
  }
}

void PendingCheckpoint::remove_old(uint64_t keep) noexcept {
  (void)attempt([&]() -> Status {
    auto numbers = checkpoints_in(directory_);
    auto id = random_id();
    if (keep == 0 || !numbers || !id) return {};
    for (size_t i = keep; i < numbers->size(); ++i) {
      const std::string name = numbered(kCheckpoint, (*numbers)[i], kNumberDigits), away = text(kRemoving, *id, "-", i);
      // Under the other name nobody takes it for a checkpoint while its files go.
      auto renamed = directory_.rename_new(name, away);
      if (renamed && *renamed) (void)directory_.sync();
      const Status removed = renamed ? directory_.remove_folder(away) : renamed.status();
      // Another job that saves here may have been faster.
      if (removed.ok() || !directory_.has(renamed ? away : name)) continue;
      log(LogLevel::warning, text("an old checkpoint, or a part of it, stays: ", removed.text()));
    }
    return {};
  });
}

Status PendingCheckpoint::commit_files(const std::vector<std::string>& files) {
  if (Status synced = folder_.sync(); !synced) return synced;
  size_t done = 0;
  const Status status = attempt([&]() -> Status {
    while (done < files.size()) {
      auto renamed = directory_.rename_new(text(name_, "/", files[done]), files[done]);
      if (!renamed) return renamed.status();
      if (!*renamed) return invalid(directory_.path_of(files[done]), " is there already; nothing is written over");
      ++done;
      // The last one, which names the others, is there only if they are.
      if (Status synced = directory_.sync(); !synced) return synced;
    }
    return {};
  });
  if (status.ok()) return {};
  while (done > 0) (void)attempt([&] { return directory_.remove(files[--done]); });
  return status;
}

void PendingCheckpoint::abandon() noexcept {
  if (is_committed_) return;
  (void)attempt([&] { return directory_.remove_folder(name_); });
}

Result<Folder> find_checkpoint(const std::string& directory) {
  auto in = Folder::open(directory);
  if (!in || in->entry(kManifestName) != Folder::Entry::none) return in;
  for (int lists = 0; lists < kMostLists; ++lists) {
    auto numbers = checkpoints_in(*in);
    if (!numbers) return numbers.status();
    bool is_gone = false;
    for (const uint64_t number : *numbers) {
      const std::string name = numbered(kCheckpoint, number, kNumberDigits);
      auto folder = in->open_folder(name);
      if (folder && folder->entry(kManifestName) != Folder::Entry::none) return folder;
      const Folder::Entry found = in->entry(name);
      if (found == Folder::Entry::none) {
        is_gone = true;  // rotated away since, so there should be a newer one
      } else if (!folder && found != Folder::Entry::other) {
        return folder;  // an older one is not what the caller means
      } else {
        log(LogLevel::warning, text(in->path_of(name), " has no ", kManifestName, ", so it is no checkpoint: an older one is looked for"));
      }
    }
    if (!is_gone) break;
  }
  return system_error(text("there is no checkpoint in ", directory), ENOENT);
}

Result<OpenManifest> read_manifest(const Folder& checkpoint) {
  auto file = checkpoint.open_file(kManifestName);
  if (!file) return file.status();
  auto bytes = file->bytes();
  if (!bytes) return bytes.status();
  if (*bytes > kLongestManifest) return Status(Code::corrupt, text(file->path(), " has ", *bytes, " bytes, more than any manifest"));
  OpenManifest out;
  std::string json(*bytes, '\0');
  if (Status read = file->read(json.data(), json.size(), 0); !read) return read;
  out.digest = checksum(json.data(), json.size());
  auto manifest = parse_manifest(json);
  if (!manifest) return manifest.status().with_context(file->path());
  out.manifest = *std::move(manifest);
  return out;
}

}  // namespace megadp
