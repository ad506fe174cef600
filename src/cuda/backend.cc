// SPDX-License-Identifier: Apache-2.0
#include "cuda/backend.h"

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "control/agreement.h"
#include "cuda/at_work.h"
#include "cuda/copy.h"
#include "cuda/group.h"

namespace megadp::cuda {
namespace {

// A kernel or a copy, called as call(plugin, device, stream) when the stream's launcher comes to it.
template <class Call>
Status launch(Stream& stream, const char* what, const Call& call) {
  return static_cast<CudaStream&>(stream).submit([what, call](Launcher& on) {
    const Gpu& gpu = on.gpu();
    return gpu.check(call(gpu.plugin(), gpu.device(), on.stream()), what);
  });
}

// This rank's number among the ranks of its node.
int32_t rank_on_host(const World& world) {
  int32_t number = 0;
  for (int rank = 0; rank < world.rank(); ++rank) number += world.node(rank) == world.node(world.rank()) ? 1 : 0;
  return number;
}

Result<int32_t> choose_device(const PluginTable& plugin, const World& world, int32_t wanted) {
  int32_t count = 0;
  if (const int32_t result = plugin.device_count(&count); result != 0) {
    char why[512] = "";
    plugin.explain(result, nullptr, why, sizeof why);
    return unsupported("backend is cuda, but no device can be used: ", why);
  }
  if (count == 0) return unsupported("backend is cuda, but the driver offers no device");
  if (wanted >= count) return invalid("device is ", wanted, "; this process sees ", count, " CUDA devices, counted from 0");
  return wanted >= 0 ? wanted : rank_on_host(world) % count;
}

// What every rank must know of the others before NCCL is asked to join them.
struct DeviceCard {
  int32_t host, nccl;
  char uuid[64];
};

// NCCL would fail too, but later and without saying who.
Status agree_on_devices(const Gpu& gpu) {
  World& world = gpu.world();
  DeviceInfo info{};
  if (Status known = gpu.check(gpu.plugin().device_info(gpu.index(), &info), "looking at the device"); !known) return known;
  DeviceCard mine{world.node(world.rank()), gpu.plugin().nccl_version(gpu.nccl()), {}};
  std::memcpy(mine.uuid, info.uuid, sizeof mine.uuid);
  const auto all = exchange_as(world, all_ranks(world.size()), "mdp_comm_create: devices", mine);
  if (!all) return all.status();
  const std::vector<DeviceCard>& cards = *all;
  for (size_t r = 0; r < cards.size(); ++r) {
    if (cards[r].nccl != cards[0].nccl) {
      return Status(Code::desync, text("rank ", r, " has NCCL ", cards[r].nccl, ", rank 0 has ", cards[0].nccl),
                    Blame{.rank = static_cast<int32_t>(r)});
    }
  }
  const bool shared_on_purpose = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr || std::getenv("NCCL_HOSTID") != nullptr;
  for (size_t r = 1; r < cards.size() && !shared_on_purpose; ++r) {
    for (size_t s = 0; s < r; ++s) {
      if (cards[s].host != cards[r].host || std::strncmp(cards[s].uuid, cards[r].uuid, sizeof cards[s].uuid) != 0) continue;
      return invalid("ranks ", s, " and ", r, " use the same device, ", info.name, " ", cards[r].uuid,
                     "; give each rank one of its own (mdp_comm_config.device), or start fewer ranks on this node");
    }
  }
  return {};
}

}  // namespace

// Mostly some milliseconds: what calls of CUDA and NCCL take, and until the other ranks have what this one sent. A destroy takes no longer
// than this where others do not come.
CudaBackend::LastHolders::~LastHolders() {
  constexpr uint64_t kMostNs = 1'000'000'000;
  const Deadline end = Deadline::after_ns(kMostNs);
  while (!gpu.expired() && !end.passed()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

CudaBackend::CudaBackend(std::shared_ptr<Gpu> gpu, std::shared_ptr<Backend> host, bool exact)
    : gpu_(std::move(gpu)),
      watch_(std::make_shared<Watch>(gpu_->world())),
      host_(std::move(host)),
      exact_(exact),
      staging_(gpu_, watch_),
      gemm_(gpu_, watch_) {}

CudaBackend::~CudaBackend() {
  if (!gpu_->usable_here()) return;
  // Longer than the host's streams have: the caller's own work may be in front of the last collectives. Nobody waits for it but the watch.
  constexpr uint64_t kGraceNs = 2'000'000'000;
  watch_->abandon(kGraceNs);
  if (!AtWork::is_this_thread() && !gpu_->failed()) others_.gpu = gpu_->presence();
  if (moving_stream_ != nullptr) gpu_->plugin().stream_destroy(gpu_->device(), moving_stream_);
}

Result<std::shared_ptr<Backend>> CudaBackend::open(const PluginTable& plugin, std::shared_ptr<World> world, std::shared_ptr<Backend> host,
                                                   const Options& options) {
  auto index = choose_device(plugin, *world, options.device);
  if (!index) return index.status();
  auto gpu = Gpu::open(plugin, std::move(world), *index);
  if (!gpu) return gpu.status();
  if (Status agreed = agree_on_devices(**gpu); !agreed) return agreed;
  std::shared_ptr<CudaBackend> backend(new CudaBackend(*std::move(gpu), std::move(host), options.exact));
  Gpu& device = *backend->gpu_;
  if (Status made = device.check(plugin.stream_create(device.device(), false, &backend->moving_stream_), "creating a stream"); !made) {
    return made;
  }
  return std::shared_ptr<Backend>(std::move(backend));
}

Result<std::unique_ptr<Memory>> CudaBackend::allocate(size_t bytes) {
  auto memory = CudaMemory::allocate(gpu_, watch_, CudaMemory::Kind::device, bytes);
  if (!memory) return memory.status().with_context("allocate");
  return std::unique_ptr<Memory>(*std::move(memory));
}

Result<std::unique_ptr<Memory>> CudaBackend::allocate_host(size_t bytes) {
  auto memory = CudaMemory::allocate(gpu_, watch_, CudaMemory::Kind::pinned, bytes);
  if (!memory) return memory.status().with_context("allocate_host");
  return std::unique_ptr<Memory>(*std::move(memory));
}

Result<std::unique_ptr<Stream>> CudaBackend::create_stream(const char* name) {
  auto stream = CudaStream::create(gpu_, watch_, name);
  if (!stream) return stream.status();
  return std::unique_ptr<Stream>(*std::move(stream));
}

Result<std::shared_ptr<Group>> CudaBackend::create_group(const std::vector<int>& members) {
  auto control = host_->create_group(members);
  if (!control) return control.status();
  return std::shared_ptr<Group>(new CudaGroup(gpu_, watch_, *std::move(control), exact_));
}

Status CudaBackend::zero(Stream& stream, void* data, size_t bytes) {
  if (bytes == 0) return {};
  return launch(stream, "zeroing memory", [=](const PluginTable& p, Device* d, void* s) { return p.zero(d, s, data, bytes); });
}

Status CudaBackend::cast(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) {
  return launch(stream, "a cast",
                [=](const PluginTable& p, Device* d, void* s) { return p.cast(d, s, to, to_type, from, from_type, count); });
}

Status CudaBackend::add(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) {
  const auto row = [count](const void* data, DType type) {
    return Strided{const_cast<void*>(data), static_cast<uint32_t>(type), 1, {static_cast<int64_t>(count)}, {1}};
  };
  return launch(stream, "an addition", [to = row(to, to_type), from = row(from, from_type)](const PluginTable& p, Device* d, void* s) {
    return p.copy_strided(d, s, &to, &from, true);
  });
}

Status CudaBackend::round_with_feedback(Stream& stream, void* to, const float* from, float* residual, size_t count) {
  return launch(stream, "rounding for the wire",
                [=](const PluginTable& p, Device* d, void* s) { return p.round_with_feedback(d, s, to, from, residual, count); });
}

Status CudaBackend::refresh_masters(Stream& stream, float* masters, const void* params, DType type, size_t count) {
  return launch(stream, "refreshing masters",
                [=](const PluginTable& p, Device* d, void* s) { return p.refresh_masters(d, s, masters, params, type, count); });
}

Status CudaBackend::square_sum(Stream& stream, const void* data, DType type, size_t count, double* sums) {
  return launch(stream, "a sum of squares",
                [=](const PluginTable& p, Device* d, void* s) { return p.square_sum(d, s, data, type, count, sums); });
}

Status CudaBackend::extremes(Stream& stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest) {
  return launch(stream, "a search for extremes",
                [=](const PluginTable& p, Device* d, void* s) { return p.extremes(d, s, data, type, count, zeros, largest); });
}

Status CudaBackend::scale(Stream& stream, void* data, DType type, size_t count, float factor) {
  return launch(stream, "scaling", [=](const PluginTable& p, Device* d, void* s) { return p.scale(d, s, data, type, count, factor); });
}

Status CudaBackend::begin_step(Stream& stream, StepScalars* scalars, const StepSettings& settings) {
  return launch(stream, "beginning a step",
                [=](const PluginTable& p, Device* d, void* s) { return p.begin_step(d, s, scalars, &settings); });
}

Status CudaBackend::count_steps(Stream& stream, const StepScalars* scalars, uint64_t* steps, size_t count) {
  return launch(stream, "counting a step",
                [=](const PluginTable& p, Device* d, void* s) { return p.count_steps(d, s, scalars, steps, count); });
}

Status CudaBackend::update(Stream& stream, const Update& update) {
  return launch(stream, "an update", [update](const PluginTable& p, Device* d, void* s) { return p.update(d, s, &update); });
}

Status CudaBackend::fetch(Stream& stream, void* host_to, const void* from, size_t bytes) {
  return launch(stream, "a copy to the host", [=](const PluginTable& p, Device* d, void* s) { return p.copy(d, s, host_to, from, bytes); });
}

Status CudaBackend::run(Stream& /*stream*/, std::function<void()> /*work*/) {
  return unsupported("work of the host's own has no place on a device's stream");
}

Status CudaBackend::find_nonfinite(const void* data, DType type, size_t count, uint64_t first, uint64_t* found, void* caller) {
  if (gpu_->failed()) return gpu_->failure();
  return check(gpu_->plugin().find_nonfinite(gpu_->device(), caller, data, type, count, first, found), "a search for what is not finite");
}

Status CudaBackend::copy(const StridedArray& to, const StridedArray& from, bool add, void* caller) {
  if (to.shape != from.shape) return invalid("copy: the shapes of the two arrays differ");
  if (gpu_->failed()) return gpu_->failure();
  return copy_arrays({gpu_, *host_, staging_}, to, from, add, caller);
}

Status CudaBackend::gemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add, void* caller) {
  if (gpu_->failed()) return gpu_->failure();
  return gemm_.multiply(c, a, b, add, caller);
}

Result<std::string> CudaBackend::gemm_library() {
  return gemm_.name_of_library();
}

Status CudaBackend::look_up(const Lookup& work, bool gradient, void* caller) {
  if (gpu_->failed()) return gpu_->failure();
  return check(gpu_->plugin().look_up(gpu_->device(), caller, &work, gradient), "rows of an embedding");
}

Status CudaBackend::cross_entropy(const CrossEntropy& work, CrossEntropyPass pass, void* caller) {
  if (gpu_->failed()) return gpu_->failure();
  return check(gpu_->plugin().cross_entropy(gpu_->device(), caller, &work, pass), "a cross-entropy");
}

Status CudaBackend::merge_attention(const AttentionMerge& work, void* caller) {
  if (gpu_->failed()) return gpu_->failure();
  return check(gpu_->plugin().merge_attention(gpu_->device(), caller, &work), "a merge of attention");
}

Status CudaBackend::read(void* host_to, const void* from, size_t bytes) {
  return move(host_to, from, bytes);
}

Status CudaBackend::write(void* to, const void* host_from, size_t bytes) {
  return move(to, host_from, bytes);
}

Status CudaBackend::move(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return {};
  const std::lock_guard lock(moving_);
  Status moved = check(gpu_->plugin().copy(gpu_->device(), moving_stream_, to, from, bytes), "a copy");
  return moved.ok() ? check(gpu_->plugin().stream_synchronize(gpu_->device(), moving_stream_), "a copy") : moved;
}

}  // namespace megadp::cuda
