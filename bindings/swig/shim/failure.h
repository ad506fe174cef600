// SPDX-License-Identifier: Apache-2.0
// What a call of the shim leaves behind when it fails. Every method that can fail takes a Failure as its last argument and fills it within
// the same native call, because mdp_last_error belongs to a thread, and goroutines, fibers and virtual threads change theirs between calls.
// The languages' typemaps hide the argument and throw what it says.
#pragma once

#include <megadp.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

namespace megadp {

/// The numbers of MegaDP errors: mdp_status, as megadp.h has it.
enum class Status {
  OK = MDP_OK,
  PENDING = MDP_PENDING,
  E_INVALID = MDP_E_INVALID,
  E_STATE = MDP_E_STATE,
  E_UNSUPPORTED = MDP_E_UNSUPPORTED,
  E_MEMORY = MDP_E_MEMORY,
  E_SYSTEM = MDP_E_SYSTEM,
  E_BACKEND = MDP_E_BACKEND,
  E_PEER = MDP_E_PEER,
  E_TIMEOUT = MDP_E_TIMEOUT,
  E_DESYNC = MDP_E_DESYNC,
  E_ABORTED = MDP_E_ABORTED,
  E_NUMERIC = MDP_E_NUMERIC,
  E_CORRUPT = MDP_E_CORRUPT,
  E_INTERNAL = MDP_E_INTERNAL
};

/// Plain data: several of the languages leave a wrapper by longjmp, which runs no destructors. The code is a number, since a newer library
/// may have statuses that this enumeration has not. rank, bucket and param are -1 and operation is 0 if they are not known.
struct Failure {
  int code = MDP_OK;
  int rank = -1;
  int bucket = -1;
  long long param = -1;
  long long operation = 0;
  char text[4096];

  Failure() { text[0] = '\0'; }
  bool failed() const { return code < 0; }
  const char* name() const { return mdp_status_name(code); }

#ifndef SWIG
  // Takes over how a call of this thread that has just returned `status` ended. True if it did not fail.
  bool take(mdp_status status);
  void take(const mdp_error_info& info);
  // The same for a call that tells of its failure by another answer than a status.
  void take_last();
  __attribute__((format(printf, 3, 4))) void refuse(mdp_status status, const char* format, ...);
#endif
};

#ifndef SWIG

inline void Failure::take(const mdp_error_info& info) {
  code = info.status;
  rank = info.rank;
  bucket = info.bucket;
  param = info.param;
  operation = static_cast<long long>(info.operation);
  std::snprintf(text, sizeof text, "%s", info.text);
}

inline bool Failure::take(mdp_status status) {
  if (status >= 0) {
    code = status;
    return true;
  }
  char sentence[sizeof text];  // before the next call, and longer than the text of mdp_error_info
  std::snprintf(sentence, sizeof sentence, "%s", mdp_last_error());
  mdp_error_info info{};
  info.struct_size = sizeof info;
  if (mdp_last_error_info(&info) == MDP_OK) take(info);
  code = status;
  std::memcpy(text, sentence, sizeof text);
  return false;
}

inline void Failure::take_last() {
  mdp_error_info info{};
  info.struct_size = sizeof info;
  take(mdp_last_error_info(&info) == MDP_OK && info.status < 0 ? info.status : MDP_E_STATE);
}

inline void Failure::refuse(mdp_status status, const char* format, ...) {
  *this = Failure();
  code = status;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
}

// work(), with what it may throw (memory ran out) as a Failure: no exception of C++ may reach a host.
template <class Work>
auto guarded(Failure& failure, Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    failure.refuse(MDP_E_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    failure.refuse(MDP_E_INTERNAL, "%s", error.what());
  }
  return decltype(work())();
}

// A text that C reads up to its first NUL.
inline bool without_nul(const char* argument, const std::string& text, Failure& failure) {
  const bool whole = text.find('\0') == std::string::npos;
  if (!whole) failure.refuse(MDP_E_INVALID, "%s is '%s' and more after a NUL, which it cannot hold", argument, text.c_str());
  return whole;
}

// A number of elements, parameters or bytes from a language that has signed integers only.
inline bool not_negative(const char* argument, long long value, Failure& failure) {
  if (value < 0) failure.refuse(MDP_E_INVALID, "%s must be 0 or more, not %lld", argument, value);
  return value >= 0;
}

#endif
}  // namespace megadp
