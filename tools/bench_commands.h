// SPDX-License-Identifier: Apache-2.0
// The subcommands of `megadp bench`, and what their command lines share.
#pragma once

#include <string>
#include <vector>

#include "api/backends.h"
#include "base/dtype.h"
#include "commands.h"

namespace megadp::tool {

Command add_bench_collectives(CLI::App& bench);
Command add_bench_step(CLI::App& bench);
Command add_bench_linear(CLI::App& bench);
Command add_bench_overlap(CLI::App& bench);

// Runs `megadp bench ARGUMENTS...` as so many ranks, by the launcher of `megadp run`.
int start_ranks(int ranks, const std::vector<std::string>& arguments);

void add_backend_option(CLI::App& sub, std::string* to);
BackendKind backend_of(const std::string& name);
DType dtype_of(const std::string& name);  // f32, bf16, f16

}  // namespace megadp::tool
