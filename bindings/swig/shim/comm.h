// SPDX-License-Identifier: Apache-2.0
// Communicators, and the library itself.
#pragma once

#include <cmath>

#include "arrays.h"
#include "request.h"

namespace megadp {

#ifndef SWIG
// mdp_comm_config.interrupted of every communicator: the language's look at its pending signals, which its file gives as the module is
// loaded; null where a language has none. For calls that wait in one piece; what waits in slices looks between them.
inline mdp_interrupted_fn& interrupted_in_language() {
  static mdp_interrupted_fn function = nullptr;
  return function;
}
#endif

/// Zero, false, empty and "not given" are the defaults. rank and size are for use with an id; the launcher knows them otherwise.
struct CommOptions {
  Backend backend = Backend::AUTO;
  std::string id;  ///< of Comm.unique_id; empty: ranks and their meeting place come from the launcher's environment
  int rank = 0;
  int size = 0;
  GivenDevice device = 0;  ///< with CUDA; not given: this rank's number on its node
  bool set_device = false;
  bool exact_sums = false;       ///< with CUDA: the host's order of summation, and so its bits
  bool sockets = false;          ///< between nodes over sockets that know the job's secret, not over UCX; the same on all ranks
  int host_threads = 0;          ///< how many work on a long array of the host together; 0: a share of the processors
  bool threads_always = false;   ///< also while the program computes, and not only while it waits
  double timeout_seconds = 0.0;  ///< how long any collective waits for another rank; 0: five minutes

#ifndef SWIG
  bool describe(mdp_comm_config* config, Failure& failure) const {
    if (!(timeout_seconds >= 0 && timeout_seconds <= 1e9)) {
      failure.refuse(MDP_E_INVALID, "timeout_seconds must be 0 (five minutes) to 1e9, not %g", timeout_seconds);
      return false;
    }
    *config = mdp_comm_config{};
    config->struct_size = sizeof *config;
    config->backend = static_cast<mdp_backend>(backend);
    config->rank = rank;
    config->size = size;
    config->device = device;
    config->timeout_ns = static_cast<uint64_t>(std::ceil(timeout_seconds * 1e9));
    config->host_threads = host_threads;
    config->flags = (set_device ? MDP_COMM_SET_DEVICE : 0) | (exact_sums ? MDP_COMM_EXACT_SUMS : 0) | (sockets ? MDP_COMM_SOCKETS : 0) |
                    (threads_always ? MDP_COMM_THREADS_ALWAYS : 0);
    config->interrupted = interrupted_in_language();
    return true;
  }
#endif
};

/// Numbers of elements, one for each rank; or of steps or bytes, one for each parameter.
class Counts {
 public:
  void add(long long count) { counts_.push_back(count); }
  long long size() const { return static_cast<long long>(counts_.size()); }

#ifndef SWIG
  std::vector<uint64_t> list(long long wanted, const char* each, const char* argument, Failure& failure) const {
    bool good = size() == wanted;
    for (const long long count : counts_) good = good && count >= 0;
    if (good) return std::vector<uint64_t>(counts_.begin(), counts_.end());
    failure.refuse(MDP_E_INVALID, "%s must be %lld numbers from 0 on, one for each %s", argument, wanted, each);
    return {};
  }
#endif

 private:
  std::vector<long long> counts_;
};

/// This rank in one ordered group of ranks. One thread at a time may use a communicator and what is made from it; abort, lost and close may
/// come from any thread. The methods marked collective must be called by every rank, in the same order, and wait for the others, at most
/// for the timeout.
class Comm {
 public:
  /// Joins the ranks of a job into a communicator, the world. Collective over the ranks of the job.
  static Comm* create(const CommOptions& options, Failure& failure);
  /// A name and secret under which ranks that no launcher started find each other: made by one of them, carried to the others by the
  /// caller, and kept from strangers.
  static std::string unique_id(Failure& failure);

  int rank(Failure& failure) const { return ask(mdp_comm_rank, failure); }
  int size(Failure& failure) const { return ask(mdp_comm_size, failure); }
  /// The rank in the world, the communicator that was not split, of rank `rank` of this one: the number in every error.
  int world_rank(int rank, Failure& failure) const {
    return ask([rank](const mdp_comm* comm) { return mdp_comm_world_rank(comm, rank); }, failure);
  }
  /// Over when all ranks have called it. barrier_slice begins that, or goes on waiting if `again`, for at most 50 ms, and says whether
  /// it has finished; what an interrupted call has left is gone on with if no other operation was begun on this communicator, or on what is
  /// made on it, and no parameters were written, since. start_barrier returns at once. Collective.
  bool barrier_slice(bool again, Failure& failure);
  Request* start_barrier(Failure& failure);
  /// Ranks that give the same color (0 or more) form a communicator, ordered by key; nothing is returned where color is negative.
  /// Collective.
  Comm* split(long long color, long long key, Failure& failure);
  /// Makes the communicator and all that is made from it unusable on all ranks: for a rank that cannot go on. Any thread; does not block.
  void abort(Failure& failure) {
    if (const auto comm = comm_.use(failure)) failure.take(mdp_comm_abort(comm.get()));
  }
  /// What made it unusable; its code is 0 while nothing did. Any thread.
  Failure* lost(Failure& failure) const;
  /// Readable, for poll or an event loop, while a finished request has not been asked for. The library's own: never read or close it.
  int event_fd(Failure& failure) const;
  /// Drops this handle; what was made from the communicator lives on. Any thread.
  void close() { comm_.close(); }
  bool closed() const { return comm_.closed(); }

#if !defined(SWIG) || defined(SWIGJAVA) || defined(SWIGGO)
  /// On the caller's memory; in place where the same is given twice. Pieces are in rank order. All collective.
  void all_reduce(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes, Op op,
                  Failure& failure);
  void reduce_scatter(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes, Op op,
                      Failure& failure);
  void all_gather(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes, Failure& failure);
  void all_to_all(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes, Failure& failure);
  void broadcast(DType dtype, unsigned char* to, long long to_bytes, int root, Failure& failure);
  /// With pieces of different sizes: one count of elements for each rank, the same list on all ranks (all_to_all_v: what goes to each rank,
  /// and what comes from it).
  void reduce_scatter_v(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes,
                        const Counts& counts, Op op, Failure& failure);
  void all_gather_v(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes,
                    const Counts& counts, Failure& failure);
  void all_to_all_v(DType dtype, const unsigned char* from, long long from_bytes, const Counts& from_counts, unsigned char* to,
                    long long to_bytes, const Counts& to_counts, Failure& failure);
  /// To another rank, which receives as much of the same dtype, or from it; no other rank takes part.
  void send(DType dtype, const unsigned char* from, long long from_bytes, int rank, Failure& failure);
  void recv(DType dtype, unsigned char* to, long long to_bytes, int rank, Failure& failure);
  /// Both at once; -1 for a rank leaves that half out.
  void send_recv(DType dtype, const unsigned char* from, long long from_bytes, int to_rank, unsigned char* to, long long to_bytes,
                 int from_rank, Failure& failure);
#endif
#if !defined(SWIGJAVA) && !defined(SWIGGO)
  /// On float64 numbers; the result is a list of its own. All collective.
  std::vector<double> all_reduce(const std::vector<double>& values, Op op, Failure& failure);
  std::vector<double> all_gather(const std::vector<double>& values, Failure& failure);
  std::vector<double> broadcast(const std::vector<double>& values, int root, Failure& failure);
  /// counts[r] numbers of rank r, the same list on all ranks.
  std::vector<double> all_gather_v(const std::vector<double>& values, const std::vector<double>& counts, Failure& failure);
  /// To another rank, and as many numbers back from the same or another one, both at once; -1 for a rank leaves that half out.
  std::vector<double> send_recv(const std::vector<double>& values, int to_rank, int from_rank, Failure& failure);
#endif

#ifndef SWIG
  explicit Comm(mdp_comm* comm, const std::shared_ptr<Operations>& operations = std::make_shared<Operations>(0))
      : comm_("Comm", comm, mdp_comm_destroy, operations) {}
  const Handle<mdp_comm>& handle() const {
    return comm_;
  }
#endif

 private:
  template <class Question>
  int ask(Question question, Failure& failure) const {
    const auto comm = comm_.use(failure);
    if (!comm) return -1;
    const int answer = question(comm.get());
    if (answer < 0) failure.take_last();
    return answer;
  }
  // One for each rank: C reads as many.
  std::vector<uint64_t> counts_of(const Counts& counts, const char* argument, Failure& failure) const {
    const int ranks = size(failure);
    return failure.failed() ? std::vector<uint64_t>() : counts.list(ranks, "rank", argument, failure);
  }

  Handle<mdp_comm> comm_;
  Sliced barrier_;
};

/// What is asked of the library itself. Local.
class Library {
 public:
  /// major << 16 | minor << 8 | patch.
  static int version() { return static_cast<int>(mdp_version()); }
  /// Build, backends, machine and launcher, as JSON.
  static std::string info(Failure& failure) {
    return text(failure, [](char* json, size_t capacity, size_t* needed) { return mdp_info(json, capacity, needed); });
  }

#ifndef SWIG
  // The text that `function` answers with: its size first, then the text.
  template <class Function>
  static std::string text(Failure& failure, Function function) {
    return guarded(failure, [&] {
      std::string json;
      size_t needed = 0;
      if (!failure.take(function(nullptr, size_t{0}, &needed))) return json;
      json.resize(needed);
      if (!failure.take(function(&json[0], json.size(), &needed))) return std::string();
      json.resize(needed - 1);  // without the terminating NUL
      return json;
    });
  }
#endif
};

}  // namespace megadp

#ifndef SWIG
#include "comm_calls.h"
#endif
