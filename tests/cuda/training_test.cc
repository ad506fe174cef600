// SPDX-License-Identifier: Apache-2.0
// Training on the CUDA backend over the public API, on the stand-in for its plugin: the host backend's bits, no waiting in a step, arrays
// of either memory, and streams of the program's.
#include <algorithm>
#include <cmath>

#include "api/dlpack_abi.h"
#include "standin.h"
#include "standin_job.h"

extern "C" void standin_on_default_stream(void (*work)(void*), void* user);

namespace {

using namespace job;

struct Outcome {
  std::vector<std::vector<float>> values;
  std::vector<double> norms;
  bool operator==(const Outcome& other) const { return values == other.values && norms == other.norms; }
};

Outcome trained(const Kind& kind, int ranks, const Setup& setup, bool* good) {
  Outcome outcome;
  *good = run_kind("training", kind, ranks,
                   [&](KindRank& rank) {
                     const Model model(rank, setup);
                     std::vector<double> norms;
                     for (int step = 1; step <= 4; ++step) {
                       model.backward(step);
                       mdp_step_report report = empty_report();
                       ok(mdp_optimizer_step(model.optimizer(), nullptr, step % 2 == 0 ? &report : nullptr, nullptr));
                       if (step % 2 == 0) norms.push_back(report.grad_norm);
                       require(step % 2 != 0 || ((report.flags & MDP_STEPPED_CLIPPED) != 0) == (setup.max_grad_norm > 0), "clipping");
                     }
                     auto values = model.read();
                     ok(mdp_buffer_verify(model.buffer()));
                     if (rank.rank == 0) outcome = {std::move(values), std::move(norms)};
                   }) &&
          *good;
  return outcome;
}

bool same_bits_as_the_host() {
  bool good = true;
  for (const int ranks : {1, 2, 4}) {
    for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2}) {
      for (const mdp_dtype param : {MDP_DTYPE_F32, MDP_DTYPE_BF16}) {
        for (const double max_norm : {0.0, 1.0}) {
          Setup setup{param, sharding, max_norm};
          setup.skips = max_norm == 0;
          const Outcome host = trained({MDP_BACKEND_HOST, 0}, ranks, setup, &good);
          if (trained({}, ranks, setup, &good) == host && !host.values.empty()) continue;
          std::cerr << "FAILED other values than the host's: " << ranks << " ranks, sharding " << sharding << ", dtype " << param
                    << ", max_grad_norm " << max_norm << "\n";
          good = false;
        }
      }
    }
  }
  return good;
}

// Without overlap, what one group of ranks reduces and gathers is started at once: here two arenas. With overlap each bucket goes alone.
bool started_at_once() {
  bool good = true;
  for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1}) {
    for (const uint64_t flags : {uint64_t{0}, uint64_t{MDP_BUFFER_NO_OVERLAP}}) {
      constexpr int kRanks = 3, kSteps = 4;
      const Setup setup{MDP_DTYPE_F32, sharding, 0, flags, true};
      const Outcome host = trained({MDP_BACKEND_HOST, 0}, kRanks, setup, &good);
      const int before = megadp::standin::groups_of_collectives();
      const bool same = trained({MDP_BACKEND_CUDA, 0}, kRanks, setup, &good) == host && !host.values.empty();
      const int groups = megadp::standin::groups_of_collectives() - before;
      const int expected = flags == 0 ? 0 : kRanks * kSteps * (sharding == MDP_SHARDING_ZERO_1 ? 2 : 1);
      if (same && groups == expected) continue;
      std::cerr << "FAILED two arenas, sharding " << sharding << ", flags " << flags << ": " << groups << " groups of collectives, not "
                << expected << (same ? "\n" : "; and other values than the host's\n");
      good = false;
    }
  }
  return good;
}

// From arrays on the device, without a report: the host waits for the device nowhere in a step.
void no_waiting(KindRank& rank) {
  const Model model(rank, {});
  std::vector<std::unique_ptr<DeviceFloats>> gradients;
  for (size_t p = 0; p < kShapes.size(); ++p) gradients.push_back(std::make_unique<DeviceFloats>(model.gradient(p, 1)));
  const auto step = [&](mdp_step_report* report) {
    for (size_t p = kShapes.size(); p-- > 0;) {
      ok(mdp_param_wait(model.buffer(), p, nullptr));
      const mdp_tensor tensor = floats(gradients[p]->data(), kShapes[p], rank.rank);
      ok(mdp_grad_put(model.buffer(), p, &tensor, 0, nullptr));
    }
    ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
    ok(mdp_optimizer_step(model.optimizer(), nullptr, report, nullptr));
  };
  // What is allocated once is there, and the last step's outcome is known.
  for (int i = 0; i < 3; ++i) step(nullptr);
  (void)model.read();
  const uint64_t before = model.host_syncs();
  step(nullptr);
  ok(mdp_param_wait(model.buffer(), SIZE_MAX, nullptr));
  require(model.host_syncs() == before, "a step waited for the device ", model.host_syncs() - before, " times");
  mdp_step_report report = empty_report();
  step(&report);
  require(model.host_syncs() > before, "a report was had without waiting");
  require(report.step == 5, "the report says step ", report.step);
  (void)model.read();  // nothing uses the gradients any more
}

// Ranks that run ahead of their devices by different stretches agree on which step is refused.
void not_finite_far_ahead(KindRank& rank) {
  const Model model(rank, {});
  for (int step = 1; step <= 6; ++step) {
    for (size_t p = 0; p < kShapes.size(); ++p) {
      std::vector<float> values = model.gradient(p, step);
      if (step == 3 && p == 0 && rank.rank == 0) values[0] = INFINITY;
      model.put(p, values);
    }
    if (rank.rank != 0) (void)model.read();  // the others' devices are idle now, rank 0's has the whole step before it
    ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
    const mdp_status status = mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr);
    if (step == 4) {
      refused(status, MDP_E_NUMERIC, {"the last step", "not finite"});
      ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr));
    } else {
      ok(status);
    }
  }
  ok(mdp_buffer_verify(model.buffer()));
}

// A step that nobody waits for skips a gradient that is not finite; the next one says so, and is not taken.
void not_finite_without_a_report(KindRank& rank) {
  const Model model(rank, {});
  const auto before = model.read();
  for (size_t p = 0; p < kShapes.size(); ++p) {
    std::vector<float> values = model.gradient(p, 1);
    if (p == 1 && rank.rank == rank.size - 1) values[7] = INFINITY;
    model.put(p, values);
  }
  ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
  ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr));
  require(model.read() == before, "a gradient that is not finite changed parameters");
  model.backward(1);
  refused(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr), MDP_E_NUMERIC, {"the last step", "not finite"});
  require(model.read() == before, "a refused step changed parameters");
  mdp_step_report report = empty_report();
  ok(mdp_optimizer_step(model.optimizer(), nullptr, &report, nullptr));
  require(report.step == 1 && model.read() != before, "the step after it was not taken");
}

// A step that could not be submitted leaves the learning rate that it was given to no later one. Both models' fail, with one and without.
void not_submitted(KindRank& rank) {
  const Model model(rank, {}), other(rank, {});
  mdp_step_config faster{};
  faster.struct_size = sizeof faster;
  faster.lr = 0.5;
  for (const Model* one : {&model, &other}) {
    one->backward(1);
    (void)one->read();                      // what is under way asks for no memory any more
    megadp::standin::failing_pinned() = 1;  // where the outcome goes
    refused(mdp_optimizer_step(one->optimizer(), one == &model ? &faster : nullptr, nullptr, nullptr), MDP_E_BACKEND,
            {"pinned host memory"});
    ok(mdp_optimizer_step(one->optimizer(), nullptr, nullptr, nullptr));
  }
  require(model.read() == other.read(), "a step that failed has changed the learning rate");
}

// What a device does not take when it is launched is a failure of the communicator, which every rank is told; parameters stay.
void refused_by_the_device(KindRank& rank) {
  const Model model(rank, {});
  model.backward(1);
  const auto before = model.read();  // what is under way zeroes nothing any more
  ok(mdp_barrier(rank.comm.get(), nullptr));
  if (rank.rank == 0) megadp::standin::failing_zeros() = 1;
  ok(mdp_barrier(rank.comm.get(), nullptr));
  const mdp_status status = mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr);
  if (rank.size == 1 || status != MDP_OK) refused(status, MDP_E_BACKEND, {"zeroing memory"});
  const mdp_error_info info = failure_of(rank);
  require(info.status == MDP_E_BACKEND && std::string(info.text).find("zeroing memory") != std::string::npos,
          "the failure is: ", info.text);
  refused(mdp_grad_skip(model.buffer(), 0), MDP_E_BACKEND, {"zeroing memory"});
  refused(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr), MDP_E_BACKEND, {"zeroing memory"});
  require(model.look() == before, "a step that could not be launched has changed parameters");
}

void arrays(KindRank& rank) {
  const Model model(rank, {});
  const size_t third = 2;  // [17, 5]
  std::vector<float> values(numel(third));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  // Written from ordinary memory, column by column from the end; read back by rows.
  const int64_t backwards[] = {-1, -17};
  const mdp_tensor from = floats(values.data() + values.size() - 1, kShapes[third], kOnHost, backwards);
  ok(mdp_param_write(model.buffer(), third, &from, nullptr));
  std::vector<float> seen(values.size());
  const mdp_tensor to = floats(seen.data(), kShapes[third], kOnHost);
  ok(mdp_param_read(model.buffer(), third, &to, nullptr));
  for (size_t i = 0; i < seen.size(); ++i) {
    const size_t row = i / 5, column = i % 5;
    require(seen[i] == static_cast<float>(84 - row - 17 * column), "element ", i, " is ", seen[i]);
  }
  // On the device, both ways.
  const DeviceFloats mine(values), copy(std::vector<float>(values.size()));
  const mdp_tensor from_device = floats(mine.data(), kShapes[third], rank.rank), to_device = floats(copy.data(), kShapes[third], rank.rank);
  ok(mdp_param_write(model.buffer(), third, &from_device, nullptr));
  ok(mdp_param_read(model.buffer(), third, &to_device, nullptr));
  ok(mdp_param_read(model.buffer(), third, &to, nullptr));  // waits for the stream on which the other two are
  require(copy.values() == values && seen == values, "a parameter is not what was written");
  // Gradients of both kinds, added up; strides over more than the array.
  std::vector<float> wide(17 * 10, 100);
  for (size_t i = 0; i < values.size(); ++i) wide[i / 5 * 10 + i % 5 * 2] = values[i];
  const int64_t every_other[] = {10, 2};
  const mdp_tensor strided = floats(wide.data(), kShapes[third], kOnHost, every_other);
  ok(mdp_grad_put(model.buffer(), third, &strided, MDP_GRAD_MORE, nullptr));
  ok(mdp_grad_put(model.buffer(), third, &from_device, 0, nullptr));
  for (const size_t p : {0, 1}) model.put(p, model.gradient(p, 1));
  ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
  ok(mdp_buffer_verify(model.buffer()));  // waits for the queue
  mdp_tensor view{};
  view.struct_size = sizeof view;
  ok(mdp_buffer_grad_view(model.buffer(), third, &view));
  require(view.device_type == 2 && view.device_id == rank.rank, "the view is on device ", view.device_type, " ", view.device_id);
  for (size_t i = 0; i < values.size() && rank.size == 1; ++i) {
    require(static_cast<const float*>(view.data)[i] == 2 * values[i], "gradient ", i, " is ", static_cast<const float*>(view.data)[i]);
  }
  DLManagedTensorVersioned* lent = nullptr;
  ok(mdp_buffer_to_dlpack(model.buffer(), &view, &lent));
  const DLDevice device = lent->dl_tensor.device;
  lent->deleter(lent);
  require(device.device_type == 2 && device.device_id == rank.rank, "DLPack says device ", device.device_type, " ", device.device_id);
}

// An array of the host that does not go through the staging memory at once.
void large_arrays(KindRank& rank) {
  const std::vector<int64_t> shape = {1, 3, 2'500'001};
  const size_t count = 3 * 2'500'001;
  mdp_grid* grid = nullptr;
  ok(mdp_grid_create(rank.comm.get(), nullptr, &grid));
  const Grid kept_grid(grid);
  mdp_param param{};
  param.struct_size = sizeof param;
  param.name = "large";
  param.shape = shape.data();
  param.ndim = 3;
  mdp_buffer* buffer = nullptr;
  ok(mdp_buffer_register(nullptr, grid, nullptr, &param, 1, &buffer));
  const Buffer kept_buffer(buffer);
  std::vector<float> values(count), seen(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 9973);
  const int64_t columns[] = {0, 1, 3};  // from column-major to row-major
  const mdp_tensor from = floats(values.data(), shape, kOnHost, columns), to = floats(seen.data(), shape, kOnHost);
  ok(mdp_param_write(buffer, 0, &from, nullptr));
  ok(mdp_param_read(buffer, 0, &to, nullptr));
  for (size_t i = 0; i < count; ++i) {
    const size_t row = i / 2'500'001, column = i % 2'500'001;
    require(seen[i] == values[column * 3 + row], "element ", i, " is ", seen[i]);
  }
}

void host_views(KindRank& rank) {
  const Model model(rank, {});
  mdp_tensor view{};
  view.struct_size = sizeof view;
  ok(mdp_buffer_grad_view(model.buffer(), 0, &view));
  require(view.device_type == 1 && view.device_id == 0, "the view is on device ", view.device_type);
  std::vector<float> values = {1, 2};
  const std::vector<int64_t> shape = {2};
  const mdp_tensor elsewhere = floats(values.data(), shape, rank.rank);
  refused(mdp_all_reduce(rank.comm.get(), &elsewhere, &elsewhere, MDP_OP_SUM, nullptr, nullptr), MDP_E_UNSUPPORTED, {"device_type is 2"});
}

void collectives(KindRank& rank) {
  const std::vector<int64_t> shape = {3};
  const DeviceFloats mine({1, static_cast<float>(rank.rank), 3});
  const mdp_tensor tensor = floats(mine.data(), shape, rank.rank);
  mdp_request* request = nullptr;
  ok(mdp_all_reduce(rank.comm.get(), &tensor, &tensor, MDP_OP_SUM, nullptr, &request));
  ok(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  const auto n = static_cast<float>(rank.size);
  require(mine.values() == std::vector<float>{n, n * (n - 1) / 2, 3 * n}, "the sum begins with ", mine.values()[0]);
  std::vector<float> values = {1, 2, 3};
  const mdp_tensor here = floats(values.data(), shape, kOnHost);
  refused(mdp_all_reduce(rank.comm.get(), &tensor, &here, MDP_OP_SUM, nullptr, nullptr), MDP_E_UNSUPPORTED, {"to.device_type is 1", "2"});
  // Arrays of the host go over the host's group, late ranks or not.
  for (const bool with_request : {false, true}) {
    values = {1, static_cast<float>(rank.rank), 3};
    if (rank.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ok(mdp_all_reduce(rank.comm.get(), &here, &here, MDP_OP_SUM, nullptr, with_request ? &request : nullptr));
    if (with_request) {
      ok(mdp_request_wait(request, UINT64_MAX));
      mdp_request_free(request);
    }
    require(values == std::vector<float>{n, n * (n - 1) / 2, 3 * n}, "the host's sum begins with ", values[0]);
  }
}

// One rank's device is full, which only its own tensor-parallel column notices by itself: no rank has a buffer, or an optimizer, and all
// go on when there is room.
void full_device(KindRank& rank) {
  const auto fill = [&rank](int device) {
    ok(mdp_barrier(rank.comm.get(), nullptr));
    if (rank.rank == 0) megadp::standin::full_device() = device;
    ok(mdp_barrier(rank.comm.get(), nullptr));
  };
  const auto lacks = [&rank](mdp_status status) { refused(status, MDP_E_MEMORY, {rank.rank == 0 ? "allocating" : "rank 0: "}); };
  mdp_grid_config cut{};
  cut.struct_size = sizeof cut;
  cut.tp = 2;
  mdp_grid* grid = nullptr;
  ok(mdp_grid_create(rank.comm.get(), &cut, &grid));
  const Grid kept_grid(grid);
  const std::vector<int64_t> shape = {100};
  mdp_param param{};
  param.struct_size = sizeof param;
  param.name = "w";
  param.shape = shape.data();
  param.ndim = 1;
  param.placement = MDP_PLACEMENT_REPLICATED;
  mdp_buffer* buffer = nullptr;
  fill(0);
  lacks(mdp_buffer_register(nullptr, grid, nullptr, &param, 1, &buffer));
  fill(-1);
  ok(mdp_buffer_register(nullptr, grid, nullptr, &param, 1, &buffer));
  const Buffer kept_buffer(buffer);
  mdp_optimizer* optimizer = nullptr;
  fill(0);
  lacks(mdp_optimizer_create(buffer, nullptr, &optimizer));
  fill(-1);
  ok(mdp_optimizer_create(buffer, nullptr, &optimizer));
  const Optimizer kept_optimizer(optimizer);
  ok(mdp_grad_skip(buffer, 0));
  ok(mdp_grad_sync(buffer, nullptr, nullptr));
  ok(mdp_optimizer_step(optimizer, nullptr, nullptr, nullptr));
  ok(mdp_buffer_verify(buffer));
}

// What was destroyed a moment ago is given back by another thread: it counts as room.
void full_but_for_what_goes(KindRank& rank) {
  namespace standin = megadp::standin;
  const Model model(rank, {});
  const auto another = [&model] {
    mdp_optimizer* optimizer = nullptr;
    ok(mdp_optimizer_create(model.buffer(), nullptr, &optimizer));
    return Optimizer(optimizer);
  };
  Optimizer first = another();
  standin::release_gate().close();
  standin::full_device() = 0;
  standin::release_makes_room() = true;
  first.reset();
  std::string missing;
  try {
    const Optimizer second = another();
  } catch (const std::exception& error) {
    missing = error.what();
  }
  standin::release_makes_room() = false;
  standin::full_device() = -1;
  standin::release_gate().open();
  require(missing.empty(), missing);
}

// ── streams of the program's ──

// Two, of which the first one is busy for a while whenever it is used.
class Streams {
 public:
  Streams() {
    for (void*& stream : streams_) require(plugin().stream_create(nullptr, false, &stream) == 0, "no stream");
  }
  ~Streams() {
    for (void* const stream : streams_) {
      plugin().stream_synchronize(nullptr, stream);
      plugin().stream_destroy(nullptr, stream);
    }
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  void* slow() const {
    on(streams_[0], [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
    return streams_[0];
  }
  void* other() const { return streams_[1]; }
  static void on(void* stream, std::function<void()> kernel) { megadp::standin::queue_of(nullptr, stream)->submit(std::move(kernel)); }

 private:
  void* streams_[2] = {};
};

// One parameter, zero at first, from which a step subtracts the mean of its gradients' sums.
class Small {
 public:
  Small(const KindRank& rank, mdp_sharding sharding, int32_t uses, int32_t tp = 1) : rank_(rank.rank) {
    mdp_grid_config cut{};
    cut.struct_size = sizeof cut;
    cut.tp = tp;
    mdp_grid* grid = nullptr;
    ok(mdp_grid_create(rank.comm.get(), &cut, &grid));
    grid_.reset(grid);
    mdp_param param{};
    param.struct_size = sizeof param;
    param.name = "w";
    param.shape = shape_.data();
    param.ndim = 1;
    param.uses_per_step = uses;
    if (tp > 1) param.placement = MDP_PLACEMENT_PARTIAL_SUM;
    mdp_buffer_config config{};
    config.struct_size = sizeof config;
    config.sharding = sharding;
    mdp_buffer* buffer = nullptr;
    ok(mdp_buffer_register(nullptr, grid, &config, &param, 1, &buffer));
    buffer_.reset(buffer);
    mdp_optimizer_config rule{};
    rule.struct_size = sizeof rule;
    rule.rule = MDP_RULE_SGD;
    rule.lr = 1;
    mdp_optimizer* optimizer = nullptr;
    ok(mdp_optimizer_create(buffer, &rule, &optimizer));
    optimizer_.reset(optimizer);
  }
  mdp_buffer* buffer() const { return buffer_.get(); }
  mdp_optimizer* optimizer() const { return optimizer_.get(); }
  mdp_tensor tensor(const DeviceFloats& values) const { return floats(values.data(), shape_, rank_); }

  void put(const DeviceFloats& gradient, void* stream) const {
    const mdp_tensor from = tensor(gradient);
    ok(mdp_grad_put(buffer(), 0, &from, 0, stream));
  }
  // What a kernel of the program's writes, or adds, where it is lent.
  void put_lent(float gradient, bool is_first, void* stream) const {
    mdp_tensor place{};
    place.struct_size = sizeof place;
    int32_t first = -1;
    ok(mdp_grad_acquire(buffer(), 0, &place, &first, stream));
    require(first == (is_first ? 1 : 0), "first is ", first);
    Streams::on(stream, [to = static_cast<float*>(place.data), gradient, is_first] {
      for (int i = 0; i < 4; ++i) to[i] = is_first ? gradient : to[i] + gradient;
    });
    ok(mdp_grad_ready(buffer(), 0, stream));
  }
  void write(const DeviceFloats& values, void* stream) const {
    const mdp_tensor from = tensor(values);
    ok(mdp_param_write(buffer(), 0, &from, stream));
  }
  // By a kernel of the program's on the default stream, which takes a while.
  void write_late(float value) const {
    struct Kernel {
      float* to;
      float value;
    };
    mdp_tensor view{};
    view.struct_size = sizeof view;
    ok(mdp_buffer_param_view(buffer(), 0, &view));
    ok(mdp_buffer_zero_grad(buffer(), nullptr));  // by which the stand-in knows this thread's default stream
    const auto run = [](void* user) {
      const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(user));
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      std::fill_n(kernel->to, 4, kernel->value);
    };
    standin_on_default_stream(run, new Kernel{static_cast<float*>(view.data), value});
  }
  void holds(float value, void* stream, const char* after) const {
    std::vector<float> seen(4);
    const mdp_tensor to = floats(seen.data(), shape_, kOnHost);
    ok(mdp_param_read(buffer(), 0, &to, stream));
    require(seen == std::vector<float>(4, value), "after ", after, ": ", seen[0], ", not ", value);
  }
  void step_gives(float value, const char* after) const {
    ok(mdp_optimizer_step(optimizer(), nullptr, nullptr, nullptr));
    holds(value, nullptr, after);
  }

 private:
  const int rank_;
  const std::vector<int64_t> shape_ = {4};
  Grid grid_;
  Buffer buffer_;
  Optimizer optimizer_;
};

// Gradients of one parameter are added up, and come after zeros, whatever streams they are on.
void gradients_on_streams(KindRank& rank) {
  const DeviceFloats one({1, 1, 1, 1}), ten({10, 10, 10, 10});
  for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2}) {
    const Small model(rank, sharding, 1), twice(rank, sharding, 2);
    const Streams streams;
    twice.put(one, streams.slow());
    twice.put(ten, streams.other());
    twice.step_gives(-11, "two puts");
    twice.put_lent(1, true, streams.slow());
    twice.put_lent(10, false, streams.other());
    twice.step_gives(-22, "two gradients that were lent");
    ok(mdp_microbatch_begin(model.buffer(), 0));
    model.put(one, streams.slow());
    ok(mdp_microbatch_begin(model.buffer(), 1));
    model.put(ten, streams.other());
    model.step_gives(-11, "two microbatches");
    ok(mdp_buffer_zero_grad(model.buffer(), streams.slow()));
    model.put(ten, streams.other());
    model.step_gives(-21, "zeros and a put");
  }
}

void writes_on_streams(KindRank& rank) {
  const DeviceFloats one({1, 1, 1, 1}), ten({10, 10, 10, 10});
  const Small model(rank, MDP_SHARDING_ZERO_1, 1);
  const Streams streams;
  model.write(one, streams.slow());
  model.holds(1, streams.other(), "a write on another stream");
  model.write(ten, streams.slow());
  model.write(one, streams.other());
  model.holds(1, streams.slow(), "two writes");
  model.write_late(2);
  ok(mdp_param_changed(model.buffer()));
  model.holds(2, streams.other(), "a write through the view");
}

// Calls that are given no stream come after what is on the default stream.
void written_through_views(KindRank& rank) {
  const Small model(rank, MDP_SHARDING_ZERO_1, 1);
  model.write_late(static_cast<float>(rank.rank + 1));
  ok(mdp_buffer_broadcast(model.buffer(), 0, nullptr));
  model.holds(1, nullptr, "a broadcast");
  model.write_late(static_cast<float>(rank.rank + 1));
  refused(mdp_buffer_verify(model.buffer()), MDP_E_DESYNC, {"'w'"});
  model.write_late(3);
  ok(mdp_param_changed(model.buffer()));
  ok(mdp_buffer_verify(model.buffer()));
  model.holds(3, nullptr, "a write through the view");
}

// What is compared has been reduced.
void verified_after_a_sync(KindRank& rank) {
  const float each = static_cast<float>(rank.rank + 1);  // of a part of the gradient
  const DeviceFloats part({each, each, each, each});
  const Small model(rank, MDP_SHARDING_ZERO_1, 2, 2);
  const Streams streams;
  model.put(part, streams.other());
  model.put(part, streams.slow());
  ok(mdp_grad_sync(model.buffer(), streams.other(), nullptr));
  ok(mdp_buffer_verify(model.buffer()));
  model.step_gives(-6, "a step");
}

}  // namespace

int main() {
  megadp::cuda::use_plugin(plugin());
  bool good = same_bits_as_the_host();
  good = started_at_once() && good;
  for (const int ranks : {1, 2, 3}) {
    for (const uint64_t flags : {uint64_t{0}, uint64_t{MDP_COMM_EXACT_SUMS}}) {
      good = run_kind("no waiting", {MDP_BACKEND_CUDA, flags}, ranks, no_waiting) && good;
    }
    good = run_kind("not finite without a report", {}, ranks, not_finite_without_a_report) && good;
    good = run_kind("not finite far ahead", {}, ranks, not_finite_far_ahead) && good;
    good = run_kind("arrays", {}, ranks, arrays) && good;
    good = run_kind("large arrays", {}, ranks, large_arrays) && good;
    good = run_kind("views of the host", {MDP_BACKEND_HOST, 0}, ranks, host_views) && good;
    good = run_kind("collectives", {}, ranks, collectives) && good;
  }
  good = run_kind("not submitted", {}, 1, not_submitted) && good;
  for (const int ranks : {1, 2}) good = run_kind("refused by the device", {}, ranks, refused_by_the_device) && good;
  good = run_kind("a full device", {}, 4, full_device) && good;
  good = run_kind("full but for what goes", {}, 1, full_but_for_what_goes) && good;
  good = run_kind("gradients on streams", {}, 1, gradients_on_streams) && good;
  good = run_kind("writes on streams", {}, 1, writes_on_streams) && good;
  good = run_kind("written through views", {}, 2, written_through_views) && good;
  good = run_kind("verified after a sync", {}, 2, verified_after_a_sync) && good;
  megadp::standin::wait_for_threads();
  std::cerr << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
