// SPDX-License-Identifier: Apache-2.0
// CudaMemory: memory of the plugin, of the device or pinned.
#pragma once

#include <memory>
#include <utility>

#include "backend/backend.h"
#include "cuda/watch.h"

namespace megadp::cuda {

// What the watch frees, whoever lets go of it last.
template <class T>
class Deferred {
 public:
  Deferred(std::shared_ptr<T> object, std::shared_ptr<Watch> watch) noexcept : object_(std::move(object)), watch_(std::move(watch)) {}
  ~Deferred() { watch_->drop(std::move(object_)); }
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;
  T* operator->() const noexcept { return object_.get(); }

 private:
  std::shared_ptr<T> object_;
  const std::shared_ptr<Watch> watch_;
};

class CudaMemory final : public Memory {
 public:
  enum class Kind {
    device,
    pinned
  };
  // Zeroed. bytes may be 0: then there is no memory.
  static Result<std::unique_ptr<CudaMemory>> allocate(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, Kind kind, size_t bytes);
  void* data() noexcept override { return block_->data; }
  size_t bytes() const noexcept override { return block_->bytes; }

 private:
  struct Block {
    std::shared_ptr<Gpu> gpu;
    Kind kind;
    size_t bytes;
    void* data = nullptr;
    ~Block();
  };
  CudaMemory(std::shared_ptr<Block> block, std::shared_ptr<Watch> watch) noexcept : block_(std::move(block), std::move(watch)) {}

  const Deferred<Block> block_;
};

}  // namespace megadp::cuda
