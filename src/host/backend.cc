// SPDX-License-Identifier: Apache-2.0
// The host backend: puts memory, streams, groups and kernels together.
#include "host/backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/thread.h"
#include "host/attention.h"
#include "host/default_floats.h"
#include "host/gemm.h"
#include "host/group.h"
#include "host/kernels.h"
#include "host/memory.h"
#include "host/stream.h"
#include "host/vocabulary.h"

namespace megadp::host {
namespace {

template <class Work>
Status submit(Stream& stream, Work work) {
  return static_cast<HostStream&>(stream).submit([work = std::move(work)](const Stop&) { return work(); });
}

}  // namespace

HostBackend::HostBackend(std::shared_ptr<World> world, std::shared_ptr<Network> network, const HostSettings& settings)
    : world_(std::move(world)),
      network_(std::move(network)),
      pool_(std::make_shared<ThreadPool>(settings.threads > 0 ? settings.threads : std::min(processors(), kMostDefaultThreads),
                                         settings.threads_always, settings.piece_bytes)) {}

Result<std::shared_ptr<Backend>> HostBackend::open(std::shared_ptr<World> world, const HostSettings& settings) {
  std::shared_ptr<Network> network;
  if (on_other_nodes(*world, all_ranks(world->size())).empty()) {
    if (Status known = check_transport(*world); !known) return known;
  } else {
    auto opened = Network::open(world, settings.transport);
    if (!opened.ok()) return opened.status();
    network = *std::move(opened);
  }
  return std::shared_ptr<Backend>(new HostBackend(std::move(world), std::move(network), settings));
}

Result<std::unique_ptr<Memory>> HostBackend::allocate(size_t bytes) {
  return HostMemory::create(bytes);
}

Result<std::unique_ptr<Memory>> HostBackend::allocate_host(size_t bytes) {
  return std::unique_ptr<Memory>(new HeapMemory(bytes));
}

Result<std::unique_ptr<Stream>> HostBackend::create_stream(const char* name) {
  // What a stream drops is missing in collectives: the other ranks would wait for it.
  // The streams of this rank learn it in the same way.
  Result<std::unique_ptr<HostStream>> stream = HostStream::create(
      name, [world = world_](const Status& why) { world->fail(why); }, pool_);
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<Stream>(std::move(*stream));
}

Result<std::shared_ptr<Group>> HostBackend::create_group(const std::vector<int>& members) {
  auto group = HostGroup::create(world_, network_, members, pool_);
  if (!group.ok()) return group.status();
  return std::shared_ptr<Group>(*std::move(group));
}

Status HostBackend::zero(Stream& stream, void* data, size_t bytes) {
  return submit(stream, [=, pool = pool_] {
    zero_bytes(data, bytes, *pool);
    return Status();
  });
}

Status HostBackend::cast(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) {
  return submit(stream, [=, pool = pool_] { return host::cast(to, to_type, from, from_type, count, *pool); });
}

Status HostBackend::add(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) {
  return submit(stream, [=, pool = pool_] { return host::add_cast(to, to_type, from, from_type, count, *pool); });
}

Status HostBackend::round_with_feedback(Stream& stream, void* to, const float* from, float* residual, size_t count) {
  return submit(stream, [=, pool = pool_] { return host::round_with_feedback(to, from, residual, count, *pool); });
}

Status HostBackend::refresh_masters(Stream& stream, float* masters, const void* params, DType type, size_t count) {
  return submit(stream, [=, pool = pool_] { return host::refresh_masters(masters, params, type, count, *pool); });
}

Status HostBackend::square_sum(Stream& stream, const void* data, DType type, size_t count, double* sums) {
  return submit(stream, [=, pool = pool_] { return host::square_sum(data, type, count, sums, sums + 1, *pool); });
}

Status HostBackend::extremes(Stream& stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest) {
  return submit(stream, [=, pool = pool_] { return host::extremes(data, type, count, zeros, largest, *pool); });
}

Status HostBackend::scale(Stream& stream, void* data, DType type, size_t count, float factor) {
  return submit(stream, [=, pool = pool_] { return host::scale(data, type, count, factor, *pool); });
}

Status HostBackend::begin_step(Stream& stream, StepScalars* scalars, const StepSettings& settings) {
  return submit(stream, [=] {
    megadp::begin_step(*scalars, settings);
    return Status();
  });
}

Status HostBackend::count_steps(Stream& stream, const StepScalars* scalars, uint64_t* steps, size_t count) {
  return submit(stream, [=] {
    for (size_t i = 0; i < count; ++i) count_step(*scalars, steps[i]);
    return Status();
  });
}

Status HostBackend::update(Stream& stream, const Update& update) {
  return submit(stream, [update, pool = pool_] { return host::update(update, *pool); });
}

Status HostBackend::fetch(Stream& stream, void* host_to, const void* from, size_t bytes) {
  return submit(stream, [=] {
    if (bytes > 0) std::memcpy(host_to, from, bytes);
    return Status();
  });
}

Status HostBackend::run(Stream& stream, std::function<void()> work) {
  return submit(stream, [work = std::move(work)] {
    work();
    return Status();
  });
}

Status HostBackend::find_nonfinite(const void* data, DType type, size_t count, uint64_t first, uint64_t* found, void* caller) {
  if (caller != nullptr) return invalid("stream is ", caller, "; host streams are NULL");
  const ThreadPool::CallerIdle idle(pool_.get());
  return host::find_nonfinite(data, type, count, first, found, *pool_);
}

Status HostBackend::copy(const StridedArray& to, const StridedArray& from, bool add, void* caller) {
  if (caller != nullptr) return invalid("stream is ", caller, "; host streams are NULL");
  if (to.shape != from.shape) return invalid("copy: the shapes of the two arrays differ");
  const ThreadPool::CallerIdle idle(pool_.get());
  const DefaultFloats floats;  // replicas round alike
  return copy_strided(to, from, add, *pool_);
}

int HostBackend::processors() const {
  const auto others = on_other_nodes(*world_, all_ranks(world_->size())).size();
  return std::max(usable_processors() / (world_->size() - static_cast<int>(others)), 1);
}

// The library, if it is loaded now, works with this rank's part of the processors: the others of the node multiply at the same time.
void HostBackend::share_processors() const {
  set_gemm_threads(processors());
}

Status HostBackend::gemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add, void* caller) {
  if (caller != nullptr) return invalid("stream is ", caller, "; host streams are NULL");
  std::call_once(processors_shared_, [this] { share_processors(); });
  const DefaultFloats floats;
  return host::gemm(c, a, b, add);
}

Result<std::string> HostBackend::gemm_library() {
  std::call_once(processors_shared_, [this] { share_processors(); });
  return host::gemm_library();
}

Status HostBackend::look_up(const Lookup& work, bool gradient, void* caller) {
  if (caller != nullptr) return invalid("stream is ", caller, "; host streams are NULL");
  if (Status known = check_ids("ids", work.ids, work.tokens, work.all_rows, nullptr); !known) return known;
  const DefaultFloats floats;
  return gradient ? host::add_up_rows(work) : host::look_up(work);
}

Status HostBackend::cross_entropy(const CrossEntropy& work, CrossEntropyPass pass, void* caller) {
  if (caller != nullptr) return invalid("stream is ", caller, "; host streams are NULL");
  const DefaultFloats floats;
  if (pass != CrossEntropyPass::losses) {
    const int64_t* const ignored = work.ignores ? &work.ignored : nullptr;
    if (Status known = check_ids("targets", work.targets, work.tokens, work.classes, ignored); !known) return known;
  }
  if (pass == CrossEntropyPass::losses) {
    if (const int32_t other = find_other_settings(work); other >= 0) {
      return Status(Code::desync, text("ranks ", work.rank, " and ", other,
                                       " of the communicator give a cross-entropy different numbers of columns or classes, another "
                                       "label_smoothing or z_loss, or another ignore_index"));
    }
  }
  return host::cross_entropy(work, pass);
}

Status HostBackend::merge_attention(const AttentionMerge& work, void* caller) {
  if (caller != nullptr) return invalid("stream is ", caller, "; host streams are NULL");
  const DefaultFloats floats;
  host::merge_attention(work);
  return {};
}

Status HostBackend::read(void* host_to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(host_to, from, bytes);
  return {};
}

Status HostBackend::write(void* to, const void* host_from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, host_from, bytes);
  return {};
}

}  // namespace megadp::host
