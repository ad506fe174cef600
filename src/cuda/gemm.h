// SPDX-License-Identifier: Apache-2.0
// DeviceGemm: matrix products on the device. The plugin's cuBLASLt is opened when somebody first asks for it: few programs multiply here,
// and the library is large.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/matrix.h"
#include "cuda/gpu.h"
#include "cuda/watch.h"

namespace megadp::cuda {

// "cuBLASLt 13.1.0", of the plugin's gemm_version().
std::string gemm_library_name(int32_t version);

class DeviceGemm {
 public:
  DeviceGemm(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch) noexcept;
  ~DeviceGemm();
  DeviceGemm(const DeviceGemm&) = delete;
  DeviceGemm& operator=(const DeviceGemm&) = delete;

  // As Backend's gemm() and gemm_library().
  Status multiply(const Matrix& c, const Matrix& a, const Matrix& b, bool add, void* stream);
  Result<std::string> name_of_library();

 private:
  struct Opened {
    std::shared_ptr<Gpu> gpu;
    Gemm* gemm;
    ~Opened();
  };
  Result<Gemm*> open();

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  std::mutex mutex_;
  std::shared_ptr<Opened> opened_;  // under mutex_
};

}  // namespace megadp::cuda
