// SPDX-License-Identifier: Apache-2.0
// A pending operation, waited for in slices: between two of them the host language can collect garbage and look for interrupts.
#pragma once

#include "handle.h"

namespace megadp {

/// Any thread may use it. Dropping one lets the operation go on.
class Request {
 public:
  /// Whether the operation has finished; fails with the operation's failure. Does not block.
  bool done(Failure& failure) const {
    const auto request = request_.use(failure);
    return request && failure.take(mdp_request_test(request.get())) && failure.code == MDP_OK;
  }

  /// Blocks for at most 45 ms; whether the operation has finished. Fails with the operation's failure.
  bool wait_slice(Failure& failure) const {
    const auto request = request_.use(failure);
    return request && wait_slice(request.get(), failure);
  }

  void close() { request_.close(); }

#ifndef SWIG
  explicit Request(mdp_request* request) : request_("Request", request, mdp_request_free) {}

  static bool wait_slice(mdp_request* request, Failure& failure) {
    return failure.take(mdp_request_wait(request, kSlice)) && failure.code == MDP_OK;
  }
  // `request` by reference: the call that gives `status` writes it, and may be evaluated after the other arguments.
  static Request* own(mdp_status status, mdp_request* const& request, Failure& failure) {
    return failure.take(status) ? new Request(request) : nullptr;
  }
#endif

 private:
  static constexpr uint64_t kSlice = 45000000;  ///< ns; shorter than the library waits before it asks (interrupted_in_language)
  Handle<mdp_request> request_;
};

#ifndef SWIG

// One operation that a caller waits for in slices: all but the first slice of one call are asked for `again`.
class Sliced {
 public:
  // Goes on waiting for what an earlier slice began, for at most 50 ms, or begins it by begin(&request); whether it has finished. A call
  // that an interrupt ended leaves it pending. The next call goes on with it if nothing else was begun since, as `operations` counts, and
  // `which` is the same; otherwise the ranks would be off by one from then on, and it is left to itself.
  template <class Begin>
  bool wait(Operations& operations, bool again, Failure& failure, Begin begin, int which = 0) {
    std::shared_ptr<mdp_request> request;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!pending_ || (!again && (which != which_ || operations != count_))) {
        mdp_request* begun = nullptr;
        ++operations;
        if (!failure.take(begin(&begun)) || begun == nullptr) return true;
        guarded(failure, [&] { pending_.reset(begun, mdp_request_free); });
        if (failure.failed()) return true;
        which_ = which;
      }
      count_ = operations;  // also after a slice: what a signal's handler begins in the midst of a call
      request = pending_;
    }
    const bool finished = Request::wait_slice(request.get(), failure) || failure.failed();
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished && pending_ == request) pending_.reset();
    return finished;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<mdp_request> pending_;
  int which_ = 0;
  unsigned long long count_ = 0;
};

#endif

}  // namespace megadp
