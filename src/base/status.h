// SPDX-License-Identifier: Apache-2.0
// Status: the outcome of a call as a value. Free when all is well (one null pointer); otherwise a code, a sentence for a person, and what
// is known of who and what is to blame. Result<T>: a T or a failed Status. Exceptions are not used for outcomes; what the standard
// library throws (bad_alloc) is caught at the C boundary, or by attempt() where other ranks wait for this one.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/strict_math.h"
#include "base/text.h"

namespace megadp {

enum class Code : int32_t {  // the values of mdp_status
  ok = 0,
  pending = 1,
  invalid = -1,
  state = -2,
  unsupported = -3,
  memory = -4,
  system = -5,
  backend = -6,
  peer = -7,
  timeout = -8,
  desync = -9,
  aborted = -10,
  numeric = -11,
  corrupt = -12,
  internal = -13,
};

const char* code_name(Code code) noexcept;

// Where a failure belongs. -1 (0 for operation): not known.
struct Blame {
  int32_t rank = -1;  // in the world
  int32_t bucket = -1;
  int64_t param = -1;
  uint64_t operation = 0;
};

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Code code, std::string text, Blame blame = {})
      : detail_(code == Code::ok ? nullptr : std::make_shared<const Detail>(Detail{code, blame, std::move(text)})) {}
  // Code::memory, made without any.
  static Status out_of_memory() noexcept;

  bool ok() const noexcept { return detail_ == nullptr; }
  explicit operator bool() const noexcept { return ok(); }
  Code code() const noexcept { return detail_ ? detail_->code : Code::ok; }
  const std::string& text() const noexcept;
  Blame blame() const noexcept { return detail_ ? detail_->blame : Blame{}; }

  // The same failure with a sentence put in front, or with more blame filled in where it was not known.
  Status with_context(const std::string& before) const;
  Status with_blame(const Blame& more) const;

 private:
  struct Detail {
    Code code;
    Blame blame;
    std::string text;
  };
  std::shared_ptr<const Detail> detail_;  // shared: a Status is kept by a stream, its events and its communicator at once
};

// Failures by kind; the sentence is put together from the arguments, which may be anything text() takes.
template <class... Args>
Status invalid(const Args&... args) {
  return {Code::invalid, text(args...)};
}
template <class... Args>
Status bad_state(const Args&... args) {
  return {Code::state, text(args...)};
}
template <class... Args>
Status unsupported(const Args&... args) {
  return {Code::unsupported, text(args...)};
}
template <class... Args>
Status internal_error(const Args&... args) {
  return {Code::internal, text(args...)};
}

// "what: strerror(error)".
Status system_error(const std::string& what, int error);

// Memory that runs out in the body is a failure like any other.
template <class Body>
Status attempt(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  }
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) status_ = Status(Code::internal, "a result was made from a status that had not failed");
  }

  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  T&& operator*() && noexcept { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace megadp
