// SPDX-License-Identifier: Apache-2.0
// Between two places on the device a kernel copies, casts and adds. An array of the host goes through a dense staging array on each side:
//
//   host array, any strides  ──gather──►  pinned, dense  ──copy──►  device, dense  ──kernel: cast, add, strides──►  device array
//
// and the other way round, in parts of at most Staging::kMostBytes. Only megadp's own arrays are ever added to, and these are on the
// device.
#include "cuda/copy.h"

#include <cstring>
#include <functional>
#include <utility>

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
  StridedArray dense{data, array.type, array.shape, array.strides};
  int64_t stride = 1;
  for (size_t d = dense.shape.size(); d-- > 0;) {
    dense.strides[d] = stride;
    stride *= dense.shape[d];
  }
  return dense;
}

// Calls fn with the byte offset of every element, in row-major order.
template <class Fn>
void for_each_element(const StridedArray& array, const Fn& fn) {
  const size_t rank = array.shape.size();
  std::vector<int64_t> index(rank, 0);
  const auto width = static_cast<int64_t>(size_of(array.type));
  int64_t offset = 0;
  for (uint64_t left = count_of(array); left > 0; --left) {
    fn(offset * width);
    for (size_t d = rank; d-- > 0;) {
      offset += array.strides[d];
      if (++index[d] < array.shape[d]) break;
      offset -= array.strides[d] * array.shape[d];
      index[d] = 0;
    }
  }
}

void gather(std::byte* dense, const StridedArray& from) {
  const size_t width = size_of(from.type);
  for_each_element(from, [&](int64_t offset) {
    std::memcpy(dense, static_cast<const std::byte*>(from.data) + offset, width);
    dense += width;
  });
}

void scatter(const StridedArray& to, const std::byte* dense) {
  const size_t width = size_of(to.type);
  for_each_element(to, [&](int64_t offset) {
    std::memcpy(static_cast<std::byte*>(to.data) + offset, dense, width);
    dense += width;
  });
}

Status copy_on_device(const Gpu& gpu, const StridedArray& to, const StridedArray& from, bool add, void* stream) {
  const Strided flat_to = flat(to), flat_from = flat(from);
  return gpu.check(gpu.plugin().copy_strided(gpu.device(), stream, &flat_to, &flat_from, add), "copying an array");
}

Status stage(const Gpu& gpu, Staging& staging, const StridedArray& to, const StridedArray& from, bool add, void* stream, bool to_device) {
  const PluginTable& plugin = gpu.plugin();
  const StridedArray& host = to_device ? from : to;
  const uint64_t bytes = count_of(host) * size_of(host.type);
  auto loan = staging.borrow(bytes);
  if (!loan) return loan.status();
  const StridedArray dense = dense_like(host, loan->device());
  Status done;
  if (to_device) {
    gather(static_cast<std::byte*>(loan->pinned()), from);
    done = gpu.check(plugin.copy(gpu.device(), stream, loan->device(), loan->pinned(), bytes), "copying an array");
    if (done.ok()) done = copy_on_device(gpu, to, dense, add, stream);
  } else {
    done = copy_on_device(gpu, dense, from, false, stream);
    if (done.ok()) done = gpu.check(plugin.copy(gpu.device(), stream, loan->pinned(), loan->device(), bytes), "copying an array");
  }
  // The next copy may have the staging arrays on return.
  const Status reached = gpu.check(plugin.stream_synchronize(gpu.device(), stream), "copying an array");
  if (done.ok()) done = reached;
  if (done.ok() && !to_device) scatter(to, static_cast<const std::byte*>(loan->pinned()));
  return done;
}

StridedArray part_of(const StridedArray& array, size_t dimension, int64_t begin, int64_t end) {
  StridedArray part = array;
  part.data = static_cast<std::byte*>(array.data) + begin * array.strides[dimension] * static_cast<int64_t>(size_of(array.type));
  part.shape[dimension] = end - begin;
  return part;
}

// By halves along the outermost dimension that can be cut.
Status stage_in_parts(const Gpu& gpu, Staging& staging, const StridedArray& to, const StridedArray& from, bool add, void* stream,
                      bool to_device) {
  if (count_of(to) * size_of((to_device ? from : to).type) <= Staging::kMostBytes) {
    return stage(gpu, staging, to, from, add, stream, to_device);
  }
  size_t dimension = 0;
  while (to.shape[dimension] == 1) ++dimension;
  const int64_t size = to.shape[dimension], half = size / 2;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, half}, {half, size}}) {
    Status done =
        stage_in_parts(gpu, staging, part_of(to, dimension, begin, end), part_of(from, dimension, begin, end), add, stream, to_device);
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

Status copy_arrays(const Gpu& gpu, Staging& staging, const StridedArray& to, const StridedArray& from, bool add, void* stream) {
  if (count_of(to) == 0) return {};
  auto to_device = on_device(gpu, to.data);
  if (!to_device) return to_device.status();
  auto from_device = on_device(gpu, from.data);
  if (!from_device) return from_device.status();
  if (*to_device && *from_device) return copy_on_device(gpu, to, from, add, stream);
  return stage_in_parts(gpu, staging, to, from, add, stream, *to_device);
}

}  // namespace megadp::cuda
