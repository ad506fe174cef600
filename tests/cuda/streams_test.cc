// SPDX-License-Identifier: Apache-2.0
// Streams of the caller's that are held up by what was put there before: what calls on other streams share with them stays as it is until
// they have passed, and what was begun on one is not left by half.
#include <chrono>
#include <cstdint>

#include "standin.h"
#include "standin_job.h"

namespace {

using namespace job;
namespace standin = megadp::standin;
using std::chrono::milliseconds;

class CallersStream {
 public:
  CallersStream() { require(plugin().stream_create(nullptr, false, &stream_) == 0, "no stream"); }
  ~CallersStream() {
    plugin().stream_synchronize(nullptr, stream_);
    plugin().stream_destroy(nullptr, stream_);
  }
  CallersStream(const CallersStream&) = delete;
  CallersStream& operator=(const CallersStream&) = delete;
  mdp_stream get() const { return stream_; }
  void pass() const { plugin().stream_synchronize(nullptr, stream_); }

 private:
  void* stream_ = nullptr;
};

// What comes next on the stream waits for so long.
void hold_up(void* stream, milliseconds time) {
  standin::queue_of(nullptr, stream)->submit([time] { std::this_thread::sleep_for(time); });
}

// ── layers of two types on one communicator ──

mdp_tensor array(const DeviceFloats& memory, const std::vector<int64_t>& shape, mdp_dtype type, int device) {
  mdp_tensor tensor = floats(memory.data(), shape, device);
  tensor.dtype = type;
  return tensor;
}

// A layer from one feature to one with a bias, for so many tokens: what it reads and writes lives as long as it.
class Layer {
 public:
  Layer(const KindRank& rank, mdp_dtype type, size_t tokens)
      : type_(type),
        device_(rank.rank),
        shape_{static_cast<int64_t>(tokens), 1},
        x_(std::vector<float>(tokens)),
        y_(std::vector<float>(tokens)) {
    mdp_tp_linear_config config{};
    config.struct_size = sizeof config;
    config.split = MDP_TP_COLUMN;
    config.in_features = config.out_features = 1;
    config.dtype = type;
    config.flags = MDP_TP_LINEAR_BIAS;
    ok(mdp_tp_linear_create(rank.comm.get(), &config, &layer_));
  }
  ~Layer() { mdp_tp_linear_destroy(layer_); }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  void forward(const CallersStream& on) const {
    const std::vector<int64_t> one = {1}, square = {1, 1};
    const mdp_tensor x = array(x_, shape_, type_, device_), y = array(y_, shape_, type_, device_);
    const mdp_tensor weight = array(weight_, square, type_, device_), bias = array(bias_, one, type_, device_);
    ok(mdp_tp_linear_fwd(layer_, &x, &weight, &bias, &y, on.get(), nullptr));
  }
  std::vector<float> output() const { return y_.values(); }

 private:
  const mdp_dtype type_;
  const int device_;
  const std::vector<int64_t> shape_;
  const DeviceFloats x_, y_, weight_{{1}}, bias_{{1000}};
  mdp_tp_linear* layer_ = nullptr;
};

// The bias is added by a column of ones, which is the communicator's.
void layers_of_two_types(KindRank& rank) {
  constexpr size_t kTokens = 64;
  const CallersStream first, second;
  const Layer f32(rank, MDP_DTYPE_F32, kTokens), bf16(rank, MDP_DTYPE_BF16, 2 * kTokens), more(rank, MDP_DTYPE_F32, 4 * kTokens);
  hold_up(first.get(), milliseconds(100));
  f32.forward(first);
  bf16.forward(second);
  more.forward(second);
  first.pass();
  second.pass();
  require(f32.output() == std::vector<float>(kTokens, 1000), "with ones of another type ", f32.output()[0], " instead of 1000");
  require(more.output() == std::vector<float>(4 * kTokens, 1000), "with more ones ", more.output().back(), " instead of 1000");
}

// ── a halo that is exchanged on one stream, and then on another ──

class Halo {
 public:
  explicit Halo(const KindRank& rank) : device_(rank.rank) {
    const int64_t grid = 2, part = 1, width = 1;
    const mdp_edge edge = MDP_EDGE_PERIODIC;
    mdp_halo_config config{};
    config.struct_size = sizeof config;
    config.ndim = 1;
    config.grid = &grid;
    config.shape = &part;
    config.low = config.high = &width;
    config.edges = &edge;
    ok(mdp_halo_create(rank.comm.get(), &config, &halo_));
  }
  ~Halo() { mdp_halo_destroy(halo_); }
  Halo(const Halo&) = delete;
  Halo& operator=(const Halo&) = delete;
  void start(const DeviceFloats& field, const CallersStream& on) const {
    const std::vector<int64_t> padded = {3};
    const mdp_tensor tensor = floats(field.data(), padded, device_);
    ok(mdp_halo_start(halo_, &tensor, 1, 0, on.get()));
  }
  void finish(const CallersStream& on) const { ok(mdp_halo_finish(halo_, on.get())); }

 private:
  const int device_;
  mdp_halo* halo_ = nullptr;
};

// What rank 1 sends and takes first is held up before it is packed; what comes to rank 0, before it is unpacked. The second exchange is on
// streams that nothing holds up.
void halo_on_two_streams(KindRank& rank) {
  const float mine = static_cast<float>(rank.rank), theirs = 1 - mine;
  const DeviceFloats first({0, 10 + mine, 0}), second({0, 20 + mine, 0});
  const CallersStream slow, other;
  const Halo halo(rank);
  ok(mdp_barrier(rank.comm.get(), nullptr));
  if (rank.rank == 1) hold_up(slow.get(), milliseconds(100));
  halo.start(first, slow);
  if (rank.rank == 0) hold_up(slow.get(), milliseconds(300));
  halo.finish(slow);
  halo.start(second, other);
  halo.finish(other);
  slow.pass();
  other.pass();
  const auto holds = [&](const DeviceFloats& field, float base) {
    const std::vector<float> found = field.values();
    require(found == std::vector<float>{base + theirs, base + mine, base + theirs}, "the halo of ", base, " is ", found[0]);
  };
  holds(first, 10);
  holds(second, 20);
  ok(mdp_barrier(rank.comm.get(), nullptr));
}

// ── an array of the host that goes in several parts ──

std::atomic<bool> slows{false};
std::atomic<int> parts{0};

// The stand-in's table; where a part has been copied, what comes next is held up.
const megadp::cuda::PluginTable& slow_between_parts() {
  static const megadp::cuda::PluginTable table = [] {
    megadp::cuda::PluginTable out = plugin();
    out.stream_synchronize = [](megadp::cuda::Device* device, void* stream) {
      const int32_t result = plugin().stream_synchronize(device, stream);
      if (slows) {
        ++parts;
        standin::queue_of(device, stream)->submit([] { std::this_thread::sleep_for(milliseconds(150)); });
      }
      return result;
    };
    return out;
  }();
  return table;
}

// Who is asked says that it is enough, once a part is there.
void interrupted_between_parts() {
  mdp_comm_config config{};
  config.struct_size = sizeof config;
  config.backend = MDP_BACKEND_CUDA;
  config.size = 1;
  config.interrupted = [](void*) { return parts > 0 ? int32_t{1} : int32_t{0}; };
  mdp_unique_id id;
  ok(mdp_unique_id_create(&id));
  mdp_comm* made = nullptr;
  ok(mdp_comm_create(&config, &id, &made));
  const KindRank rank{Comm(made), 0, 1};
  const std::vector<int64_t> shape = {2, int64_t{5} << 19};  // 20 MiB
  mdp_grid* grid = nullptr;
  ok(mdp_grid_create(rank.comm.get(), nullptr, &grid));
  const Grid kept_grid(grid);
  mdp_param param{};
  param.struct_size = sizeof param;
  param.name = "large";
  param.shape = shape.data();
  param.ndim = 2;
  mdp_buffer* buffer = nullptr;
  ok(mdp_buffer_register(nullptr, grid, nullptr, &param, 1, &buffer));
  const Buffer kept_buffer(buffer);
  std::vector<float> values(static_cast<size_t>(shape[0] * shape[1]), 1);
  const mdp_tensor tensor = floats(values.data(), shape, kOnHost);
  slows = true;
  const mdp_status status = mdp_grad_put(buffer, 0, &tensor, 0, nullptr);
  slows = false;
  require(status == MDP_OK, "a gradient of ", parts.load(), " parts was left by half: ", mdp_status_name(status), ": ", mdp_last_error());
  require(parts > 1, "it went in one part");
  parts = 0;
  ok(mdp_grad_sync(buffer, nullptr, nullptr));
}

}  // namespace

int main() {
  megadp::cuda::use_plugin(slow_between_parts());
  bool good = run_kind("layers of two types", {}, 1, layers_of_two_types);
  good = run_kind("a halo on two streams", {}, 2, halo_on_two_streams) && good;
  std::vector<std::string> failures(1);
  try {
    interrupted_between_parts();
  } catch (const std::exception& error) {
    failures[0] = error.what();
  }
  good = report("interrupted between parts", failures) && good;
  standin::wait_for_threads();
  return good ? 0 : 1;
}
