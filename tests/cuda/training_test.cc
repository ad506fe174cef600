// SPDX-License-Identifier: Apache-2.0
// Training on the CUDA backend over the public API, on the stand-in for its plugin: the host backend's bits, no waiting in a step, and
// arrays of either memory.
#include <cmath>

#include "api/dlpack_abi.h"
#include "standin.h"
#include "standin_job.h"

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
  megadp::standin::wait_for_threads();
  std::cerr << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
