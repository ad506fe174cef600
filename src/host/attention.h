// SPDX-License-Identifier: Apache-2.0
// Merging partial attention on the host: on the calling thread, finished on return.
#pragma once

#include "base/attention.h"

namespace megadp::host {

void merge_attention(const AttentionMerge& work);

}  // namespace megadp::host
