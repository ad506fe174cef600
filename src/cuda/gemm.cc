// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm.h"

#include <utility>

#include "cuda/at_work.h"

namespace megadp::cuda {

std::string gemm_library_name(int32_t version) {
  return text("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

DeviceGemm::Opened::~Opened() {
  if (gemm != nullptr && gpu->usable_here()) gpu->plugin().gemm_close(gemm);
}

DeviceGemm::DeviceGemm(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch) noexcept : gpu_(std::move(gpu)), watch_(std::move(watch)) {}

// Closing waits for the device: that is left to the watch.
DeviceGemm::~DeviceGemm() {
  if (opened_ != nullptr) watch_->drop(std::move(opened_));
}

// A failure is not kept: the program may load the library later, with a framework.
Result<Gemm*> DeviceGemm::open() {
  const std::lock_guard lock(mutex_);
  if (opened_ == nullptr) {
    auto opened = std::make_shared<Opened>(Opened{gpu_, nullptr});
    char why[512] = "";
    if (gpu_->plugin().gemm_open(gpu_->device(), nullptr, &opened->gemm, why, sizeof why) != 0) {
      return unsupported("there are no matrix products on CUDA devices: ", why);
    }
    AtWork::awaited_at_exit(Loaded::products);
    opened_ = std::move(opened);
  }
  return opened_->gemm;
}

Status DeviceGemm::multiply(const Matrix& c, const Matrix& a, const Matrix& b, bool add, void* stream) {
  auto gemm = open();
  if (!gemm) return gemm.status();
  return gpu_->check(gpu_->plugin().gemm(*gemm, stream, &c, &a, &b, add), "a matrix product");
}

Result<std::string> DeviceGemm::name_of_library() {
  auto gemm = open();
  if (!gemm) return gemm.status();
  return gemm_library_name(gpu_->plugin().gemm_version(*gemm));
}

}  // namespace megadp::cuda
