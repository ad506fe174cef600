// SPDX-License-Identifier: Apache-2.0
// The log sink: where the library says what it did besides returning a status, such as refusing a stranger's connection.
//
// Any thread may log at any time, a finalizer's or the library's own among them, and some programs die when their code is run there. So
// log() only queues; deliver_logs(), called at the end of ordinary calls of the C API, hands the queue to the user's callback. Without a
// callback errors and warnings go to standard error at the same moment, and the rest is dropped. This is the one piece of state the library
// shares between communicators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace megadp {

enum class LogLevel : int32_t {  // the levels of mdp_log_fn
  error = 0,
  warning = 1,
  info = 2,
  debug = 3
};

using LogFn = void (*)(void* user, int32_t level, const char* text, size_t length);

// After this returns, the callback set before is not running on another thread and is not called again.
void set_log(LogFn fn, void* user);

// The queue is bounded: when nobody collects, the newest messages are dropped and counted.
void log(LogLevel level, std::string message) noexcept;

void deliver_logs() noexcept;
// The same where there is no callback: for destroys, which finalizers call, and after which no call may come.
void print_logs() noexcept;

}  // namespace megadp
