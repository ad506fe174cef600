// SPDX-License-Identifier: Apache-2.0
// How fast the plugin multiplies squares on a device, as a line of JSON; scripts/gpu_check makes a table of it. Skipped (77) where there is
// no device or no cuBLASLt.
// gemm_speed PLUGIN [SIZE]
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "plugin_test.h"

using namespace megadp;
using namespace megadp::cuda;
using namespace megadp::test;

namespace {

const PluginTable* plugin;
Device* device;
void* stream;

void must(int32_t result, const char* what) {
  if (!check(result == 0, text(what, ": ", sentence(*plugin, result)))) std::exit(finish());
}

// Small whole numbers, which both types have: zeros would take less power, and so be faster than anything real.
void* filled(DType type, size_t count) {
  const auto fill = [count](auto* to, auto element) {
    for (size_t i = 0; i < count; i++) to[i] = element(static_cast<float>((i * 7 + i / 64) % 13) - 6);
  };
  std::vector<std::byte> values(count * size_of(type));
  if (type == DType::f32) fill(reinterpret_cast<float*>(values.data()), [](float x) { return x; });
  if (type == DType::bf16) {
    fill(reinterpret_cast<uint16_t*>(values.data()), [](float x) {
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      return static_cast<uint16_t>(bits >> 16);
    });
  }
  void* memory = nullptr;
  must(plugin->allocate(device, values.size(), &memory), "allocate");
  must(plugin->copy(device, stream, memory, values.data(), values.size()), "copy");
  must(plugin->stream_synchronize(device, stream), "stream_synchronize");
  return memory;
}

// Milliseconds: the median of these rounds, after others that find the algorithm and warm the device up.
double median(Gemm* gemm, DType type, int64_t size) {
  constexpr int kWarm = 10, kRounds = 30;
  const auto count = static_cast<size_t>(size * size);
  const auto matrix = [size, type](void* data) { return Matrix{data, type, size, size, size, 1}; };
  const Matrix a = matrix(filled(type, count)), b = matrix(filled(type, count)), c = matrix(filled(type, count));
  void *begin = nullptr, *end = nullptr;
  must(plugin->event_create(device, &begin), "event_create");
  must(plugin->event_create(device, &end), "event_create");
  std::vector<double> taken;
  for (int round = 0; round < kWarm + kRounds; round++) {
    must(plugin->event_record(device, begin, stream), "event_record");
    must(plugin->gemm(gemm, stream, &c, &a, &b, false), "a product");
    must(plugin->event_record(device, end, stream), "event_record");
    must(plugin->stream_synchronize(device, stream), "stream_synchronize");
    float milliseconds = 0;
    must(plugin->event_elapsed(device, begin, end, &milliseconds), "event_elapsed");
    if (round >= kWarm) taken.push_back(milliseconds);
  }
  for (void* const event : {begin, end}) must(plugin->event_destroy(device, event), "event_destroy");
  for (const Matrix& one : {a, b, c}) must(plugin->release(device, one.data), "release");
  std::sort(taken.begin(), taken.end());
  return taken[taken.size() / 2];
}

}  // namespace

int main(int count_of_arguments, char** arguments) {
  const int64_t size = count_of_arguments > 2 ? std::atoll(arguments[2]) : 4096;
  plugin = load_plugin(arguments[1]);
  if (plugin == nullptr || !check(size > 0, "SIZE is at least 1")) return finish();
  int32_t count = 0;
  if (const int32_t result = plugin->device_count(&count); result != 0 || count == 0) {
    std::cerr << "skipped: " << (result != 0 ? sentence(*plugin, result) : "there is no device") << "\n";
    return 77;
  }
  must(plugin->device_open(0, &device), "device_open");
  must(plugin->stream_create(device, false, &stream), "stream_create");
  Gemm* gemm = nullptr;
  char why[512] = "";
  if (plugin->gemm_open(device, nullptr, &gemm, why, sizeof why) != 0) {
    std::cerr << "skipped: " << why << "\n";
    return 77;
  }
  std::cout << "{\"cublaslt\": " << plugin->gemm_version(gemm) << ", \"size\": " << size;
  for (const DType type : {DType::f32, DType::bf16}) {
    const double milliseconds = std::max(median(gemm, type, size), 1e-6);  // the stand-in may take none
    const double tflops = 2 * std::pow(static_cast<double>(size), 3) / milliseconds / 1e9;
    std::cout << ", \"" << name_of(type) << "\": {\"median_ms\": " << milliseconds << ", \"tflops\": " << tflops << "}";
  }
  std::cout << "}\n";
  plugin->gemm_close(gemm);
  must(plugin->stream_destroy(device, stream), "stream_destroy");
  plugin->device_close(device);
  return finish();
}
