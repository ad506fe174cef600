// SPDX-License-Identifier: Apache-2.0
// Memory runs out on one of two ranks while they save or load: this program takes the place of malloc, and each allocation of the call in
// turn fails, alone or with all that follow. No rank dies or waits for ever, both learn of it, and a whole checkpoint stays, which loads;
// the next save succeeds.
#include <sys/mman.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "failing_malloc.h"
#include "job.h"

namespace {

using namespace job;
using namespace failing_malloc;

constexpr int kRanks = 2;
constexpr unsigned kHangs = 30;  // seconds that an attempt may take
constexpr int64_t kElements = 37;
constexpr int64_t kStride = 37;  // where all fail the communicator is lost each time, which takes a tick of its monitors to be known

enum class Call {
  save,
  start_saving,
  load
};
constexpr const char* kCalls[] = {"save", "background", "load"};

// What the two processes know of each other, whatever becomes of their communicator.
struct Shared {
  std::atomic<int> arrived, left;
  mdp_unique_id id;
  int64_t number;  // of the allocation
  int64_t fired;
  mdp_status status[kRanks];
  char sentence[kRanks][512];
  bool usable[kRanks];
  int64_t lost;  // communicators
};
Shared* shared = nullptr;

// Both come here; who waits too long is ended by its alarm.
void meet() {
  const int turn = shared->left.load();
  if (shared->arrived.fetch_add(1) == kRanks - 1) {
    shared->arrived.store(0);
    shared->left.fetch_add(1);
  }
  while (shared->left.load() == turn) usleep(50);
}

// The model, and what it is saved with: two types, moments, a tensor of the caller's that is not dense, bytes.
class Model {
 public:
  Model(int rank, std::string directory) : rank_(rank), directory_(std::move(directory)) {}

  void open() {
    if (rank_ == 0) ok(mdp_unique_id_create(&shared->id));
    meet();
    mdp_comm_config config{};
    config.struct_size = sizeof config;
    config.rank = rank_;
    config.size = kRanks;
    config.timeout_ns = kTimeoutNs;
    mdp_comm* comm = nullptr;
    ok(mdp_comm_create(&config, &shared->id, &comm));
    comm_.reset(comm);
    mdp_param params[2]{};
    for (int p = 0; p < 2; ++p) {
      params[p].struct_size = sizeof(mdp_param);
      params[p].name = p == 0 ? "the first of two parameters" : "the second of two parameters";
      params[p].dtype = p == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_BF16;
      params[p].shape = &kElements;
      params[p].ndim = 1;
    }
    mdp_buffer* buffer = nullptr;
    ok(mdp_buffer_register(comm, nullptr, nullptr, params, 2, &buffer));
    buffer_.reset(buffer);
    mdp_optimizer* optimizer = nullptr;
    ok(mdp_optimizer_create(buffer, nullptr, &optimizer));
    optimizer_.reset(optimizer);
  }

  void close() {
    optimizer_.reset();
    buffer_.reset();
    comm_.reset();
  }

  bool usable() const { return mdp_barrier(comm_.get(), nullptr) == MDP_OK; }

  void set(int value) {
    for (size_t p = 0; p < 2; ++p) {
      float values[kElements];
      for (float& each : values) each = static_cast<float>(value);
      const mdp_tensor tensor = tensor_of(values, kElements, 1);
      ok(mdp_param_write(buffer_.get(), p, &tensor, nullptr));
    }
    for (float& each : extra_) each = static_cast<float>(value);
  }

  // What all of it is.
  int value() const {
    const int expected = static_cast<int>(extra_[0]);
    for (size_t p = 0; p < 2; ++p) {
      float values[kElements];
      const mdp_tensor tensor = tensor_of(values, kElements, 1);
      ok(mdp_param_read(buffer_.get(), p, &tensor, nullptr));
      for (const float each : values) require(each == static_cast<float>(expected), "half of what was saved is there");
    }
    return expected;
  }

  mdp_status call(Call which) {
    const mdp_checkpoint_part part = {sizeof part, 0, buffer_.get(), optimizer_.get()};
    const mdp_tensor dense = tensor_of(extra_, kElements, 2);
    mdp_checkpoint_tensor extra{};
    extra.struct_size = sizeof extra;
    extra.name = "a tensor of the caller's";
    extra.tensor = &dense;
    mdp_checkpoint_config config{};
    config.struct_size = sizeof config;
    config.directory = directory_.c_str();
    config.parts = &part;
    config.part_count = 1;
    config.tensors = &extra;
    config.tensor_count = 1;
    config.keep = 1;
    config.shared_data = "of all";
    config.shared_bytes = 6;
    config.rank_data = "of one";
    config.rank_bytes = 6;
    if (which == Call::load) return mdp_checkpoint_load(&config);
    if (which == Call::save) return mdp_checkpoint_save(&config, nullptr);
    mdp_request* request = nullptr;
    const mdp_status started = mdp_checkpoint_save(&config, &request);
    if (started != MDP_OK) return started;
    const mdp_status ended = mdp_request_wait(request, UINT64_MAX);
    mdp_request_free(request);
    return ended;
  }

 private:
  static mdp_tensor tensor_of(float* data, const int64_t& elements, int64_t stride) {
    static thread_local int64_t strides[2];
    strides[stride - 1] = stride;
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.dtype = MDP_DTYPE_F32;
    tensor.ndim = 1;
    tensor.data = data;
    tensor.shape = &elements;
    tensor.strides = &strides[stride - 1];
    return tensor;
  }

  const int rank_;
  const std::string directory_;
  Comm comm_;
  Buffer buffer_;
  Optimizer optimizer_;
  float extra_[2 * kElements] = {};
};

struct Case {
  Call call;
  Fails fails;
  int rank;
};

void check_statuses(const Case& tried) {
  const auto say = [&](const char* what) {
    fail(what, ": rank 0 ", mdp_status_name(shared->status[0]), ": ", shared->sentence[0], "; rank 1 ", mdp_status_name(shared->status[1]),
         ": ", shared->sentence[1]);
  };
  const mdp_status its = shared->status[tried.rank], other = shared->status[1 - tried.rank];
  // The last answer reached one of them, and could not be taken to the other: then they are lost to each other.
  if ((its == MDP_OK) != (other == MDP_OK) && (shared->usable[0] || shared->usable[1])) say("one rank only has failed, and they go on");
  if (other == MDP_E_TIMEOUT) say("the other rank has waited for its timeout");
  if (its == MDP_OK) return;
  if (shared->fired == 0) say("it failed without a reason");
  if (its != MDP_E_MEMORY) say("the rank without memory says something else");
  if (other == MDP_OK || tried.fails == Fails::all_after) return;  // of which the end may be all that can be told
  const std::string who = "rank " + std::to_string(tried.rank);
  if (other != MDP_E_MEMORY || std::string(shared->sentence[1 - tried.rank]).find(who) == std::string::npos)
    say("the other rank is not told who has no memory");
}

// One allocation fails, or all from one on. False: the call makes fewer.
bool attempt(const Case& tried, int rank, const std::string& directory, Model* model) {
  static int value = 1;
  const int before = value;
  value = before % 200 + 1;  // bf16 has it as it is
  if (tried.call != Call::load) model->set(value);
  if (rank == 0) shared->fired = 0;
  meet();
  if (rank == tried.rank) {
    fail_at(shared->number, tried.fails);
  }
  shared->status[rank] = model->call(tried.call);
  const int64_t fired = stop_failing();
  if (rank == tried.rank) shared->fired = fired;
  std::snprintf(shared->sentence[rank], sizeof shared->sentence[rank], "%s", shared->status[rank] == MDP_OK ? "" : mdp_last_error());
  meet();
  shared->usable[rank] = model->usable();
  meet();
  check_statuses(tried);
  ok(mdp_checkpoint_verify(directory.c_str(), nullptr, 0, nullptr));
  meet();
  if (!shared->usable[0] || !shared->usable[1]) {
    model->close();
    if (rank == 0) ++shared->lost;
    model->open();
  }
  ok(model->call(Call::load));
  const int found = model->value();
  const bool is_saved = tried.call != Call::load && (shared->status[0] == MDP_OK || shared->status[1] == MDP_OK);
  require(found == value || (found == before && !is_saved), "the checkpoint holds ", found, ", after ", before, " and ", value);
  model->set(value);
  ok(model->call(Call::save));
  meet();
  return shared->fired > 0;
}

[[noreturn]] void run_as(const Case& tried, int rank, const std::string& directory) {
  int code = 0;
  try {
    Model model(rank, directory);
    alarm(kHangs);
    model.open();
    model.set(1);
    ok(model.call(Call::save));
    while (attempt(tried, rank, directory, &model)) {
      alarm(kHangs);
      meet();
      if (rank == 0) shared->number += tried.fails == Fails::one ? 1 : kStride;
      meet();
    }
    model.close();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "  rank %d: %s\n", rank, error.what());
    code = 1;
  }
  _exit(code);
}

bool run(const Case& tried, int64_t from, const std::string& directory) {
  std::memset(static_cast<void*>(shared), 0, sizeof *shared);
  shared->number = from;
  pid_t children[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) run_as(tried, rank, directory);
  }
  std::string ends;
  for (int k = 0; k < kRanks; ++k) {
    int status = 0;
    const pid_t ended = wait(&status);
    const int rank = ended == children[0] ? 0 : 1;
    if (status == 0) continue;
    ends += " rank " + std::to_string(rank) +
            (!WIFSIGNALED(status)          ? " failed;"
             : WTERMSIG(status) == SIGALRM ? " waited for ever;"
                                           : " died;");
    if (k == 0) {
      usleep(1'000'000);
      kill(children[1 - rank], SIGALRM);  // it meets nobody any more
    }
  }
  std::fprintf(stderr, "%s %s, %s fails on rank %d: %lld allocations, %lld communicators lost;%s\n", ends.empty() ? "  " : "FAILED",
               kCalls[static_cast<int>(tried.call)], tried.fails == Fails::one ? "one" : "each from one on", tried.rank,
               static_cast<long long>(shared->number), static_cast<long long>(shared->lost), ends.empty() ? " passed" : ends.c_str());
  return ends.empty() && shared->number > 100;
}

}  // namespace

// The call to try, and from which allocation on.
int main(int argc, char** argv) {
  shared = static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  char folder[] = "/tmp/megadp-memory-XXXXXX";
  if (shared == MAP_FAILED || mkdtemp(folder) == nullptr) return 1;
  bool good = true;
  for (const Call call : {Call::save, Call::start_saving, Call::load}) {
    if (argc > 1 && std::string(argv[1]) != kCalls[static_cast<int>(call)]) continue;
    for (const Fails which : {Fails::one, Fails::all_after}) {
      for (int rank = 0; rank < kRanks; ++rank)
        good = run({call, which, rank}, argc > 2 ? std::atoi(argv[2]) : 0, std::string(folder) + "/run") && good;
    }
  }
  if (std::system((std::string("rm -r ") + folder).c_str()) != 0) good = false;
  return good ? 0 : 1;
}
