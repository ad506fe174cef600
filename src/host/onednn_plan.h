// SPDX-License-Identifier: Apache-2.0
// onednn::Plan: a matrix product of certain shapes, compiled by oneDNN: its primitive. Making one takes milliseconds, so PlanCache keeps
// the last ones. A plan may run on any threads at once, since its scratch memory is the caller's: the library's own belongs to the thread
// that made the primitive.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/matrix.h"
#include "base/status.h"
#include "host/onednn_library.h"

namespace megadp::host::onednn {

// Destroyed by a function of the library.
template <class T>
using Owned = std::unique_ptr<T, Outcome (*)(T*)>;

struct Operand {
  DType type = DType::f32;
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  bool operator==(const Operand&) const = default;
};
struct PlanKey {
  Operand c, a, b;
  bool add = false;
  int threads = 0;  // primitives are cut for as many as there are when they are made

  bool operator==(const PlanKey&) const = default;
};
PlanKey plan_key(const Matrix& c, const Matrix& a, const Matrix& b, bool add, int threads) noexcept;

class Plan {
 public:
  static Result<std::shared_ptr<const Plan>> create(const Library& library, Engine* engine, const PlanKey& key);

  const PlanKey& key() const noexcept { return key_; }
  // Not where the processor has no instructions for the type, or where only a plain loop is offered.
  bool is_compiled() const noexcept { return primitive_ != nullptr; }
  size_t scratch_bytes() const noexcept { return scratch_bytes_; }
  Status run(Engine* engine, void* c, void* a, void* b, void* scratch) const;

 private:
  Plan(const Library& library, const PlanKey& key);
  Status make(Engine* engine);
  // Gives the outcome of making the primitive's descriptor.
  Outcome describe(Engine* engine, const Attributes* attributes);
  Outcome describe_old(Engine* engine, const Attributes* attributes);
  Status set_attributes(Attributes* attributes, PostOps* post_ops) const;

  const Library& library_;
  const PlanKey key_;
  Owned<PrimitiveDesc> desc_;
  Owned<Primitive> primitive_;
  size_t scratch_bytes_ = 0;
};

class PlanCache {
 public:
  Result<std::shared_ptr<const Plan>> get(const Library& library, Engine* engine, const PlanKey& key);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Plan>> plans_;  // the last one used stands last
};

// "oneDNN: WHAT: out of memory".
Status failure(const char* what, Outcome outcome);

}  // namespace megadp::host::onednn
