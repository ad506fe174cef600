// SPDX-License-Identifier: Apache-2.0
// The structs that callers hand in, each in memory that ends where its struct_size says: alone, as a tensor, or all those that describe a
// plan, an optimizer or a loss scaler; and lists of handles that are none. Pointers in them are made to point to something, or are NULL;
// what they point to ends where it should, too.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "api/intake.h"
#include "api/optimizer_config.h"
#include "api/tensor.h"
#include "base/text.h"
#include "fuzz.h"
#include "megadp.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr uint32_t kLongest = 64 * 1024;
constexpr size_t kMostElements = 4;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kBehind = 0;
#else
constexpr size_t kBehind = 128;  // of what is not zero, so that reading too far shows
#endif

// `count` structs as the first one's struct_size has it. Sizes that nobody could mean get what is read of them: the size itself.
class Given {
 public:
  Given(Bytes* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const std::string_view blob = bytes->some(bytes->number<uint8_t>());
      if (i == 0) {
        const auto size = Bytes(blob).number<uint32_t>();
        stride_ = size >= sizeof size && size <= kLongest ? size : sizeof size;
        memory_ = std::make_unique<char[]>(stride_ * count + kBehind);
        std::memset(memory_.get() + stride_ * count, 0xA5, kBehind);
      }
      std::memcpy(at(i), blob.data(), std::min(blob.size(), stride_));
    }
  }
  char* at(size_t i) { return memory_.get() + i * stride_; }
  size_t size() const { return stride_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(memory_.get());
  }

  // A field of an element, if the element is long enough to have it.
  template <class T>
  T get(size_t i, size_t offset) {
    T value{};
    if (offset + sizeof value <= stride_) std::memcpy(&value, at(i) + offset, sizeof value);
    return value;
  }
  template <class T>
  void set(size_t i, size_t offset, T value) {
    if (offset + sizeof value <= stride_) std::memcpy(at(i) + offset, &value, sizeof value);
  }
  // Puts a pointer where the input has anything but zero.
  void point(size_t i, size_t offset, const void* to) {
    if (get<uint64_t>(i, offset) != 0) std::memcpy(at(i) + offset, &to, sizeof to);
  }

 private:
  size_t stride_ = 0;
  std::unique_ptr<char[]> memory_;
};

// What pointers point to, for as long as a call lasts.
class Pointees {
 public:
  const char* words(Bytes* bytes) {
    const std::string_view some = bytes->some(bytes->number<uint8_t>());
    auto& copy = texts_.emplace_back(std::make_unique<char[]>(some.size() + 1));
    std::memcpy(copy.get(), some.data(), some.size());
    return copy.get();
  }
  const int64_t* numbers(Bytes* bytes, int32_t count) {
    const size_t allowed = count >= 0 && count <= 16 ? static_cast<size_t>(count) : 0;
    auto& copy = numbers_.emplace_back(std::make_unique<int64_t[]>(allowed));
    for (size_t i = 0; i < allowed; ++i) copy[i] = bytes->number<int64_t>();
    return copy.get();
  }

 private:
  std::vector<std::unique_ptr<char[]>> texts_;
  std::vector<std::unique_ptr<int64_t[]>> numbers_;
};

template <class T>
std::string take_one(Bytes* bytes) {
  Given given(bytes, 1);
  const T* const theirs = given.as<T>();
  const auto ours = take(theirs, "it");
  if (!ours.ok()) {
    const Code code = ours.status().code();
    must((code == Code::invalid || code == Code::unsupported) && !ours.status().text().empty(), "a bad struct is refused without a reason");
    return ours.status().text();
  }
  must(given.size() >= kKind<T>.first_size, "a struct was taken that is shorter than any release has had it");
  must(ours->struct_size == sizeof(T), "a struct that was taken has not the library's size");
  const size_t common = std::min(given.size(), sizeof(T)), head = sizeof ours->struct_size;
  const auto* const taken = reinterpret_cast<const char*>(&*ours);
  must(std::memcmp(taken + head, given.at(0) + head, common - head) == 0, "a field was not taken as it was given");
  for (size_t i = common; i < sizeof(T); ++i) must(taken[i] == 0, "a field that was not given is not zero");
  if (check_output(theirs, "it").ok()) give(*ours, given.as<T>());
  return given.size() > sizeof(T) ? "taken, longer" : given.size() < sizeof(T) ? "taken, shorter" : "taken";
}

template <class... Ts>
std::string take_any(Bytes* bytes) {
  constexpr std::string (*const all[])(Bytes*) = {&take_one<Ts>...};
  const auto which = bytes->number<uint8_t>() % sizeof...(Ts);
  return text(which == 0 ? "first " : "", all[which](bytes));
}

std::string take_a_tensor(Bytes* bytes) {
  Given given(bytes, 1);
  Pointees pointees;
  const auto ndim = given.get<int32_t>(0, offsetof(mdp_tensor, ndim));
  given.point(0, offsetof(mdp_tensor, shape), pointees.numbers(bytes, ndim));
  given.point(0, offsetof(mdp_tensor, strides), pointees.numbers(bytes, ndim));
  const Place cuda{DeviceType::cuda, 1};
  std::string outcome;
  for (const Place& place : {Place{}, cuda}) {
    for (const Access access : {Access::read, Access::write}) {
      const auto tensor = take_tensor(given.as<mdp_tensor>(), "it", access, place);
      outcome += tensor.ok() ? "taken; " : tensor.status().text() + "; ";
      must(!tensor.ok() || tensor->shape.size() == tensor->strides.size(), "a tensor with strides for other axes");
    }
    const auto dense = take_dense(given.as<mdp_tensor>(), "it", place);
    must(!dense.ok() || take_tensor(given.as<mdp_tensor>(), "it", Access::write, place).ok(), "a dense array that is no tensor");
    outcome += dense.ok() ? "dense; " : dense.status().text() + "; ";
  }
  return outcome;
}

std::string plan(Bytes* bytes) {
  Pointees pointees;
  const auto world = bytes->number<int32_t>(), rank = bytes->number<int32_t>();
  const size_t count = bytes->number<uint8_t>() % kMostElements;
  Given grid(bytes, 1), config(bytes, 1), report(bytes, 1), params(bytes, std::max<size_t>(count, 1));
  grid.point(0, offsetof(mdp_grid_config, order), pointees.words(bytes));
  for (size_t i = 0; i < count; ++i) {
    params.point(i, offsetof(mdp_param, name), pointees.words(bytes));
    params.point(i, offsetof(mdp_param, shape), pointees.numbers(bytes, params.get<int32_t>(i, offsetof(mdp_param, ndim))));
    params.point(i, offsetof(mdp_param, tie), pointees.words(bytes));
  }
  const mdp_status status = mdp_plan(grid.as<mdp_grid_config>(), world, rank, config.as<mdp_buffer_config>(), params.as<mdp_param>(), count,
                                     nullptr, report.as<mdp_plan_report>());
  if (status == MDP_OK) return "a plan";
  const std::string words = mdp_last_error();
  must(!words.empty(), "a plan is refused without a reason");
  return words;
}

// An optimizer's configuration with its groups. What was taken can be computed with.
std::string take_an_optimizer(Bytes* bytes) {
  const size_t count = bytes->number<uint8_t>() % kMostElements;
  Given config(bytes, 1), groups(bytes, std::max<size_t>(count, 1));
  config.point(0, offsetof(mdp_optimizer_config, param_groups), groups.at(0));
  if (config.get<uint64_t>(0, offsetof(mdp_optimizer_config, param_group_count)) <= kMaxArray) {  // more is refused
    config.set(0, offsetof(mdp_optimizer_config, param_group_count), uint64_t{count});
  }
  Pointees pointees;
  config.point(0, offsetof(mdp_optimizer_config, state), pointees.words(bytes));
  // What it keeps of each of some parameters.
  constexpr int32_t params = 3;
  const size_t states = bytes->number<uint8_t>() % kMostElements;
  Given kept(bytes, std::max<size_t>(states, 1));
  config.point(0, offsetof(mdp_optimizer_config, param_states), kept.at(0));
  if (config.get<uint64_t>(0, offsetof(mdp_optimizer_config, param_state_count)) <= kMaxArray) {
    config.set(0, offsetof(mdp_optimizer_config, param_state_count), uint64_t{states});
  }
  for (size_t i = 0; i < states; ++i) {
    kept.point(i, offsetof(mdp_param_state, name), pointees.words(bytes));
    kept.point(i, offsetof(mdp_param_state, bytes), pointees.numbers(bytes, params));
  }
  const auto taken = take_optimizer_config(config.as<mdp_optimizer_config>(), params);
  if (!taken.ok()) {
    must(!taken.status().text().empty(), "an optimizer is refused without a reason");
    return taken.status().text();
  }
  const auto may_be = [](double value) { return std::isfinite(value) && value >= 0; };
  const Hyper& hyper = taken->hyper;
  must(may_be(hyper.lr) && may_be(hyper.eps) && may_be(hyper.weight_decay), "an optimizer with a number that is none");
  must(hyper.beta1 < 1 && hyper.beta2 < 1 && hyper.momentum < 1, "an optimizer that forgets nothing");
  must(taken->average_decay >= 0 && taken->average_decay < 1, "an average that nothing is added to");
  must(!taken->groups.empty() && taken->groups.size() <= kMostElements, "an optimizer with other groups than were given");
  must(taken->some_groups || taken->first_group == 0, "an optimizer of all groups that begins with another");
  must((taken->bf16_state || !taken->stochastic_state) && (taken->draws() || taken->seed == 0), "an optimizer that rounds nothing");
  must(taken->state.size() <= kMostStates, "an optimizer with more arrays than there may be");
  for (const std::string& name : taken->state) must(!name.empty() && name.find('\n') == std::string::npos, "an array without a name");
  must(taken->param_states.size() <= kMostStates, "an optimizer that keeps more than it may");
  for (const ParamState& state : taken->param_states)
    must(!state.name.empty() && state.bytes.size() == params, "bytes of other parameters");
  return text("an optimizer, rule ", taken->rule, " groups ", taken->groups.size(), " keeps ", taken->param_states.size());
}

// What a scaler was taken as is taken again, and is then the same.
std::string take_a_scaler(Bytes* bytes) {
  Given given(bytes, 1);
  const auto taken = take_scaler(given.as<mdp_scaler>());
  if (!taken.ok()) {
    must(!taken.status().text().empty(), "a scaler is refused without a reason");
    return taken.status().text();
  }
  mdp_scaler shown = scaler_struct(*taken);
  shown.struct_size = sizeof shown;
  const auto again = take_scaler(&shown);
  must(again.ok(), "a scaler that was taken is not taken again");
  mdp_scaler same = scaler_struct(*again);
  same.struct_size = sizeof same;
  must(std::memcmp(&shown, &same, sizeof same) == 0, "a scaler has changed by being shown");
  LossScale scale = taken->scale;
  for (int overflow = 0; overflow < 4; ++overflow) {
    follow_overflow(scale, taken->scaler, overflow % 2 == 0);
    must(std::isfinite(scale.scale) && scale.scale > 0, "a scale that cannot be divided by");
  }
  return text("a scaler, kind ", static_cast<uint32_t>(taken->scaler.kind));
}

// Each entry is NULL, misaligned, or points to bytes that never were a handle.
std::string step_many(Bytes* bytes) {
  const size_t room = bytes->number<uint8_t>() % kMostElements, count = bytes->number<uint8_t>() % 2 == 0 ? room : 0;
  std::vector<std::unique_ptr<uint64_t[]>> memory;
  std::vector<mdp_optimizer*> list;
  for (size_t i = 0; i < room; ++i) {
    const auto kind = bytes->number<uint8_t>() % 3;
    memory.push_back(std::make_unique<uint64_t[]>(2));
    memory.back()[0] = bytes->number<uint32_t>();
    list.push_back(kind == 0 ? nullptr
                             : reinterpret_cast<mdp_optimizer*>(reinterpret_cast<char*>(memory.back().get()) + (kind == 1 ? 4 : 0)));
  }
  Given config(bytes, 1), report(bytes, 1);
  const mdp_status status =
      mdp_optimizer_step_many(list.data(), count, config.as<mdp_step_config>(), report.as<mdp_step_report>(), nullptr);
  must(status == MDP_E_INVALID && mdp_last_error()[0] != '\0', "a list without an optimizer is not refused");
  return mdp_last_error();
}

std::string run(const std::string& input) {
  Bytes bytes(input);
  switch (bytes.number<uint8_t>() % 6) {
    case 0:
      return take_any<mdp_comm_config, mdp_grid_config, mdp_tensor, mdp_param, mdp_buffer_config, mdp_plan_report, mdp_range,
                      mdp_param_group, mdp_param_state, mdp_optimizer_config, mdp_update, mdp_cp_config, mdp_cp_block, mdp_scaler,
                      mdp_step_config, mdp_step_report, mdp_stats_report, mdp_bucket_report, mdp_error_info>(&bytes);
    case 1:
      return "tensor " + take_a_tensor(&bytes);
    case 2:
      return "optimizer " + take_an_optimizer(&bytes);
    case 3:
      return "scaler " + take_a_scaler(&bytes);
    case 4:
      return "list " + step_many(&bytes);
    default:
      return "plan " + plan(&bytes);
  }
}

std::string blob(const std::string& bytes) {
  return std::string(1, static_cast<char>(bytes.size())) + bytes;
}

template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof value;
  return value;
}

std::vector<std::string> valid() {
  const auto* const something = reinterpret_cast<void*>(uintptr_t{64});
  auto grid = sized<mdp_grid_config>();
  grid.tp = 2, grid.pp = 2, grid.order = static_cast<const char*>(something);
  auto tensor = sized<mdp_tensor>();
  tensor.dtype = MDP_DTYPE_F32, tensor.ndim = 2, tensor.data = const_cast<void*>(something);
  tensor.shape = tensor.strides = static_cast<const int64_t*>(something);
  auto param = sized<mdp_param>();
  param.name = static_cast<const char*>(something), param.shape = static_cast<const int64_t*>(something), param.ndim = 1;
  auto config = sized<mdp_buffer_config>();
  config.bucket_elements = 1000;
  const std::string sizes = bytes_of(int64_t{3}) + bytes_of(int64_t{5}), strides = bytes_of(int64_t{5}) + bytes_of(int64_t{1});
  const std::string structs = blob(bytes_of(grid)) + blob(bytes_of(config)) + blob(bytes_of(sized<mdp_plan_report>()));
  const std::string two = blob(bytes_of(param)) + blob(bytes_of(param));
  const std::string pointed = blob("tp-cp-ep-dp-pp") + blob("w") + bytes_of(int64_t{300}) + blob("b") + bytes_of(int64_t{7});
  std::vector<std::string> all = {std::string("\1", 1) + blob(bytes_of(tensor)) + sizes + strides,
                                  std::string("\5", 1) + bytes_of(int32_t{8}) + bytes_of(int32_t{3}) + "\2" + structs + two + pointed};
  auto group = sized<mdp_param_group>();
  group.lr = 0.5;
  for (mdp_rule rule = MDP_RULE_ADAMW; rule <= MDP_RULE_CALLER; ++rule) {
    auto optimizer = sized<mdp_optimizer_config>();
    optimizer.rule = rule, optimizer.param_group_count = 2, optimizer.flags = MDP_OPTIMIZER_SOME_GROUPS, optimizer.first_param_group = 1;
    optimizer.param_groups = static_cast<const mdp_param_group*>(something);
    auto kept = sized<mdp_param_state>();
    kept.name = static_cast<const char*>(something), kept.bytes = static_cast<const uint64_t*>(something);
    const bool keeps = rule == MDP_RULE_CALLER;
    if (keeps)
      optimizer.state = kept.name, optimizer.param_states = static_cast<const mdp_param_state*>(something), optimizer.param_state_count = 1;
    all.push_back(std::string("\2\2", 2) + blob(bytes_of(optimizer)) + blob(bytes_of(group)) + blob(bytes_of(group)) + "\3m\nv" +
                  std::string(1, keeps ? '\1' : '\0') + blob(bytes_of(kept)) + "\1k" + bytes_of(int64_t{8}) + bytes_of(int64_t{0}) +
                  bytes_of(int64_t{24}));
  }
  auto scaler = sized<mdp_scaler>();
  scaler.scale = 1024, scaler.growth_interval = 3, scaler.clean_steps = 2, scaler.hysteresis = 2, scaler.overflows = 1;
  all.push_back(std::string("\3", 1) + blob(bytes_of(scaler)));
  const std::string entries = std::string("\2", 1) + bytes_of(uint32_t{1}) + std::string("\0", 1) + bytes_of(uint32_t{2});
  all.push_back(std::string("\4\2\0", 3) + entries + blob(bytes_of(sized<mdp_step_config>())) + blob(bytes_of(sized<mdp_step_report>())));
  all.push_back(std::string("\0\0", 2) + blob(bytes_of(sized<mdp_comm_config>())));
  all.push_back(std::string("\0\1", 2) + blob(bytes_of(grid)));
  all.push_back(std::string("\0\3", 2) + blob(bytes_of(param) + std::string(8, '\0')));
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz(argc, argv, {valid(), {"tp", "-", "dp-", "cp-ep"}, run});
}
