// SPDX-License-Identifier: Apache-2.0
// A stand-in for the CUDA plugin, for machines without a GPU: the same table, on host memory. Streams are threads, so that work is as
// asynchronous as on a device; memory that is not the stand-in's own counts as the host's; NCCL is a meeting of threads of one process.
// It shows that the backend on top of the table asks for the right things in the right order. It shows nothing about kernels, CUDA or NCCL.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/plugin.h"

namespace megadp::standin {

// Work in order, on a thread of its own. What is submitted keeps the queue alive, so a destroyed stream finishes its work.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  static std::shared_ptr<Queue> create();
  void submit(std::function<void()> work);
  void drain();  // waits until everything submitted before is done

  // Collectives that are to be in this stream, and are not yet: see connects_late().
  std::atomic<int> awaited{0};

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;        // has work, or is at it
  bool has_thread_ = false;  // which may also wait for work
};

// What collectives take of a device: see collectives_at_once().
struct Places {
  std::mutex mutex;
  std::condition_variable changed;
  int taken = 0;
};

struct Event {
  std::atomic<uint64_t> done_ns{0};
  bool recorded = false;
};

// NULL: the device's default stream.
std::shared_ptr<Queue> queue_of(cuda::Device* device, void* stream);

constexpr int32_t kBadMemory = cuda::kCudaFailure + 700;  // as cudaErrorIllegalAddress
constexpr int32_t kMismatch = cuda::kNcclFailure + 5;     // as ncclInvalidUsage
constexpr int32_t kInvalidArgument = cuda::kNcclFailure + 4;
constexpr int32_t kSystemFailure = cuda::kNcclFailure + 2;

int32_t allocate(cuda::Device* device, size_t bytes, void** out);
int32_t release(cuda::Device* device, void* memory);
// Where release() stops, before it waits for what the device is doing, until the gate is opened again: so something can be submitted in
// between.
class ReleaseGate {
 public:
  void close();
  void open();
  void pass();
  int held();  // how many are standing before it

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int held_ = 0;
};
ReleaseGate& release_gate();
bool is_device_memory(const void* memory);

// Until only the calling thread is left, ten seconds at most. What looks after dropped memory ends by itself; a check for leaks that meets
// such a thread as it ends takes for lost what it was about to free.
void wait_for_threads();

// So many of the next calls of zero() fail, whatever the device.
std::atomic<int>& failing_zeros();
// The one of the next calls of allocate_pinned() that fails, counted from 1; 0: none.
std::atomic<int>& failing_pinned();
// How many events were created.
std::atomic<int>& events_made();
// As CUDA, the stand-in is torn down as the process exits. That takes so long, and memory that is released or an event that is
// recorded meanwhile ends the process with kTornDown. 0: it is not.
std::atomic<int>& teardown_ms();
// What has been registered for the exit until now comes after it. Each library registers itself where it is loaded.
bool register_teardown();
constexpr int kTornDown = 86;
// The device that has no memory left; -1: none.
std::atomic<int>& full_device();
// It has again once some has been released, which goes on when an allocation has found that it has none.
std::atomic<bool>& release_makes_room();
// The device that says of an event that has happened that what is before it has failed, as CUDA does for ever after; -1: none.
std::atomic<int>& broken_device();
// The rank whose second collective in a group fails; -1: none.
std::atomic<int>& failing_rank();
// The others' NCCL says at once that another rank has failed, rather than wait for it.
std::atomic<bool>& others_know();
// As NCCL, which connects ranks when they first need it: the first collectives of a communicator are pending, and not in their stream,
// until all its ranks have called theirs.
std::atomic<bool>& connects_late();
// As over a network: this rank (-1: none) has what the others brought to a collective later than they are done with it, and it has not if
// one of them destroys its communicator meanwhile.
std::atomic<int>& receiving_late();
// How often something was put in a stream that awaited a collective, which it has overtaken.
std::atomic<int>& overtaken();
// How many collectives a device holds: one that its stream has come to keeps its place until all ranks are done with it, and those of
// other streams wait for a place, in any order; kernels and copies need none. 1 is the worst device there can be. Also by the environment
// variable STANDIN_COLLECTIVES_AT_ONCE.
std::atomic<int>& collectives_at_once();
// How many communicators NCCL has made, of all ranks; and the rank in its communicators that makes none, -1 for nobody.
std::atomic<int>& communicators_made();
std::atomic<int>& failing_creation();
// NCCL has no id to give.
std::atomic<bool>& failing_id();
// How many groups of two collectives or more were started.
std::atomic<int>& groups_of_collectives();

// There is no cuBLASLt.
std::atomic<bool>& no_gemm_library();

// Fill in the parts of the table that stand for NCCL and for cuBLASLt.
void put_nccl(cuda::PluginTable* table);
void put_gemm(cuda::PluginTable* table);

}  // namespace megadp::standin

namespace megadp::cuda {

struct Device {
  int32_t index = 0;
  std::atomic<uint64_t> syncs{0};
  // Work may outlive the device that it was submitted to.
  std::shared_ptr<std::atomic<bool>> poisoned = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<standin::Places> places = std::make_shared<standin::Places>();
  std::shared_ptr<standin::Queue> standard = standin::Queue::create();
  std::mutex mutex;
  std::vector<std::weak_ptr<standin::Queue>> queues;  // under mutex
};

}  // namespace megadp::cuda
