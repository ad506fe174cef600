// SPDX-License-Identifier: Apache-2.0
// Which process this is.
#pragma once

#include <sys/types.h>

namespace megadp {

// As getpid(), for calls that are made too often to ask the kernel.
pid_t process_id() noexcept;

}  // namespace megadp
