// SPDX-License-Identifier: Apache-2.0
// Every entry of the plugin on a machine without a driver or without a device: a failure with a sentence that names CUDA's error, never a
// crash, and nothing handed out. Arguments that no device could make good are refused before one is asked for.
#include <cstdint>
#include <vector>

#include "base/rules.h"
#include "plugin_test.h"

using namespace megadp;
using namespace megadp::cuda;
using namespace megadp::test;

namespace {

void* const kUntouched = reinterpret_cast<void*>(uintptr_t{0x1234});
float memory[64];

Strided array(DType type, std::vector<int64_t> shape, std::vector<int64_t> strides) {
  Strided out{};
  out.data = memory;
  out.type = static_cast<uint32_t>(type);
  out.dimensions = static_cast<int32_t>(shape.size());
  for (size_t d = 0; d < shape.size(); d++) {
    out.shape[d] = shape[d];
    out.strides[d] = strides[d];
  }
  return out;
}

Update update_of(uint32_t rule, DType grad, DType param, uint64_t count, const StepScalars* scalars, const uint64_t* steps) {
  return {{1e-3, 0.9, 0.99, 1e-8, 0, 0},
          scalars,
          steps,
          memory,
          memory,
          {memory, memory, memory, memory},
          memory + 8,
          count,
          grad,
          param,
          rule};
}

void devices(const PluginTable& plugin, const char* error) {
  int32_t count = -7;
  names(plugin, plugin.device_count(&count), kCudaFailure, error, "device_count");
  check_equal(count, -7, "the count");
  DeviceInfo info{};
  names(plugin, plugin.device_info(0, &info), kCudaFailure, error, "device_info");
  check_equal(info.name[0], '\0', "the name");
  auto* device = static_cast<Device*>(kUntouched);
  names(plugin, plugin.device_open(0, &device), kCudaFailure, error, "device_open");
  check(device == kUntouched, "device_open handed something out");
  plugin.device_close(nullptr);
  plugin.poison(nullptr);
  check_equal(plugin.host_syncs(nullptr), 0U, "host_syncs");
}

void memory_and_streams(const PluginTable& plugin, const char* error) {
  void* out = kUntouched;
  names(plugin, plugin.allocate(nullptr, 64, &out), kCudaFailure, error, "allocate");
  names(plugin, plugin.allocate_pinned(nullptr, 64, &out), kCudaFailure, error, "allocate_pinned");
  names(plugin, plugin.release(nullptr, memory), kCudaFailure, "cudaError", "release");
  names(plugin, plugin.release_pinned(nullptr, memory), kCudaFailure, "cudaError", "release_pinned");
  Access access = Access::managed;
  names(plugin, plugin.access(nullptr, memory, &access), kCudaFailure, error, "access");
  check(access == Access::managed, "access answered");
  names(plugin, plugin.copy(nullptr, nullptr, memory, memory + 32, 16), kCudaFailure, error, "copy");
  names(plugin, plugin.zero(nullptr, nullptr, memory, 16), kCudaFailure, error, "zero");
  names(plugin, plugin.stream_create(nullptr, true, &out), kCudaFailure, error, "stream_create");
  names(plugin, plugin.stream_synchronize(nullptr, nullptr), kCudaFailure, error, "stream_synchronize");
  names(plugin, plugin.stream_destroy(nullptr, nullptr), kCudaFailure, "cudaError", "stream_destroy");
  names(plugin, plugin.event_create(nullptr, &out), kCudaFailure, error, "event_create");
  names(plugin, plugin.event_destroy(nullptr, nullptr), kCudaFailure, "cudaError", "event_destroy");
  names(plugin, plugin.event_record(nullptr, nullptr, nullptr), kCudaFailure, "cudaError", "event_record");
  names(plugin, plugin.event_query(nullptr, nullptr), kCudaFailure, "cudaError", "event_query");
  names(plugin, plugin.stream_wait(nullptr, nullptr, nullptr), kCudaFailure, "cudaError", "stream_wait");
  float milliseconds = -1;
  names(plugin, plugin.event_elapsed(nullptr, nullptr, nullptr, &milliseconds), kCudaFailure, "cudaError", "event_elapsed");
  check(out == kUntouched, "something was handed out");
}

void kernels(const PluginTable& plugin, const char* error) {
  const DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8};
  for (const DType to : types) {
    for (const DType from : types) {
      const bool converts = to == from || (to != DType::i64 && to != DType::u8 && from != DType::i64 && from != DType::u8);
      const int32_t kind = converts ? kCudaFailure : kOwnFailure;
      const char* const word = converts ? error : "type";
      names(plugin, plugin.cast(nullptr, nullptr, memory, to, memory + 32, from, 8), kind, word, "cast");
      const Strided turned_to = array(to, {2, 3}, {3, 1}), turned_from = array(from, {2, 3}, {1, 2});
      const Strided gaps_from = array(from, {2, 3}, {8, 2});
      for (const bool add : {false, true}) {
        names(plugin, plugin.copy_strided(nullptr, nullptr, &turned_to, &turned_from, add), kind, word, "a turned copy");
        names(plugin, plugin.copy_strided(nullptr, nullptr, &turned_to, &gaps_from, add), kind, word, "a copy with gaps");
        const Strided dense_from = array(from, {2, 3}, {3, 1});
        names(plugin, plugin.copy_strided(nullptr, nullptr, &turned_to, &dense_from, add), kind, word, "a dense copy");
      }
    }
    for (const Op op : {Op::sum, Op::avg, Op::max, Op::min}) {
      names(plugin, plugin.reduce(nullptr, nullptr, memory, memory, 8, 3, 8, to, op, 1), kCudaFailure, error, "reduce");
    }
  }
  StepScalars scalars{};
  uint64_t zeros = 0;
  float largest = 0;
  const StepSettings settings{1, 1, 0, Norm::l2};
  uint64_t count = 0;
  names(plugin, plugin.begin_step(nullptr, nullptr, &scalars, &settings), kCudaFailure, error, "begin_step");
  names(plugin, plugin.count_steps(nullptr, nullptr, &scalars, &count, 1), kCudaFailure, error, "count_steps");
  names(plugin, plugin.refresh_masters(nullptr, nullptr, &largest, memory, DType::bf16, 1), kCudaFailure, error, "refresh_masters");
  for (const DType grad : {DType::f32, DType::bf16, DType::f16}) {
    names(plugin, plugin.scale(nullptr, nullptr, memory, grad, 8, 0.5F), kCudaFailure, error, "scale");
    names(plugin, plugin.square_sum(nullptr, nullptr, memory, grad, 8, &scalars.square_sum), kCudaFailure, "cudaErrorInvalidDevice",
          "square_sum");
    names(plugin, plugin.extremes(nullptr, nullptr, memory, grad, 8, &zeros, &largest), kCudaFailure, error, "extremes");
    names(plugin, plugin.round_with_feedback(nullptr, nullptr, memory, &largest, &largest, 1), kCudaFailure, error, "round_with_feedback");
    names(plugin, plugin.find_nonfinite(nullptr, nullptr, memory, grad, 8, 0, &zeros), kCudaFailure, error, "find_nonfinite");
    CrossEntropy loss;
    loss.type = grad;
    loss.tokens = 1;
    for (const auto pass : {CrossEntropyPass::scores, CrossEntropyPass::losses, CrossEntropyPass::gradient}) {
      names(plugin, plugin.cross_entropy(nullptr, nullptr, &loss, pass), kCudaFailure, error, "cross_entropy");
    }
    AttentionMerge merge;
    merge.batches = merge.rows = merge.features = 1;
    names(plugin, plugin.merge_attention(nullptr, nullptr, &merge), kCudaFailure, error, "merge_attention");
    for (const DType param : {DType::f32, DType::bf16, DType::f16}) {
      Lookup lookup;
      lookup.tokens = lookup.features = 1;
      lookup.rows = 1;
      lookup.table_type = grad;
      lookup.output_type = param;
      names(plugin, plugin.look_up(nullptr, nullptr, &lookup, false), kCudaFailure, error, "look_up");
      names(plugin, plugin.look_up(nullptr, nullptr, &lookup, true), kCudaFailure, error, "look_up of gradients");
      for (uint32_t rule = 0; rule < kRules; rule++) {
        const Update update = update_of(rule, grad, param, 8, &scalars, &count);
        names(plugin, plugin.update(nullptr, nullptr, &update), kCudaFailure, error, "update");
      }
    }
  }
}

void refused_without_asking(const PluginTable& plugin) {
  StepScalars scalars{};
  uint64_t zeros = 0;
  float largest = 0;
  uint64_t count = 0;
  const auto refused = [&](int32_t result, const char* what) { names(plugin, result, kOwnFailure, "does not know", what); };
  refused(plugin.square_sum(nullptr, nullptr, memory, DType::f64, 8, &scalars.square_sum), "square_sum of f64");
  refused(plugin.extremes(nullptr, nullptr, memory, DType::f64, 8, &zeros, &largest), "extremes of f64");
  refused(plugin.find_nonfinite(nullptr, nullptr, memory, DType::f64, 8, 0, &zeros), "find_nonfinite in f64");
  refused(plugin.scale(nullptr, nullptr, memory, DType::f64, 8, 0.5F), "scaling f64");
  Lookup lookup;
  lookup.tokens = lookup.features = 1;
  lookup.table_type = DType::f64;
  refused(plugin.look_up(nullptr, nullptr, &lookup, false), "rows of f64");
  CrossEntropy loss;
  loss.tokens = 1;
  loss.type = DType::i64;
  refused(plugin.cross_entropy(nullptr, nullptr, &loss, CrossEntropyPass::scores), "logits of i64");
  const auto refused_update = [&](uint32_t rule, DType grad, DType param, const char* what) {
    const Update update = update_of(rule, grad, param, 8, &scalars, &count);
    refused(plugin.update(nullptr, nullptr, &update), what);
  };
  refused_update(0, DType::f64, DType::f32, "f64 gradient");
  refused_update(0, DType::f32, DType::i64, "i64 parameter");
  refused_update(kRules, DType::f32, DType::f32, "a rule that is none");
  refused(plugin.reduce(nullptr, nullptr, memory, memory, 8, 0, 8, DType::f32, Op::sum, 1), "no parts");
  refused(plugin.reduce(nullptr, nullptr, memory, memory, 8, 2, 8, DType::f32, Op::max, 2), "a divided maximum");
  refused(plugin.reduce(nullptr, nullptr, memory, memory, 8, 2, 8, DType::i64, Op::sum, 2), "divided integers");
  refused(plugin.reduce(nullptr, nullptr, memory, memory, 8, 2, 8, static_cast<DType>(1), Op::sum, 1), "a type that is none");
  const Strided one = array(DType::f32, {2}, {1}), other = array(DType::f32, {3}, {1}), still = array(DType::f32, {2}, {0});
  refused(plugin.copy_strided(nullptr, nullptr, &one, &other, false), "shapes that differ");
  refused(plugin.copy_strided(nullptr, nullptr, &still, &one, false), "a target with stride 0");
}

void nothing_to_do(const PluginTable& plugin) {
  StepScalars scalars{};
  uint64_t zeros = 0;
  float largest = 0;
  uint64_t count = 0;
  const Strided none = array(DType::f32, {2, 0}, {1, 1});
  check_equal(plugin.copy(nullptr, nullptr, memory, memory, 0), 0, "copy of nothing");
  check_equal(plugin.zero(nullptr, nullptr, memory, 0), 0, "zero of nothing");
  check_equal(plugin.cast(nullptr, nullptr, memory, DType::f32, memory, DType::bf16, 0), 0, "cast of nothing");
  check_equal(plugin.cast(nullptr, nullptr, memory, DType::f32, memory, DType::f32, 9), 0, "cast of an array to itself");
  check_equal(plugin.copy_strided(nullptr, nullptr, &none, &none, true), 0, "copy_strided of nothing");
  check_equal(plugin.square_sum(nullptr, nullptr, memory, DType::f32, 0, &scalars.square_sum), 0, "square_sum of nothing");
  check_equal(plugin.extremes(nullptr, nullptr, memory, DType::f32, 0, &zeros, &largest), 0, "extremes of nothing");
  check_equal(plugin.round_with_feedback(nullptr, nullptr, memory, &largest, &largest, 0), 0, "rounding nothing");
  check_equal(plugin.refresh_masters(nullptr, nullptr, &largest, memory, DType::bf16, 0), 0, "refresh_masters of nothing");
  check_equal(plugin.find_nonfinite(nullptr, nullptr, memory, DType::f32, 0, 0, &zeros), 0, "find_nonfinite in nothing");
  check_equal(plugin.count_steps(nullptr, nullptr, &scalars, &count, 0), 0, "counting nothing");
  check_equal(plugin.scale(nullptr, nullptr, memory, DType::f32, 0, 0.5F), 0, "scaling nothing");
  const Update update = update_of(0, DType::f32, DType::f32, 0, &scalars, &count);
  check_equal(plugin.update(nullptr, nullptr, &update), 0, "update of nothing");
  check_equal(plugin.reduce(nullptr, nullptr, memory, memory, 8, 2, 0, DType::f32, Op::sum, 1), 0, "reduce of nothing");
  const Lookup no_rows;
  check_equal(plugin.look_up(nullptr, nullptr, &no_rows, true), 0, "rows of nothing");
  const CrossEntropy no_tokens;
  check_equal(plugin.cross_entropy(nullptr, nullptr, &no_tokens, CrossEntropyPass::losses), 0, "losses of nothing");
}

void sentences(const PluginTable& plugin) {
  check_equal(sentence(plugin, 0), std::string("done"));
  check_equal(sentence(plugin, kPending), std::string("not done yet"));
  check_equal(sentence(plugin, kOutOfMemory), std::string("cudaErrorMemoryAllocation (2): out of memory"));
  check(sentence(plugin, kNcclRemoteFailure).find("ncclRemoteError (6)") == 0, "ncclRemoteError has no name");
  check_equal(sentence(plugin, kCublasFailure + 15), std::string("CUBLAS_STATUS_NOT_SUPPORTED (15)"));
  check(sentence(plugin, kAborted).find("aborted") != std::string::npos, "kAborted has no sentence");
  for (const int32_t strange :
       {-1, 2, 99, kCudaFailure + 54321, kNcclFailure + 77, kOwnFailure + 77, kCublasFailure + 77, INT32_MIN, INT32_MAX}) {
    check(!sentence(plugin, strange).empty(), text("no sentence for ", strange));
  }
  char tiny[5] = "";
  plugin.explain(kOutOfMemory, nullptr, tiny, sizeof tiny);
  check_equal(std::string(tiny), std::string("cuda"), "a sentence that is cut");
}

}  // namespace

int main(int, char** arguments) {
  const PluginTable* const plugin = load_plugin(arguments[1]);
  if (plugin == nullptr) return finish();
  sentences(*plugin);
  refused_without_asking(*plugin);
  nothing_to_do(*plugin);
  int32_t count = 0;
  const int32_t found = plugin->device_count(&count);
  if (found == 0 && count > 0) {
    std::cerr << "there is a device here: what happens without one is not tried\n";
    return finish();
  }
  const std::string said = sentence(*plugin, found);
  const char* const error = said.find("cudaErrorNoDevice") == 0 ? "cudaErrorNoDevice" : "cudaErrorInsufficientDriver";
  devices(*plugin, error);
  memory_and_streams(*plugin, error);
  kernels(*plugin, error);
  return finish();
}
