// SPDX-License-Identifier: Apache-2.0
// Memory runs out in what reads a checkpoint without ranks: each allocation of mdp_checkpoint_info, _data, _verify and _export in turn
// fails, alone or with all that follow. The call is MDP_E_MEMORY, or has done all that it should; nothing leaks, no file stays open, and of
// an export nothing is left but the whole model.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "failing_malloc.h"
#include "job.h"

namespace {

using namespace job;
using namespace failing_malloc;

constexpr int64_t kElements = 37;

// Of the folder: every path in it, with what is there.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    found[entry.path().string()] = entry.is_directory() ? "" : std::string(std::istreambuf_iterator<char>(file), {});
  }
  return found;
}

int open_files() {
  int count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

void save(const std::string& directory) {
  mdp_comm_config config{};
  config.struct_size = sizeof config;
  config.size = 1;
  mdp_comm* made = nullptr;
  ok(mdp_comm_create(&config, nullptr, &made));
  const Comm comm(made);
  mdp_param params[2]{};
  for (int p = 0; p < 2; ++p) {
    params[p].struct_size = sizeof(mdp_param);
    params[p].name = p == 0 ? "the first of two parameters" : "the second of two parameters";
    params[p].dtype = p == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_BF16;
    params[p].shape = &kElements;
    params[p].ndim = 1;
  }
  mdp_buffer* registered = nullptr;
  ok(mdp_buffer_register(made, nullptr, nullptr, params, 2, &registered));
  const Buffer buffer(registered);
  mdp_optimizer* created = nullptr;
  ok(mdp_optimizer_create(registered, nullptr, &created));
  const Optimizer optimizer(created);
  const mdp_checkpoint_part part = {sizeof part, 0, registered, created};
  mdp_checkpoint_config saved{};
  saved.struct_size = sizeof saved;
  saved.directory = directory.c_str();
  saved.parts = &part;
  saved.part_count = 1;
  saved.shared_data = "of all";
  saved.shared_bytes = 6;
  saved.rank_data = "of one";
  saved.rank_bytes = 6;
  ok(mdp_checkpoint_save(&saved, nullptr));
}

struct Local {
  const char* name;
  mdp_status (*call)(const char* directory, char* out, size_t room);
  bool leaves_files;
};

const char* exported = nullptr;  // where to
size_t needed = 0;

const Local kCalls[] = {
    {"info", [](const char* in, char* out, size_t room) { return mdp_checkpoint_info(in, out, room, &needed); }, false},
    {"data", [](const char* in, char* out, size_t room) { return mdp_checkpoint_data(in, 0, out, room, &needed); }, false},
    {"data of all", [](const char* in, char* out, size_t room) { return mdp_checkpoint_data(in, -1, out, room, &needed); }, false},
    {"verify", [](const char* in, char* out, size_t room) { return mdp_checkpoint_verify(in, out, room, &needed); }, false},
    {"export", [](const char* in, char*, size_t) { return mdp_checkpoint_export(in, exported, 0); }, true},
    {"export of several", [](const char* in, char*, size_t) { return mdp_checkpoint_export(in, exported, 1); }, true},
};

// One call, on a folder that is as it was. False: it makes fewer allocations.
bool attempt(const Local& local, Fails which, int64_t number, const std::string& directory, const std::string& model_folder,
             const std::map<std::string, std::string>& wanted, const std::string& answer) {
  static char out[1 << 16];
  std::memset(out, 0, sizeof out);
  const int files = open_files();
  const int64_t before = blocks.load();
  fail_at(number, which);
  const mdp_status status = local.call(directory.c_str(), out, sizeof out);
  const int64_t fired = stop_failing();
  const int64_t leaked = blocks.load() - before;
  require(leaked == 0, leaked, " blocks are not given back; ", mdp_status_name(status));
  require(open_files() == files, open_files() - files, " files stay open");
  if (status == MDP_OK) {
    require(std::string(out) == answer, "it answers '", out, "'");
  } else {
    require(status == MDP_E_MEMORY && fired > 0, mdp_status_name(status), ": ", mdp_last_error(), " ('", out, "')");
  }
  if (!local.leaves_files) return fired > 0;
  auto found = contents(model_folder);
  if (status != MDP_OK && which == Fails::all_after && !found.empty()) {
    // To list a folder takes memory. What is left then the next one removes, and no part of it has the name of a model.
    for (const auto& [path, bytes] : found) require(path.find("/.saving-") != std::string::npos, path, " is left");
    ok(local.call(directory.c_str(), out, sizeof out));
    require(contents(model_folder) == wanted, "what an export without memory has left stays beside the next one");
  } else {
    require(found == (status == MDP_OK ? wanted : std::map<std::string, std::string>()), mdp_status_name(status), " leaves ", found.size(),
            " files and folders, the first ", found.empty() ? "" : found.begin()->first);
  }
  std::filesystem::remove_all(model_folder);
  std::filesystem::create_directory(model_folder);
  return fired > 0;
}

bool run(const Local& local, Fails which, const std::string& directory, const std::string& model_folder) {
  static char out[1 << 16];
  std::memset(out, 0, sizeof out);
  int64_t number = 0;
  try {
    std::filesystem::remove_all(model_folder);
    std::filesystem::create_directory(model_folder);
    ok(local.call(directory.c_str(), out, sizeof out));  // as it should be; and whatever a first call makes for ever
    const auto wanted = contents(model_folder);
    std::filesystem::remove_all(model_folder);
    std::filesystem::create_directory(model_folder);
    while (attempt(local, which, number, directory, model_folder, wanted, out)) ++number;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED %s, %s %lld: %s\n", local.name, which == Fails::one ? "allocation" : "from allocation",
                 static_cast<long long>(number), error.what());
    return false;
  }
  std::fprintf(stderr, "   %s, %s fails: %lld allocations\n", local.name, which == Fails::one ? "one" : "each from one on",
               static_cast<long long>(number));
  return number > 20;
}

}  // namespace

int main() {
  char folder[] = "/tmp/megadp-memory-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const std::string directory = std::string(folder) + "/run", model_folder = std::string(folder) + "/models";
  const std::string model = model_folder + "/model.safetensors", kept = std::string(folder) + "/kept/model.safetensors";
  bool good = true;
  try {
    save(directory);
    ok(mdp_checkpoint_export(directory.c_str(), kept.c_str(), 1));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::filesystem::create_directory(model_folder);
  exported = model.c_str();
  for (const Local& local : kCalls) {
    for (const Fails which : {Fails::one, Fails::all_after}) {
      good = run(local, which, directory, model_folder) && good;
      // Of a model of several files, which has no bytes of the caller's.
      if (std::string(local.name).find("data") == std::string::npos)
        good = run(local, which, std::string(folder) + "/kept", model_folder) && good;
    }
  }
  std::filesystem::remove_all(folder);
  return good ? 0 : 1;
}
