// SPDX-License-Identifier: Apache-2.0
// The plugin's side of NCCL, against a stand-in (nccl_standin.c) that fails, dawdles, is too old or lacks functions as it is told: all of
// it becomes a named error, in bounded time, and nothing is left behind.
#include <cstring>
#include <string>
#include <vector>

#include "nccl_standin.h"
#include "plugin_test.h"

using namespace megadp;
using namespace megadp::cuda;
using namespace megadp::test;

namespace {

const PluginTable* plugin;
std::string standin, old_standin;

// The functions of the mapped stand-in; nothing of it is linked.
struct Standin {
  decltype(&standin_reset) reset;
  decltype(&standin_claim_version) claim_version;
  decltype(&standin_stay_pending) stay_pending;
  decltype(&standin_fail) fail;
  decltype(&standin_fail_later) fail_later;
  decltype(&standin_count) count;
  decltype(&standin_last) last;
  decltype(&standin_living_comms) living_comms;
  decltype(&standin_living_memory) living_memory;

  explicit Standin(const std::string& path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    check(library != nullptr, "the stand-in cannot be loaded");
    find(library, "standin_reset", &reset);
    find(library, "standin_claim_version", &claim_version);
    find(library, "standin_stay_pending", &stay_pending);
    find(library, "standin_fail", &fail);
    find(library, "standin_fail_later", &fail_later);
    find(library, "standin_count", &count);
    find(library, "standin_last", &last);
    find(library, "standin_living_comms", &living_comms);
    find(library, "standin_living_memory", &living_memory);
  }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(library, name));
    check(*out != nullptr, text("the stand-in has no ", name));
  }
};
Standin* nccl_says;

// ── loading ──

void refused(const std::string& path, const std::vector<std::string>& words, Place at = Place::current()) {
  Nccl* nccl = nullptr;
  char why[512] = "";
  const int32_t result = plugin->nccl_open(path.empty() ? nullptr : path.c_str(), &nccl, why, sizeof why);
  check(result != 0 && nccl == nullptr, "a library that should be refused was opened", at);
  for (const std::string& word : words) check(std::string(why).find(word) != std::string::npos, text("'", why, "' lacks '", word, "'"), at);
}

Nccl* open(const std::string& path, Place at = Place::current()) {
  Nccl* nccl = nullptr;
  char why[512] = "";
  check_equal(plugin->nccl_open(path.empty() ? nullptr : path.c_str(), &nccl, why, sizeof why), 0, text("nccl_open: ", why), at);
  return nccl;
}

void loading(const char* no_nccl) {
  refused("/nowhere/libnccl.so", {"could not be loaded", "/nowhere/libnccl.so"});
  refused(no_nccl, {"no NCCL", "ncclGetVersion"});
  for (const auto& [version, word] : {std::pair{2808, "2.8.8"}, {21805, "2.18.5"}, {30001, "3.0.1"}}) {
    nccl_says->claim_version(version);
    refused(standin, {"NCCL", word, "2.19", "libnccl_standin"});
  }
  nccl_says->reset();
  nccl_says->fail("ncclGetVersion", 3);
  refused(standin, {"ncclGetVersion", "3"});
  for (const int version : {21900, 21903, 22605, 22706, 22809, 23004, 29901}) {
    nccl_says->reset();
    nccl_says->claim_version(version);
    Nccl* const nccl = open(standin);
    check_equal(plugin->nccl_version(nccl), version, "nccl_version");
    plugin->nccl_close(nccl);
  }
  nccl_says->reset();
}

// A library whose version promises what it lacks; and one that is old and need not have it.
void gates_by_version() {
  Standin old(old_standin);
  old.claim_version(22706);
  refused(old_standin, {"2.27.6", "lacks ncclCommWindowRegister", "standin_old"});
  old.claim_version(22605);
  Nccl* const nccl = open(old_standin);
  const uint8_t id[128] = {};
  NcclComm* comm = nullptr;
  check_equal(plugin->comm_create(nccl, nullptr, id, 0, 3, &comm), 0, "comm_create");
  float data[16];
  check_equal(plugin->comm_all_gather(comm, nullptr, data, data, 2, DType::f32), 0, "all_gather of an old NCCL");
  check_equal(old.count("ncclAllGather"), 1, "gathers");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
  plugin->nccl_close(nccl);
}

void adopted() {
  // The stand-in is mapped, and its name within the process is NCCL's: no other is looked for.
  nccl_says->claim_version(22345);
  Nccl* const nccl = open("");
  check_equal(plugin->nccl_version(nccl), 22345, "version of the adopted copy");
  plugin->nccl_close(nccl);
  nccl_says->reset();
}

// ── communicators ──

struct Fixture {
  Nccl* nccl;
  uint8_t id[128] = {};

  Fixture() : nccl(open(standin)) { nccl_says->reset(); }
  ~Fixture() {
    plugin->nccl_close(nccl);
    check_equal(nccl_says->living_comms(), 0, "communicators of NCCL left behind");
    check_equal(nccl_says->living_memory(), 0, "memory of NCCL left behind");
    nccl_says->reset();
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  NcclComm* make(int size = 4) {
    NcclComm* comm = nullptr;
    check_equal(plugin->comm_create(nccl, nullptr, id, 1, size, &comm), 0, "comm_create");
    return comm;
  }
  void says(int32_t result, const char* word, const char* what, Place at = Place::current()) {
    names(*plugin, result, kNcclFailure, word, what, nccl, at);
  }
};

void creating() {
  Fixture f;
  uint8_t id[128] = {};
  check_equal(plugin->nccl_unique_id(f.nccl, id), 0, "nccl_unique_id");
  check(id[0] == 7 && id[127] == 7, "the id is not NCCL's");
  nccl_says->fail("ncclGetUniqueId", 2);
  f.says(plugin->nccl_unique_id(f.nccl, id), "ncclSystemError (2): the stand-in was told to fail; it says: last words", "nccl_unique_id");
  NcclComm* comm = nullptr;
  nccl_says->fail("ncclCommInitRankConfig", 5);
  f.says(plugin->comm_create(f.nccl, nullptr, id, 0, 2, &comm), "ncclInvalidUsage", "comm_create");
  check(comm == nullptr, "a failed comm_create handed something out");
  nccl_says->fail("ncclCommGetAsyncError", 3);
  comm = f.make();
  const standin_config& config = nccl_says->last("ncclCommInitRankConfig")->config;
  check_equal(config.blocking, 0, "the communicator is blocking");
  check_equal(config.max_ctas, 16, "the most CTAs");
  f.says(plugin->comm_state(comm), "ncclInternalError", "comm_state");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
  for (const auto& [rank, size] : {std::pair{0, 0}, {-1, 2}, {2, 2}}) {
    names(*plugin, plugin->comm_create(f.nccl, nullptr, id, rank, size, &comm), kOwnFailure, "does not know", "a rank that is none");
  }
}

// In progress, and then done, or failed, or for ever.
void waiting() {
  Fixture f;
  nccl_says->stay_pending(3);
  NcclComm* comm = nullptr;
  check_equal(plugin->comm_create(f.nccl, nullptr, f.id, 0, 2, &comm), kPending, "comm_create");
  for (int i = 0; i < 3; i++) check_equal(plugin->comm_state(comm), kPending, "comm_state");
  check_equal(plugin->comm_state(comm), 0, "comm_state");
  float data[8];
  check_equal(plugin->comm_all_gather(comm, nullptr, data, data, 4, DType::f32), kPending, "all_gather");
  nccl_says->fail_later(6);
  for (int i = 0; i < 3; i++) check_equal(plugin->comm_state(comm), kPending, "comm_state");
  const int32_t lost = plugin->comm_state(comm);
  check_equal(lost, kNcclRemoteFailure, "comm_state");
  f.says(lost, "ncclRemoteError (6): the stand-in lost a rank", "comm_state");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");

  nccl_says->reset();
  nccl_says->stay_pending(-1);
  check_equal(plugin->comm_create(f.nccl, nullptr, f.id, 0, 2, &comm), kPending, "comm_create");
  check_equal(plugin->comm_state(comm), kPending, "comm_state");
  check_equal(plugin->comm_abort(comm), 0, "comm_abort of a communicator that never comes");
  check_equal(nccl_says->count("ncclCommAbort"), 1, "ncclCommAbort");
  const int32_t after[] = {plugin->comm_state(comm), plugin->comm_abort(comm),
                           plugin->comm_all_reduce(comm, nullptr, data, data, 1, DType::f32, Op::sum, 1),
                           plugin->comm_broadcast(comm, nullptr, data, data, 1, DType::f32, 0)};
  for (const int32_t result : after) check_equal(result, kAborted, "a call after the abort");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
  check_equal(nccl_says->count("ncclCommAbort"), 1, "ncclCommAbort, again");
}

// Nobody is waited for.
void destroying() {
  Fixture f;
  NcclComm* const comm = f.make();
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
  check_equal(nccl_says->count("ncclCommAbort"), 1, "ncclCommAbort");
  check_equal(plugin->comm_destroy(nullptr), 0, "comm_destroy of nothing");
}

// ── collectives ──

void failing_collectives() {
  Fixture f;
  NcclComm* const comm = f.make();
  float data[64];
  const auto all = [&](const char* function, auto call) {
    nccl_says->reset();
    check_equal(call(), 0, function);
    check_equal(nccl_says->count(function), 1, function);
    nccl_says->fail(function, 3);
    f.says(call(), "ncclInternalError", function);
  };
  all("ncclAllReduce", [&] { return plugin->comm_all_reduce(comm, nullptr, data, data, 8, DType::f32, Op::sum, 1); });
  all("ncclReduceScatter", [&] { return plugin->comm_reduce_scatter(comm, nullptr, data, data, 8, DType::bf16, Op::max, 1); });
  all("ncclAllGather", [&] { return plugin->comm_all_gather(comm, nullptr, data, data, 8, DType::u8); });
  all("ncclBroadcast", [&] { return plugin->comm_broadcast(comm, nullptr, data, data, 8, DType::i64, 3); });
  all("ncclReduce", [&] { return plugin->comm_reduce(comm, nullptr, data, data, 8, DType::f32, Op::sum, 3, 1); });
  // Nothing is asked of NCCL for no elements, and for what it does not know.
  nccl_says->reset();
  check_equal(plugin->comm_all_reduce(comm, nullptr, data, data, 0, DType::f32, Op::sum, 1), 0, "all_reduce of nothing");
  check_equal(plugin->comm_all_gather(comm, nullptr, data, data, 0, DType::f32), 0, "all_gather of nothing");
  const int32_t strange[] = {plugin->comm_all_gather(comm, nullptr, data, data, 8, static_cast<DType>(1)),
                             plugin->comm_broadcast(comm, nullptr, data, data, 8, DType::f32, 4),
                             plugin->comm_reduce(comm, nullptr, data, data, 8, DType::f32, Op::sum, 1, -1),
                             plugin->comm_all_reduce(comm, nullptr, data, data, 8, DType::i64, Op::sum, 2),
                             plugin->comm_all_reduce(comm, nullptr, data, data, 8, DType::f32, Op::max, 2),
                             plugin->comm_all_reduce(comm, nullptr, data, data, 8, DType::f32, Op::sum, 0)};
  for (const int32_t result : strange) check_equal(result, kBadArgument, "what NCCL does not know");
  check_equal(nccl_says->count("ncclAllReduce") + nccl_says->count("ncclAllGather") + nccl_says->count("ncclBroadcast"), 0, "calls");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
}

// To rank 3, from rank 0, with rank 1 itself; nothing with rank 2, and nothing more to rank 0.
float exchanged[64];
const std::vector<Transfer> kTransfers = {{exchanged, 5, 3, 1},     {exchanged + 10, 7, 0, 0}, {exchanged, 0, 2, 1},
                                          {exchanged, 0, 2, 0},     {exchanged + 40, 2, 1, 1}, {exchanged + 20, 2, 1, 0},
                                          {exchanged + 30, 0, 0, 1}};

int32_t exchange(NcclComm* comm, size_t first, size_t count, DType type = DType::f16) {
  return plugin->comm_exchange(comm, nullptr, kTransfers.data() + first, count, type);
}

// What is sent and what comes are one group of NCCL's; what is empty is left out.
void exchanges() {
  Fixture f;
  NcclComm* const comm = f.make();
  const auto is = [](const char* function, const void* at, size_t count, int peer) {
    const standin_call* const call = nccl_says->last(function);
    check(call->from == at || call->to == at, text(function, " of other memory"));
    check_equal(call->count, count, text(function, ": count"));
    check_equal(call->op, peer, text(function, ": peer"));
    check_equal(call->type, 6, text(function, ": type"));
  };
  nccl_says->reset();
  check_equal(exchange(comm, 0, kTransfers.size()), 0, "exchange");
  check_equal(nccl_says->count("ncclSend"), 2, "sends");
  check_equal(nccl_says->count("ncclRecv"), 2, "receives");
  check_equal(nccl_says->count("ncclGroupStart") + nccl_says->count("ncclGroupEnd"), 2, "begin and end");
  is("ncclSend", exchanged + 40, 2, 1);
  is("ncclRecv", exchanged + 20, 2, 1);
  nccl_says->reset();
  check_equal(exchange(comm, 0, 2), 0, "exchange");
  is("ncclSend", exchanged, 5, 3);
  is("ncclRecv", exchanged + 10, 7, 0);
  // Nothing is asked of NCCL for nothing, or for ranks and types that there are not.
  nccl_says->reset();
  check_equal(exchange(comm, 2, 2), 0, "exchange of nothing");
  check_equal(exchange(comm, 0, 0), 0, "exchange with nobody");
  for (const int32_t rank : {-1, 4}) {
    const Transfer strange{exchanged, 1, rank, 1};
    check_equal(plugin->comm_exchange(comm, nullptr, &strange, 1, DType::f32), kBadArgument, "a rank that is none");
  }
  check_equal(exchange(comm, 0, 2, static_cast<DType>(1)), kBadArgument, "a type that is none");
  check_equal(nccl_says->count("ncclGroupStart"), 0, "groups of nothing");
  check_equal(plugin->comm_abort(comm), 0, "comm_abort");
  check_equal(exchange(comm, 0, 2), kAborted, "exchange after an abort");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
}

// The group is ended whatever failed in it; and it says for all what is pending.
void failing_exchanges() {
  Fixture f;
  NcclComm* const comm = f.make();
  const auto all = [comm] { return exchange(comm, 0, kTransfers.size()); };
  for (const char* function : {"ncclSend", "ncclRecv"}) {
    nccl_says->reset();
    nccl_says->fail(function, 2);
    f.says(all(), "ncclSystemError", function);
    check_equal(nccl_says->count(function), 1, function);
    check_equal(nccl_says->count("ncclGroupEnd"), 1, "the end of a group that failed");
  }
  nccl_says->reset();
  nccl_says->fail("ncclGroupStart", 3);
  f.says(all(), "ncclInternalError", "the beginning");
  check_equal(nccl_says->count("ncclSend") + nccl_says->count("ncclGroupEnd"), 0, "calls after a group that did not begin");
  nccl_says->fail("ncclGroupEnd", 1);
  f.says(all(), "ncclUnhandledCudaError", "the end");
  nccl_says->reset();
  nccl_says->stay_pending(2);
  check_equal(all(), 0, "an end that is not pending");
  check_equal(nccl_says->count("ncclSend") + nccl_says->count("ncclRecv"), 4, "calls that were pending");
  nccl_says->fail("ncclGroupEnd", 7);
  check_equal(all(), kPending, "an end that is");
  for (int i = 0; i < 2; i++) check_equal(plugin->comm_state(comm), kPending, "comm_state");
  check_equal(plugin->comm_state(comm), 0, "comm_state");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
}

// Several collectives as one: started and, whatever failed among them, ended.
void groups(bool device) {
  Fixture f;
  NcclComm* const comm = f.make(6);
  float data[64];
  const auto group = [&](auto calls) {
    check_equal(plugin->comm_group_begin(comm), 0, "comm_group_begin");
    calls();
    return plugin->comm_group_end(comm);
  };
  const auto sum = [&](double divisor) { return plugin->comm_all_reduce(comm, nullptr, data, data, 4, DType::bf16, Op::sum, divisor); };
  const auto gather = [&] { return plugin->comm_all_gather(comm, nullptr, data, data, 4, DType::f32); };
  nccl_says->reset();
  check_equal(group([&] {
                check_equal(sum(4), 0, "a sum in a group");
                check_equal(gather(), 0, "a gather in a group");
              }),
              0, "comm_group_end");
  check_equal(nccl_says->count("ncclGroupStart") + nccl_says->count("ncclGroupEnd"), 2, "begin and end");
  nccl_says->fail("ncclAllGather", 3);
  f.says(group([&] {
           check_equal(sum(3), 0, "a sum to be divided");
           f.says(gather(), "ncclInternalError", "a gather that fails in a group");
         }),
         "ncclInternalError", "the end after it");
  check_equal(nccl_says->count("ncclGroupStart"), nccl_says->count("ncclGroupEnd"), "groups that were ended");
  nccl_says->reset();
  check_equal(plugin->comm_state(comm), 0, "comm_state: nothing is divided that was not summed");
  nccl_says->fail("ncclGroupStart", 2);
  f.says(plugin->comm_group_begin(comm), "ncclSystemError", "comm_group_begin");
  // An end that fails: what was to be divided is not.
  nccl_says->fail("ncclGroupEnd", 1);
  f.says(group([&] { check_equal(sum(3), 0, "a sum to be divided"); }), "ncclUnhandledCudaError", "comm_group_end");
  check_equal(plugin->comm_state(comm), 0, "comm_state after it");
  // The divisions come when all is in the stream: at the end, or when it is no longer pending.
  nccl_says->reset();
  const auto divided = [&](int32_t result, const char* what) {
    if (device) check_equal(result, 0, what);
    if (!device) names(*plugin, result, kCudaFailure, "cudaError", what);
  };
  divided(group([&] {
            check_equal(sum(3), 0, "a sum to be divided");
            check_equal(sum(5), 0, "another");
            check_equal(plugin->comm_state(comm), 0, "comm_state within the group");
          }),
          "the divisions at the end");
  check_equal(plugin->comm_state(comm), 0, "comm_state");
  nccl_says->stay_pending(1);
  check_equal(plugin->comm_group_begin(comm), 0, "comm_group_begin");
  check_equal(sum(3), kPending, "a sum to be divided");
  nccl_says->fail("ncclGroupEnd", 7);
  check_equal(plugin->comm_group_end(comm), kPending, "comm_group_end in progress");
  check_equal(plugin->comm_state(comm), kPending, "comm_state");
  divided(plugin->comm_state(comm), "the division after it");
  check_equal(plugin->comm_state(comm), 0, "comm_state");
  check_equal(plugin->comm_abort(comm), 0, "comm_abort");
  check_equal(plugin->comm_group_begin(comm), kAborted, "comm_group_begin after it");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
}

// The factor that NCCL was given, as a number.
double given_factor() {
  const standin_call* const call = nccl_says->last("ncclRedOpCreatePreMulSum");
  if (call == nullptr) return 1;
  float single = 0;
  double wide = 0;
  uint16_t half = 0;
  std::memcpy(&single, call->scalar, sizeof single);
  std::memcpy(&wide, call->scalar, sizeof wide);
  std::memcpy(&half, call->scalar, sizeof half);
  if (call->type == 7) return single;
  if (call->type == 8) return wide;
  return call->type == 9 ? to_f32(Bf16{half}) : to_f32(F16{half});
}

// Half-width sums are multiplied by a power of two first; what is left divides afterwards, which needs a device.
void divisors(bool device) {
  Fixture f;
  float data[64];
  struct Case {
    DType type;
    double divisor, factor;
    bool divides_after;
  };
  for (const Case& c : {Case{DType::f32, 1, 1, false},
                        {DType::f32, 3, static_cast<float>(1.0 / 3), false},
                        {DType::f64, 3, 1.0 / 3, false},
                        {DType::bf16, 1, 1, false},
                        {DType::bf16, 8, 0.125, false},
                        {DType::f16, 8, 0.125, false},
                        {DType::bf16, 12, 0.125, true},
                        {DType::f16, 3, 0.5, true},
                        {DType::f16, 1.5, 1, true},
                        {DType::bf16, 0.5, 2, false}}) {
    nccl_says->reset();
    NcclComm* const comm = f.make(6);
    const int32_t result = plugin->comm_reduce_scatter(comm, nullptr, data, data, 4, c.type, Op::sum, c.divisor);
    const std::string what = text(name_of(c.type), " divided by ", c.divisor);
    check_equal(given_factor(), c.factor, what);
    if (!device) {
      if (c.divides_after) names(*plugin, result, kCudaFailure, "cudaError", what);
      if (!c.divides_after) check_equal(result, 0, what);
    }
    check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
  }
  // The average is the sum divided by the size; an operation is made once.
  nccl_says->reset();
  NcclComm* const comm = f.make(6);
  for (int i = 0; i < 3; i++) check_equal(plugin->comm_all_reduce(comm, nullptr, data, data, 4, DType::f32, Op::avg, 2), 0, "average");
  check_equal(given_factor(), double{static_cast<float>(1.0 / 12)}, "factor of an average");
  check_equal(nccl_says->count("ncclRedOpCreatePreMulSum"), 1, "operations that were made");
  nccl_says->fail("ncclRedOpCreatePreMulSum", 4);
  f.says(plugin->comm_all_reduce(comm, nullptr, data, data, 4, DType::f32, Op::sum, 7), "ncclInvalidArgument", "an operation that fails");
  check_equal(nccl_says->count("ncclAllReduce"), 3, "sums with an operation that failed");
  // While NCCL is not done, the division waits: it would come before the sum.
  nccl_says->reset();
  nccl_says->stay_pending(2);
  check_equal(plugin->comm_all_reduce(comm, nullptr, data, data, 4, DType::bf16, Op::sum, 3), kPending, "a sum in progress");
  for (int i = 0; i < 2; i++) check_equal(plugin->comm_state(comm), kPending, "comm_state");
  if (!device) names(*plugin, plugin->comm_state(comm), kCudaFailure, "cudaError", "the division after it");
  check_equal(plugin->comm_state(comm), 0, "comm_state");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
}

// A divisor by tokens is another one in each step: NCCL's operations of the last few are kept, and those of a group until it ends.
void kept_operations() {
  Fixture f;
  NcclComm* const comm = f.make(6);
  float data[64];
  const auto divide = [&](double divisor) {
    check_equal(plugin->comm_all_reduce(comm, nullptr, data, data, 4, DType::f32, Op::sum, divisor), 0, "a sum to be divided");
    return nccl_says->last("ncclAllReduce")->op;
  };
  const auto made_and_gone = [&](int made, int gone, const char* when) {
    check_equal(nccl_says->count("ncclRedOpCreatePreMulSum"), made, text("operations made ", when));
    check_equal(nccl_says->count("ncclRedOpDestroy"), gone, text("operations destroyed ", when));
  };
  const int first = divide(3), second = divide(5);
  for (const double divisor : {6, 7}) divide(divisor);
  made_and_gone(4, 0, "by four divisors");
  check_equal(divide(3), first, "the operation of a divisor that comes again");
  divide(9);
  made_and_gone(5, 1, "by a fifth");
  check_equal(nccl_says->last("ncclRedOpDestroy")->op, second, "the one used longest ago");
  check_equal(divide(3), first, "the operation of a divisor that comes again");
  check_equal(plugin->comm_group_begin(comm), 0, "comm_group_begin");
  for (const double divisor : {11, 12, 13, 14, 15}) divide(divisor);
  made_and_gone(10, 1, "within a group");
  check_equal(plugin->comm_group_end(comm), 0, "comm_group_end");
  made_and_gone(10, 6, "by a group");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
}

void memory(bool device) {
  Fixture f;
  NcclComm* const comm = f.make();
  void *data = nullptr, *registration = nullptr;
  nccl_says->fail("ncclMemAlloc", 1);
  f.says(plugin->nccl_allocate(f.nccl, nullptr, 100, &data), "ncclUnhandledCudaError", "nccl_allocate");
  nccl_says->reset();
  check_equal(plugin->nccl_allocate(f.nccl, nullptr, 0, &data), kOutOfMemory, "nccl_allocate of nothing");
  check_equal(plugin->nccl_allocate(f.nccl, nullptr, SIZE_MAX, &data), kOutOfMemory, "nccl_allocate of too much");
  if (!device) {
    names(*plugin, plugin->nccl_allocate(f.nccl, nullptr, 100, &data), kCudaFailure, "cudaError", "memory that cannot be zeroed");
  }
  alignas(4096) static char known[4096];
  nccl_says->fail("ncclCommWindowRegister", 3);
  f.says(plugin->comm_register(comm, known, sizeof known, &registration), "ncclInternalError", "comm_register");
  check(data == nullptr && registration == nullptr, "a call that failed handed something out");
  check_equal(nccl_says->living_memory(), 0, "memory of a failed nccl_allocate");
  nccl_says->reset();
  check_equal(plugin->comm_register(comm, known, sizeof known, &registration), 0, "comm_register");
  check_equal(plugin->comm_deregister(comm, registration), 0, "comm_deregister");
  check_equal(nccl_says->count("ncclCommWindowDeregister"), 1, "ncclCommWindowDeregister");
  // With the communicator its registrations are gone.
  check_equal(plugin->comm_register(comm, known, sizeof known, &registration), 0, "comm_register");
  check_equal(plugin->comm_abort(comm), 0, "comm_abort");
  check_equal(plugin->comm_deregister(comm, registration), 0, "comm_deregister after an abort");
  check_equal(nccl_says->count("ncclCommWindowDeregister"), 1, "ncclCommWindowDeregister after an abort");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
}

// NCCL may say that memory is registered while it still is at it: no collective may come before it is done.
void memory_in_progress() {
  Fixture f;
  NcclComm* const comm = f.make();
  alignas(4096) static char known[4096];
  float data[8];
  void* registration = nullptr;
  nccl_says->stay_pending(2);
  check_equal(plugin->comm_register(comm, known, sizeof known, &registration), kPending, "comm_register in progress");
  check(registration != nullptr, "a registration in progress was not handed out");
  while (plugin->comm_state(comm) == kPending) continue;
  nccl_says->stay_pending(0);
  check_equal(plugin->comm_all_gather(comm, nullptr, data, data, 4, DType::f32), 0, "all_gather after it");
  check_equal(plugin->comm_deregister(comm, registration), 0, "comm_deregister");
  nccl_says->fail_later(3);
  registration = nullptr;
  f.says(plugin->comm_register(comm, known, sizeof known, &registration), "ncclInternalError", "comm_register that fails later");
  check(registration == nullptr, "a call that failed handed something out");
  check_equal(plugin->comm_destroy(comm), 0, "comm_destroy");
}

}  // namespace

int main(int, char** arguments) {
  plugin = load_plugin(arguments[1]);
  if (plugin == nullptr) return finish();
  standin = arguments[2];
  old_standin = arguments[3];
  Standin functions(standin);
  nccl_says = &functions;
  int32_t count = 0;
  const bool device = plugin->device_count(&count) == 0 && count > 0;
  loading(arguments[1]);
  gates_by_version();
  adopted();
  creating();
  waiting();
  destroying();
  failing_collectives();
  exchanges();
  failing_exchanges();
  groups(device);
  divisors(device);
  kept_operations();
  memory(device);
  memory_in_progress();
  return finish();
}
