// SPDX-License-Identifier: Apache-2.0
// Communicators: making, splitting, asking, aborting and dropping them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "api/backends.h"
#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "base/thread.h"
#include "control/launch/launch.h"
#include "control/world.h"

using namespace megadp;

namespace {

constexpr uint64_t kDefaultTimeoutNs = 300'000'000'000;  // five minutes

Status check_config(const mdp_comm_config& config) {
  if (config.backend > MDP_BACKEND_CUDA) {
    return invalid("config.backend is ", config.backend, "; it must be MDP_BACKEND_AUTO (0), MDP_BACKEND_HOST (1) or MDP_BACKEND_CUDA (2)");
  }
  if (config.device < 0) return invalid("config.device is ", config.device, "; CUDA devices are counted from 0");
  if (config.device != 0 && config.backend != MDP_BACKEND_CUDA) {
    return invalid("config.device is ", config.device, ", but config.backend is not MDP_BACKEND_CUDA; leave it 0");
  }
  if (const int most = usable_processors(); config.host_threads < 0 || config.host_threads > most) {
    return invalid("config.host_threads is ", config.host_threads, "; the calling thread may run on ", most,
                   " processors, so it must be 0 (a share of them) to ", most);
  }
  return check_flags(config.flags, MDP_COMM_SET_DEVICE | MDP_COMM_EXACT_SUMS | MDP_COMM_SOCKETS | MDP_COMM_THREADS_ALWAYS, "config.flags",
                     "MDP_COMM_SET_DEVICE (1), MDP_COMM_EXACT_SUMS (2), MDP_COMM_SOCKETS (4) and MDP_COMM_THREADS_ALWAYS (8)");
}

BackendConfig backend_of(const mdp_comm_config& config) {
  BackendConfig backend;
  backend.kind = static_cast<BackendKind>(config.backend);
  if (config.device != 0 || (config.flags & MDP_COMM_SET_DEVICE) != 0) backend.device = config.device;
  backend.exact_sums = (config.flags & MDP_COMM_EXACT_SUMS) != 0;
  backend.sockets = (config.flags & MDP_COMM_SOCKETS) != 0;
  backend.host_threads = config.host_threads;
  backend.threads_always = (config.flags & MDP_COMM_THREADS_ALWAYS) != 0;
  return backend;
}

// How many there are, and which this is, where config says it.
Status check_ranks(const mdp_comm_config& config, const char* with) {
  if (config.size < 1) {
    return invalid("config.size is ", config.size, "; with ", with, " it must say how many ranks there are, 1 or more");
  }
  if (config.size > kMaxRanks) return invalid("config.size is ", config.size, "; at most ", kMaxRanks, " ranks are possible");
  if (config.rank < 0 || config.rank >= config.size) {
    return invalid("config.rank is ", config.rank, "; with config.size ", config.size, " it must be 0 to ", config.size - 1);
  }
  return {};
}

Result<Launch> launch_by_bootstrap(const mdp_comm_config& config) {
  auto ours = take(config.bootstrap, "config.bootstrap");
  if (!ours) return ours.status();
  if (Status status = check_reserved(ours->reserved, "config.bootstrap->reserved"); !status) return status;
  for (const auto& [name, given] : {std::pair{"start", ours->allgather_start != nullptr},
                                    {"test", ours->allgather_test != nullptr},
                                    {"free", ours->allgather_free != nullptr}}) {
    if (!given) return invalid("config.bootstrap->allgather_", name, " is NULL; a bootstrap has all three functions");
  }
  if (Status status = check_ranks(config, "a bootstrap"); !status) return status;
  Launch launch;
  launch.launcher = launch.job = "bootstrap";
  launch.rank = config.rank;
  launch.nranks = config.size;
  launch.bootstrap = AllGather{ours->context, ours->allgather_start, ours->allgather_test, ours->allgather_free};
  return launch;
}

Result<Launch> launch_by_id(const mdp_comm_config& config, const mdp_unique_id& given) {
  if (Status status = check_ranks(config, "an id"); !status) return status;
  UniqueId id;
  static_assert(sizeof id.bytes == sizeof given.bytes);
  std::memcpy(id.bytes.data(), given.bytes, sizeof given.bytes);
  return launch_from_id(id, config.rank, config.size);
}

Result<Launch> launch_by_environment(const mdp_comm_config& config) {
  if (config.rank != 0) return invalid("config.rank is ", config.rank, "; without an id the launcher says it: leave it 0");
  if (config.size < 0) return invalid("config.size is ", config.size, "; without an id it must be 0, or what the launcher says");
  auto launch = launch_from_environment();
  if (launch && config.size != 0 && config.size != launch->nranks) {
    return invalid("config.size is ", config.size, ", but the launcher (", launch->launcher, ") says ", launch->nranks);
  }
  return launch;
}

// The failure that stays with the communicator, whoever noticed it first.
Status sticky_failure(const Context& context) {
  return context.world->failed() ? context.world->failure() : Status();
}

// What `get` says of a communicator of this process; -1 if it is none, or `get` fails.
template <class Get>
int32_t number_of(const mdp_comm* comm, const Get& get) {
  int32_t number = -1;
  guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_handle(comm, "comm", Need::anywhere); !status) return status;
    const Result<int> found = get(*comm->object);
    if (found) number = *found;
    return found.status();
  });
  return number;
}

}  // namespace

mdp_status mdp_unique_id_create(mdp_unique_id* out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    auto id = create_unique_id();
    if (!id) return id.status();
    std::memcpy(out->bytes, id->bytes.data(), sizeof out->bytes);
    return {};
  });
}

mdp_status mdp_comm_create(const mdp_comm_config* config, const mdp_unique_id* id, mdp_comm** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    auto ours = take_or_default(config, "config");
    if (!ours) return ours.status();
    if (Status status = check_config(*ours); !status) return status;
    if (id != nullptr && ours->bootstrap != nullptr)
      return invalid("there is an id, and a config.bootstrap too; the ranks meet by one of them");
    auto launch = id != nullptr                ? launch_by_id(*ours, *id)
                  : ours->bootstrap != nullptr ? launch_by_bootstrap(*ours)
                                               : launch_by_environment(*ours);
    if (!launch) return launch.status();
    const Interrupt interrupt{ours->interrupted, ours->interrupted_context};
    ask_while_waiting(interrupt, launch->rank, nullptr);
    auto world = World::join(*launch, ours->timeout_ns != 0 ? ours->timeout_ns : kDefaultTimeoutNs);
    if (!world) return world.status();
    ask_while_waiting(interrupt, launch->rank, world->get());
    auto backend = open_backend(backend_of(*ours), *world);
    if (!backend) return backend.status();
    auto comm = Comm::create(*world, *std::move(backend), interrupt);
    if (!comm) return comm.status();
    *out = new mdp_comm((*comm)->shared_context(), *comm);
    return {};
  });
}

mdp_status mdp_comm_split(mdp_comm* comm, int32_t color, int32_t key, mdp_comm** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(comm, "comm", Need::alone_in_context); !status) return status;
    auto part = comm->object->split(color, key);
    if (!part) return part.status();
    *out = *part != nullptr ? new mdp_comm(comm->context, *part) : nullptr;
    return {};
  });
}

int32_t mdp_comm_rank(const mdp_comm* comm) {
  return number_of(comm, [](Comm& ours) { return Result(ours.rank()); });
}

int32_t mdp_comm_size(const mdp_comm* comm) {
  return number_of(comm, [](Comm& ours) { return Result(ours.size()); });
}

int32_t mdp_comm_world_rank(const mdp_comm* comm, int32_t rank) {
  return number_of(comm, [rank](Comm& ours) -> Result<int> {
    if (rank >= 0 && rank < ours.size()) return ours.group().members()[static_cast<size_t>(rank)];
    return invalid("rank is ", rank, "; in this communicator it must be 0 to ", ours.size() - 1);
  });
}

mdp_status mdp_comm_error_info(mdp_comm* comm, mdp_error_info* out) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(comm, "comm", Need::anywhere); !status) return status;
    mdp_error_info info;
    fill_error_info(sticky_failure(*comm->context), &info);
    give(info, out);
    return {};
  });
}

mdp_status mdp_comm_event_fd(mdp_comm* comm, int32_t* out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(comm, "comm", Need::process); !status) return status;
    auto fd = event_descriptor(*comm->context);
    if (!fd) return fd.status();
    *out = *fd;
    return {};
  });
}

mdp_status mdp_comm_abort(mdp_comm* comm) {
  return guard([&]() -> Status {
    if (Status status = check_handle(comm, "comm", Need::anywhere); !status) return status;
    const int rank = comm->object->world_rank();
    comm->context->world->fail(Status(Code::aborted, text("rank ", rank, " called mdp_comm_abort"), Blame{.rank = rank}));
    return {};
  });
}

void mdp_comm_destroy(mdp_comm* comm) {
  destroy_handle(comm);
}
