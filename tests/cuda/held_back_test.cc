// SPDX-License-Identifier: Apache-2.0
// What does not block, or returns at once, does so whatever the other ranks do: rank 1 holds back until rank 0 has made all such calls, on
// either backend. On the device what would keep a launch from being made is there: a collective that NCCL keeps pending until all ranks
// have called theirs, and memory that is being freed.
#include <chrono>
#include <future>
#include <optional>

#include "standin.h"
#include "standin_job.h"

namespace {

using namespace job;
namespace standin = megadp::standin;

struct Way {
  std::string name;
  Kind kind;
  bool connects_late = false, freeing = false;
  bool on_device() const { return kind.backend == MDP_BACKEND_CUDA; }
};

constexpr uint64_t kLongNs = 60'000'000'000;
constexpr auto kAtOnce = std::chrono::seconds(3), kPatience = std::chrono::seconds(9);  // for hangs, not for speed

// Rank 1 stops here until rank 0 lets it go on; at last it does by itself, so that a call that waits for it ends.
class Hold {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return over_; });
    over_ = false;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
};

void at_once(const std::string& what, const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  const auto took = std::chrono::steady_clock::now() - begin;
  require(took < kAtOnce, what, " took ", std::chrono::duration_cast<std::chrono::milliseconds>(took).count(),
          " ms while another rank held back");
}

// Eight parameters in a bucket each.
constexpr size_t kParams = 8, kElements = 600;

class Wide {
 public:
  Wide(const KindRank& rank, const Way& way) : rank_(rank.rank), device_(way.on_device() ? rank.rank : kOnHost) {
    mdp_grid* grid = nullptr;
    ok(mdp_grid_create(rank.comm.get(), nullptr, &grid));
    grid_.reset(grid);
    std::vector<std::string> names;
    for (size_t p = 0; p < kParams; ++p) names.push_back("p" + std::to_string(p));
    std::vector<mdp_param> params(kParams);
    for (size_t p = 0; p < kParams; ++p) {
      params[p] = {};
      params[p].struct_size = sizeof(mdp_param);
      params[p].name = names[p].c_str();
      params[p].shape = shape_.data();
      params[p].ndim = 1;
    }
    mdp_buffer_config config{};
    config.struct_size = sizeof config;
    config.bucket_elements = 500;
    mdp_buffer* buffer = nullptr;
    ok(mdp_buffer_register(nullptr, grid, &config, params.data(), params.size(), &buffer));
    buffer_.reset(buffer);
    optimizer_ = another();
    for (size_t p = 0; p < kParams && way.on_device(); ++p) on_device_.push_back(std::make_unique<DeviceFloats>(gradient(p)));
  }
  Optimizer another() const {
    mdp_optimizer* optimizer = nullptr;
    ok(mdp_optimizer_create(buffer(), nullptr, &optimizer));
    return Optimizer(optimizer);
  }
  mdp_buffer* buffer() const { return buffer_.get(); }
  mdp_optimizer* optimizer() const { return optimizer_.get(); }

  void ready(size_t p) const {
    mdp_tensor view{};
    view.struct_size = sizeof view;
    ok(mdp_buffer_grad_view(buffer(), p, &view));
    const std::vector<float> values = gradient(p);
    std::memcpy(view.data, values.data(), values.size() * sizeof(float));  // nothing on the stand-in uses it now
    at_once("mdp_grad_ready", [&] { ok(mdp_grad_ready(buffer(), p, nullptr)); });
  }
  void skip(size_t p) const {
    at_once("mdp_grad_skip", [&] { ok(mdp_grad_skip(buffer(), p)); });
  }
  void put(size_t p, bool from_host) const {
    std::vector<float> values = gradient(p);
    const bool on_host = from_host || device_ == kOnHost;
    const mdp_tensor tensor = floats(on_host ? values.data() : on_device_[p]->data(), shape_, on_host ? kOnHost : device_);
    at_once(on_host ? "mdp_grad_put of the host's" : "mdp_grad_put", [&] { ok(mdp_grad_put(buffer(), p, &tensor, 0, nullptr)); });
  }
  void wait(size_t p) const {
    at_once("mdp_param_wait", [&] { ok(mdp_param_wait(buffer(), p, nullptr)); });
  }
  // All gradients, from two threads; those of the first buckets come first.
  void backward() const {
    auto other = std::async(std::launch::async, [this] {
      wait(7);
      put(3, false);
      put(2, true);
      wait(SIZE_MAX);
      skip(1);
    });
    ready(7);
    ready(6);
    if (rank_ == 0) {
      skip(5);
    } else {
      ready(5);
    }
    at_once("mdp_buffer_stats", [&] {
      mdp_stats_report stats{};
      stats.struct_size = sizeof stats;
      ok(mdp_buffer_stats(buffer(), &stats));
    });
    put(4, true);
    ready(0);
    other.get();
  }
  std::vector<float> read() const {
    std::vector<float> all(kParams * kElements);
    for (size_t p = 0; p < kParams; ++p) {
      const mdp_tensor tensor = floats(all.data() + p * kElements, shape_, kOnHost);
      ok(mdp_param_read(buffer(), p, &tensor, nullptr));
    }
    return all;
  }

 private:
  std::vector<float> gradient(size_t p) const {
    std::vector<float> values(kElements);
    for (size_t i = 0; i < kElements; ++i) values[i] = static_cast<float>((i * 7 + p * 5 + static_cast<size_t>(rank_) * 3) % 11) - 5.0F;
    return values;
  }
  const int rank_, device_;
  const std::vector<int64_t> shape_ = {static_cast<int64_t>(kElements)};
  std::vector<std::unique_ptr<DeviceFloats>> on_device_;
  Grid grid_;
  Buffer buffer_;
  Optimizer optimizer_;
};

// As long as it lives, but not for ever, memory of rank 0's device is being freed.
class Freeing {
 public:
  explicit Freeing(Optimizer dropped) {
    standin::release_gate().close();
    dropped.reset();
    for (int i = 0; i < 10000 && standin::release_gate().held() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    end_ = std::async(std::launch::async, [this] {
      over_.wait();
      standin::release_gate().open();
    });
  }
  ~Freeing() {
    over_.end();
    end_.wait();
  }
  Freeing(const Freeing&) = delete;
  Freeing& operator=(const Freeing&) = delete;

 private:
  Hold over_;
  std::future<void> end_;
};

bool train(const Way& way, std::vector<float>* trained) {
  Hold hold;
  const int before = standin::overtaken();
  standin::connects_late() = way.connects_late;
  const bool good = run_kind(way.name, way.kind, 2, [&](KindRank& rank) {
    const Wide model(rank, way);
    Optimizer dropped = model.another();
    ok(mdp_barrier(rank.comm.get(), nullptr));
    if (rank.rank == 1) {
      hold.wait();
      model.backward();
    } else {
      std::optional<Freeing> freeing;
      if (way.freeing) freeing.emplace(std::move(dropped));
      try {
        model.backward();
      } catch (...) {
        hold.end();
        throw;
      }
      freeing.reset();
      hold.end();
    }
    ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
    ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr));
    std::vector<float> values = model.read();
    ok(mdp_buffer_verify(model.buffer()));
    if (rank.rank == 0) *trained = std::move(values);
  });
  standin::connects_late() = false;
  if (standin::overtaken() == before) return good;
  std::cerr << "FAILED " << way.name << ": something was put in a stream before a collective that it comes after\n";
  return false;
}

bool gradients() {
  std::vector<float> host;
  bool good = train({"held back, on the host", {MDP_BACKEND_HOST, 0, kLongNs}}, &host);
  require(!host.empty() && host[0] != 0 && host[kElements] == 0, "the host has not trained");  // nobody has a gradient of the second
  for (const uint64_t flags : {uint64_t{0}, uint64_t{MDP_COMM_EXACT_SUMS}}) {
    const Kind kind{MDP_BACKEND_CUDA, flags, kLongNs};
    for (const Way& way : {Way{"held back", kind}, Way{"held back, collectives pending", kind, true, false},
                           Way{"held back, memory being freed", kind, false, true}, Way{"held back, both", kind, true, true}}) {
      std::vector<float> device;
      good = train(way, &device) && good;
      if (device == host) continue;
      std::cerr << "FAILED " << way.name << ": other values than the host's\n";
      good = false;
    }
  }
  return good;
}

// ── calls with a request, and ends ──

void still_pending(mdp_request* request) {
  at_once("mdp_request_test", [&] { require(mdp_request_test(request) == MDP_PENDING, "done without rank 1"); });
}

void finished(mdp_request* request) {
  ok(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
}

using WithRequest = std::function<void(mdp_request** out)>;

// Each of the calls while rank 1 has not made it; then all of them are waited for.
void with_requests(const KindRank& rank, Hold* hold, const std::vector<std::pair<const char*, WithRequest>>& calls) {
  ok(mdp_barrier(rank.comm.get(), nullptr));
  std::vector<mdp_request*> requests(calls.size());
  if (rank.rank == 1) hold->wait();
  try {
    for (size_t i = 0; i < calls.size(); ++i) at_once(calls[i].first, [&] { calls[i].second(&requests[i]); });
    for (mdp_request* const request : requests) {
      if (rank.rank == 0) still_pending(request);
    }
  } catch (...) {
    hold->end();
    throw;
  }
  if (rank.rank == 0) hold->end();
  for (mdp_request* const request : requests) finished(request);
}

void requests(KindRank& rank, const Way& way, Hold* hold) {
  const DeviceFloats mine({1, 2, 3}), sum({0, 0, 0});
  std::vector<float> values = {1, 2, 3};
  const std::vector<int64_t> shape = {3};
  const mdp_tensor from = floats(way.on_device() ? mine.data() : values.data(), shape, way.on_device() ? rank.rank : kOnHost);
  const mdp_tensor to = floats(way.on_device() ? sum.data() : values.data(), shape, way.on_device() ? rank.rank : kOnHost);
  const Wide model(rank, way);
  with_requests(rank, hold,
                {{"mdp_all_reduce with a request",
                  [&](mdp_request** out) { ok(mdp_all_reduce(rank.comm.get(), &from, &to, MDP_OP_SUM, nullptr, out)); }},
                 {"mdp_broadcast with a request", [&](mdp_request** out) { ok(mdp_broadcast(rank.comm.get(), &to, 0, nullptr, out)); }},
                 {"mdp_grad_sync with a request", [&](mdp_request** out) {
                    model.backward();
                    ok(mdp_grad_sync(model.buffer(), nullptr, out));
                  }}});
  const std::vector<float> seen = way.on_device() ? sum.values() : values;
  require(seen == std::vector<float>{2, 4, 6}, "the sum begins with ", seen[0]);
  with_requests(rank, hold, {{"mdp_optimizer_step with a request", [&](mdp_request** out) {
                                ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, out));
                              }}});
  ok(mdp_buffer_verify(model.buffer()));
}

// Longer than anything works on them.
struct Array {
  std::vector<float> on_host = {1, 2, 3};
  DeviceFloats on_device{{1, 2, 3}};
};

// Rank 0 goes while the others have not come to its last collectives.
void destroys(KindRank& rank, const Way& way, Hold* hold, std::vector<Array>* arrays) {
  const std::vector<int64_t> shape = {3};
  Array& mine = (*arrays)[static_cast<size_t>(rank.rank)];
  const mdp_tensor all = way.on_device() ? floats(mine.on_device.data(), shape, rank.rank) : floats(mine.on_host.data(), shape, kOnHost);
  auto model = std::make_unique<Wide>(rank, way);
  ok(mdp_barrier(rank.comm.get(), nullptr));
  if (rank.rank == 1) hold->wait();
  mdp_request* request = nullptr;
  if (mdp_all_reduce(rank.comm.get(), &all, &all, MDP_OP_SUM, nullptr, &request) != MDP_OK) return;  // rank 0 has left
  if (rank.rank == 1) return mdp_request_free(request);
  at_once("mdp_request_free", [&] { mdp_request_free(request); });
  at_once("the destroys of a buffer, its optimizer and its grid", [&] { model.reset(); });
  at_once("mdp_comm_destroy", [&] { rank.comm.reset(); });
  hold->end();
}

// From another thread than the one that waits.
void aborts(KindRank& rank, const Way& way, Hold* hold) {
  const Wide model(rank, way);
  ok(mdp_barrier(rank.comm.get(), nullptr));
  if (rank.rank == 1) return hold->wait();
  model.backward();
  auto sync = std::async(std::launch::async, [&] { refused(mdp_grad_sync(model.buffer(), nullptr, nullptr), MDP_E_ABORTED, {"rank 0"}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  at_once("mdp_comm_abort", [&] { ok(mdp_comm_abort(rank.comm.get())); });
  sync.get();
  hold->end();
}

// A split needs nothing of the device: it does not wait for a collective that was submitted before it and cannot be launched yet.
void split(KindRank& rank, const Way& way) {
  const DeviceFloats mine({1, 2, 3});
  const std::vector<int64_t> shape = {3};
  const mdp_tensor all = floats(mine.data(), shape, rank.rank);
  const Wide model(rank, way);
  Optimizer dropped = model.another();
  ok(mdp_barrier(rank.comm.get(), nullptr));
  auto freeing = std::make_unique<std::optional<Freeing>>();
  if (rank.rank == 0) freeing->emplace(std::move(dropped));
  auto end = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    freeing.reset();
  });
  mdp_request* request = nullptr;
  ok(mdp_all_reduce(rank.comm.get(), &all, &all, MDP_OP_SUM, nullptr, &request));
  mdp_comm* part = nullptr;
  ok(mdp_comm_split(rank.comm.get(), 0, 0, &part));
  const Comm kept_part(part);
  end.get();
  finished(request);
  require(mine.values() == std::vector<float>{2, 4, 6}, "the sum begins with ", mine.values()[0]);
}

bool others() {
  bool good = true;
  for (const bool late : {false, true}) {
    for (const mdp_backend backend : {MDP_BACKEND_HOST, MDP_BACKEND_CUDA}) {
      if (late && backend == MDP_BACKEND_HOST) continue;
      const Way way{"", {backend, 0, kLongNs}, late, false};
      standin::connects_late() = late;
      Hold hold;
      std::vector<Array> arrays(2);
      good = run_kind("requests", way.kind, 2, [&](KindRank& rank) { requests(rank, way, &hold); }) && good;
      if (way.on_device()) good = run_kind("split", way.kind, 2, [&](KindRank& rank) { split(rank, way); }) && good;
      good = run_kind("abort", way.kind, 2, [&](KindRank& rank) { aborts(rank, way, &hold); }) && good;
      good = run_kind("destroys", way.kind, 2, [&](KindRank& rank) { destroys(rank, way, &hold, &arrays); }) && good;
      standin::connects_late() = false;
      standin::wait_for_threads();
    }
  }
  return good;
}

// ── rank 1 does not come after all ──

struct Fate {
  const char* name;
  uint64_t timeout_ns;
  mdp_status status;
};
const Fate kNeverComes{"never comes", 3'000'000'000, MDP_E_TIMEOUT}, kLeaves{"leaves", kLongNs, MDP_E_PEER},
    kAborts{"aborts", kLongNs, MDP_E_ABORTED};

// What rank 0 has called, it has called at once; that rank 1 has not come is told by its next call, and by all that come later.
void without_rank_1(KindRank& rank, const Way& way, const Fate& fate, bool with_sync, Hold* hold) {
  const Wide model(rank, way);
  ok(mdp_barrier(rank.comm.get(), nullptr));
  if (rank.rank == 1) {
    hold->wait();
    if (&fate == &kAborts) ok(mdp_comm_abort(rank.comm.get()));
    if (&fate == &kNeverComes) (void)failure_of(rank);
    return;
  }
  model.backward();
  hold->end();
  if (!with_sync) (void)failure_of(rank);
  for (int again = 0; again < 2; ++again) {
    refused(mdp_grad_sync(model.buffer(), nullptr, nullptr), fate.status, {"rank 1"});
    const mdp_error_info info = failure_of(rank);
    require(info.rank == 1, "the failure blames rank ", info.rank, ": ", info.text);
  }
  refused(mdp_grad_skip(model.buffer(), 0), fate.status, {"rank 1"});
}

bool lost() {
  bool good = true;
  for (const bool late : {false, true}) {
    for (const bool with_sync : {true, false}) {
      for (const Fate* fate : {&kNeverComes, &kLeaves, &kAborts}) {
        const Way way{std::string("rank 1 ") + fate->name + (late ? ", collectives pending" : "") + (with_sync ? "" : ", nobody waits"),
                      {MDP_BACKEND_CUDA, 0, fate->timeout_ns},
                      late,
                      false};
        standin::connects_late() = late;
        Hold hold;
        good = run_kind(way.name, way.kind, 2, [&](KindRank& rank) { without_rank_1(rank, way, *fate, with_sync, &hold); }) && good;
        standin::connects_late() = false;
        standin::wait_for_threads();
      }
    }
  }
  return good;
}

}  // namespace

int main() {
  megadp::cuda::use_plugin(plugin());
  bool good = gradients();
  good = others() && good;
  good = lost() && good;
  std::cerr << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
