// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

namespace megadp {

const char* code_name(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "MDP_OK";
    case Code::pending:
      return "MDP_PENDING";
    case Code::invalid:
      return "MDP_E_INVALID";
    case Code::state:
      return "MDP_E_STATE";
    case Code::unsupported:
      return "MDP_E_UNSUPPORTED";
    case Code::memory:
      return "MDP_E_MEMORY";
    case Code::system:
      return "MDP_E_SYSTEM";
    case Code::backend:
      return "MDP_E_BACKEND";
    case Code::peer:
      return "MDP_E_PEER";
    case Code::timeout:
      return "MDP_E_TIMEOUT";
    case Code::desync:
      return "MDP_E_DESYNC";
    case Code::aborted:
      return "MDP_E_ABORTED";
    case Code::numeric:
      return "MDP_E_NUMERIC";
    case Code::corrupt:
      return "MDP_E_CORRUPT";
    case Code::internal:
      return "MDP_E_INTERNAL";
  }
  return "unknown status";
}

Status Status::out_of_memory() noexcept {
  // So short that the string holds it itself; owned by nobody, and never destroyed.
  alignas(Detail) static std::byte room[sizeof(Detail)];
  static const Detail* const detail = new (room) Detail{Code::memory, {}, "out of memory"};
  Status status;
  status.detail_ = std::shared_ptr<const Detail>(std::shared_ptr<const Detail>(), detail);
  return status;
}

const std::string& Status::text() const noexcept {
  // Takes no memory, as there may be none left, and is never destroyed, as threads that read it may outlive main.
  alignas(std::string) static std::byte room[sizeof(std::string)];
  static const auto& none = *new (room) std::string;
  return detail_ ? detail_->text : none;
}

Status Status::with_context(const std::string& before) const {
  return ok() ? *this : Status(code(), before + ": " + text(), blame());
}

Status Status::with_blame(const Blame& more) const {
  if (ok()) return *this;
  Blame blame = detail_->blame;
  if (blame.rank < 0) blame.rank = more.rank;
  if (blame.bucket < 0) blame.bucket = more.bucket;
  if (blame.param < 0) blame.param = more.param;
  if (blame.operation == 0) blame.operation = more.operation;
  return {code(), text(), blame};
}

Status system_error(const std::string& what, int error) {
  char buffer[128] = "";
  const char* reason = strerror_r(error, buffer, sizeof buffer);  // the GNU form: returns the text
  return {error == ENOMEM ? Code::memory : Code::system, what + ": " + reason};
}

}  // namespace megadp
