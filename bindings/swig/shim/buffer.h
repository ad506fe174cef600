// SPDX-License-Identifier: Apache-2.0
// Parameters and gradients, and the calls of a training step up to the optimizer.
#pragma once

#include "params.h"

namespace megadp {

/// Sums since registration; times in nanoseconds. As mdp_stats_report.
struct Stats {
  long long comm_ns = 0;
  long long exposed_ns = 0;
  long long bytes = 0;
  long long buckets = 0;
  long long launched_in_backward = 0;
  long long syncs = 0;
  long long host_syncs = 0;
  long long spill_peak_bytes = 0;
  long long large_gradients = 0;
};

/// The last step's times of one bucket: CLOCK_MONOTONIC in nanoseconds, 0: has not happened. As mdp_bucket_report.
struct BucketTimes {
  BucketState state = BucketState::FILLING;
  long long ready_ns = 0;
  long long reduce_begin_ns = 0;
  long long reduce_end_ns = 0;
  long long gather_begin_ns = 0;
  long long gather_end_ns = 0;
  long long sync_ns = 0;
};

/// Of reduced gradients: the L2 norm, the largest magnitude (NaN is none), how many elements are zero, and how many not finite.
struct GradSummary {
  double norm = 0.0;
  double inf_norm = 0.0;
  long long zeros = 0;
  long long nonfinite = 0;
};

/// One piece of one parameter whose optimizer state this rank keeps. As mdp_range; begin and end are words of some languages.
struct Range {
  long long arena = 0;
  long long bucket = 0;
  long long param = 0;
  long long first = 0;        ///< element in the arena
  long long past = 0;         ///< the element after the last
  long long param_first = 0;  ///< element of the flattened parameter at `first`
};

/// All parameters and their gradients, in the library's memory. `param` is an index in the order of registration. put, acquire, release,
/// ready, skip and wait may be called by any thread, the others by the communicator's. Nothing is kept of arrays that are passed in.
class Buffer {
 public:
  /// Lays out and allocates the parameters and their gradients, zeroed: on a communicator, whose ranks are then all data parallel, or on a
  /// grid. Collective, with the same registration on all ranks of a data-parallel group.
  static Buffer* create(const Comm& comm, const Params& params, const BufferOptions& options, Failure& failure);
  static Buffer* create_on(const Grid& grid, const Params& params, const BufferOptions& options, Failure& failure);

  long long size() const { return static_cast<long long>(shapes_.size()); }
  long long elements(long long param, Failure& failure) const;
  /// The index of the parameter of that name. Local.
  long long find(const std::string& name, Failure& failure) const;
  /// Into how many buckets the gradients are cut. Local.
  long long buckets(Failure& failure) const;

  /// Whether the microbatch that begins is the last of its step. Not needed where each step has one. With ZERO_2 it launches what the one
  /// before has left. Local.
  void begin_microbatch(bool last, Failure& failure) {
    call(failure, [&](auto* buffer) { return mdp_microbatch_begin(buffer, last ? 1 : 0); });
  }
  /// Return when the parameter, or all of them, hold their values after the last step.
  void wait(long long param, Failure& failure) {
    call_at(param, failure, [](auto* buffer, size_t at) { return mdp_param_wait(buffer, at, nullptr); });
  }
  void wait_all(Failure& failure) {
    call(failure, [](auto* buffer) { return mdp_param_wait(buffer, SIZE_MAX, nullptr); });
  }

  /// A view of the memory where the gradient goes, of any sharding, to be written if it is the View.first, else to be added to, until
  /// ready; or until release, after which a first one is as if nothing had been written, while what was added to another stays. With ZERO_2
  /// it is F32 where gradients are half as wide and uses_per_step is above 1. Waits as put.
  View* acquire(long long param, Failure& failure);
  void release(long long param, Failure& failure) {
    end_lease(param);
    call_at(param, failure, [](auto* buffer, size_t at) { return mdp_grad_release(buffer, at); });
  }
  /// The gradient lies in its view, or in that of acquire (with ZERO_2 only there). Counts as ready. Does not block.
  void ready(long long param, Failure& failure) {
    end_lease(param);
    call_at(param, failure, [](auto* buffer, size_t at) { return mdp_grad_ready(buffer, at, nullptr); });
  }
  /// This rank has no gradient of the parameter in this microbatch. Does not block.
  void skip(long long param, Failure& failure) {
    call_at(param, failure, [](auto* buffer, size_t at) { return mdp_grad_skip(buffer, at); });
  }
  /// With Scaling::TOKENS: over how many tokens (or samples) this rank's losses of the step are summed; steps and norms divide by the sum
  /// over the data-parallel ranks. Once a step, before sync. Local; with half-width gradients on all ranks before the first one,
  /// collective.
  void tokens(double count, Failure& failure) {
    collective(failure, [&](auto* buffer) { return mdp_grad_tokens(buffer, count); });
  }
  /// Parameters were written through views. Local.
  void changed(Failure& failure) {
    collective(failure, [](auto* buffer) { return mdp_param_changed(buffer); });
  }
  /// All gradients become zero, the step begins anew. Local.
  void zero_grad(Failure& failure) {
    call(failure, [](auto* buffer) { return mdp_buffer_zero_grad(buffer, nullptr); });
  }

  /// Ends backward: all buckets are reduced, and the ranks agree on what was missing. sync_slice begins that or goes on waiting, for at
  /// most 50 ms, and says whether it has finished; start_sync returns at once. Optimizer.step does the same if nobody has. Collective.
  /// After E_NUMERIC (check_finite) a step may follow, which is skipped if it has a loss_scale.
  bool sync_slice(Failure& failure);
  Request* start_sync(Failure& failure);

  /// Between sync and the step. The L2 norm of the reduced gradients of all parameters, or of those listed by index, over the whole model,
  /// as Optimizer.step counts it: infinite or NaN if a gradient is not finite. Collective, with the same list on ranks that share
  /// parameters.
  double grad_norm(Failure& failure) const;
  /// Of these, besides, the largest magnitude and how many are zero. Collective.
  GradSummary grad_summary(Failure& failure) const;
  /// Between sync and the step. Multiplies the reduced gradients of all parameters, or of those listed by index, in place: with ZERO_0 all
  /// of a gradient, else what this rank owns. Local; alike on all ranks.
  void scale_grads(double factor, Failure& failure) {
    call(failure, [&](auto* buffer) { return mdp_grad_scale(buffer, nullptr, 0, factor, nullptr); });
  }
  /// Reduced gradients were written through views, between sync and the step. Local.
  void grads_changed(Failure& failure) {
    call(failure, [](auto* buffer) { return mdp_grad_changed(buffer, nullptr); });
  }

  /// Rank root's parameters for all ranks of each data-parallel group. broadcast_slice begins that or goes on waiting, as
  /// Comm.barrier_slice; start_broadcast returns at once: the parameters are nobody's to read or write before its end. Collective.
  bool broadcast_slice(int root, bool again, Failure& failure);
  Request* start_broadcast(int root, Failure& failure);
  /// Fails if the ranks of a data-parallel group do not have the same parameters, bit for bit, or tensor-parallel ranks what is not
  /// sharded. Collective; slow.
  void verify(Failure& failure) {
    collective(failure, [](auto* buffer) { return mdp_buffer_verify(buffer); });
  }

  /// Views of the library's memory, given once the last step has finished with the parameter. One that is kept over a start_step, of a
  /// parameter or of its gradient, is not to be read or written before wait(param). A gradient means something after sync: all of it with
  /// ZERO_0, the owned ranges with ZERO_1; with ZERO_2 there is none (UNSUPPORTED). Local.
  View* param(long long param, Failure& failure) const { return view_after_step(mdp_buffer_param_view, param, failure); }
  View* grad(long long param, Failure& failure) const { return view_after_step(mdp_buffer_grad_view, param, failure); }
  /// A view of what this rank owns of a reduced gradient, between sync and the step, F32 with ZERO_2; Range.param_first says where it
  /// begins. It may be written; grads_changed follows. Local.
  View* owned_grad(long long param, Failure& failure) const;

  /// Counters, times and what this rank owns. Local.
  Stats stats(Failure& failure) const;
  BucketTimes bucket(long long number, Failure& failure) const;
  long long owned_count(Failure& failure) const;
  Range owned(long long number, Failure& failure) const;

  /// Drops this handle; views and optimizers live on. Any thread.
  void close() { buffer_->close(); }
  bool closed() const { return buffer_->closed(); }

#if !defined(SWIG) || defined(SWIGJAVA) || defined(SWIGGO)
  /// A gradient is copied into its slot and counts as ready; with `more` not yet. The first of a step replaces what is there, unless `add`.
  /// read and write copy a parameter out of and into the library's memory. All cast between F32, BF16, F16 and F64.
  void put(long long param, DType dtype, const unsigned char* from, long long from_bytes, bool add, bool more, Failure& failure);
  void read(long long param, DType dtype, unsigned char* to, long long to_bytes, Failure& failure);
  void write(long long param, DType dtype, const unsigned char* from, long long from_bytes, Failure& failure);
  /// As grad_norm and scale_grads, of these parameters alone; an empty list is none of them.
  double grad_norm_of(const long long* params, long long count, Failure& failure) const;
  GradSummary grad_summary_of(const long long* params, long long count, Failure& failure) const;
  void scale_grads_of(double factor, const long long* params, long long count, Failure& failure);
  /// Of each parameter the Param::use_order with which the last synced step's gradients would have filled bucket after bucket; for the
  /// next time that they are registered. Collective over the world.
  void use_order(long long* order, long long count, Failure& failure) const;
#endif
#if !defined(SWIGJAVA) && !defined(SWIGGO)
  /// The same on lists of numbers, row by row.
  void put(long long param, const std::vector<double>& values, Failure& failure);
  void put_more(long long param, const std::vector<double>& values, Failure& failure);
  std::vector<double> read(long long param, Failure& failure);
  void write(long long param, const std::vector<double>& values, Failure& failure);
  double grad_norm_of(const std::vector<double>& params, Failure& failure) const;
  GradSummary grad_summary_of(const std::vector<double>& params, Failure& failure) const;
  void scale_grads_of(double factor, const std::vector<double>& params, Failure& failure);
  std::vector<double> use_order(Failure& failure) const;
#endif

#ifndef SWIG
  Buffer(mdp_buffer* buffer, const Params& params, const std::shared_ptr<Operations>& operations)
      : buffer_(std::make_shared<Handle<mdp_buffer>>("Buffer", buffer, mdp_buffer_destroy, operations)) {
    for (const Param& param : params.list()) shapes_.push_back(param.shape());
    leases_ = std::make_shared<Leases>(shapes_.size());
  }
  const std::shared_ptr<Handle<mdp_buffer>>& handle() const {
    return buffer_;
  }
  const std::shared_ptr<Leases>& leases() const {
    return leases_;
  }
  bool has(long long param, Failure& failure) const;
#endif

 private:
  template <class Function>
  void call(Failure& failure, Function function) const {
    if (const auto buffer = buffer_->use(failure)) failure.take(function(buffer.get()));
  }
  // The same, counted as an operation: what ranks do together, and new values, which the next broadcast sends.
  template <class Function>
  void collective(Failure& failure, Function function) const {
    if (const auto buffer = buffer_->use_collectively(failure)) failure.take(function(buffer.get()));
  }
  template <class Function>
  void call_at(long long param, Failure& failure, Function function) const {
    const auto buffer = buffer_->use(failure);
    if (buffer && has(param, failure)) failure.take(function(buffer.get(), static_cast<size_t>(param)));
  }
  template <class Function>
  void copy(long long param, Operand* operand, Failure& failure, Function function) const {
    const auto buffer = buffer_->use(failure);
    if (failure.failed() || !has(param, failure)) return;
    operand->shape_as(shapes_[static_cast<size_t>(param)]);
    failure.take(function(buffer.get(), static_cast<size_t>(param), operand->get()));
  }
  template <class Begin>
  Request* start(Failure& failure, Begin begin) const;
  static Buffer* registered(mdp_comm* comm, mdp_grid* grid, const std::shared_ptr<Operations>& operations, const Params& params,
                            const BufferOptions& options, Failure& failure);
  template <class Number, class Function>
  void call_on(const Number* params, size_t count, Failure& failure, Function function) const;
  template <class Number>
  GradSummary summary_of(const Number* params, size_t count, Failure& failure) const;
  void end_lease(long long param) {
    if (param >= 0 && param < size()) leases_->end(static_cast<size_t>(param));
  }
  template <class Function>
  View* kept_view(long long param, Failure& failure, Function lend) const;
  View* view(mdp_status (*lend)(mdp_buffer*, size_t, mdp_tensor*), long long param, Failure& failure) const;
  View* view_after_step(mdp_status (*lend)(mdp_buffer*, size_t, mdp_tensor*), long long param, Failure& failure) const;
  std::vector<mdp_range> ranges(Failure& failure) const;
  std::vector<int32_t> order_of_use(size_t count, Failure& failure) const;

  std::shared_ptr<Handle<mdp_buffer>> buffer_;  // lists of what a checkpoint has have it too
  std::vector<std::vector<int64_t>> shapes_;
  std::shared_ptr<Leases> leases_;
  Sliced broadcast_;
};

}  // namespace megadp

#ifndef SWIG
#include "buffer_calls.h"
#endif
