// SPDX-License-Identifier: Apache-2.0
// Between two places on the device a kernel copies, casts and adds. An array of the host goes through a dense staging array on each side:
//
//   host array, any strides ──host's copy──► pinned, dense  ──copy──►  device, dense  ──kernel: cast, add, strides──►  device array
//
// and the other way round, in parts of at most Staging::kMostBytes. Only megadp's own arrays are ever added to, and these are on the
// device.
#include "cuda/copy.h"

#include <utility>

#include "base/shape.h"
#include "cuda/event.h"

namespace megadp::cuda {
namespace {

uint64_t count_of(const StridedArray& array) {
  uint64_t count = 1;
  for (const int64_t size : array.shape) count *= static_cast<uint64_t>(size);
  return count;
}

Strided flat(const StridedArray& array) {
  Strided out{array.data, static_cast<uint32_t>(array.type), static_cast<int32_t>(array.shape.size()), {}, {}};
  for (size_t d = 0; d < array.shape.size(); ++d) {
    out.shape[d] = array.shape[d];
    out.strides[d] = array.strides[d];
  }
  return out;
}

StridedArray dense_like(const StridedArray& array, void* data) {
  return {data, array.type, array.shape, dense_strides(array.shape)};
}

Status copy_on_device(const Gpu& gpu, const StridedArray& to, const StridedArray& from, bool add, void* stream) {
  const Strided flat_to = flat(to), flat_from = flat(from);
  return gpu.check(gpu.plugin().copy_strided(gpu.device(), stream, &flat_to, &flat_from, add), "copying an array");
}

// What is on the caller's stream may wait for other ranks. Where the caller is asked meanwhile, that is waited for before the first part is
// copied, and then nobody is asked: an addition must not be done by half, or twice.
Status pass_interruptibly(const std::shared_ptr<Gpu>& gpu, void* stream) {
  if (ask_by(Deadline::never()).at_ns() == UINT64_MAX) return {};
  auto before = RawEvent::record(gpu, stream);
  return before ? (*before)->await() : before.status();
}

Status stage(const Places& on, const StridedArray& to, const StridedArray& from, bool add, void* stream, bool to_device) {
  const Gpu& gpu = *on.gpu;
  const PluginTable& plugin = gpu.plugin();
  const StridedArray& host = to_device ? from : to;
  const uint64_t bytes = count_of(host) * size_of(host.type);
  auto loan = on.staging.borrow(bytes);
  if (!loan) return loan.status();
  const StridedArray dense = dense_like(host, loan->device());
  const StridedArray pinned = dense_like(host, loan->pinned());
  Status done;
  if (to_device) {
    if (done = on.host.copy(pinned, from, false, nullptr); !done) return done;
    done = gpu.check(plugin.copy(gpu.device(), stream, loan->device(), loan->pinned(), bytes), "copying an array");
    if (done.ok()) done = copy_on_device(gpu, to, dense, add, stream);
  } else {
    done = copy_on_device(gpu, dense, from, false, stream);
    if (done.ok()) done = gpu.check(plugin.copy(gpu.device(), stream, loan->pinned(), loan->device(), bytes), "copying an array");
  }
  // The next copy may have the staging arrays on return.
  const Status reached = gpu.check(plugin.stream_synchronize(gpu.device(), stream), "copying an array");
  if (done.ok()) done = reached;
  // A collective before it may have been ended by a failure.
  if (done.ok() && !to_device && gpu.failed()) done = gpu.failure();
  return done.ok() && !to_device ? on.host.copy(to, pinned, false, nullptr) : done;
}

StridedArray part_of(const StridedArray& array, size_t dimension, int64_t begin, int64_t end) {
  StridedArray part = array;
  part.data = static_cast<std::byte*>(array.data) + begin * array.strides[dimension] * static_cast<int64_t>(size_of(array.type));
  part.shape[dimension] = end - begin;
  return part;
}

// By halves along the outermost dimension that can be cut.
Status stage_in_parts(const Places& on, const StridedArray& to, const StridedArray& from, bool add, void* stream, bool to_device) {
  if (count_of(to) * size_of((to_device ? from : to).type) <= Staging::kMostBytes) {
    return stage(on, to, from, add, stream, to_device);
  }
  size_t dimension = 0;
  while (to.shape[dimension] == 1) ++dimension;
  const int64_t size = to.shape[dimension], half = size / 2;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, half}, {half, size}}) {
    Status done = stage_in_parts(on, part_of(to, dimension, begin, end), part_of(from, dimension, begin, end), add, stream, to_device);
    if (!done) return done;
  }
  return {};
}

Result<bool> on_device(const Gpu& gpu, const void* memory) {
  Access access = Access::unknown;
  const Status known = gpu.check(gpu.plugin().access(gpu.device(), memory, &access), "looking at a pointer");
  if (!known) return known;
  return access == Access::device || access == Access::managed;
}

}  // namespace

Status copy_arrays(const Places& on, const StridedArray& to, const StridedArray& from, bool add, void* stream) {
  const Gpu& gpu = *on.gpu;
  if (count_of(to) == 0) return {};
  auto to_device = on_device(gpu, to.data);
  if (!to_device) return to_device.status();
  auto from_device = on_device(gpu, from.data);
  if (!from_device) return from_device.status();
  if (*to_device && *from_device) return copy_on_device(gpu, to, from, add, stream);
  if (Status passed = pass_interruptibly(on.gpu, stream); !passed) return passed;
  return stage_in_parts(on, to, from, add, stream, *to_device);
}

}  // namespace megadp::cuda
