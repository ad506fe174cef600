// SPDX-License-Identifier: Apache-2.0
#include "host/onednn_plan.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "host/gemm_library.h"

namespace megadp::host::onednn {
namespace {

constexpr size_t kPlans = 128;  // a model has some twenty shapes

Operand operand(const Matrix& matrix) {
  Operand out = {matrix.type, matrix.rows, matrix.columns, matrix.row_stride, matrix.column_stride};
  (matrix.is_row_major() ? out.row_stride : out.column_stride) = leading_of(matrix);
  return out;
}

int type_of(const Operand& operand) {
  return operand.type == DType::bf16 ? kBf16 : kF32;
}

Dims shape_of(const Operand& operand) {
  return {operand.rows, operand.columns};
}

Dims strides_of(const Operand& operand) {
  return {operand.row_stride, operand.column_stride};
}

template <class T>
Owned<T> empty(Outcome (*destroy)(T*)) {
  return Owned<T>(nullptr, destroy);
}

}  // namespace

Status failure(const char* what, Outcome outcome) {
  if (outcome == kOutOfMemory) return {Code::memory, text("oneDNN: ", what, ": out of memory")};
  return {Code::backend, text("oneDNN: ", what, " failed with its status ", outcome)};
}

PlanKey plan_key(const Matrix& c, const Matrix& a, const Matrix& b, bool add, int threads) noexcept {
  return {operand(c), operand(a), operand(b), add, threads};
}

Plan::Plan(const Library& library, const PlanKey& key)
    : library_(library), key_(key), desc_(nullptr, library.primitive_desc_destroy), primitive_(nullptr, library.primitive_destroy) {}

Result<std::shared_ptr<const Plan>> Plan::create(const Library& library, Engine* engine, const PlanKey& key) {
  std::shared_ptr<Plan> plan(new Plan(library, key));
  if (Status made = plan->make(engine); !made.ok()) return made;
  return std::shared_ptr<const Plan>(std::move(plan));
}

Status Plan::set_attributes(Attributes* attributes, PostOps* post_ops) const {
  if (const Outcome outcome = library_.set_scratchpad_mode(attributes, kUserScratchpad); outcome != 0) {
    return failure("choosing who owns the scratch memory", outcome);
  }
  if (!key_.add) return {};
  // The product is added to what c was before it is rounded to c's type.
  const Outcome appended = library_.is_old() ? library_.old_append_sum(post_ops, 1) : library_.append_sum(post_ops, 1, 0, kUndefinedType);
  const Outcome outcome = appended != 0 ? appended : library_.set_post_ops(attributes, post_ops);
  return outcome == 0 ? Status() : failure("asking for a sum", outcome);
}

Outcome Plan::describe(Engine* engine, const Attributes* attributes) {
  std::array<Owned<MemoryDesc>, 3> descs = {empty(library_.memory_desc_destroy), empty(library_.memory_desc_destroy),
                                            empty(library_.memory_desc_destroy)};
  const Operand* const operands[] = {&key_.a, &key_.b, &key_.c};
  for (size_t i = 0; i < descs.size(); i++) {
    MemoryDesc* desc = nullptr;
    const Dims shape = shape_of(*operands[i]), strides = strides_of(*operands[i]);
    if (const Outcome outcome = library_.memory_desc(&desc, 2, shape.data(), type_of(*operands[i]), strides.data()); outcome != 0) {
      return outcome;
    }
    descs[i].reset(desc);
  }
  PrimitiveDesc* made = nullptr;
  const Outcome outcome = library_.matmul_desc(&made, engine, descs[0].get(), descs[1].get(), nullptr, descs[2].get(), attributes);
  if (outcome == 0) desc_.reset(made);
  return outcome;
}

Outcome Plan::describe_old(Engine* engine, const Attributes* attributes) {
  std::array<OldMemoryDesc, 3> descs;
  const Operand* const operands[] = {&key_.a, &key_.b, &key_.c};
  for (size_t i = 0; i < descs.size(); i++) {
    const Dims shape = shape_of(*operands[i]), strides = strides_of(*operands[i]);
    if (const Outcome outcome = library_.old_memory_desc(&descs[i], 2, shape.data(), type_of(*operands[i]), strides.data()); outcome != 0) {
      return outcome;
    }
  }
  OldMatmulDesc matmul;
  if (const Outcome outcome = library_.old_matmul_desc(&matmul, descs[0].address(), descs[1].address(), nullptr, descs[2].address());
      outcome != 0) {
    return outcome;
  }
  PrimitiveDesc* made = nullptr;
  const Outcome outcome = library_.old_primitive_desc(&made, &matmul, attributes, engine, nullptr);
  if (outcome == 0) desc_.reset(made);
  return outcome;
}

Status Plan::make(Engine* engine) {
  Attributes* attributes = nullptr;
  PostOps* post_ops = nullptr;
  if (const Outcome outcome = library_.attributes_create(&attributes); outcome != 0) return failure("making attributes", outcome);
  const Owned<Attributes> owned_attributes(attributes, library_.attributes_destroy);
  if (const Outcome outcome = library_.post_ops_create(&post_ops); outcome != 0) return failure("making attributes", outcome);
  const Owned<PostOps> owned_post_ops(post_ops, library_.post_ops_destroy);
  if (Status set = set_attributes(attributes, post_ops); !set.ok()) return set;
  const Outcome described = library_.is_old() ? describe_old(engine, attributes) : describe(engine, attributes);
  if (described == kUnimplemented) return {};
  if (described != 0) return failure("describing a matrix product", described);
  const char* implementation = nullptr;
  if (library_.query(desc_.get(), kImplementation, 0, &implementation) == 0 && implementation != nullptr &&
      std::string_view(implementation).substr(0, 3) == "ref") {
    return {};
  }
  Primitive* primitive = nullptr;
  if (const Outcome outcome = library_.primitive_create(&primitive, desc_.get()); outcome != 0) {
    return failure("compiling a matrix product", outcome);
  }
  primitive_.reset(primitive);
  scratch_bytes_ = library_.memory_desc_bytes(library_.query_memory_desc(desc_.get(), kScratchpadDesc, 0));
  return {};
}

Status Plan::run(Engine* engine, void* c, void* a, void* b, void* scratch) const {
  Stream* made = nullptr;
  if (const Outcome outcome = library_.stream_create(&made, engine, kInOrder); outcome != 0) return failure("making a stream", outcome);
  const Owned<Stream> stream(made, library_.stream_destroy);
  const struct {
    int argument, desc;
    void* data;
  } arrays[] = {{kSource, kSourceDesc, a}, {kWeights, kWeightsDesc, b}, {kTo, kToDesc, c}, {kScratchpad, kScratchpadDesc, scratch}};
  std::array<Owned<Memory>, 4> memories = {empty(library_.memory_destroy), empty(library_.memory_destroy), empty(library_.memory_destroy),
                                           empty(library_.memory_destroy)};
  std::array<Argument, 4> arguments;
  for (size_t i = 0; i < memories.size(); i++) {
    Memory* memory = nullptr;
    const MemoryDesc* const desc = library_.query_memory_desc(desc_.get(), arrays[i].desc, 0);
    if (const Outcome outcome = library_.memory_create(&memory, desc, engine, arrays[i].data); outcome != 0) {
      return failure("describing an operand", outcome);
    }
    memories[i].reset(memory);
    arguments[i] = {arrays[i].argument, memory};
  }
  Outcome outcome = library_.primitive_execute(primitive_.get(), stream.get(), static_cast<int>(arguments.size()), arguments.data());
  if (outcome == 0) outcome = library_.stream_wait(stream.get());
  return outcome == 0 ? Status() : failure("a matrix product", outcome);
}

Result<std::shared_ptr<const Plan>> PlanCache::get(const Library& library, Engine* engine, const PlanKey& key) {
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(plans_.rbegin(), plans_.rend(), [&](const auto& plan) { return plan->key() == key; });
    if (found != plans_.rend()) {
      std::rotate(found.base() - 1, found.base(), plans_.end());
      return plans_.back();
    }
  }
  // Outside of the lock, so that nobody waits for a product of other shapes. Of two threads that make the same, both may keep theirs.
  auto made = Plan::create(library, engine, key);
  if (!made.ok()) return made;
  std::lock_guard lock(mutex_);
  if (plans_.size() >= kPlans) plans_.erase(plans_.begin());
  plans_.push_back(*made);
  return made;
}

}  // namespace megadp::host::onednn
