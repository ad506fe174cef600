// SPDX-License-Identifier: Apache-2.0
// A checkpoint's arrays, whole, as ordinary safetensors files. Local: needs no ranks, and memory for a MiB at a time and
// one more of each file that is open (see CheckpointSource).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace megadp {

// Parameters and tensors of what CheckpointSource::open finds. most_bytes: of data in one file, if it is not 0; more than that goes into
// several with an index, at least one array each. Nothing is written over.
Status export_checkpoint(const std::string& directory, const std::string& path, uint64_t most_bytes);

}  // namespace megadp
