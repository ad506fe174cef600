// SPDX-License-Identifier: Apache-2.0
// Memory, counted from outside: this program takes the place of malloc, mmap, memfd_create and ftruncate, and what the library asks of them
// while it registers parameters and makes the optimizer is compared with mdp_plan. Stated rounding: every allocation is whole pages. Stated
// bookkeeping (names, shapes, tables; from malloc): at most 32 KiB and 1 KiB a parameter.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "job.h"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

std::atomic<int64_t> heap{0};    // bytes of malloc, now
std::atomic<int64_t> mapped{0};  // bytes of anonymous mmap, ever; not of address space that can hold nothing
std::atomic<int64_t> shared{0};  // bytes that memfds were given, ever
std::atomic<int> last_memfd{-1};

void* taken(void* block) {
  if (block != nullptr) heap += static_cast<int64_t>(malloc_usable_size(block));
  return block;
}
void given(void* block) {
  if (block != nullptr) heap -= static_cast<int64_t>(malloc_usable_size(block));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
void* malloc(size_t bytes) {
  return taken(__libc_malloc(bytes));
}
void* calloc(size_t count, size_t bytes) {
  return taken(__libc_calloc(count, bytes));
}
void* realloc(void* block, size_t bytes) {
  given(block);
  void* const moved = __libc_realloc(block, bytes);
  return taken(moved != nullptr || bytes == 0 ? moved : block) == block && moved == nullptr ? nullptr : moved;
}
void* memalign(size_t alignment, size_t bytes) {
  return taken(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return taken(__libc_memalign(alignment, bytes));
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  *out = taken(__libc_memalign(alignment, bytes));
  return *out != nullptr ? 0 : ENOMEM;
}
void free(void* block) {
  given(block);
  __libc_free(block);
}
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0 && protection != PROT_NONE) mapped += static_cast<int64_t>(bytes);
  const long address = syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
  return reinterpret_cast<void*>(address);
}
int memfd_create(const char* name, unsigned int flags) {
  last_memfd = static_cast<int>(syscall(SYS_memfd_create, name, flags));
  return last_memfd;
}
int ftruncate(int fd, off_t bytes) {
  if (fd == last_memfd) shared += bytes;
  return static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
}
}
#pragma GCC visibility pop

namespace {

using namespace job;

struct Types {
  const char* name;
  mdp_dtype param, grad;
  double whole, sharded;  // bytes per parameter: whole + sharded / ranks; of ZeRO-2 without the pool
  mdp_sharding sharding = MDP_SHARDING_ZERO_1;
  int32_t instances = 1, tp = 1, pp = 1;
  mdp_scaling scaling = MDP_SCALING_MEAN;
  uint64_t flags = 0;
  bool wire = false;  // bf16; with feedback, unless ZeRO-2
  bool average = false;

  double bytes_each(int ranks) const { return whole + sharded * instances * tp * pp / ranks; }
};
constexpr Types kTypes[] = {
    {"bf16 with f32 gradients", MDP_DTYPE_BF16, MDP_DTYPE_F32, 6, 12},
    {"f16 with f16 gradients", MDP_DTYPE_F16, MDP_DTYPE_SAME, 4, 16},
    {"f32 with f32 gradients", MDP_DTYPE_F32, MDP_DTYPE_F32, 8, 8},
    {"ZeRO-2, bf16 with f32 gradients", MDP_DTYPE_BF16, MDP_DTYPE_F32, 2, 16, MDP_SHARDING_ZERO_2},
    {"ZeRO-2, bf16 with bf16 gradients", MDP_DTYPE_BF16, MDP_DTYPE_SAME, 2, 16, MDP_SHARDING_ZERO_2},
    {"ZeRO-2, f32 with f32 gradients", MDP_DTYPE_F32, MDP_DTYPE_F32, 4, 12, MDP_SHARDING_ZERO_2},
    {"two instances, bf16 with f32 gradients", MDP_DTYPE_BF16, MDP_DTYPE_F32, 6, 12, MDP_SHARDING_ZERO_1, 2},
    {"two instances, bf16 with bf16 gradients", MDP_DTYPE_BF16, MDP_DTYPE_SAME, 4, 12, MDP_SHARDING_ZERO_1, 2},
    {"ZeRO-2, two instances, bf16 with bf16 gradients", MDP_DTYPE_BF16, MDP_DTYPE_SAME, 2, 16, MDP_SHARDING_ZERO_2, 2},
    {"tensor-parallel, bf16 with f32 gradients", MDP_DTYPE_BF16, MDP_DTYPE_F32, 6, 12, MDP_SHARDING_ZERO_1, 1, 2},
    {"pipeline stages with a tie, bf16 with f32 gradients", MDP_DTYPE_BF16, MDP_DTYPE_F32, 6, 12, MDP_SHARDING_ZERO_1, 1, 1, 2},
    {"bf16 gradients divided by tokens", MDP_DTYPE_BF16, MDP_DTYPE_SAME, 4, 12, MDP_SHARDING_ZERO_1, 1, 1, 1, MDP_SCALING_TOKENS},
    {"bf16 with f32 gradients sent as bf16", MDP_DTYPE_BF16, MDP_DTYPE_F32, 10, 12, MDP_SHARDING_ZERO_1, 1, 1, 1, MDP_SCALING_MEAN, 0,
     true},
    {"ZeRO-2, f32 gradients sent as bf16", MDP_DTYPE_F32, MDP_DTYPE_F32, 4, 12, MDP_SHARDING_ZERO_2, 1, 1, 1, MDP_SCALING_MEAN, 0, true},
    {"bf16 with f32 gradients, checked", MDP_DTYPE_BF16, MDP_DTYPE_F32, 6, 12, MDP_SHARDING_ZERO_1, 1, 1, 1, MDP_SCALING_MEAN,
     MDP_BUFFER_CHECK_FINITE | MDP_BUFFER_CHECK_LARGE},
    {"bf16 with f32 gradients, averaged", MDP_DTYPE_BF16, MDP_DTYPE_F32, 6, 18, MDP_SHARDING_ZERO_1, 1, 1, 1, MDP_SCALING_MEAN, 0, false,
     true},
    {"f32 with f32 gradients, averaged", MDP_DTYPE_F32, MDP_DTYPE_F32, 8, 16, MDP_SHARDING_ZERO_1, 1, 1, 1, MDP_SCALING_MEAN, 0, false,
     true}};

int64_t pages(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return static_cast<int64_t>((bytes + page - 1) / page * page);
}

// Returns when every bucket that was launched has been reduced.
void settle(mdp_buffer* buffer) {
  mdp_bucket_report report{};
  report.struct_size = sizeof report;
  for (size_t bucket = 0; mdp_buffer_bucket(buffer, bucket, &report) == MDP_OK; ++bucket) {
    while (report.state == MDP_BUCKET_IN_FLIGHT) ok(mdp_buffer_bucket(buffer, bucket, &report));
  }
}

// A step asks for nothing more, if gradients come in order and no faster than they are reduced.
void check_step(const Types& types, mdp_buffer* buffer, mdp_optimizer* optimizer, const int64_t shape[2], size_t params) {
  const int64_t before_step = mapped;
  std::vector<float> values(static_cast<size_t>(shape[0] * shape[1]), 1);
  mdp_tensor grad{};
  grad.struct_size = sizeof grad;
  grad.dtype = MDP_DTYPE_F32;
  grad.ndim = 2;
  grad.shape = shape;
  grad.data = values.data();
  if (types.scaling == MDP_SCALING_TOKENS) ok(mdp_grad_tokens(buffer, 1));
  for (size_t p = params; p-- > 0;) {
    ok(mdp_grad_put(buffer, p, &grad, 0, nullptr));
    settle(buffer);
  }
  ok(mdp_optimizer_step(optimizer, nullptr, nullptr, nullptr));
  mdp_stats_report stats{};
  stats.struct_size = sizeof stats;
  ok(mdp_buffer_stats(buffer, &stats));
  require(mapped - before_step < int64_t{1} << 20 && stats.spill_peak_bytes == 0, types.name, ": a step took ", mapped - before_step,
          " bytes more, ", stats.spill_peak_bytes, " of them outside the pool");
}

// For gradients and for gathers; with instances of all their ranks too, and across; of the world, and of tensor-parallel ranks, or
// of the stages that share something.
int groups_of(const Types& types, int ranks) {
  const int dp = ranks / types.tp / types.pp;
  const int replicas = dp == 1 ? 0 : types.instances == 1 ? 2 : dp == types.instances ? 3 : 5;
  if (types.pp > 1) return replicas + 2;
  return replicas + (types.tp == 1 ? 0 : dp == 1 ? 1 : 2);
}

constexpr size_t kParams = 50;
constexpr int64_t kShape[2] = {300, 217};

// Their names must outlive them.
std::vector<mdp_param> parameters(const Types& types, const std::vector<std::string>& names) {
  std::vector<mdp_param> params(kParams);
  for (size_t p = 0; p < kParams; ++p) {
    params[p] = mdp_param{};
    params[p].struct_size = sizeof(mdp_param);
    params[p].dtype = types.param;
    params[p].name = names[p].c_str();
    params[p].shape = kShape;
    params[p].ndim = 2;
    params[p].placement = p % 10 == 0 ? MDP_PLACEMENT_PARTIAL_SUM : MDP_PLACEMENT_SHARDED;
    if (p == 7) params[p].tie = "words";
  }
  return params;
}

// What is planned for arrays is what the formula says.
void check_formula(const Rank& rank, const Types& types, const mdp_plan_report& plan) {
  const double elements = static_cast<double>(kParams) * 300 * 217 + static_cast<double>(plan.padding_elements);
  const uint64_t gradients = types.sharding == MDP_SHARDING_ZERO_2 ? plan.grad_shard_bytes : plan.grad_bytes;
  const uint64_t average = types.average ? plan.average_bytes : 0;
  const double planned =
      static_cast<double>(plan.param_bytes + gradients + plan.master_bytes + plan.state_bytes + plan.feedback_bytes + average);
  const double bound = elements * types.bytes_each(rank.size);
  require(types.param == MDP_DTYPE_F16 ? planned <= bound : planned == bound, types.name, ": ", planned, " bytes planned, not ", bound);
}

mdp_optimizer_config optimizer_of(const Types& types) {
  mdp_optimizer_config config{};
  config.struct_size = sizeof config;
  config.average_decay = types.average ? 0.999 : 0;
  return config;
}

// The average, in f32, and what a swap keeps aside.
int64_t pages_of_average(const Types& types, const mdp_plan_report& plan) {
  const uint64_t average = plan.state_bytes / 2;
  return types.average ? pages(average) + pages(plan.average_bytes - average) : 0;
}

void check(const Rank& rank, const Types& types) {
  std::vector<std::string> names;
  for (size_t p = 0; p < kParams; ++p) names.push_back("layer" + std::to_string(p) + ".weight");
  const std::vector<mdp_param> params = parameters(types, names);
  mdp_buffer_config config{};
  config.struct_size = sizeof config;
  config.grad_dtype = types.grad;
  config.sharding = types.sharding;
  config.scaling = types.scaling;
  config.flags = types.flags;
  mdp_plan_report plan{};
  plan.struct_size = sizeof plan;
  mdp_grid_config sizes{};
  sizes.struct_size = sizeof sizes;
  sizes.instances = types.instances;
  sizes.tp = types.tp;
  sizes.pp = types.pp;
  ok(mdp_plan(&sizes, rank.size, rank.rank, &config, params.data(), kParams, nullptr, &plan));
  uint64_t wire = plan.scratch_bytes;
  if (types.wire) {
    config.wire_dtype = MDP_DTYPE_BF16;
    if (types.sharding != MDP_SHARDING_ZERO_2) config.flags |= MDP_BUFFER_ERROR_FEEDBACK;
    ok(mdp_plan(&sizes, rank.size, rank.rank, &config, params.data(), kParams, nullptr, &plan));
  }
  wire = plan.scratch_bytes - wire;
  mdp_grid* grid = nullptr;
  ok(mdp_grid_create(rank.comm, &sizes, &grid));
  const Grid grid_owner(grid);
  ok(mdp_barrier(rank.comm, nullptr));

  const int64_t heap_before = heap, mapped_before = mapped, shared_before = shared;
  mdp_buffer* buffer = nullptr;
  ok(mdp_buffer_register(nullptr, grid, &config, params.data(), kParams, &buffer));
  const Buffer buffer_owner(buffer);
  mdp_optimizer* optimizer = nullptr;
  const mdp_optimizer_config adamw = optimizer_of(types);
  ok(mdp_optimizer_create(buffer, &adamw, &optimizer));
  const Optimizer optimizer_owner(optimizer);
  const int64_t got = (mapped - mapped_before) + (shared - shared_before), bookkeeping = heap - heap_before;

  const int64_t arrays = pages(plan.param_bytes) + pages(plan.grad_bytes) + pages(plan.master_bytes) + 2 * pages(plan.state_bytes / 2) +
                         pages(plan.grad_shard_bytes) + pages(plan.feedback_bytes) + pages_of_average(types, plan);
  const int64_t scratch = got - arrays;
  require(scratch >= static_cast<int64_t>(plan.scratch_bytes) && scratch <= pages(plan.scratch_bytes) + 6 * pages(1), types.name, ": ", got,
          " bytes were asked for; the plan has ", arrays, " for arrays, and for scratch ", plan.scratch_bytes);
  require(bookkeeping <= static_cast<int64_t>(32768 + 1024 * kParams), types.name, ": bookkeeping took ", bookkeeping, " bytes");
  const int dp = rank.size / types.tp / types.pp;
  const int64_t groups = groups_of(types, rank.size) * int64_t{4096 + (1 << 20)};
  const int64_t windows = dp > types.instances ? pages(plan.param_bytes) + pages(plan.grad_bytes) + pages(wire) : 0;  // else private
  require(rank.size == 1 || shared - shared_before == windows + groups, types.name, ": windows and groups of ", shared - shared_before,
          " bytes");

  check_formula(rank, types, plan);
  check_step(types, buffer, optimizer, kShape, kParams);
  if (rank.rank == 0) {
    std::fprintf(stderr, "  %s, %d ranks: %.4f bytes a parameter asked for (%.4f by the formula), bookkeeping %lld bytes\n", types.name,
                 rank.size, static_cast<double>(got) / (kParams * 300 * 217), types.bytes_each(rank.size),
                 static_cast<long long>(bookkeeping));
  }
}

}  // namespace

int main() {
  bool good = true;
  int cases = 0;
  for (const Types& types : kTypes) {
    for (const int ranks : {1, 2, 4, 8}) {
      if (ranks < types.instances || ranks < types.tp * types.pp) continue;
      good = run_processes(types.name, ranks, [&](const Rank& rank) { check(rank, types); }) && good;
      ++cases;
    }
  }
  std::fprintf(stderr, "%d cases, %s\n", cases, good ? "all passed" : "some FAILED");
  return good ? 0 : 1;
}
