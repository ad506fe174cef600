// SPDX-License-Identifier: Apache-2.0
// Memory runs out in a step: each allocation of its calls in turn fails. A call that returns MDP_E_MEMORY has changed nothing, so it is
// made again and the step ends with the same bits; a learning rate that came with a failed step is forgotten. Or the failure is the
// communicator's, and all later calls tell it. Nothing leaks; and what a failed launch was copying lives on until it has been copied.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "failing_malloc.h"
#include "job.h"

namespace {

using namespace job;
using namespace failing_malloc;

constexpr int64_t kElements[] = {37, 100, 11};
constexpr size_t kParams = 3;
constexpr double kGivenRate = 0.5;

struct Kind {
  const char* name;
  mdp_sharding sharding;
  mdp_dtype dtype;
  int microbatches;
};

class Model {
 public:
  explicit Model(const Kind& kind) : kind_(kind) {
    mdp_comm_config config{};
    config.struct_size = sizeof config;
    config.size = 1;
    mdp_comm* made = nullptr;
    ok(mdp_comm_create(&config, nullptr, &made));
    comm_.reset(made);
    static const char* const names[kParams] = {"the first parameter of three", "the second parameter of three", "the third one"};
    mdp_param params[kParams]{};
    for (size_t p = 0; p < kParams; ++p) {
      params[p].struct_size = sizeof(mdp_param);
      params[p].name = names[p];
      params[p].dtype = kind.dtype;
      params[p].shape = &kElements[p];
      params[p].ndim = 1;
    }
    mdp_buffer_config registration{};
    registration.struct_size = sizeof registration;
    registration.sharding = kind.sharding;
    registration.bucket_elements = 64;
    mdp_buffer* registered = nullptr;
    ok(mdp_buffer_register(made, nullptr, &registration, params, kParams, &registered));
    buffer_.reset(registered);
    mdp_optimizer* created = nullptr;
    ok(mdp_optimizer_create(registered, nullptr, &created));
    optimizer_.reset(created);
  }

  // Whether the step was taken with the rate that it was given first.
  bool step(bool with_rate = true) const {
    for (int b = 0; b < kind_.microbatches; ++b) {
      repeated("mdp_microbatch_begin", [&] { return mdp_microbatch_begin(buffer_.get(), b == kind_.microbatches - 1); });
      for (size_t p = kParams; p-- > 0;) repeated("mdp_grad_put", [&] { return put(p, b); });
    }
    repeated("mdp_grad_sync", [&] { return mdp_grad_sync(buffer_.get(), nullptr, nullptr); });
    mdp_step_config faster{};
    faster.struct_size = sizeof faster;
    faster.lr = kGivenRate;
    const mdp_status status = with_rate ? mdp_optimizer_step(optimizer_.get(), &faster, nullptr, nullptr) : MDP_E_MEMORY;
    if (status == MDP_OK) return true;
    require_memory("mdp_optimizer_step with a rate", status);
    repeated("mdp_optimizer_step", [&] { return mdp_optimizer_step(optimizer_.get(), nullptr, nullptr, nullptr); });
    return false;
  }

  std::vector<float> params() const {
    std::vector<float> all;
    for (size_t p = 0; p < kParams; ++p) {
      std::vector<float> values(static_cast<size_t>(kElements[p]));
      const mdp_tensor to = floats(values.data(), p);
      ok(mdp_param_read(buffer_.get(), p, &to, nullptr));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  bool comm_failed() const {
    mdp_error_info info{};
    info.struct_size = sizeof info;
    ok(mdp_comm_error_info(comm_.get(), &info));
    return info.status != MDP_OK;
  }

 private:
  static mdp_tensor floats(float* values, size_t p) {
    mdp_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = MDP_DTYPE_F32;
    t.ndim = 1;
    t.data = values;
    t.shape = &kElements[p];
    return t;
  }

  mdp_status put(size_t p, int b) const {
    static float values[128];
    for (int64_t i = 0; i < kElements[p]; ++i) values[i] = static_cast<float>((i * 7 + static_cast<int64_t>(p) + b) % 11 - 5);
    const mdp_tensor from = floats(values, p);
    return mdp_grad_put(buffer_.get(), p, &from, 0, nullptr);
  }

  static void require_memory(const char* what, mdp_status status) {
    require(status == MDP_E_MEMORY, what, ": ", mdp_status_name(status), ": ", mdp_last_error());
  }

  // One allocation alone fails, so the second try has all it needs.
  template <class Call>
  static void repeated(const char* what, const Call& call) {
    const mdp_status status = call();
    if (status == MDP_OK) return;
    require_memory(what, status);
    const mdp_status again = call();
    require(again == MDP_OK, what, " made again: ", mdp_status_name(again), ": ", mdp_last_error());
  }

  const Kind kind_;
  Comm comm_;
  Buffer buffer_;
  Optimizer optimizer_;
};

// How an attempt at the allocation with this number ended.
enum class Ending {
  whole,
  comm_failed,
  too_few_allocations
};

Ending attempt(const Kind& kind, int64_t number, const std::vector<float>& with_rate, const std::vector<float>& without) {
  const Model model(kind);
  fail_at(number, Fails::one);
  bool rated = false;
  try {
    rated = model.step();
  } catch (const std::exception&) {
    if (stop_failing() == 0 || !model.comm_failed()) throw;
    return Ending::comm_failed;
  }
  const bool fired = stop_failing() > 0;
  require(model.params() == (rated ? with_rate : without), "the parameters are not those of a step with memory");
  return fired ? Ending::whole : Ending::too_few_allocations;
}

std::vector<float> expected(const Kind& kind, bool with_rate) {
  const Model model(kind);
  model.step(with_rate);
  return model.params();
}

bool run(const Kind& kind) {
  int64_t number = 0, comms = 0;
  try {
    const std::vector<float> with_rate = expected(kind, true), without = expected(kind, false);
    require(with_rate != without, "the rate changes nothing");
    const int64_t before = blocks.load();
    for (;; ++number) {
      const Ending ending = attempt(kind, number, with_rate, without);
      if (ending == Ending::too_few_allocations) break;
      comms += ending == Ending::comm_failed;
    }
    require(number > 20 && comms < number, "of ", number, " failures ", comms, " end the communicator");
    require(blocks.load() == before, blocks.load() - before, " blocks are not given back");
  } catch (const std::exception& error) {
    stop_failing();
    std::fprintf(stderr, "FAILED %s, allocation %lld: %s\n", kind.name, static_cast<long long>(number), error.what());
    return false;
  }
  std::printf("%s: %lld allocations, %lld of them end the communicator\n", kind.name, static_cast<long long>(number),
              static_cast<long long>(comms));
  return true;
}

// ── a launch that fails after the first of two copies ──

// ZeRO-2 with one slot. Bucket 1 waits for bucket 0, outside the pool, with a parameter that takes long to be copied and one behind it: the
// put of bucket 0 launches both.
class Spilled {
 public:
  Spilled() {
    mdp_comm_config config{};
    config.struct_size = sizeof config;
    config.size = 1;
    mdp_comm* made = nullptr;
    ok(mdp_comm_create(&config, nullptr, &made));
    comm_.reset(made);
    static const char* const names[kParams] = {"behind the large one", "large", "first"};
    mdp_param params[kParams]{};
    for (size_t p = 0; p < kParams; ++p) {
      params[p].struct_size = sizeof(mdp_param);
      params[p].dtype = MDP_DTYPE_F32;
      params[p].name = names[p];
      params[p].shape = p == kLarge ? &kMany : &kFew;
      params[p].ndim = 1;
      params[p].flags = p == kFirst ? uint32_t{MDP_PARAM_OWN_BUCKET} : 0;
    }
    mdp_buffer_config registration{};
    registration.struct_size = sizeof registration;
    registration.sharding = MDP_SHARDING_ZERO_2;
    registration.pool_buckets = 1;
    registration.bucket_elements = 2 * kMany;
    mdp_buffer* registered = nullptr;
    ok(mdp_buffer_register(made, nullptr, &registration, params, kParams, &registered));
    buffer_.reset(registered);
    for (const size_t p : {kBehind, kLarge}) {
      mdp_tensor lent{};
      lent.struct_size = sizeof lent;
      int32_t first = 0;
      ok(mdp_grad_acquire(registered, p, &lent, &first, nullptr));
      std::memset(lent.data, 0, static_cast<size_t>(lent.shape[0]) * sizeof(float));
      ok(mdp_grad_ready(registered, p, nullptr));
    }
  }

  mdp_status put_the_first() const {
    static float values[kFew]{};
    mdp_tensor from{};
    from.struct_size = sizeof from;
    from.dtype = MDP_DTYPE_F32;
    from.ndim = 1;
    from.data = values;
    from.shape = &kFew;
    return mdp_grad_put(buffer_.get(), kFirst, &from, 0, nullptr);
  }
  void destroy_buffer() { buffer_.reset(); }

 private:
  static constexpr int64_t kFew = 100, kMany = 12 << 20;
  static constexpr size_t kBehind = 0, kLarge = 1, kFirst = 2;
  Comm comm_;
  Buffer buffer_;
};

// The buffer goes at once: were the gradient freed with it, the thread that copies it would end this program.
bool copies_outlive_the_buffer() {
  int64_t number = 0;
  std::printf("copies outlive the buffer\n");
  std::fflush(stdout);
  try {
    for (;; ++number) {
      Spilled model;
      fail_at(number, Fails::one);
      const mdp_status status = model.put_the_first();
      if (stop_failing() == 0) break;
      require(status == MDP_OK || status == MDP_E_MEMORY, "mdp_grad_put: ", mdp_status_name(status), ": ", mdp_last_error());
      model.destroy_buffer();
    }
    require(number > 10, "only ", number, " allocations");
  } catch (const std::exception& error) {
    stop_failing();
    std::fprintf(stderr, "FAILED copies outlive the buffer, allocation %lld: %s\n", static_cast<long long>(number), error.what());
    return false;
  }
  return true;
}

}  // namespace

int main() {
  (void)mdp_log_set([](void*, mdp_log_level, const char*, size_t) {}, nullptr);  // that gradients wait outside the pool
  bool good = copies_outlive_the_buffer();
  for (const Kind& kind :
       {Kind{"ZeRO-1, f32", MDP_SHARDING_ZERO_1, MDP_DTYPE_F32, 1}, Kind{"ZeRO-0, f32", MDP_SHARDING_ZERO_0, MDP_DTYPE_F32, 1},
        Kind{"whole, f32, two microbatches", MDP_SHARDING_WHOLE, MDP_DTYPE_F32, 2},
        Kind{"ZeRO-1, bf16, two microbatches", MDP_SHARDING_ZERO_1, MDP_DTYPE_BF16, 2},
        Kind{"ZeRO-2, bf16, two microbatches", MDP_SHARDING_ZERO_2, MDP_DTYPE_BF16, 2}}) {
    good = run(kind) && good;
  }
  return good ? 0 : 1;
}
