// SPDX-License-Identifier: Apache-2.0
// What buffer.h declares and does not define in place.
#pragma once

#include <algorithm>
#include <cmath>

#include "buffer.h"

namespace megadp {

inline Buffer* Buffer::registered(mdp_comm* comm, mdp_grid* grid, const std::shared_ptr<Operations>& operations, const Params& params,
                                  const BufferOptions& options, Failure& failure) {
  mdp_buffer_config config;
  if (failure.failed() || !options.describe(&config, failure) || !params.have_names(failure)) return nullptr;
  const std::vector<mdp_param> list = params.describe();
  mdp_buffer* buffer = nullptr;
  if (!failure.take(mdp_buffer_register(comm, grid, &config, list.data(), list.size(), &buffer))) return nullptr;
  return new Buffer(buffer, params, operations);
}

inline Buffer* Buffer::create(const Comm& comm, const Params& params, const BufferOptions& options, Failure& failure) {
  return guarded(failure, [&] {
    const auto group = comm.handle().use_collectively(failure);
    return registered(group.get(), nullptr, comm.handle().operations(), params, options, failure);
  });
}

inline Buffer* Buffer::create_on(const Grid& grid, const Params& params, const BufferOptions& options, Failure& failure) {
  return guarded(failure, [&] {
    const auto cut = grid.handle().use_collectively(failure);
    return registered(nullptr, cut.get(), grid.handle().operations(), params, options, failure);
  });
}

inline bool Buffer::has(long long param, Failure& failure) const {
  if (param >= 0 && param < size()) return true;
  failure.refuse(MDP_E_INVALID, "param must be the index of one of the %lld parameters, not %lld", size(), param);
  return false;
}

inline long long Buffer::elements(long long param, Failure& failure) const {
  if (!has(param, failure)) return 0;
  long long product = 1;
  for (int64_t size : shapes_[static_cast<size_t>(param)]) product *= size;
  return product;
}

inline bool Buffer::sync_slice(Failure& failure) {
  const auto buffer = buffer_->use_collectively(failure);
  if (!buffer) return true;
  leases_->end_all();
  // Until the step it is the same sync, however often it is asked for. A request that is kept could be one of the step before, which its
  // caller stopped waiting for.
  mdp_request* request = nullptr;
  if (!failure.take(mdp_grad_sync(buffer.get(), nullptr, &request)) || request == nullptr) return true;
  const bool finished = Request::wait_slice(request, failure) || failure.failed();
  mdp_request_free(request);
  return finished;
}

inline bool Buffer::broadcast_slice(int root, bool again, Failure& failure) {
  const auto buffer = buffer_->use(failure);
  const auto begin = [&](mdp_request** request) { return mdp_buffer_broadcast(buffer.get(), root, request); };
  return !buffer || broadcast_.wait(*buffer_->operations(), again, failure, begin, root);
}

// The request that begin(buffer, &request) makes.
template <class Begin>
Request* Buffer::start(Failure& failure, Begin begin) const {
  return guarded(failure, [&]() -> Request* {
    mdp_request* request = nullptr;
    const auto buffer = buffer_->use_collectively(failure);
    return buffer ? Request::own(begin(buffer.get(), &request), request, failure) : nullptr;
  });
}

inline Request* Buffer::start_sync(Failure& failure) {
  return start(failure, [this](auto* buffer, auto** request) {
    leases_->end_all();
    return mdp_grad_sync(buffer, nullptr, request);
  });
}

inline Request* Buffer::start_broadcast(int root, Failure& failure) {
  return start(failure, [&](auto* buffer, auto** request) { return mdp_buffer_broadcast(buffer, root, request); });
}

// function(buffer, params, count), with the list as the library takes it: it has memory also if it is empty, since NULL means all.
template <class Number, class Function>
void Buffer::call_on(const Number* params, size_t count, Failure& failure, Function function) const {
  guarded(failure, [&] {
    std::vector<size_t> listed(count + 1);
    for (size_t i = 0; i < count; ++i) {
      const auto index = static_cast<double>(params[i]);
      if (!(index >= 0 && index < static_cast<double>(size()) && index == std::floor(index))) {
        failure.refuse(MDP_E_INVALID, "params has %g; each must be the index of one of the %lld parameters", index, size());
        return;
      }
      listed[i] = static_cast<size_t>(index);
    }
    collective(failure, [&](auto* buffer) { return function(buffer, listed.data(), count); });
  });
}

inline double Buffer::grad_norm(Failure& failure) const {
  double norm = 0;
  collective(failure, [&](auto* buffer) { return mdp_grad_norm(buffer, nullptr, 0, &norm); });
  return norm;
}

// sets NULL: of all parameters.
inline mdp_status summarize(mdp_buffer* buffer, const size_t* sets, GradSummary* to) {
  mdp_grad_summary summary{};
  summary.struct_size = sizeof summary;
  const mdp_status status = mdp_grad_summarize(buffer, sets, 1, &summary);
  if (status == MDP_OK) {
    *to = {summary.norm, summary.inf_norm, static_cast<long long>(summary.zeros), static_cast<long long>(summary.nonfinite)};
  }
  return status;
}

inline GradSummary Buffer::grad_summary(Failure& failure) const {
  GradSummary summary;
  collective(failure, [&](auto* buffer) { return summarize(buffer, nullptr, &summary); });
  return summary;
}

template <class Number>
GradSummary Buffer::summary_of(const Number* params, size_t count, Failure& failure) const {
  GradSummary summary;
  call_on(params, count, failure, [&](auto* buffer, const size_t* listed, size_t some) {
    std::vector<size_t> sets(static_cast<size_t>(size()), SIZE_MAX);
    for (size_t i = 0; i < some; ++i) sets[listed[i]] = 0;
    return summarize(buffer, sets.data(), &summary);
  });
  return summary;
}

inline GradSummary Buffer::grad_summary_of(const long long* params, long long count, Failure& failure) const {
  if (!not_negative("count", count, failure)) return {};
  return summary_of(params, static_cast<size_t>(count), failure);
}

inline double Buffer::grad_norm_of(const long long* params, long long count, Failure& failure) const {
  double norm = 0;
  if (!not_negative("count", count, failure)) return norm;
  call_on(params, static_cast<size_t>(count), failure,
          [&](auto* buffer, auto* listed, size_t some) { return mdp_grad_norm(buffer, listed, some, &norm); });
  return norm;
}

inline void Buffer::scale_grads_of(double factor, const long long* params, long long count, Failure& failure) {
  if (!not_negative("count", count, failure)) return;
  call_on(params, static_cast<size_t>(count), failure,
          [&](auto* buffer, auto* listed, size_t some) { return mdp_grad_scale(buffer, listed, some, factor, nullptr); });
}

inline long long Buffer::find(const std::string& name, Failure& failure) const {
  if (name.find('\0') != std::string::npos) {
    failure.refuse(MDP_E_INVALID, "name is '%s' and more after a NUL, which names do not hold", name.c_str());
    return -1;
  }
  size_t param = 0;
  call(failure, [&](auto* buffer) { return mdp_buffer_find(buffer, name.c_str(), &param); });
  return failure.failed() ? -1 : static_cast<long long>(param);
}

inline long long Buffer::buckets(Failure& failure) const {
  size_t params = 0, buckets = 0;
  call(failure, [&](auto* buffer) { return mdp_buffer_counts(buffer, &params, &buckets); });
  return static_cast<long long>(buckets);
}

inline View* Buffer::view(mdp_status (*lend)(mdp_buffer*, size_t, mdp_tensor*), long long param, Failure& failure) const {
  return guarded(failure, [&]() -> View* {
    const auto buffer = buffer_->use(failure);
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    if (!buffer || !has(param, failure)) return nullptr;
    if (!failure.take(lend(buffer.get(), static_cast<size_t>(param), &tensor))) return nullptr;
    return View::of_buffer(buffer.get(), tensor, failure);
  });
}

// A step that was started still works on parameters and gradients. Where the communicator is lost, views are given all the same, to save
// what is left; what an interpreter's handler ended is not for this to hide.
inline View* Buffer::view_after_step(mdp_status (*lend)(mdp_buffer*, size_t, mdp_tensor*), long long param, Failure& failure) const {
  std::unique_ptr<View> found(view(lend, param, failure));
  const auto buffer = found ? buffer_->use(failure) : nullptr;
  if (!buffer) return nullptr;
  const mdp_status waited = mdp_param_wait(buffer.get(), static_cast<size_t>(param), nullptr);
  if (waited == MDP_E_ABORTED && interrupted_in_language() != nullptr) failure.take(waited);
  return failure.failed() ? nullptr : found.release();
}

// A view of memory that DLPack does not lend: a gradient's, in the pool or outside of it, or sums. The parameter's lease keeps it, as that
// keeps all of the buffer. lend(buffer, param, view) makes the parameter's view one of that memory.
template <class Function>
View* Buffer::kept_view(long long param, Failure& failure, Function lend) const {
  return guarded(failure, [&]() -> View* {
    const auto buffer = buffer_->use(failure);
    std::unique_ptr<View> found(view(mdp_buffer_param_view, param, failure));
    if (!buffer || !found) return nullptr;
    return lend(buffer.get(), static_cast<size_t>(param), found.get()) ? found.release() : nullptr;
  });
}

inline View* Buffer::acquire(long long param, Failure& failure) {
  return kept_view(param, failure, [&](auto* buffer, size_t at, View* view) {
    const auto lease = std::make_shared<std::atomic<bool>>(false);
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    int32_t first = 0;
    if (!failure.take(mdp_grad_acquire(buffer, at, &tensor, &first, nullptr))) return false;
    leases_->begin(at, lease);
    view->lend(tensor, first != 0, lease, "was lent by Buffer.acquire, and has been given back by ready, release or sync");
    return true;
  });
}

inline View* Buffer::owned_grad(long long param, Failure& failure) const {
  return kept_view(param, failure, [&](auto* buffer, size_t at, View* view) {
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    if (!failure.take(mdp_grad_owned(buffer, at, &tensor))) return false;
    view->lend(tensor, false, nullptr, nullptr);
    return true;
  });
}

inline Stats Buffer::stats(Failure& failure) const {
  mdp_stats_report report{};
  report.struct_size = sizeof report;
  call(failure, [&](auto* buffer) { return mdp_buffer_stats(buffer, &report); });
  Stats stats;
  stats.comm_ns = static_cast<long long>(report.comm_ns);
  stats.exposed_ns = static_cast<long long>(report.exposed_ns);
  stats.bytes = static_cast<long long>(report.bytes);
  stats.buckets = static_cast<long long>(report.buckets);
  stats.launched_in_backward = static_cast<long long>(report.launched_in_backward);
  stats.syncs = static_cast<long long>(report.syncs);
  stats.host_syncs = static_cast<long long>(report.host_syncs);
  stats.spill_peak_bytes = static_cast<long long>(report.spill_peak_bytes);
  stats.large_gradients = static_cast<long long>(report.large_gradients);
  return stats;
}

inline BucketTimes Buffer::bucket(long long number, Failure& failure) const {
  mdp_bucket_report report{};
  report.struct_size = sizeof report;
  if (not_negative("number", number, failure)) {
    call(failure, [&](auto* buffer) { return mdp_buffer_bucket(buffer, static_cast<size_t>(number), &report); });
  }
  BucketTimes times;
  times.state = static_cast<BucketState>(report.state);
  times.ready_ns = static_cast<long long>(report.ready_ns);
  times.reduce_begin_ns = static_cast<long long>(report.reduce_begin_ns);
  times.reduce_end_ns = static_cast<long long>(report.reduce_end_ns);
  times.gather_begin_ns = static_cast<long long>(report.gather_begin_ns);
  times.gather_end_ns = static_cast<long long>(report.gather_end_ns);
  times.sync_ns = static_cast<long long>(report.sync_ns);
  return times;
}

inline std::vector<mdp_range> Buffer::ranges(Failure& failure) const {
  return guarded(failure, [&] {
    const auto buffer = buffer_->use(failure);
    size_t count = 0;
    if (buffer) mdp_buffer_owned(buffer.get(), nullptr, 0, &count);  // INVALID while there are any: only their number is asked for
    mdp_range empty{};
    empty.struct_size = sizeof empty;
    std::vector<mdp_range> found(count, empty);
    if (buffer) failure.take(mdp_buffer_owned(buffer.get(), found.data(), found.size(), &count));
    return found;
  });
}

inline long long Buffer::owned_count(Failure& failure) const {
  return static_cast<long long>(ranges(failure).size());
}

inline Range Buffer::owned(long long number, Failure& failure) const {
  const std::vector<mdp_range> found = ranges(failure);
  Range range;
  if (failure.failed()) return range;
  if (number < 0 || number >= static_cast<long long>(found.size())) {
    failure.refuse(MDP_E_INVALID, "number must be that of one of the %zu owned ranges, not %lld", found.size(), number);
    return range;
  }
  const mdp_range& one = found[static_cast<size_t>(number)];
  range.arena = one.arena;
  range.bucket = one.bucket;
  range.param = one.param;
  range.first = one.begin;
  range.past = one.end;
  range.param_first = one.param_begin;
  return range;
}

inline std::vector<int32_t> Buffer::order_of_use(size_t count, Failure& failure) const {
  return guarded(failure, [&] {
    std::vector<int32_t> order(count);
    collective(failure, [&](auto* buffer) { return mdp_buffer_use_order(buffer, order.data(), count); });
    return order;
  });
}

inline void Buffer::use_order(long long* order, long long count, Failure& failure) const {
  if (!not_negative("count", count, failure)) return;
  const std::vector<int32_t> found = order_of_use(static_cast<size_t>(count), failure);
  if (!failure.failed()) std::copy(found.begin(), found.end(), order);
}

inline void Buffer::put(long long param, DType dtype, const unsigned char* from, long long from_bytes, bool add, bool more,
                        Failure& failure) {
  Operand grad(dtype, from, from_bytes, "from", failure);
  const uint64_t flags = (add ? MDP_GRAD_ADD : 0) | (more ? MDP_GRAD_MORE : 0);
  copy(param, &grad, failure, [&](auto* buffer, size_t at, auto* tensor) { return mdp_grad_put(buffer, at, tensor, flags, nullptr); });
}

inline void Buffer::read(long long param, DType dtype, unsigned char* to, long long to_bytes, Failure& failure) {
  Operand target(dtype, to, to_bytes, "to", failure);
  copy(param, &target, failure, [](auto* buffer, size_t at, auto* tensor) { return mdp_param_read(buffer, at, tensor, nullptr); });
}

inline void Buffer::write(long long param, DType dtype, const unsigned char* from, long long from_bytes, Failure& failure) {
  Operand source(dtype, from, from_bytes, "from", failure);
  ++*buffer_->operations();  // what a broadcast that comes next sends is new
  copy(param, &source, failure, [](auto* buffer, size_t at, auto* tensor) { return mdp_param_write(buffer, at, tensor, nullptr); });
}

#if !defined(SWIGJAVA) && !defined(SWIGGO)

inline const unsigned char* bytes_of(const std::vector<double>& values) {
  return reinterpret_cast<const unsigned char*>(values.data());
}

inline void Buffer::put(long long param, const std::vector<double>& values, Failure& failure) {
  put(param, DType::F64, bytes_of(values), byte_count(values), false, false, failure);
}

inline void Buffer::put_more(long long param, const std::vector<double>& values, Failure& failure) {
  put(param, DType::F64, bytes_of(values), byte_count(values), false, true, failure);
}

inline std::vector<double> Buffer::read(long long param, Failure& failure) {
  return guarded(failure, [&] {
    std::vector<double> values(static_cast<size_t>(elements(param, failure)));
    if (!failure.failed()) read(param, DType::F64, reinterpret_cast<unsigned char*>(values.data()), byte_count(values), failure);
    return failure.failed() ? std::vector<double>() : values;
  });
}

inline void Buffer::write(long long param, const std::vector<double>& values, Failure& failure) {
  write(param, DType::F64, bytes_of(values), byte_count(values), failure);
}

inline GradSummary Buffer::grad_summary_of(const std::vector<double>& params, Failure& failure) const {
  return summary_of(params.data(), params.size(), failure);
}

inline double Buffer::grad_norm_of(const std::vector<double>& params, Failure& failure) const {
  double norm = 0;
  call_on(params.data(), params.size(), failure,
          [&](auto* buffer, auto* listed, size_t count) { return mdp_grad_norm(buffer, listed, count, &norm); });
  return norm;
}

inline void Buffer::scale_grads_of(double factor, const std::vector<double>& params, Failure& failure) {
  call_on(params.data(), params.size(), failure,
          [&](auto* buffer, auto* listed, size_t count) { return mdp_grad_scale(buffer, listed, count, factor, nullptr); });
}

inline std::vector<double> Buffer::use_order(Failure& failure) const {
  const std::vector<int32_t> found = order_of_use(shapes_.size(), failure);
  return failure.failed() ? std::vector<double>() : std::vector<double>(found.begin(), found.end());
}

#endif
}  // namespace megadp
