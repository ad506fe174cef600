// SPDX-License-Identifier: Apache-2.0
#include "f64_backend.h"

#include <utility>

namespace megadp::test {
namespace {

class CountedMemory final : public Memory {
 public:
  CountedMemory(std::unique_ptr<Memory> memory, size_t asked, std::shared_ptr<Counters> counters)
      : memory_(std::move(memory)), counters_(std::move(counters)), bytes_(asked) {
    counters_->live += bytes_;
  }
  ~CountedMemory() override { counters_->live -= bytes_; }
  void* data() noexcept override { return memory_->data(); }
  size_t bytes() const noexcept override { return memory_->bytes(); }

 private:
  const std::unique_ptr<Memory> memory_;
  const std::shared_ptr<Counters> counters_;
  const size_t bytes_;
};

class CountedGroup final : public Group {
 public:
  CountedGroup(std::shared_ptr<Group> group, std::shared_ptr<Counters> counters)
      : group_(std::move(group)), counters_(std::move(counters)) {}
  int rank() const noexcept override { return group_->rank(); }
  int size() const noexcept override { return group_->size(); }
  const std::vector<int>& members() const noexcept override { return group_->members(); }
  Result<std::shared_ptr<Group>> split(const std::vector<int>& members) override {
    auto part = group_->split(members);
    if (!part || *part == nullptr) return part;
    return std::shared_ptr<Group>(std::make_shared<CountedGroup>(*std::move(part), counters_));
  }
  Result<std::unique_ptr<Window>> allocate_window(size_t bytes) override { return group_->allocate_window(bytes); }
  Status together(Stream& stream, std::span<const WindowOp> calls) override { return group_->together(stream, calls); }

  Status all_reduce(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, const Tag& tag, float divisor) override {
    ++counters_->calls;
    counters_->sent += 2 * others() * count * size_of(type) / static_cast<uint64_t>(size());
    return group_->all_reduce(stream, from, to, count, type, op, tag, divisor);
  }
  Status reduce_scatter(Stream& stream, const void* from, void* to, size_t count, DType type, Op op, const Tag& tag) override {
    ++counters_->calls;
    counters_->sent += others() * count * size_of(type);
    return group_->reduce_scatter(stream, from, to, count, type, op, tag);
  }
  Status all_gather(Stream& stream, const void* from, void* to, size_t count, DType type, const Tag& tag) override {
    ++counters_->calls;
    counters_->sent += others() * count * size_of(type);
    return group_->all_gather(stream, from, to, count, type, tag);
  }
  Status all_to_all(Stream& stream, const void* from, void* to, size_t count, DType type, const Tag& tag) override {
    counters_->sent += others() * count * size_of(type);
    return group_->all_to_all(stream, from, to, count, type, tag);
  }
  Status broadcast(Stream& stream, void* data, size_t count, DType type, int root, const Tag& tag) override {
    return group_->broadcast(stream, data, count, type, root, tag);
  }
  Status barrier(Stream& stream, const Tag& tag) override { return group_->barrier(stream, tag); }
  Status reduce_scatter_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, Op op, const Tag& tag) override {
    ++counters_->calls;
    for (const uint64_t count : counts) counters_->sent += count * size_of(type);
    counters_->sent -= own(counts) * size_of(type);
    return group_->reduce_scatter_v(stream, from, to, counts, type, op, tag);
  }
  Status all_gather_v(Stream& stream, const void* from, void* to, const Counts& counts, DType type, const Tag& tag) override {
    ++counters_->calls;
    counters_->sent += others() * own(counts) * size_of(type);
    return group_->all_gather_v(stream, from, to, counts, type, tag);
  }
  Status all_to_all_v(Stream& stream, const void* from, const Counts& from_counts, void* to, const Counts& to_counts, DType type,
                      const Tag& tag) override {
    return group_->all_to_all_v(stream, from, from_counts, to, to_counts, type, tag);
  }
  Status send_recv(Stream& stream, const Message& send, const Message& recv) override { return group_->send_recv(stream, send, recv); }
  Result<std::unique_ptr<Exchange>> create_exchange(const Counts& out, const Counts& in, uint64_t lent) override {
    return group_->create_exchange(out, in, lent);
  }

 private:
  uint64_t others() const { return static_cast<uint64_t>(size() - 1); }
  uint64_t own(const Counts& counts) const { return counts[static_cast<size_t>(rank())]; }

  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Counters> counters_;
};

double* at(const Matrix& m, int64_t r, int64_t c) {
  return static_cast<double*>(m.data) + r * m.row_stride + c * m.column_stride;
}

class F64Backend final : public Backend {
 public:
  F64Backend(std::shared_ptr<Backend> host, std::shared_ptr<Counters> counters) : host_(std::move(host)), counters_(std::move(counters)) {}
  std::string_view name() const noexcept override { return "f64"; }
  World& world() noexcept override { return host_->world(); }
  Result<std::unique_ptr<Memory>> allocate(size_t bytes) override {
    auto memory = host_->allocate(bytes);
    if (!memory) return memory.status();
    return std::unique_ptr<Memory>(std::make_unique<CountedMemory>(*std::move(memory), bytes, counters_));
  }
  Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) override { return host_->allocate_host(bytes); }
  Result<std::unique_ptr<Stream>> create_stream(const char* name) override { return host_->create_stream(name); }
  Result<std::shared_ptr<Group>> create_group(const std::vector<int>& members) override {
    auto group = host_->create_group(members);
    if (!group) return group.status();
    return std::shared_ptr<Group>(std::make_shared<CountedGroup>(*std::move(group), counters_));
  }

  Status zero(Stream& stream, void* data, size_t bytes) override { return host_->zero(stream, data, bytes); }
  Status cast(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) override {
    return host_->cast(stream, to, to_type, from, from_type, count);
  }
  Status add(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) override {
    return host_->add(stream, to, to_type, from, from_type, count);
  }
  Status round_with_feedback(Stream& stream, void* to, const float* from, float* residual, size_t count) override {
    return host_->round_with_feedback(stream, to, from, residual, count);
  }
  Status refresh_masters(Stream& stream, float* masters, const void* params, DType type, size_t count) override {
    return host_->refresh_masters(stream, masters, params, type, count);
  }
  Status square_sum(Stream& stream, const void* data, DType type, size_t count, double* sums) override {
    return host_->square_sum(stream, data, type, count, sums);
  }
  Status extremes(Stream& stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest) override {
    return host_->extremes(stream, data, type, count, zeros, largest);
  }
  Status scale(Stream& stream, void* data, DType type, size_t count, float factor) override {
    return host_->scale(stream, data, type, count, factor);
  }
  Status begin_step(Stream& stream, StepScalars* scalars, const StepSettings& settings) override {
    return host_->begin_step(stream, scalars, settings);
  }
  Status count_steps(Stream& stream, const StepScalars* scalars, uint64_t* steps, size_t count) override {
    return host_->count_steps(stream, scalars, steps, count);
  }
  Status update(Stream& stream, const Update& update) override { return host_->update(stream, update); }
  Status fetch(Stream& stream, void* host_to, const void* from, size_t bytes) override {
    return host_->fetch(stream, host_to, from, bytes);
  }
  Status run(Stream& stream, std::function<void()> work) override { return host_->run(stream, std::move(work)); }
  Status copy(const StridedArray& to, const StridedArray& from, bool add, void* caller) override {
    return host_->copy(to, from, add, caller);
  }
  Status find_nonfinite(const void* data, DType type, size_t count, uint64_t first, uint64_t* found, void* caller) override {
    return host_->find_nonfinite(data, type, count, first, found, caller);
  }
  Status gemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add, void* /*caller*/) override {
    if (a.type != DType::f64 || b.type != DType::f64 || c.type != DType::f64 || a.columns != b.rows || c.rows != a.rows ||
        c.columns != b.columns) {
      return invalid("a product of the test is of other types or sizes");
    }
    if (counters_->products_left-- == 0) return Status(Code::memory, "a product that the test lets fail");
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < c.columns; ++j) {
        double sum = add ? *at(c, i, j) : 0;
        for (int64_t k = 0; k < a.columns; ++k) sum += *at(a, i, k) * *at(b, k, j);
        *at(c, i, j) = sum;
      }
    }
    return {};
  }
  Result<std::string> gemm_library() override { return std::string("plain loops"); }
  Status look_up(const Lookup& work, bool gradient, void* caller) override { return host_->look_up(work, gradient, caller); }
  Status cross_entropy(const CrossEntropy& work, CrossEntropyPass pass, void* caller) override {
    return host_->cross_entropy(work, pass, caller);
  }
  Status merge_attention(const AttentionMerge& work, void* caller) override { return host_->merge_attention(work, caller); }
  Status read(void* host_to, const void* from, size_t bytes) override { return host_->read(host_to, from, bytes); }
  Status write(void* to, const void* host_from, size_t bytes) override { return host_->write(to, host_from, bytes); }

 private:
  const std::shared_ptr<Backend> host_;
  const std::shared_ptr<Counters> counters_;
};

}  // namespace

std::shared_ptr<Backend> make_f64_backend(std::shared_ptr<Backend> host, std::shared_ptr<Counters> counters) {
  return std::make_shared<F64Backend>(std::move(host), std::move(counters));
}

}  // namespace megadp::test
