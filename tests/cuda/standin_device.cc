// SPDX-License-Identifier: Apache-2.0
// Devices, memory, streams, events and kernels of the stand-in.
#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/deadline.h"
#include "base/thread.h"
#include "cuda/build.h"
#include "host/attention.h"
#include "host/kernels.h"
#include "host/vocabulary.h"
#include "standin.h"

namespace megadp::standin {

using namespace cuda;

std::shared_ptr<Queue> Queue::create() {
  return std::make_shared<Queue>();
}

void Queue::submit(std::function<void()> work) {
  if (awaited > 0) overtaken()++;
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  busy_ = true;
  changed_.notify_all();
  if (has_thread_) return;
  has_thread_ = true;
  // A thread of the standard library's would inherit how its creator rounds, and its name, by which tests count the library's threads.
  const auto thread = start_thread("standin-stream", [self = shared_from_this()] { self->run(); });
  if (!thread) std::abort();
  pthread_detach(*thread);
}

// The thread stays for what may come next. If each piece of work had a thread of its own, a test would start tens of thousands: the kernel
// then gives the numbers of ended threads to new ones, and a sanitizer, which knows threads by number, reports leaks that are none.
void Queue::run() {
  constexpr auto kIdle = std::chrono::milliseconds(20);
  std::unique_lock lock(mutex_);
  do {
    while (!work_.empty()) {
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
    busy_ = false;
    changed_.notify_all();
  } while (changed_.wait_for(lock, kIdle, [this] { return !work_.empty(); }));
  has_thread_ = false;
}

void Queue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

std::shared_ptr<Queue> queue_of(Device* device, void* stream) {
  static auto& nobodys = *new std::shared_ptr<Queue>(Queue::create());
  if (stream != nullptr) return *static_cast<std::shared_ptr<Queue>*>(stream);
  return device != nullptr ? device->standard : nobodys;
}

namespace {

// ── memory: what was handed out, so that foreign pointers are noticed ──

std::mutex memory_mutex;
std::map<const std::byte*, size_t>& memory_map() {
  static auto& map = *new std::map<const std::byte*, size_t>;  // never destroyed: threads may run to the very end
  return map;
}

void count_sync(Device* device) {
  if (device != nullptr) device->syncs++;
}

int32_t device_count(int32_t* count) {
  *count = 64;
  return 0;
}

int32_t device_info(int32_t index, DeviceInfo* out) {
  *out = {};
  std::strncpy(out->name, "stand-in", sizeof out->name - 1);
  std::strncpy(out->uuid, ("stand-in-" + std::to_string(index)).c_str(), sizeof out->uuid - 1);
  out->memory_bytes = uint64_t{1} << 40;
  out->collectives = collectives_at_once();
  return 0;
}

std::atomic<bool> torn_down{false};

void tear_down() {
  if (teardown_ms() == 0 || torn_down.exchange(true)) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(teardown_ms()));
}

int32_t device_open(int32_t index, Device** out) {
  *out = new Device;
  (*out)->index = index;
  static const bool registered = register_teardown();
  return registered ? 0 : kCudaFailure + 1;
}

void explain(int32_t result, const Nccl*, char* text, size_t size) {
  const std::string said = "stand-in failure " + std::to_string(result);
  std::strncpy(text, said.c_str(), size - 1);
  text[size - 1] = '\0';
}

std::set<const void*>& pinned() {  // under memory_mutex
  static auto& set = *new std::set<const void*>;
  return set;
}

int32_t access(Device*, const void* memory, Access* out) {
  *out = is_device_memory(memory) ? Access::device : Access::unknown;
  const std::lock_guard lock(memory_mutex);
  if (pinned().count(memory) != 0) *out = Access::host;
  return 0;
}

int32_t allocate_pinned(Device*, size_t bytes, void** out) {
  if (failing_pinned() > 0 && --failing_pinned() == 0) return kCudaFailure + 1;
  *out = std::calloc(bytes == 0 ? 1 : bytes, 1);
  if (*out == nullptr) return kOutOfMemory;
  const std::lock_guard lock(memory_mutex);
  pinned().insert(*out);
  return 0;
}

int32_t release_pinned(Device*, void* memory) {
  const std::lock_guard lock(memory_mutex);
  pinned().erase(memory);
  std::free(memory);
  return 0;
}

// Ordinary memory of the host is staged before the call returns, as CUDA does.
int32_t copy(Device* device, void* stream, void* to, const void* from, size_t bytes) {
  queue_of(device, stream)->submit([=] {
    if (bytes > 0) std::memmove(to, from, bytes);
  });
  Access to_access, from_access;
  access(device, to, &to_access);
  access(device, from, &from_access);
  if (to_access != Access::unknown && from_access != Access::unknown) return 0;
  count_sync(device);
  queue_of(device, stream)->drain();
  return 0;
}

// ── streams and events ──

int32_t stream_create(Device* device, bool, void** out) {
  auto* const queue = new std::shared_ptr<Queue>(Queue::create());
  *out = queue;
  if (device == nullptr) return 0;
  const std::lock_guard lock(device->mutex);
  std::erase_if(device->queues, [](const auto& one) { return one.expired(); });
  device->queues.push_back(*queue);
  return 0;
}

int32_t stream_destroy(Device*, void* stream) {
  delete static_cast<std::shared_ptr<Queue>*>(stream);
  return 0;
}

int32_t stream_synchronize(Device* device, void* stream) {
  count_sync(device);
  queue_of(device, stream)->drain();
  return 0;
}

std::shared_ptr<standin::Event>& event_of(void* event) {
  return *static_cast<std::shared_ptr<standin::Event>*>(event);
}

// For a test that is no user of CUDA: whose default stream this thread has ordered last. Not thread_local: in a library that is loaded
// later glibc allocates these when they are first used, and frees them in whichever thread reuses the stack, which ThreadSanitizer takes
// for a race.
pthread_key_t ordered_last() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    if (pthread_key_create(&made, nullptr) != 0) std::abort();
    return made;
  }();
  return key;
}

int32_t stream_wait(Device* device, void* stream, void* event) {
  if (stream == nullptr) pthread_setspecific(ordered_last(), device);
  const std::shared_ptr<standin::Event> shared = event_of(event);
  if (!shared->recorded) return 0;  // as cudaStreamWaitEvent
  queue_of(device, stream)->submit([shared] {
    while (shared->done_ns == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return 0;
}

int32_t event_create(Device*, void** out) {
  ++events_made();
  *out = new std::shared_ptr<standin::Event>(std::make_shared<standin::Event>());
  return 0;
}

int32_t event_destroy(Device*, void* event) {
  delete static_cast<std::shared_ptr<standin::Event>*>(event);
  return 0;
}

int32_t event_record(Device* device, void* event, void* stream) {
  if (torn_down) std::_Exit(kTornDown);
  auto recorded = std::make_shared<standin::Event>();  // what waits for an earlier record goes on waiting for that
  recorded->recorded = true;
  event_of(event) = recorded;
  queue_of(device, stream)->submit([recorded = std::move(recorded)] { recorded->done_ns = now_ns(); });
  return 0;
}

int32_t event_query(Device* device, void* event) {
  if (event_of(event)->done_ns == 0) return kPending;
  return device != nullptr && device->index == broken_device() ? kBadMemory : 0;
}

int32_t event_elapsed(Device*, void* begin, void* end, float* milliseconds) {
  const auto from = static_cast<int64_t>(event_of(begin)->done_ns), to = static_cast<int64_t>(event_of(end)->done_ns);
  *milliseconds = static_cast<float>(static_cast<double>(to - from) / 1e6);
  return 0;
}

// ── kernels: the host's ──

// A kernel that is given host memory is a defect that would end a program on a device.
template <class... Pointers>
bool all_on_device(const Pointers*... pointers) {
  return (is_device_memory(pointers) && ...);
}

int32_t zero(Device* device, void* stream, void* data, size_t bytes) {
  if (!all_on_device(data)) return kBadMemory;
  if (failing_zeros() > 0) {
    --failing_zeros();
    return kCudaFailure + 1;
  }
  queue_of(device, stream)->submit([=] {
    if (bytes > 0) std::memset(data, 0, bytes);
  });
  return 0;
}

bool converts(DType type) {
  return is_trainable(type) || type == DType::f64;
}

int32_t cast(Device* device, void* stream, void* to, DType to_type, const void* from, DType from_type, size_t count) {
  if (count > 0 && !all_on_device(to, from)) return kBadMemory;
  if (to_type != from_type && !(converts(to_type) && converts(from_type))) return kBadArgument;
  queue_of(device, stream)->submit([=] { (void)host::cast(to, to_type, from, from_type, count); });
  return 0;
}

StridedArray array_of(const Strided& from) {
  const auto dimensions = static_cast<size_t>(from.dimensions);
  return {from.data, static_cast<DType>(from.type), {from.shape, from.shape + dimensions}, {from.strides, from.strides + dimensions}};
}

int32_t copy_strided(Device* device, void* stream, const Strided* to, const Strided* from, bool add) {
  if (!all_on_device(to->data, from->data)) return kBadMemory;
  queue_of(device, stream)->submit([to = array_of(*to), from = array_of(*from), add] { (void)host::copy_strided(to, from, add); });
  return 0;
}

int32_t square_sum(Device* device, void* stream, const void* data, DType type, size_t count, double* sums) {
  if (!all_on_device(data, sums)) return kBadMemory;
  queue_of(device, stream)->submit([=] { (void)host::square_sum(data, type, count, sums, sums + 1); });
  return 0;
}

int32_t refresh_masters(Device* device, void* stream, float* masters, const void* params, DType type, size_t count) {
  if (count > 0 && !all_on_device(masters, params)) return kBadMemory;
  queue_of(device, stream)->submit([=] { (void)host::refresh_masters(masters, params, type, count); });
  return 0;
}

int32_t round_with_feedback(Device* device, void* stream, void* to, const float* from, float* residual, size_t count) {
  if (count > 0 && !all_on_device(to, from, residual)) return kBadMemory;
  queue_of(device, stream)->submit([=] { (void)host::round_with_feedback(to, from, residual, count); });
  return 0;
}

int32_t extremes(Device* device, void* stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest) {
  if (!all_on_device(data, zeros, largest)) return kBadMemory;
  queue_of(device, stream)->submit([=] { (void)host::extremes(data, type, count, zeros, largest); });
  return 0;
}

int32_t find_nonfinite(Device* device, void* stream, const void* data, DType type, size_t count, uint64_t first, uint64_t* found) {
  if (count == 0) return 0;
  if (!all_on_device(data, found)) return kBadMemory;
  queue_of(device, stream)->submit([=] { (void)host::find_nonfinite(data, type, count, first, found); });
  return 0;
}

int32_t scale(Device* device, void* stream, void* data, DType type, size_t count, float factor) {
  if (count > 0 && !all_on_device(data)) return kBadMemory;
  queue_of(device, stream)->submit([=] { (void)host::scale(data, type, count, factor); });
  return 0;
}

int32_t begin_step(Device* device, void* stream, StepScalars* scalars, const StepSettings* settings) {
  if (!all_on_device(scalars)) return kBadMemory;
  queue_of(device, stream)->submit([poisoned = device->poisoned, scalars, settings = *settings] {
    if (*poisoned) {
      scalars->skip = 1;
    } else {
      megadp::begin_step(*scalars, settings);
    }
  });
  return 0;
}

int32_t count_steps(Device* device, void* stream, const StepScalars* scalars, uint64_t* steps, size_t count) {
  if (count > 0 && !all_on_device(scalars, steps, steps + count - 1)) return kBadMemory;
  queue_of(device, stream)->submit([=] {
    for (size_t i = 0; i < count; ++i) count_step(*scalars, steps[i]);
  });
  return 0;
}

int32_t update(Device* device, void* stream, const Update* update) {
  const Update& u = *update;
  if (u.count > 0 && !all_on_device(u.scalars, u.steps, u.grad, u.param)) return kBadMemory;
  // A bf16 parameter may have no master, and a rule may keep fewer arrays.
  if (u.count > 0 && u.master != nullptr && !all_on_device(u.master)) return kBadMemory;
  for (const void* state : u.state) {
    if (u.count > 0 && state != nullptr && !all_on_device(state)) return kBadMemory;
  }
  queue_of(device, stream)->submit([u] { (void)host::update(u); });
  return 0;
}

int32_t reduce(Device* device, void* stream, void* to, const void* from, size_t stride, int32_t parts, size_t count, DType type, Op op,
               double divisor) {
  if (count > 0 && !all_on_device(to, from)) return kBadMemory;
  queue_of(device, stream)->submit([=] {
    std::vector<const void*> all;
    for (int32_t k = 0; k < parts; ++k) {
      all.push_back(static_cast<const std::byte*>(from) + static_cast<size_t>(k) * stride * size_of(type));
    }
    (void)host::reduce(to, all.data(), parts, count, type, op, divisor);
  });
  return 0;
}

// What is outside is a NaN on a device, where the host refuses it.
int32_t look_up(Device* device, void* stream, const Lookup* work, bool gradient) {
  if (!all_on_device(work->ids, work->table, work->output)) return kBadMemory;
  queue_of(device, stream)->submit([work = *work, gradient] {
    (void)(gradient ? host::add_up_rows(work) : host::look_up(work));
    for (uint64_t t = 0; t < work.tokens && !gradient; ++t) {
      if (work.ids[t] >= 0 && work.ids[t] < work.all_rows) continue;
      const std::vector<float> nan(work.features, std::numeric_limits<float>::quiet_NaN());
      const auto at = static_cast<int64_t>(t) * work.output_stride * static_cast<int64_t>(size_of(work.output_type));
      (void)host::cast(static_cast<std::byte*>(work.output) + at, work.output_type, nan.data(), DType::f32, nan.size());
    }
  });
  return 0;
}

int32_t cross_entropy(Device* device, void* stream, const CrossEntropy* work, CrossEntropyPass pass) {
  if (!all_on_device(work->targets)) return kBadMemory;
  if (pass != CrossEntropyPass::losses && !all_on_device(work->logits)) return kBadMemory;
  if (pass == CrossEntropyPass::losses && !all_on_device(work->gathered, work->losses)) return kBadMemory;
  if (pass == CrossEntropyPass::gradient && !all_on_device(work->sums, work->grad_losses, work->grad_logits)) return kBadMemory;
  queue_of(device, stream)->submit([work = *work, pass] { (void)host::cross_entropy(work, pass); });
  return 0;
}

int32_t merge_attention(Device* device, void* stream, const AttentionMerge* work) {
  if (!all_on_device(work->out, work->lse, work->part, work->part_lse)) return kBadMemory;
  queue_of(device, stream)->submit([work = *work] { host::merge_attention(work); });
  return 0;
}

PluginTable make_table() {
  PluginTable table{};
  table.version = kPluginVersion;
  table.bytes = sizeof(PluginTable);
  std::strncpy(table.build, kBuild, sizeof table.build - 1);
  table.explain = &explain;
  table.device_count = &device_count;
  table.device_info = &device_info;
  table.device_open = &device_open;
  table.device_close = [](Device* device) { delete device; };
  table.host_syncs = [](const Device* device) { return device->syncs.load(); };
  table.poison = [](Device* device) { *device->poisoned = true; };
  table.allocate = &allocate;
  table.release = &release;
  table.allocate_pinned = &allocate_pinned;
  table.release_pinned = &release_pinned;
  table.access = &access;
  table.copy = &copy;
  table.stream_create = &stream_create;
  table.stream_destroy = &stream_destroy;
  table.stream_synchronize = &stream_synchronize;
  table.stream_wait = &stream_wait;
  table.event_create = &event_create;
  table.event_destroy = &event_destroy;
  table.event_record = &event_record;
  table.event_query = &event_query;
  table.event_elapsed = &event_elapsed;
  table.zero = &zero;
  table.cast = &cast;
  table.copy_strided = &copy_strided;
  table.square_sum = &square_sum;
  table.round_with_feedback = &round_with_feedback;
  table.refresh_masters = &refresh_masters;
  table.extremes = &extremes;
  table.find_nonfinite = &find_nonfinite;
  table.scale = &scale;
  table.begin_step = &begin_step;
  table.count_steps = &count_steps;
  table.update = &update;
  table.reduce = &reduce;
  table.look_up = &look_up;
  table.cross_entropy = &cross_entropy;
  table.merge_attention = &merge_attention;
  put_nccl(&table);
  put_gemm(&table);
  return table;
}

}  // namespace

void ReleaseGate::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
}

void ReleaseGate::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

void ReleaseGate::pass() {
  std::unique_lock lock(mutex_);
  ++held_;
  changed_.wait(lock, [this] { return open_; });
  --held_;
}

int ReleaseGate::held() {
  const std::lock_guard lock(mutex_);
  return held_;
}

ReleaseGate& release_gate() {
  static auto& gate = *new ReleaseGate;
  return gate;
}

std::atomic<int>& failing_zeros() {
  static std::atomic<int> count{0};
  return count;
}

std::atomic<int>& failing_pinned() {
  static std::atomic<int> number{0};
  return number;
}

std::atomic<int>& events_made() {
  static std::atomic<int> number{0};
  return number;
}

std::atomic<int>& overtaken() {
  static std::atomic<int> count{0};
  return count;
}

bool register_teardown() {
  return std::atexit(tear_down) == 0;
}

std::atomic<int>& teardown_ms() {
  static std::atomic<int> time{0};
  return time;
}

std::atomic<int>& full_device() {
  static std::atomic<int> index{-1};
  return index;
}

std::atomic<bool>& release_makes_room() {
  static std::atomic<bool> so{false};
  return so;
}

std::atomic<int>& broken_device() {
  static std::atomic<int> index{-1};
  return index;
}

int32_t allocate(Device* device, size_t bytes, void** out) {
  count_sync(device);
  if (bytes > size_t{1} << 36) return kOutOfMemory;
  if (device != nullptr && device->index == full_device()) {
    if (release_makes_room()) release_gate().open();
    return kOutOfMemory;
  }
  const size_t rounded = (bytes + 255) / 256 * 256;
  *out = std::aligned_alloc(256, rounded);
  if (*out == nullptr) return kOutOfMemory;
  std::memset(*out, 0, rounded);
  const std::lock_guard lock(memory_mutex);
  memory_map()[static_cast<const std::byte*>(*out)] = rounded;
  return 0;
}

// As cudaFree: waits for all that the device is doing.
void wait_for_all(Device* device) {
  std::vector<std::shared_ptr<Queue>> all = {device->standard};
  {
    const std::lock_guard lock(device->mutex);
    for (const auto& queue : device->queues) all.push_back(queue.lock());
  }
  for (const auto& queue : all) {
    if (queue != nullptr) queue->drain();
  }
}

// Not counted: the thread that waits here is mostly the watch's, at a time of its own choice.
int32_t release(Device* device, void* memory) {
  release_gate().pass();
  if (torn_down) std::_Exit(kTornDown);
  if (device != nullptr) wait_for_all(device);
  {
    const std::lock_guard lock(memory_mutex);
    memory_map().erase(static_cast<const std::byte*>(memory));
  }
  std::free(memory);
  if (release_makes_room()) full_device() = -1;
  return 0;
}

#if defined(__SANITIZE_THREAD__)
constexpr int kOwnThreads = 2;  // the sanitizer has one of its own
#else
constexpr int kOwnThreads = 1;
#endif

void wait_for_threads() {
  for (int tries = 0; tries < 1000; ++tries) {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    if (std::distance(begin(tasks), end(tasks)) <= kOwnThreads) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool is_device_memory(const void* memory) {
  const std::lock_guard lock(memory_mutex);
  const auto* const at = static_cast<const std::byte*>(memory);
  auto next = memory_map().upper_bound(at);
  if (next == memory_map().begin()) return false;
  --next;
  return at < next->first + next->second;
}

}  // namespace megadp::standin

// As cudaStreamSynchronize and cudaLaunchHostFunc, of that stream.
extern "C" __attribute__((visibility("default"))) void standin_await_default_stream() {
  if (auto* const device = static_cast<megadp::cuda::Device*>(pthread_getspecific(megadp::standin::ordered_last())))
    megadp::standin::queue_of(device, nullptr)->drain();
}
extern "C" __attribute__((visibility("default"))) void standin_on_default_stream(void (*work)(void*), void* user) {
  auto* const device = static_cast<megadp::cuda::Device*>(pthread_getspecific(megadp::standin::ordered_last()));
  megadp::standin::queue_of(device, nullptr)->submit([work, user] { work(user); });
}

extern "C" __attribute__((visibility("default"))) const megadp::cuda::PluginTable* megadp_cuda_plugin() {
  static const megadp::cuda::PluginTable table = megadp::standin::make_table();
  return &table;
}
