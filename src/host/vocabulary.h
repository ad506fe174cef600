// SPDX-License-Identifier: Apache-2.0
// Rows of an embedding and the cross-entropy of logits on the host: on the calling thread, finished on return.
#pragma once

#include "base/status.h"
#include "base/vocabulary.h"
#include "host/simd.h"

namespace megadp::host {

// output[t] = table[ids[t] - first]; zeros where another rank has the row.
Status look_up(const Lookup& work);
// table[r] = the sum of output[t] over the tokens of row first + r, in f32 and in their order, added to what is there if work.add.
Status add_up_rows(const Lookup& work);
Status cross_entropy(const CrossEntropy& work, CrossEntropyPass pass, const Kernels& kernels = best_kernels());

// ok, or Code::invalid with the first of `ids` that is outside [0, end), unless it is *ignored.
Status check_ids(const char* argument, const int64_t* ids, uint64_t count, int64_t end, const int64_t* ignored);

}  // namespace megadp::host
