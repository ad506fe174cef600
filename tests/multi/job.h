// SPDX-License-Identifier: Apache-2.0
// One function run as every rank of a job, as threads of this process or as forked processes, over the public API alone. The first failure
// of a rank ends the job: the communicator is aborted, so that no other rank waits for it.
#pragma once

#include <megadp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace job {

template <class... Args>
[[noreturn]] void fail(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  throw std::runtime_error(out.str());
}

template <class... Args>
void require(bool good, const Args&... args) {
  if (!good) fail(args...);
}

inline void ok(mdp_status status) {
  if (status < 0) fail(mdp_status_name(status), ": ", mdp_last_error());
}

// `status` is `wanted` and the sentence has every one of the words.
inline void refused(mdp_status status, mdp_status wanted, const std::vector<std::string>& words) {
  const std::string sentence = mdp_last_error();
  require(status == wanted, "got ", mdp_status_name(status), " instead of ", mdp_status_name(wanted), ": ", sentence);
  for (const std::string& word : words) require(sentence.find(word) != std::string::npos, "'", sentence, "' does not say '", word, "'");
}

template <class T, void (*destroy)(T*)>
struct Destroy {
  void operator()(T* handle) const { destroy(handle); }
};
using Comm = std::unique_ptr<mdp_comm, Destroy<mdp_comm, mdp_comm_destroy>>;
using Grid = std::unique_ptr<mdp_grid, Destroy<mdp_grid, mdp_grid_destroy>>;
using Buffer = std::unique_ptr<mdp_buffer, Destroy<mdp_buffer, mdp_buffer_destroy>>;
using Optimizer = std::unique_ptr<mdp_optimizer, Destroy<mdp_optimizer, mdp_optimizer_destroy>>;
using Request = std::unique_ptr<mdp_request, Destroy<mdp_request, mdp_request_free>>;

struct Rank {
  mdp_comm* comm;
  int rank, size;
};
using Body = std::function<void(const Rank&)>;

constexpr uint64_t kTimeoutNs = 20'000'000'000;

// The sentence of the failure, empty when all went well.
inline std::string run_rank(const mdp_unique_id& id, int rank, int size, const Body& body) {
  Comm comm;
  try {
    mdp_comm_config config{};
    config.struct_size = sizeof config;
    config.rank = rank;
    config.size = size;
    config.timeout_ns = kTimeoutNs;
    mdp_comm* made = nullptr;
    ok(mdp_comm_create(&config, &id, &made));
    comm.reset(made);
    body(Rank{made, rank, size});
    return "";
  } catch (const std::exception& error) {
    mdp_comm_abort(comm.get());
    return std::string(error.what());
  }
}

inline bool report(const std::string& name, const std::vector<std::string>& failures) {
  bool good = true;
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (failures[rank].empty()) continue;
    std::cerr << "FAILED " << name << ", rank " << rank << ": " << failures[rank] << "\n";
    good = false;
  }
  return good;
}

inline bool run_threads(const std::string& name, int size, const Body& body) {
  mdp_unique_id id;
  ok(mdp_unique_id_create(&id));
  std::vector<std::string> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { failures[static_cast<size_t>(rank)] = run_rank(id, rank, size, body); });
  }
  for (std::thread& thread : threads) thread.join();
  return report(name + " (" + std::to_string(size) + " threads)", failures);
}

// Under sanitizers only threads are run (argument --threads): their reports are about one process, and ThreadSanitizer does not survive
// forks.
inline bool with_processes = true;

inline bool threads_only(int argc, char** argv) {
  with_processes = argc < 2 || std::string(argv[argc - 1]) != "--threads";
  if (!with_processes) std::cerr << "ranks as threads only\n";
  return !with_processes;
}

inline bool run_processes(const std::string& name, int size, const Body& body) {
  if (!with_processes) return true;
  mdp_unique_id id;
  ok(mdp_unique_id_create(&id));
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const std::string failure = run_rank(id, rank, size, body);
      if (!failure.empty()) std::cerr << "FAILED " << name << ", rank " << rank << " (process): " << failure << std::endl;
      _exit(failure.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    good = child > 0 && waitpid(child, &status, 0) == child && status == 0 && good;
  }
  return good;
}

}  // namespace job
