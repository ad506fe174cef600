// SPDX-License-Identifier: Apache-2.0
// An embedding whose table is cut by rows over tensor-parallel ranks, and the cross-entropy of logits that are cut along the classes, whole
// logits being nowhere:
//
//   embedding       ids ──rows of this rank, or zeros──► ──sum over ranks──► output
//   cross-entropy   logits ──four numbers a token──► ──gather──► losses, and what backward needs of all ranks: two numbers a token
#pragma once

#include "core/tp_collectives.h"
#include "core/tp_region.h"
#include "core/tp_shape.h"

namespace megadp {

// Forward: output from table; backward: the gradient of the table from that of the output, or added to what is there.
struct EmbeddingArrays {
  const StridedArray &ids, &table, &output;
  const char *table_name, *output_name;
};
Status embedding_forward(Comm& comm, const EmbeddingShape& config, const EmbeddingArrays& arrays, void* caller);
Status embedding_backward(Comm& comm, const EmbeddingShape& config, const EmbeddingArrays& arrays, bool adds, void* caller);

struct CrossEntropyConfig {
  int64_t classes = 0;  // 0: all columns
  bool ignores = false, checks = false;
  int64_t ignored = 0;
  double smoothing = 0, z = 0;
};
// saved: [.., 2]; null: not wanted, in forward.
Status cross_entropy_forward(Comm& comm, const CrossEntropyConfig& config, const StridedArray& logits, const StridedArray& targets,
                             const StridedArray& losses, const StridedArray* saved, void* caller);
// Local.
Status cross_entropy_backward(Comm& comm, const CrossEntropyConfig& config, const StridedArray& logits, const StridedArray& targets,
                              const StridedArray& saved, const StridedArray& grad_losses, const StridedArray& grad_logits, void* caller);

}  // namespace megadp
