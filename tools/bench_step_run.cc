// SPDX-License-Identifier: Apache-2.0
// A round is: copy, square sum, begin_step, update, each between two events of the stream. Rounds are submitted without waiting, so what a
// launch costs the host does not show.
#include "bench_step_run.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/rules.h"
#include "control/launch/launch.h"
#include "host/kernels.h"

namespace megadp::tool {
namespace {

constexpr uint64_t kJoinTimeout = 60'000'000'000, kRunTimeout = 300'000'000'000;
constexpr int kWarmUps = 3;
constexpr size_t kChunk = size_t{1} << 20;  // elements that are made up or compared at a time
constexpr Hyper kHyper{1e-3, 0.9, 0.999, 1e-8, 0.01, 0.9};
constexpr StepSettings kSettings{1.0, 1.0, 0, Norm::l2};

// Never the same for neighbours, exact in every type: a gradient in [-1, 1), a parameter in [-2, 2).
float value_of(uint64_t i) {
  return static_cast<float>(static_cast<int>((i * 2654435761u >> 8) % 256) - 128) / 128;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class StepBench {
 public:
  explicit StepBench(const StepTask& task) : task_(task) {}
  Status open();
  Status check_results();
  Status run();
  StepFigures figures() const;

 private:
  enum Part {
    copy,
    square_sum,
    begin_step,
    update,
    part_count
  };
  Status submit(Part part);
  Status round(std::vector<std::shared_ptr<Event>>* events);
  Status fill();
  Status wait();
  Status compare_chunk(uint64_t first, const StepScalars& scalars);
  Status allocate(std::unique_ptr<Memory>* out, uint64_t bytes);
  StepTiming timing(Part part, uint64_t bytes) const;
  double to_copy(Part part, uint64_t bytes) const;

  const StepTask task_;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> grad_, master_, states_[kMostStates], param_, scalars_, copy_from_, copy_to_;
  std::vector<double> times_[part_count];  // milliseconds
  uint64_t host_syncs_ = 0;

  bool own_master() const { return task_.param_type != DType::f32; }
  void* param() const { return own_master() ? param_->data() : master_->data(); }
  StepScalars* scalars() const { return static_cast<StepScalars*>(scalars_->data()); }
  uint64_t* steps() const { return reinterpret_cast<uint64_t*>(scalars() + 1); }
  Entries<StateArray> states() const { return rule(task_.rule).state; }
  Update update_of(const StepScalars* scalars, const uint64_t* steps, void* grad, float* master, void* param, uint64_t count) const {
    return {kHyper, scalars, steps, grad, master, {}, param, count, task_.grad_type, task_.param_type, task_.rule};
  }
  // Gradient read; state read and written; the fp32 value read and written; the parameter written where it is another.
  uint64_t update_bytes() const {
    return task_.numel * (size_of(task_.grad_type) + 2 * (sizeof(float) + state_bytes(rule(task_.rule))) +
                          (own_master() ? size_of(task_.param_type) : 0));
  }
  uint64_t copy_count() const { return update_bytes() / (2 * sizeof(float)); }
  uint64_t copy_bytes() const { return copy_count() * 2 * sizeof(float); }
};

Status StepBench::allocate(std::unique_ptr<Memory>* out, uint64_t bytes) {
  auto memory = backend_->allocate(bytes);
  if (!memory) return memory.status();
  *out = *std::move(memory);
  return {};
}

Status StepBench::open() {
  Result<Launch> launch = launch_from_environment();
  if (!launch) return launch.status();
  if (launch->nranks != 1) return invalid("a step is measured on one rank, but ", launch->launcher, " has started ", launch->nranks);
  auto world = World::join(*launch, kJoinTimeout);
  if (!world) return world.status();
  auto backend = open_backend({.kind = task_.backend, .host_threads = task_.threads}, *world);
  if (!backend) return backend.status();
  backend_ = *std::move(backend);
  auto stream = backend_->create_stream("bench");
  if (!stream) return stream.status();
  stream_ = *std::move(stream);
  const struct {
    std::unique_ptr<Memory>* out;
    uint64_t bytes;
  } arrays[] = {{&grad_, task_.numel * size_of(task_.grad_type)},
                {&master_, task_.numel * sizeof(float)},
                {&param_, own_master() ? task_.numel * size_of(task_.param_type) : 0},
                {&scalars_, sizeof(StepScalars) + sizeof(uint64_t)},
                {&copy_from_, copy_count() * sizeof(float)},
                {&copy_to_, copy_count() * sizeof(float)}};
  for (const auto& array : arrays)
    if (Status allocated = allocate(array.out, array.bytes); !allocated) return allocated;
  for (size_t k = 0; k < states().size(); ++k)
    if (Status allocated = allocate(&states_[k], task_.numel * size_of(states()[k].type)); !allocated) return allocated;
  return fill();
}

Status StepBench::fill() {
  std::vector<float> values(kChunk);
  std::vector<std::byte> grads(kChunk * size_of(task_.grad_type));
  for (uint64_t first = 0; first < std::max(task_.numel, copy_count()); first += kChunk) {
    for (size_t i = 0; i < kChunk; ++i) values[i] = value_of(first + i);
    if (first < copy_count()) {
      const uint64_t n = std::min<uint64_t>(kChunk, copy_count() - first);
      if (Status done = backend_->write(static_cast<float*>(copy_from_->data()) + first, values.data(), n * sizeof(float)); !done)
        return done;
    }
    if (first >= task_.numel) continue;
    const uint64_t n = std::min<uint64_t>(kChunk, task_.numel - first);
    if (Status cast = host::cast(grads.data(), task_.grad_type, values.data(), DType::f32, n); !cast) return cast;
    auto* const grad = static_cast<std::byte*>(grad_->data()) + first * size_of(task_.grad_type);
    if (Status done = backend_->write(grad, grads.data(), n * size_of(task_.grad_type)); !done) return done;
    for (float& value : values) value *= 2;
    if (Status done = backend_->write(static_cast<float*>(master_->data()) + first, values.data(), n * sizeof(float)); !done) return done;
  }
  return {};
}

Status StepBench::submit(Part part) {
  switch (part) {
    case copy:
      return backend_->cast(*stream_, copy_to_->data(), DType::f32, copy_from_->data(), DType::f32, copy_count());
    case square_sum:
      if (Status zeroed = backend_->zero(*stream_, scalars(), 2 * sizeof(double)); !zeroed) return zeroed;  // square_sum, nonfinite
      return backend_->square_sum(*stream_, grad_->data(), task_.grad_type, task_.numel, &scalars()->square_sum);
    case begin_step:
      if (Status begun = backend_->begin_step(*stream_, scalars(), kSettings); !begun) return begun;
      return backend_->count_steps(*stream_, scalars(), steps(), 1);
    default: {
      Update launch = update_of(scalars(), steps(), grad_->data(), static_cast<float*>(master_->data()), param(), task_.numel);
      for (size_t k = 0; k < states().size(); ++k) launch.state[k] = states_[k]->data();
      return backend_->update(*stream_, launch);
    }
  }
}

Status StepBench::round(std::vector<std::shared_ptr<Event>>* events) {
  for (int part = 0; part <= part_count; ++part) {
    auto event = stream_->record();
    if (!event) return event.status();
    events->push_back(*std::move(event));
    if (part == part_count) break;
    if (Status submitted = submit(static_cast<Part>(part)); !submitted) return submitted;
  }
  return {};
}

Status StepBench::wait() {
  auto event = stream_->record();
  return event ? (*event)->wait(Deadline::after_ns(kRunTimeout)) : event.status();
}

// A first step from known values, by the scalars that it has left.
Status StepBench::compare_chunk(uint64_t first, const StepScalars& scalars) {
  const size_t n = std::min<uint64_t>(kChunk, task_.numel - first), grad_size = size_of(task_.grad_type),
               param_size = size_of(task_.param_type);
  std::vector<float> expected(n);
  std::vector<std::byte> grad(n * grad_size), param(n * param_size), kept[kMostStates];
  for (size_t i = 0; i < n; ++i) expected[i] = value_of(first + i);
  if (Status cast = host::cast(grad.data(), task_.grad_type, expected.data(), DType::f32, n); !cast) return cast;
  for (float& value : expected) value *= 2;
  void* const to = own_master() ? static_cast<void*>(param.data()) : expected.data();
  Update launch = update_of(&scalars, &scalars.step, grad.data(), expected.data(), to, n);
  for (size_t k = 0; k < states().size(); ++k) {
    kept[k].resize(n * size_of(states()[k].type));
    launch.state[k] = kept[k].data();
  }
  if (Status done = host::update(launch); !done) return done;
  const auto same = [&](const char* name, const Memory& memory, size_t size, const void* right) -> Status {
    std::vector<std::byte> seen(n * size);
    const auto* const from = static_cast<const std::byte*>(const_cast<Memory&>(memory).data()) + first * size;
    if (Status read = backend_->read(seen.data(), from, n * size); !read) return read;
    if (std::memcmp(seen.data(), right, n * size) == 0) return {};
    return internal_error(rule(task_.rule).name, " gives other ", name, " than the host's kernel, among the ", n, " elements from ", first);
  };
  if (Status right = same("fp32 values", *master_, sizeof(float), expected.data()); !right) return right;
  for (size_t k = 0; k < states().size(); ++k)
    if (Status right = same(states()[k].name, *states_[k], size_of(states()[k].type), kept[k].data()); !right) return right;
  return own_master() ? same("parameters", *param_, param_size, param.data()) : Status();
}

// What is measured must also be right: the first and the last chunk bit by bit, the rest by the sum of squares.
Status StepBench::check_results() {
  std::vector<std::shared_ptr<Event>> events;
  if (Status done = round(&events); !done) return done;
  if (Status done = wait(); !done) return done;
  StepScalars scalars{};
  if (Status read = backend_->read(&scalars, scalars_->data(), sizeof scalars); !read) return read;
  double sum = 0;
  for (uint64_t i = 0; i < task_.numel; ++i) sum += static_cast<double>(value_of(i)) * static_cast<double>(value_of(i));
  if (scalars.square_sum != sum || scalars.nonfinite != 0)  // the values are multiples of 1/128: every sum of theirs is exact
    return internal_error("the sum of squares is ", scalars.square_sum, " with ", scalars.nonfinite, " not finite: ", sum, " is right");
  if (Status right = compare_chunk(0, scalars); !right) return right;
  return task_.numel > kChunk ? compare_chunk(task_.numel - kChunk, scalars) : Status();
}

Status StepBench::run() {
  for (int done = -kWarmUps; done < task_.rounds; done += kWarmUps) {
    const int rounds = done < 0 ? kWarmUps : std::min(kWarmUps, task_.rounds - done);  // a few at a time: an event each is little memory
    std::vector<std::shared_ptr<Event>> events;
    const uint64_t syncs = backend_->host_syncs();
    for (int i = 0; i < rounds; ++i)
      if (Status submitted = round(&events); !submitted) return submitted;
    host_syncs_ += backend_->host_syncs() - syncs;
    if (Status waited = wait(); !waited) return waited;
    for (size_t at = 0; at < events.size() && done >= 0; ++at) {
      if (Status reached = events[at]->status(); !reached) return reached;
      const size_t part = at % (part_count + 1);
      if (part == 0) continue;
      times_[part - 1].push_back(static_cast<double>(events[at]->time_ns() - events[at - 1]->time_ns()) / 1e6);
    }
  }
  return {};
}

StepTiming StepBench::timing(Part part, uint64_t bytes) const {
  return {bytes, *std::min_element(times_[part].begin(), times_[part].end()), median(times_[part])};
}

double StepBench::to_copy(Part part, uint64_t bytes) const {
  std::vector<double> ratios;
  for (size_t i = 0; i < times_[part].size(); ++i)
    ratios.push_back(static_cast<double>(bytes) / times_[part][i] / (static_cast<double>(copy_bytes()) / times_[copy][i]));
  return median(std::move(ratios));
}

StepFigures StepBench::figures() const {
  const uint64_t grad_bytes = task_.numel * size_of(task_.grad_type);
  return {timing(update, update_bytes()),  timing(square_sum, grad_bytes),  timing(copy, copy_bytes()),
          to_copy(update, update_bytes()), to_copy(square_sum, grad_bytes), host_syncs_};
}

}  // namespace

Result<StepFigures> bench_step(const StepTask& task) {
  StepBench bench(task);
  if (Status opened = bench.open(); !opened) return opened;
  if (Status right = bench.check_results(); !right) return right;
  if (Status done = bench.run(); !done) return done;
  return bench.figures();
}

}  // namespace megadp::tool
