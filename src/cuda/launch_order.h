// SPDX-License-Identifier: Apache-2.0
// LaunchOrder: what keeps the collectives of several channels from shutting each other out of the devices.
//
// A collective's kernel holds its part of a device until all ranks have come. If a device has no room for all channels at once, two
// ranks that begin different collectives would wait for each other for ever. So a device has places, as many as kernels surely fit. A
// channel takes one of its own while there are any. All others share the last place, one collective at a time, in one order on all devices:
//
//   1. its work in front has passed, so nothing but its ranks can hold it back, and all its ranks have said so;
//   2. each rank stamps it with the next number of its own, and the largest stamp counts;
//   3. every device starts them by their stamps, each after the end of the one before.
//
// Nothing is stamped before all its ranks have come, so a stamp is never waited for longer than a message takes; no device stamps later
// what is to go earlier; and the one with the smallest stamp is at the head of the line on every one of its devices. This is one device's
// end.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

namespace megadp::cuda {

class CudaEvent;

class LaunchOrder : public std::enable_shared_from_this<LaunchOrder> {
 public:
  // `places`: how many collectives fit on the device. `rank`: in the world.
  LaunchOrder(int32_t places, int rank) : own_places_(places - 1), rank_(static_cast<uint64_t>(rank)) {}

  // A place of one's own, until the pointer goes; null if there is none left.
  std::shared_ptr<void> take_place();

  // A collective of the shared place, from when all its ranks have come until it is in its stream. The device's launchers wait for each
  // other here, each for what is in front of its own.
  class InLine {
   public:
    explicit InLine(std::shared_ptr<LaunchOrder> order);  // with a stamp of this rank's
    ~InLine();
    InLine(const InLine&) = delete;
    InLine& operator=(const InLine&) = delete;
    uint64_t stamp() const noexcept { return stamp_; }  // never 0, and no other rank's
    // The largest of all its ranks' stamps. Waits until nothing is in front; false if `give_up` was true first.
    bool wait_for_turn(uint64_t largest, const std::function<bool()>& give_up);
    // The end of the one before, null if that has been reached; and of this one. Between wait_for_turn() and the end of the object.
    std::shared_ptr<CudaEvent> follow(const std::shared_ptr<CudaEvent>& end);

   private:
    const std::shared_ptr<LaunchOrder> order_;
    uint64_t stamp_ = 0;
    std::list<uint64_t>::iterator at_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  int32_t own_places_;
  const uint64_t rank_;
  uint64_t clock_ = 0;
  std::list<uint64_t> line_;           // stamps, own ones where the largest is not known yet
  std::weak_ptr<CudaEvent> last_end_;  // of the last that was started; the watch keeps it until it has been reached
};

}  // namespace megadp::cuda
