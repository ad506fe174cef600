// SPDX-License-Identifier: Apache-2.0
// Ranks as threads over the public API, with the CUDA backend on the stand-in for its plugin; and arrays in the stand-in's memory.
#pragma once

#include <atomic>
#include <cstring>

#include "cuda/plugin_library.h"
#include "job.h"

namespace job {

struct Kind {  // of communicator
  mdp_backend backend = MDP_BACKEND_CUDA;
  uint64_t flags = MDP_COMM_EXACT_SUMS;
  uint64_t timeout_ns = 60'000'000'000;
};

inline const megadp::cuda::PluginTable& plugin() {
  return *megadp_cuda_plugin();
}

// A rank of run_kind() may end its communicator itself, by moving it out.
struct KindRank {
  Comm comm;
  int rank, size;
};

inline bool run_kind(const std::string& name, const Kind& kind, int size, const std::function<void(KindRank&)>& body) {
  mdp_unique_id id;
  ok(mdp_unique_id_create(&id));
  std::vector<std::string> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int number = 0; number < size; ++number) {
    threads.emplace_back([&, number] {
      KindRank rank{nullptr, number, size};
      try {
        mdp_comm_config config{};
        config.struct_size = sizeof config;
        config.backend = kind.backend;
        config.rank = number;
        config.size = size;
        config.timeout_ns = kind.timeout_ns;
        config.flags = kind.flags;
        mdp_comm* made = nullptr;
        ok(mdp_comm_create(&config, &id, &made));
        rank.comm.reset(made);
        body(rank);
      } catch (const std::exception& error) {
        if (rank.comm) mdp_comm_abort(rank.comm.get());
        failures[static_cast<size_t>(number)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return report(name + " (" + std::to_string(size) + " ranks)", failures);
}

// The failure of the communicator, once it is known.
inline mdp_error_info failure_of(const KindRank& rank) {
  mdp_error_info info{};
  info.struct_size = sizeof info;
  for (int i = 0; i < 6000; ++i) {  // a minute
    ok(mdp_comm_error_info(rank.comm.get(), &info));
    if (info.status != MDP_OK) return info;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  fail("the failure was never noticed");
}

// Dense floats on the device.
class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values) : count_(values.size()) {
    require(plugin().allocate(nullptr, bytes(), &data_) == 0, "no memory on the stand-in");
    std::memcpy(data_, values.data(), bytes());  // nothing is on the device's streams yet
  }
  ~DeviceFloats() { plugin().release(nullptr, data_); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  float* data() const { return static_cast<float*>(data_); }
  // After the work that writes it has been waited for.
  std::vector<float> values() const { return {data(), data() + count_}; }

 private:
  size_t bytes() const { return count_ * sizeof(float); }
  const size_t count_;
  void* data_ = nullptr;
};

constexpr int kOnHost = -1;
inline mdp_tensor floats(void* data, const std::vector<int64_t>& shape, int device, const int64_t* strides = nullptr) {
  mdp_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = MDP_DTYPE_F32;
  tensor.device_type = device == kOnHost ? 1 : 2;
  tensor.device_id = device == kOnHost ? 0 : device;
  tensor.ndim = static_cast<int32_t>(shape.size());
  tensor.shape = shape.data();
  tensor.strides = strides;
  tensor.data = data;
  return tensor;
}

// A model of three parameters, its gradients being functions of rank, step and place.
struct Setup {
  mdp_dtype param = MDP_DTYPE_F32;
  mdp_sharding sharding = MDP_SHARDING_ZERO_1;
  double max_grad_norm = 0;
  uint64_t flags = 0;        // of the buffer
  bool second_bf16 = false;  // the second parameter, whatever the others are
  bool skips = false;        // steps 2 and 3: the second parameter on all ranks; step 2: the third on rank 0
  mdp_rule rule = MDP_RULE_ADAMW;
};

inline const std::vector<std::vector<int64_t>> kShapes = {{40, 30}, {1000}, {17, 5}};

inline size_t numel(size_t param) {
  size_t count = 1;
  for (const int64_t size : kShapes[param]) count *= static_cast<size_t>(size);
  return count;
}

class Model {
 public:
  Model(const KindRank& rank, const Setup& setup) : rank_(rank.rank), skips_(setup.skips) {
    std::vector<mdp_param> params(kShapes.size());
    const char* const names[] = {"first", "second", "third"};
    for (size_t p = 0; p < params.size(); ++p) {
      params[p] = {};
      params[p].struct_size = sizeof(mdp_param);
      params[p].dtype = setup.second_bf16 && p == 1 ? mdp_dtype{MDP_DTYPE_BF16} : setup.param;
      params[p].name = names[p];
      params[p].shape = kShapes[p].data();
      params[p].ndim = static_cast<int32_t>(kShapes[p].size());
    }
    mdp_grid* grid = nullptr;
    ok(mdp_grid_create(rank.comm.get(), nullptr, &grid));
    grid_.reset(grid);
    mdp_buffer_config config{};
    config.struct_size = sizeof config;
    config.sharding = setup.sharding;
    config.bucket_elements = 500;
    config.flags = setup.flags;
    mdp_buffer* buffer = nullptr;
    ok(mdp_buffer_register(nullptr, grid, &config, params.data(), params.size(), &buffer));
    buffer_.reset(buffer);
    for (size_t p = 0; p < params.size(); ++p) {
      std::vector<float> values(numel(p));
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01F * static_cast<float>((p * 7919 + i * 31) % 200) - 1;
      const mdp_tensor tensor = floats(values.data(), kShapes[p], kOnHost);
      ok(mdp_param_write(buffer, p, &tensor, nullptr));
    }
    rule_.struct_size = sizeof rule_;
    rule_.rule = setup.rule;
    rule_.lr = 0.01;
    rule_.weight_decay = 0.1;
    rule_.max_grad_norm = setup.max_grad_norm;
    mdp_optimizer* optimizer = nullptr;
    ok(mdp_optimizer_create(buffer, &rule_, &optimizer));
    optimizer_.reset(optimizer);
  }

  mdp_buffer* buffer() const { return buffer_.get(); }
  mdp_optimizer* optimizer() const { return optimizer_.get(); }
  const mdp_optimizer_config& rule() const { return rule_; }

  std::vector<float> gradient(size_t p, int step) const {
    std::vector<float> values(numel(p));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto mixed = p * 131 + i * 17 + static_cast<size_t>(rank_) * 29 + static_cast<size_t>(step) * 53;
      values[i] = 0.1F * static_cast<float>(mixed % 64) - 3.2F;
    }
    return values;
  }
  void put(size_t p, std::vector<float> values) const {
    const mdp_tensor tensor = floats(values.data(), kShapes[p], kOnHost);
    ok(mdp_grad_put(buffer(), p, &tensor, 0, nullptr));
  }
  void backward(int step) const {
    for (size_t p = kShapes.size(); p-- > 0;) {
      const bool skipped = skips_ && ((p == 1 && (step == 2 || step == 3)) || (p == 2 && step == 2 && rank_ == 0));
      if (skipped) {
        ok(mdp_grad_skip(buffer(), p));
      } else {
        put(p, gradient(p, step));
      }
    }
    ok(mdp_grad_sync(buffer(), nullptr, nullptr));
  }
  std::vector<std::vector<float>> read() const {
    std::vector<std::vector<float>> all;
    for (size_t p = 0; p < kShapes.size(); ++p) {
      all.emplace_back(numel(p));
      const mdp_tensor tensor = floats(all.back().data(), kShapes[p], kOnHost);
      ok(mdp_param_read(buffer(), p, &tensor, nullptr));
    }
    return all;
  }
  // The parameters' own memory, which the stand-in lets the host look at: for when calls that wait for the device are refused.
  std::vector<std::vector<float>> look() const {
    std::vector<std::vector<float>> all;
    for (size_t p = 0; p < kShapes.size(); ++p) {
      mdp_tensor view{};
      view.struct_size = sizeof view;
      ok(mdp_buffer_param_view(buffer(), p, &view));
      const auto* const data = static_cast<const float*>(view.data);
      all.emplace_back(data, data + numel(p));
    }
    return all;
  }
  uint64_t host_syncs() const {
    mdp_stats_report stats{};
    stats.struct_size = sizeof stats;
    ok(mdp_buffer_stats(buffer(), &stats));
    return stats.host_syncs;
  }

 private:
  int rank_;
  bool skips_;
  mdp_optimizer_config rule_{};
  Grid grid_;
  Buffer buffer_;
  Optimizer optimizer_;
};

inline mdp_step_report empty_report() {
  mdp_step_report report{};
  report.struct_size = sizeof report;
  return report;
}

}  // namespace job
