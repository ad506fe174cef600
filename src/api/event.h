// SPDX-License-Identifier: Apache-2.0
// The event descriptor of a context: a semaphore-like eventfd whose count is the number of requests that have finished and that no test or
// wait has seen finished yet. So it is readable exactly while testing the pending requests would find something.
#pragma once

#include <memory>

#include "api/handle.h"

namespace megadp {

// Makes the descriptor on first use.
Result<int> event_descriptor(Context& context);

// NULL, or where a request can be written to.
Status check_request_out(mdp_request** out);
// A request that was asked for, to be filled before the operation is submitted, so that nothing can fail after it. Null when out is NULL.
template <class Owner>
std::unique_ptr<mdp_request> prepare_request(mdp_request** out, const std::shared_ptr<Context>& context,
                                             const std::shared_ptr<Owner>& owner) {
  if (out == nullptr) return nullptr;
  auto request = std::make_unique<mdp_request>(context, nullptr);
  request->owner = owner;
  return request;
}
// Fills it in and hands it out; does nothing when out is NULL.
Status give_request(std::unique_ptr<mdp_request> request, std::shared_ptr<Request> pending, mdp_request** out);

}  // namespace megadp
