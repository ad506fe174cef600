// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.h"

namespace megadp::cuda {

CudaMemory::Block::~Block() {
  if (data == nullptr || !gpu->usable_here()) return;
  const PluginTable& plugin = gpu->plugin();
  (kind == Kind::device ? plugin.release : plugin.release_pinned)(gpu->device(), data);
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::allocate(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, Kind kind, size_t bytes) {
  auto block = std::make_shared<Block>(Block{gpu, kind, bytes});
  if (bytes > 0) {
    const PluginTable& plugin = gpu->plugin();
    const auto from = kind == Kind::device ? plugin.allocate : plugin.allocate_pinned;
    const Status allocated = watch->allocate([&] {
      return gpu->check(from(gpu->device(), bytes, &block->data),
                        text("allocating ", bytes, kind == Kind::device ? " bytes" : " bytes of pinned host memory"));
    });
    if (!allocated) return allocated;
  }
  return std::unique_ptr<CudaMemory>(new CudaMemory(std::move(block), std::move(watch)));
}

}  // namespace megadp::cuda
