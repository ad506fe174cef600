// SPDX-License-Identifier: Apache-2.0
// How long a checkpoint takes to be saved and loaded, beside plain files of as many bytes: written in pieces of 1 MiB and synced, and read,
// none of it in memory before. Rounds in turn, medians; the first one, in which memory is
// used for the first time, does not count.
//
// usage: megadp run -n 2 bench_checkpoint DIRECTORY [MiB of state, over all ranks: 512] [rounds: 5]
#include <fcntl.h>
#include <megadp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kPiece = size_t{1} << 20;

void must(bool held, const std::string& what) {
  if (held) return;
  std::cerr << "bench_checkpoint: " << what << ": " << mdp_last_error() << "\n";
  std::exit(1);
}
#define MUST(call) must((call) >= 0, #call)

double seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void drop_from_memory(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY);
    must(fd >= 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "POSIX_FADV_DONTNEED");
    ::close(fd);
  }
}

// A rank's part of a plain file.
void write_plain(const std::string& path, const std::vector<char>& data) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  must(fd >= 0, path);
  for (size_t at = 0; at < data.size(); at += kPiece) {
    const size_t count = std::min(kPiece, data.size() - at);
    must(::write(fd, data.data() + at, count) == static_cast<ssize_t>(count), path);
  }
  must(::fsync(fd) == 0, path);
  ::close(fd);
}
void read_plain(const std::string& path, std::vector<char>* data) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  must(fd >= 0, path);
  for (size_t at = 0; at < data->size(); at += kPiece) {
    const size_t count = std::min(kPiece, data->size() - at);
    must(::read(fd, data->data() + at, count) == static_cast<ssize_t>(count), path);
  }
  ::close(fd);
}

struct Model {
  mdp_comm* comm = nullptr;
  mdp_buffer* buffer = nullptr;
  mdp_optimizer* optimizer = nullptr;
};

// With so much state over all ranks, and values in it.
Model make_model(int64_t mib) {
  Model model;
  MUST(mdp_comm_create(nullptr, nullptr, &model.comm));
  // f32: the parameter and two moments.
  constexpr int64_t kParams = 64;
  const int64_t elements = mib * (1 << 20) / 12 / kParams;
  std::vector<std::string> names;
  for (int64_t p = 0; p < kParams; ++p) names.push_back("layer." + std::to_string(p) + ".weight");
  std::vector<mdp_param> params(kParams);
  for (size_t p = 0; p < params.size(); ++p) {
    params[p] = {};
    params[p].struct_size = sizeof(mdp_param);
    params[p].name = names[p].c_str();
    params[p].dtype = MDP_DTYPE_F32;
    params[p].shape = &elements;
    params[p].ndim = 1;
  }
  MUST(mdp_buffer_register(model.comm, nullptr, nullptr, params.data(), params.size(), &model.buffer));
  MUST(mdp_optimizer_create(model.buffer, nullptr, &model.optimizer));
  std::vector<float> values(static_cast<size_t>(elements));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 2654435761U % 1000003) / 1000003;
  for (size_t p = 0; p < params.size(); ++p) {
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.dtype = MDP_DTYPE_F32;
    tensor.data = values.data();
    tensor.shape = &elements;
    tensor.ndim = 1;
    MUST(mdp_param_write(model.buffer, p, &tensor, nullptr));
  }
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  must(argc > 1, "give a directory");
  const std::string directory = argv[1];
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 512, rounds = argc > 3 ? std::atoll(argv[3]) : 5;
  const Model model = make_model(mib);
  const int32_t rank = mdp_comm_rank(model.comm), size = mdp_comm_size(model.comm);
  mdp_checkpoint_part part{};
  part.struct_size = sizeof part;
  part.buffer = model.buffer;
  part.optimizer = model.optimizer;
  mdp_checkpoint_config config{};
  config.struct_size = sizeof config;
  config.directory = directory.c_str();
  config.parts = &part;
  config.part_count = 1;
  std::vector<char> plain(static_cast<size_t>(mib * (1 << 20) / size));
  for (size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<char>(i * 2654435761U >> 13);
  const std::string file = directory + ".plain." + std::to_string(rank);
  std::vector<double> times[4];
  const auto timed = [&](int which, const auto& work) {
    MUST(mdp_barrier(model.comm, nullptr));
    const auto begin = Clock::now();
    work();
    MUST(mdp_barrier(model.comm, nullptr));
    times[which].push_back(seconds(begin));
  };
  for (int64_t round = 0; round <= rounds; ++round) {
    if (round == 1) {
      for (std::vector<double>& each : times) each.clear();
    }
    timed(0, [&] { write_plain(file, plain); });
    timed(1, [&] { MUST(mdp_checkpoint_save(&config)); });
    const int fd = ::open(file.c_str(), O_RDONLY);
    must(fd >= 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, file);
    ::close(fd);
    if (rank == 0) drop_from_memory(directory);
    timed(2, [&] { read_plain(file, &plain); });
    timed(3, [&] { MUST(mdp_checkpoint_load(&config)); });
    MUST(mdp_barrier(model.comm, nullptr));
    std::filesystem::remove(file);
    if (rank == 0) std::filesystem::remove_all(directory);
  }
  if (rank == 0) {
    const double written = median(times[0]), saved = median(times[1]), read = median(times[2]), loaded = median(times[3]);
    std::cout << mib << " MiB, " << size << " ranks, " << rounds << " rounds, medians\n"
              << "plain files written and synced " << written << " s, checkpoint saved " << saved << " s: " << written / saved
              << " of its speed\n"
              << "plain files read " << read << " s, checkpoint loaded " << loaded << " s: " << read / loaded << " of its speed\n";
  }
  mdp_optimizer_destroy(model.optimizer);
  mdp_buffer_destroy(model.buffer);
  mdp_comm_destroy(model.comm);
}
