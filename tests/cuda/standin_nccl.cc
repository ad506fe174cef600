// SPDX-License-Identifier: Apache-2.0
// NCCL of the stand-in: ranks are threads of one process that meet in a room, read each other's memory, and meet again. In an exchange only
// those meet that have something for each other. As with NCCL, an abort ends the work of the rank that called it; the others go on waiting,
// and are told of a remote failure if they ask.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "host/kernels.h"
#include "standin.h"

namespace megadp::standin {

using namespace cuda;

namespace {

struct Offer {  // what one rank brings to one collective
  const std::byte* from;
  std::byte* to;
  size_t count;
  DType type;
  Op op;
  double divisor;
  int32_t kind, root;
  std::vector<Transfer> transfers = {};  // of an exchange
  size_t grouped = 1;                    // how many are started at once
  bool operator==(const Offer& other) const {
    return count == other.count && type == other.type && op == other.op && divisor == other.divisor && kind == other.kind &&
           root == other.root && grouped == other.grouped;
  }
};

struct Parcel {  // what one rank sends another in an exchange
  const void* data;
  uint64_t count;
  DType type;
  bool taken = false;
};

class Room {
 public:
  explicit Room(int32_t size) : size(size), offers(static_cast<size_t>(size)), aborted(static_cast<size_t>(size)) {}
  const int32_t size;
  std::mutex mutex;
  std::condition_variable changed;
  int32_t joined = 0;
  int32_t failure = 0;
  std::vector<Offer> offers;
  std::vector<bool> aborted;  // by rank
  int32_t here = 0;
  int32_t reading = 0;     // ranks that look at the memory of others
  bool destroyed = false;  // by one of them
  uint64_t meetings = 0;
  std::set<int32_t> calling;                                                           // ranks that have called their first collective
  std::map<std::pair<int32_t, int32_t>, std::deque<std::shared_ptr<Parcel>>> parcels;  // by sender and receiver: not taken yet

  // False once this rank has aborted.
  bool meet(int32_t rank) {
    std::unique_lock lock(mutex);
    if (has_aborted(rank)) return false;
    const uint64_t meeting = meetings;
    if (++here == size) {
      here = 0;
      ++meetings;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return meetings != meeting || has_aborted(rank); });
    if (meetings != meeting) return true;
    --here;  // it does not come after all
    return false;
  }
  void wait_for_abort(int32_t rank) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return has_aborted(rank); });
  }
  bool has_aborted(int32_t rank) const { return aborted[static_cast<size_t>(rank)]; }
  bool anybody_aborted() const { return std::find(aborted.begin(), aborted.end(), true) != aborted.end(); }
};

std::mutex rooms_mutex;
std::map<std::array<uint8_t, 128>, std::shared_ptr<Room>>& rooms() {
  static auto& map = *new std::map<std::array<uint8_t, 128>, std::shared_ptr<Room>>;
  return map;
}

}  // namespace

}  // namespace megadp::standin

namespace megadp::cuda {

struct NcclComm {
  struct Awaited {
    std::shared_ptr<standin::Queue> queue;
    standin::Offer offer;
  };
  Device* device = nullptr;
  bool connected = false;        // all ranks have called their first collective
  std::vector<Awaited> awaited;  // what this rank has called before that
  std::shared_ptr<standin::Room> room;
  int32_t rank = 0;
  bool grouping = false;
  int32_t group_failure = 0;
  std::vector<std::pair<void*, standin::Offer>> group;  // what was called since the group began, by stream
};

}  // namespace megadp::cuda

namespace megadp::standin {
namespace {

int32_t nccl_open(const char*, Nccl** out, char*, size_t) {
  static char library;
  static const bool registered = register_teardown();
  *out = reinterpret_cast<Nccl*>(&library);
  return registered ? 0 : kSystemFailure;
}

int32_t nccl_unique_id(Nccl*, uint8_t out[128]) {
  if (failing_id()) return kSystemFailure;
  static std::atomic<uint64_t> number{0};
  const uint64_t mine = ++number;
  std::memset(out, 0, 128);
  std::memcpy(out, &mine, sizeof mine);
  return 0;
}

int32_t comm_create(Nccl*, Device* device, const uint8_t id[128], int32_t rank, int32_t size, NcclComm** out) {
  static const bool registered = register_teardown();  // with what NCCL loads for the first one
  if (rank == failing_creation() || !registered) return kSystemFailure;
  ++communicators_made();
  std::array<uint8_t, 128> key;
  std::memcpy(key.data(), id, key.size());
  auto comm = std::make_unique<NcclComm>();
  {
    const std::lock_guard lock(rooms_mutex);
    std::shared_ptr<Room>& room = rooms()[key];
    if (room == nullptr) room = std::make_shared<Room>(size);
    comm->room = room;
    const std::lock_guard inside(room->mutex);
    if (++room->joined == size) rooms().erase(key);
  }
  comm->device = device;
  comm->rank = rank;
  *out = comm.release();
  return kPending;
}

void put_in_stream(const NcclComm& comm, Queue* queue, const Offer& offer);

// The awaited collectives come into their streams once all ranks have called theirs.
void let_in(NcclComm* comm) {
  comm->connected = true;
  for (const NcclComm::Awaited& one : std::exchange(comm->awaited, {})) {
    --one.queue->awaited;
    put_in_stream(*comm, one.queue.get(), one.offer);
  }
}

int32_t comm_state(NcclComm* comm) {
  {
    const std::lock_guard lock(comm->room->mutex);
    if (comm->room->has_aborted(comm->rank)) return kAborted;
    if (comm->room->failure != 0) return comm->room->failure;
    if (comm->room->anybody_aborted()) return kNcclRemoteFailure;
    if (comm->room->joined < comm->room->size) return kPending;
    if (!comm->awaited.empty() && comm->room->calling.size() < static_cast<size_t>(comm->room->size)) return kPending;
  }
  if (!comm->awaited.empty()) let_in(comm);
  return 0;
}

int32_t comm_abort(NcclComm* comm) {
  for (const NcclComm::Awaited& one : std::exchange(comm->awaited, {})) --one.queue->awaited;
  const std::shared_ptr<Room> room = comm->room;
  std::unique_lock lock(room->mutex);
  room->aborted[static_cast<size_t>(comm->rank)] = true;
  room->changed.notify_all();
  // What follows frees memory: as on a device, not before everybody has let go of it.
  room->changed.wait(lock, [&] { return room->reading == 0; });
  return 0;
}

// Whether this rank may look at what the others brought: what those who aborted brought may be gone.
bool begin_reading(Room* room) {
  const std::lock_guard lock(room->mutex);
  if (room->anybody_aborted()) return false;
  ++room->reading;
  return true;
}

void end_reading(Room* room) {
  const std::lock_guard lock(room->mutex);
  --room->reading;
  room->changed.notify_all();
}

int32_t comm_destroy(NcclComm* comm) {
  {
    const std::lock_guard lock(comm->room->mutex);
    comm->room->destroyed = true;
    comm->room->changed.notify_all();
  }
  delete comm;
  return 0;
}

enum Kind : int32_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kExchange
};

// This rank's part of a collective, into memory of its own: nobody sees it before all have read.
std::vector<std::byte> result_of(const Room& room, const Offer& mine, int32_t rank) {
  const size_t bytes = mine.count * size_of(mine.type), own = static_cast<size_t>(rank);
  std::vector<std::byte> result;
  if (mine.kind == kReduce && mine.root != rank) return result;
  if (mine.kind == kAllReduce || mine.kind == kReduceScatter || mine.kind == kReduce) {
    result.resize(bytes);
    std::vector<const void*> from;
    for (const Offer& offer : room.offers) from.push_back(offer.from + (mine.kind == kReduceScatter ? own * bytes : 0));
    (void)host::reduce(result.data(), from.data(), room.size, mine.count, mine.type, mine.op, mine.divisor);
  } else if (mine.kind == kBroadcast) {
    result.assign(room.offers[static_cast<size_t>(mine.root)].from, room.offers[static_cast<size_t>(mine.root)].from + bytes);
  } else {
    for (const Offer& offer : room.offers) result.insert(result.end(), offer.from, offer.from + bytes);
  }
  return result;
}

bool in_device_memory(const Offer& offer) {
  return (offer.count == 0 || (is_device_memory(offer.from) && (offer.to == nullptr || is_device_memory(offer.to)))) &&
         std::all_of(offer.transfers.begin(), offer.transfers.end(), [](const Transfer& one) { return is_device_memory(one.data); });
}

int32_t submit(NcclComm* comm, void* stream, const Offer& offer) {
  int32_t refused = in_device_memory(offer) ? 0 : kInvalidArgument;
  if (comm->grouping && comm->rank == failing_rank() && !comm->group.empty()) refused = kSystemFailure;
  if (comm->grouping && comm->rank != failing_rank() && others_know()) refused = cuda::kNcclRemoteFailure;
  if (refused != 0) {
    if (comm->grouping && comm->group_failure == 0) comm->group_failure = refused;
    return refused;
  }
  if (comm->grouping) {
    comm->group.emplace_back(stream, offer);
    return kPending;
  }
  if (connects_late() && !comm->connected) {
    const std::lock_guard lock(comm->room->mutex);
    comm->room->calling.insert(comm->rank);
    comm->awaited.push_back({queue_of(comm->device, stream), offer});
    ++comm->awaited.back().queue->awaited;
    return kPending;
  }
  put_in_stream(*comm, queue_of(comm->device, stream).get(), offer);
  return 0;
}

// One of the device's places, for as long as a collective runs.
class Stay {
 public:
  Stay(std::shared_ptr<Places> places, Room* room, int32_t rank) : places_(std::move(places)) {
    const auto aborted = [&] {
      const std::lock_guard lock(room->mutex);
      return room->has_aborted(rank);
    };
    std::unique_lock lock(places_->mutex);
    while (places_->taken >= collectives_at_once()) {
      if (aborted()) return;  // it ends without having begun
      places_->changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    ++places_->taken;
    here_ = true;
  }
  ~Stay() {
    if (!here_) return;
    const std::lock_guard lock(places_->mutex);
    --places_->taken;
    places_->changed.notify_one();
  }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;

 private:
  const std::shared_ptr<Places> places_;
  bool here_ = false;
};

void run_collective(Room* room, int32_t rank, const Offer& offer) {
  {
    const std::lock_guard lock(room->mutex);
    room->offers[static_cast<size_t>(rank)] = offer;
  }
  if (!room->meet(rank)) return;
  if (!begin_reading(room)) return room->wait_for_abort(rank);
  const bool same = std::all_of(room->offers.begin(), room->offers.end(), [&](const Offer& other) { return other == offer; });
  std::vector<std::byte> result;
  if (same) result = result_of(*room, offer, rank);
  end_reading(room);
  if (!same) {
    {
      const std::lock_guard lock(room->mutex);
      room->failure = kMismatch;
    }
    return room->wait_for_abort(rank);
  }
  if (!room->meet(rank)) return;
  std::copy(result.begin(), result.end(), offer.to);
  if (!room->meet(rank) || rank != receiving_late()) return;
  std::unique_lock lock(room->mutex);
  room->changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return room->destroyed || room->has_aborted(rank); });
  if (!room->destroyed) return;
  room->failure = kNcclRemoteFailure;
  room->changed.wait(lock, [&] { return room->has_aborted(rank); });
}

// Once it is there. False if there is something else, or if this rank or the sender has aborted first.
bool take(Room* room, int32_t rank, const Transfer& wanted, DType type) {
  std::unique_lock lock(room->mutex);
  auto& waiting = room->parcels[{wanted.rank, rank}];
  room->changed.wait(lock, [&] { return !waiting.empty() || room->anybody_aborted(); });
  if (room->anybody_aborted()) return false;  // what that rank has sent may be gone
  const std::shared_ptr<Parcel> parcel = waiting.front();
  waiting.pop_front();
  if (parcel->count != wanted.count || parcel->type != type) {
    room->failure = kMismatch;
    return false;
  }
  ++room->reading;
  lock.unlock();
  std::memcpy(wanted.data, parcel->data, wanted.count * size_of(type));
  lock.lock();
  --room->reading;
  parcel->taken = true;
  room->changed.notify_all();
  return true;
}

// Everything is sent before anything is taken; at the end all that was sent has been taken.
void run_exchange(Room* room, int32_t rank, const Offer& offer) {
  std::vector<std::shared_ptr<Parcel>> sent;
  {
    const std::lock_guard lock(room->mutex);
    for (const Transfer& one : offer.transfers) {
      if (one.sends == 0) continue;
      sent.push_back(std::make_shared<Parcel>(Parcel{one.data, one.count, offer.type}));
      room->parcels[{rank, one.rank}].push_back(sent.back());
    }
    room->changed.notify_all();
  }
  for (const Transfer& one : offer.transfers) {
    if (one.sends == 0 && !take(room, rank, one, offer.type)) return room->wait_for_abort(rank);
  }
  std::unique_lock lock(room->mutex);
  const auto taken = [&] { return std::all_of(sent.begin(), sent.end(), [](const auto& parcel) { return parcel->taken; }); };
  room->changed.wait(lock, [&] { return taken() || room->has_aborted(rank); });
}

void put_in_stream(const NcclComm& comm, Queue* queue, const Offer& offer) {
  queue->submit([room = comm.room, rank = comm.rank, places = comm.device->places, offer] {
    const Stay stay(places, room.get(), rank);
    if (offer.kind == kExchange) return run_exchange(room.get(), rank, offer);
    run_collective(room.get(), rank, offer);
  });
}

int32_t comm_group_begin(NcclComm* comm) {
  if (comm->grouping) return kInvalidArgument;
  comm->grouping = true;
  return 0;
}

// As NCCL, in the background: the first question finds it done.
int32_t comm_group_end(NcclComm* comm) {
  if (!comm->grouping) return kInvalidArgument;
  comm->grouping = false;
  auto group = std::exchange(comm->group, {});
  if (const int32_t failed = std::exchange(comm->group_failure, 0); failed != 0) return failed;  // as NCCL: nothing is started
  groups_of_collectives() += group.size() > 1;
  for (auto& [stream, offer] : group) {
    offer.grouped = group.size();
    if (const int32_t result = submit(comm, stream, offer); result != 0 && result != kPending) return result;
  }
  return kPending;
}

int32_t all_reduce(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor) {
  return submit(comm, stream, {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count, type, op, divisor, kAllReduce, 0});
}

int32_t reduce_scatter(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor) {
  return submit(comm, stream,
                {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count, type, op, divisor, kReduceScatter, 0});
}

int32_t reduce(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, Op op, double divisor, int32_t root) {
  if ((to != nullptr) != (comm->rank == root)) return kInvalidArgument;
  return submit(comm, stream, {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count, type, op, divisor, kReduce, root});
}

int32_t all_gather(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type) {
  return submit(comm, stream, {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count, type, Op::sum, 1, kAllGather, 0});
}

int32_t broadcast(NcclComm* comm, void* stream, const void* from, void* to, size_t count, DType type, int32_t root) {
  return submit(comm, stream,
                {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count, type, Op::sum, 1, kBroadcast, root});
}

int32_t exchange(NcclComm* comm, void* stream, const Transfer* all, size_t count, DType type) {
  Offer offer{nullptr, nullptr, 0, type, Op::sum, 1, kExchange, 0};
  for (const Transfer* one = all; one != all + count; ++one) {
    if (one->count > 0) offer.transfers.push_back(*one);
  }
  return submit(comm, stream, offer);
}

}  // namespace

std::atomic<int>& groups_of_collectives() {
  static std::atomic<int> count{0};
  return count;
}

std::atomic<int>& receiving_late() {
  static std::atomic<int> rank{-1};
  return rank;
}

std::atomic<bool>& connects_late() {
  static std::atomic<bool> late{false};
  return late;
}

namespace {

// Read as the program or the plugin is loaded: tests clear their environment. What is no number, or less than 1, would hold nothing: many,
// as where nothing is said.
const int wanted_at_once = [] {
  const char* const said = std::getenv("STANDIN_COLLECTIVES_AT_ONCE");
  const int number = said == nullptr ? 0 : std::atoi(said);
  return number > 0 ? number : 64;
}();

}  // namespace

std::atomic<int>& collectives_at_once() {
  static std::atomic<int> number{wanted_at_once};
  return number;
}

std::atomic<int>& communicators_made() {
  static std::atomic<int> number{0};
  return number;
}

std::atomic<bool>& failing_id() {
  static std::atomic<bool> fails{false};
  return fails;
}

std::atomic<int>& failing_creation() {
  static std::atomic<int> rank{-1};
  return rank;
}

std::atomic<bool>& others_know() {
  static std::atomic<bool> know{false};
  return know;
}

std::atomic<int>& failing_rank() {
  static std::atomic<int> rank{-1};
  return rank;
}

void put_nccl(PluginTable* table) {
  table->nccl_open = &nccl_open;
  table->nccl_close = [](Nccl*) {};
  table->nccl_version = [](const Nccl*) { return 22809; };
  table->nccl_unique_id = &nccl_unique_id;
  table->comm_create = &comm_create;
  table->comm_state = &comm_state;
  table->comm_abort = &comm_abort;
  table->comm_destroy = &comm_destroy;
  table->nccl_allocate = [](Nccl*, Device* device, size_t bytes, void** out) { return allocate(device, bytes, out); };
  table->nccl_release = [](Nccl*, Device* device, void* memory) { return release(device, memory); };
  table->comm_register = [](NcclComm* comm, void*, size_t, void** registration) {
    *registration = comm;
    return 0;
  };
  table->comm_deregister = [](NcclComm*, void*) { return 0; };
  table->comm_all_reduce = &all_reduce;
  table->comm_reduce_scatter = &reduce_scatter;
  table->comm_all_gather = &all_gather;
  table->comm_broadcast = &broadcast;
  table->comm_reduce = &reduce;
  table->comm_exchange = &exchange;
  table->comm_group_begin = &comm_group_begin;
  table->comm_group_end = &comm_group_end;
}

}  // namespace megadp::standin
