// SPDX-License-Identifier: Apache-2.0
// JobGuard: rank 0 holds the name of its job while its World lives, where the launcher hands round no secret. Two jobs that were given one
// name by mistake (two scripts on one node, with the same MASTER_PORT) would otherwise begin with each other's ranks and not know.
//
// The name is held by an abstract UNIX socket that nobody serves: a name is given up with the process that holds it, and the system tells
// which process that is.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/status.h"
#include "control/process_id.h"

namespace megadp {

class JobGuard {
 public:
  JobGuard() noexcept = default;  // holds nothing
  JobGuard(JobGuard&& other) noexcept;
  JobGuard& operator=(JobGuard&& other) = delete;
  ~JobGuard();

  // A process may hold a name several times, for several communicators of one job, and a child may begin anew where its parent or an older
  // ancestor holds it. Waits a moment for any other process, which may be ending, and then fails with Code::invalid and who it is.
  // Code::system if the name cannot be held for another reason, such as too few descriptors.
  static Result<JobGuard> take(const std::string& name, Deadline deadline, const std::function<Status()>& interrupted);

 private:
  explicit JobGuard(std::string name) noexcept : name_(std::move(name)), taken_in_(process_id()) {}
  std::string name_;
  pid_t taken_in_ = 0;
};

}  // namespace megadp
