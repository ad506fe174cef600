// SPDX-License-Identifier: Apache-2.0
// CudaBackend's matrix products on the stand-in for the plugin: on the caller's stream, with the sentences and codes of what goes wrong,
// and nothing left open. What the plugin does with a product is cuda.gemm's.
#include <atomic>
#include <vector>

#include "check.h"
#include "cuda/backend.h"
#include "cuda/plugin_library.h"
#include "host/backend.h"
#include "standin.h"
#include "thread_world.h"

using namespace megadp;
using namespace megadp::cuda;
using namespace megadp::test;

namespace {

std::atomic<int> opened{0}, closed{0}, closed_after_the_device{0};
int32_t result_of_products = 0;

// The stand-in's table, with its ears open.
const PluginTable& listening() {
  static const PluginTable table = [] {
    PluginTable out = *megadp_cuda_plugin();
    out.gemm_open = [](Device* device, const char* path, Gemm** gemm, char* why, size_t size) {
      const int32_t result = megadp_cuda_plugin()->gemm_open(device, path, gemm, why, size);
      opened += result == 0 ? 1 : 0;
      return result;
    };
    out.gemm_close = [](Gemm* gemm) {
      ++closed;
      megadp_cuda_plugin()->gemm_close(gemm);
    };
    out.device_close = [](Device* device) {
      if (opened != closed) ++closed_after_the_device;
      megadp_cuda_plugin()->device_close(device);
    };
    out.gemm = [](Gemm* gemm, void* stream, const Matrix* c, const Matrix* a, const Matrix* b, bool add) {
      return result_of_products != 0 ? result_of_products : megadp_cuda_plugin()->gemm(gemm, stream, c, a, b, add);
    };
    return out;
  }();
  return table;
}

struct Fixture {
  std::shared_ptr<World> world = create_thread_worlds(1, 10'000'000'000)[0];
  std::shared_ptr<Backend> backend;
  std::unique_ptr<Memory> memory;

  Fixture() {
    auto host = host::HostBackend::open(world);
    if (!check(host.ok(), "no host backend")) std::exit(finish());
    auto made = CudaBackend::open(listening(), world, *std::move(host), {.device = 0});
    if (!check(made.ok(), made.ok() ? "" : made.status().text())) std::exit(finish());
    backend = *std::move(made);
    memory = *backend->allocate(4 * 64 * sizeof(float));
  }
  ~Fixture() {
    memory.reset();
    backend.reset();
    standin::wait_for_threads();
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  // The k-th of four squares.
  Matrix square(int k, int64_t size = 2) const { return {static_cast<float*>(memory->data()) + 64 * k, DType::f32, size, size, size, 1}; }
  void set(int k, const std::vector<float>& values) {
    check(backend->write(square(k).data, values.data(), values.size() * sizeof(float)).ok(), "write");
  }
  std::vector<float> get(int k) {
    std::vector<float> values(4);
    check(backend->read(values.data(), square(k).data, 4 * sizeof(float)).ok(), "read");
    return values;
  }
};

void says(const Status& status, Code code, const std::vector<std::string>& words, test::Place at = test::Place::current()) {
  check(status.code() == code, text("another code: ", status.text()), at);
  for (const std::string& word : words) check(status.text().find(word) != std::string::npos, text(status.text(), " lacks ", word), at);
}

// Each product takes what the one before has made, on a stream of the caller's.
void in_the_callers_order() {
  Fixture f;
  void* stream = nullptr;
  check_equal(listening().stream_create(nullptr, false, &stream), 0, "stream_create");
  f.set(0, {1, 1, 0, 1});
  f.set(1, {1, 0, 0, 1});
  constexpr int kRounds = 1000;
  for (int i = 0; i < kRounds; ++i) {
    check(f.backend->gemm(f.square(2), f.square(0), f.square(1), false, stream).ok(), "a product");
    check(f.backend->gemm(f.square(1), f.square(0), f.square(2), false, stream).ok(), "a product of it");
  }
  check(f.backend->gemm(f.square(1), f.square(0), transposed(f.square(0)), true, stream).ok(), "adding a product");
  check_equal(listening().stream_synchronize(nullptr, stream), 0, "stream_synchronize");
  check_equal(f.get(1), std::vector<float>{3, 2 * kRounds + 1, 1, 2}, "the last product");
  check_equal(listening().stream_destroy(nullptr, stream), 0, "stream_destroy");
}

// Opened by the first who asks, once; and closed before the device is.
void opened_at_first_use() {
  opened = closed = 0;
  {
    const Fixture f;
    check_equal(opened.load(), 0, "opened before anybody asks");
    const auto library = f.backend->gemm_library();
    check(library.ok() && *library == "cuBLASLt 13.1.2", "the library's name");
    check(f.backend->gemm(f.square(2), f.square(0), f.square(1), false, nullptr).ok(), "a product");
    check_equal(opened.load(), 1, "opened");
  }
  check_equal(closed.load(), 1, "closed");
  check_equal(closed_after_the_device.load(), 0, "left open while its device is closed");
  { const Fixture f; }
  check_equal(opened.load(), 1, "opened by nobody");
}

void no_library() {
  Fixture f;
  check(plugin_info().detail.find("; cuBLASLt 13.1.2") != std::string::npos, text("what is there: ", plugin_info().detail));
  standin::no_gemm_library() = true;
  check(plugin_info().available, "without products there is no backend");
  check(plugin_info().detail.find("; no matrix products: the stand-in") != std::string::npos,
        text("what is there: ", plugin_info().detail));
  says(f.backend->gemm_library().status(), Code::unsupported, {"no matrix products on CUDA devices", "the stand-in has no cuBLASLt"});
  says(f.backend->gemm(f.square(2), f.square(0), f.square(1), false, nullptr), Code::unsupported, {"the stand-in has no cuBLASLt"});
  // A framework may bring it later.
  standin::no_gemm_library() = false;
  check(f.backend->gemm(f.square(2), f.square(0), f.square(1), false, nullptr).ok(), "a product once the library is there");
}

void failures_by_code() {
  Fixture f;
  const auto multiply = [&] { return f.backend->gemm(f.square(2), f.square(0), f.square(1), false, nullptr); };
  for (const auto& [result, code] : {std::pair{kCublasNoMemory, Code::memory},
                                     {kOutOfMemory, Code::memory},
                                     {kCublasFailure + 15, Code::backend},
                                     {kBadArgument, Code::unsupported}}) {
    result_of_products = result;
    says(multiply(), code, {"a matrix product on CUDA device 0", text(result)});
  }
  result_of_products = 0;
  check(multiply().ok(), "a product after failures");
  says(f.backend->gemm(f.square(2, 3), f.square(0), f.square(1), false, nullptr), Code::unsupported, {"a matrix product"});
  f.world->fail(Status(Code::peer, "rank 7 is gone"));
  says(multiply(), Code::peer, {"rank 7 is gone"});
}

}  // namespace

int main() {
  use_plugin(*megadp_cuda_plugin());
  in_the_callers_order();
  opened_at_first_use();
  no_library();
  failures_by_code();
  return finish();
}
