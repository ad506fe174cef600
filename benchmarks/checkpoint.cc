// SPDX-License-Identifier: Apache-2.0
// How long a checkpoint takes to be saved and loaded, beside plain files of as many bytes: written in pieces of 1 MiB and synced, and read,
// none of it in memory before. Rounds in turn, each twice, in either order; medians. The first one, in which memory is
// used for the first time, does not count. Then how long steps take while a checkpoint is written in the background, beside steps without,
// and how long the call takes that copies the state.
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

// A file, or all in a folder.
void drop_from_memory(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) drop_from_memory(entry.path());
    return;
  }
  const int fd = ::open(path.c_str(), O_RDONLY);
  must(fd >= 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "POSIX_FADV_DONTNEED");
  ::close(fd);
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

constexpr size_t kParams = 64;
struct Model {
  int64_t elements = 0;  // of each parameter
  mdp_comm* comm = nullptr;
  mdp_buffer* buffer = nullptr;
  mdp_optimizer* optimizer = nullptr;
};

// With so much state over all ranks, and values in it.
Model make_model(int64_t mib) {
  Model model;
  MUST(mdp_comm_create(nullptr, nullptr, &model.comm));
  // f32: the parameter and two moments.
  const int64_t elements = model.elements = mib * (1 << 20) / 12 / static_cast<int64_t>(kParams);
  std::vector<std::string> names;
  for (size_t p = 0; p < kParams; ++p) names.push_back("layer." + std::to_string(p) + ".weight");
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

// Gradients of the next step, and the step.
void step(const Model& model, const std::vector<float>& values) {
  const int64_t elements = static_cast<int64_t>(values.size());
  mdp_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = MDP_DTYPE_F32;
  tensor.data = const_cast<float*>(values.data());
  tensor.shape = &elements;
  tensor.ndim = 1;
  for (size_t p = kParams; p-- > 0;) MUST(mdp_grad_put(model.buffer, p, &tensor, 0, nullptr));
  MUST(mdp_optimizer_step(model.optimizer, nullptr, nullptr, nullptr));
}

struct Overlap {
  double alone, saving, copy, written;
};
Overlap measure_overlap(const Model& model, const mdp_checkpoint_config* config, int64_t rounds) {
  const std::vector<float> values(static_cast<size_t>(model.elements), 0.125F);
  std::vector<double> alone, saving, copy, written;
  const auto timed_step = [&](std::vector<double>* times) {
    const auto begin = Clock::now();
    step(model, values);
    times->push_back(seconds(begin));
  };
  for (int64_t round = 0; round <= rounds; ++round) {
    if (round == 1) {
      for (std::vector<double>* each : {&alone, &saving, &copy, &written}) each->clear();
    }
    mdp_request* request = nullptr;
    const auto begin = Clock::now();
    MUST(mdp_checkpoint_save(config, &request));
    copy.push_back(seconds(begin));
    // So many on all ranks, as none may leave the others alone.
    int steps = 0;
    for (bool is_over = false; !is_over; ++steps) {
      timed_step(&saving);
      int64_t pending = mdp_request_test(request) == MDP_PENDING ? 1 : 0;
      const int64_t one = 1;
      mdp_tensor tensor{};
      tensor.struct_size = sizeof tensor;
      tensor.dtype = MDP_DTYPE_I64;
      tensor.data = &pending;
      tensor.shape = &one;
      tensor.ndim = 1;
      MUST(mdp_all_reduce(model.comm, &tensor, &tensor, MDP_OP_MAX, nullptr, nullptr));
      is_over = pending == 0;
    }
    saving.pop_back();  // only in part beside it
    written.push_back(seconds(begin) - copy.back());
    MUST(mdp_request_wait(request, UINT64_MAX));
    mdp_request_free(request);
    for (int i = 0; i < steps; ++i) timed_step(&alone);
  }
  return {median(alone), median(saving), median(copy), median(written)};
}

struct Files {
  std::vector<double> written, saved, read, loaded;
};
void tell(const char* plain_name, std::vector<double> plain, const char* our_name, std::vector<double> ours) {
  const auto least = [](const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); };
  std::cout << plain_name << " " << median(plain) << " s, " << our_name << " " << median(ours) << " s: " << median(plain) / median(ours)
            << " of its speed; least " << least(plain) << " s and " << least(ours) << " s: " << least(plain) / least(ours) << std::endl;
}
// Each also before the other: disks are faster for a while, and slower after it.
Files measure_files(const Model& model, const mdp_checkpoint_config* config, int64_t mib, int64_t rounds) {
  const std::string directory = config->directory;
  const int32_t rank = mdp_comm_rank(model.comm);
  const std::string file = directory + ".plain." + std::to_string(rank);
  std::vector<char> plain(static_cast<size_t>(mib * (1 << 20) / mdp_comm_size(model.comm)));
  for (size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<char>(i * 2654435761U >> 13);
  Files times;
  const auto timed = [&](std::vector<double>* to, const auto& work) {
    MUST(mdp_barrier(model.comm, nullptr));
    const auto begin = Clock::now();
    work();
    MUST(mdp_barrier(model.comm, nullptr));
    to->push_back(seconds(begin));
  };
  const auto remove = [&] {
    MUST(mdp_barrier(model.comm, nullptr));
    std::filesystem::remove(file);
    if (rank == 0) std::filesystem::remove_all(directory);
  };
  for (int64_t round = 0; round <= rounds; ++round) {
    if (round == 1) times = {};
    for (const bool plain_first : {false, true}) {
      remove();
      if (plain_first) timed(&times.written, [&] { write_plain(file, plain); });
      timed(&times.saved, [&] { MUST(mdp_checkpoint_save(config, nullptr)); });
      if (!plain_first) timed(&times.written, [&] { write_plain(file, plain); });
    }
    for (const bool plain_first : {false, true}) {
      drop_from_memory(file);
      if (rank == 0) drop_from_memory(directory);
      if (plain_first) timed(&times.read, [&] { read_plain(file, &plain); });
      timed(&times.loaded, [&] { MUST(mdp_checkpoint_load(config)); });
      if (!plain_first) timed(&times.read, [&] { read_plain(file, &plain); });
    }
  }
  remove();
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  must(argc > 1, "give a directory");
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 512, rounds = argc > 3 ? std::atoll(argv[3]) : 5;
  const Model model = make_model(mib);
  mdp_checkpoint_part part{};
  part.struct_size = sizeof part;
  part.buffer = model.buffer;
  part.optimizer = model.optimizer;
  mdp_checkpoint_config config{};
  config.struct_size = sizeof config;
  config.directory = argv[1];
  config.parts = &part;
  config.part_count = 1;
  const Files files = measure_files(model, &config, mib, rounds);
  if (mdp_comm_rank(model.comm) == 0) {
    std::cout << mib << " MiB, " << mdp_comm_size(model.comm) << " ranks, " << rounds << " rounds, medians\n";
    tell("plain files written and synced", files.written, "checkpoint saved", files.saved);
    tell("plain files read", files.read, "checkpoint loaded", files.loaded);
  }
  const Overlap overlap = measure_overlap(model, &config, rounds);
  if (mdp_comm_rank(model.comm) == 0) {
    std::filesystem::remove_all(argv[1]);
    std::cout << "step " << overlap.alone << " s, while a checkpoint is written " << overlap.saving
              << " s: " << overlap.saving / overlap.alone << " of it; the copy before " << overlap.copy << " s, written in "
              << overlap.written << " s\n";
  }
  mdp_optimizer_destroy(model.optimizer);
  mdp_buffer_destroy(model.buffer);
  mdp_comm_destroy(model.comm);
}
