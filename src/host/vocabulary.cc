// SPDX-License-Identifier: Apache-2.0
#include "host/vocabulary.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "host/kernels.h"

namespace megadp::host {
namespace {

void* row_of(void* data, DType type, int64_t stride, int64_t row) {
  return static_cast<std::byte*>(data) + row * stride * static_cast<int64_t>(size_of(type));
}
const void* row_of(const void* data, DType type, int64_t stride, int64_t row) {
  return static_cast<const std::byte*>(data) + row * stride * static_cast<int64_t>(size_of(type));
}

void gradient(const CrossEntropy& work, uint64_t token, const VocabularyTable& table) {
  const auto index = static_cast<size_t>(storage_index(work.type));
  const auto row = static_cast<int64_t>(token);
  void* const to = row_of(work.grad_logits, work.type, work.grad_stride, row);
  const int64_t counted = work.counted(work.rank);
  const size_t bytes = size_of(work.type);
  if (work.is_ignored(work.targets[token])) {
    std::memset(to, 0, static_cast<size_t>(work.columns) * bytes);
    return;
  }
  table.gradient[index](to, row_of(work.logits, work.type, work.logits_stride, row), static_cast<size_t>(counted),
                        gradient_of(work, token));
  std::memset(static_cast<std::byte*>(to) + static_cast<size_t>(counted) * bytes, 0, static_cast<size_t>(work.columns - counted) * bytes);
}

void score(const CrossEntropy& work, uint64_t token, const VocabularyTable& table) {
  const void* const row = row_of(work.logits, work.type, work.logits_stride, static_cast<int64_t>(token));
  TokenScore& out = work.scores[token];
  const auto counted = static_cast<size_t>(work.counted(work.rank));
  constexpr float none = -std::numeric_limits<float>::infinity();
  out = {none, 0, 0, 0};
  if (counted == 0) return;
  table.score[static_cast<size_t>(storage_index(work.type))](row, counted, &out);
  if (out.max == none) out.sum_exp = out.sum = 0;  // all are
  const auto target_in = [&](auto element) {
    out.target = target_score(work, static_cast<const decltype(element)*>(row), work.targets[token], out.max);
  };
  if (work.type == DType::f32) return target_in(float());
  return work.type == DType::bf16 ? target_in(Bf16()) : target_in(F16());
}

}  // namespace

Status check_ids(const char* argument, const int64_t* ids, uint64_t count, int64_t end, const int64_t* ignored) {
  for (uint64_t i = 0; i < count; ++i) {
    if ((ids[i] >= 0 && ids[i] < end) || (ignored != nullptr && ids[i] == *ignored)) continue;
    return invalid(argument, "[", i, "] is ", ids[i], "; it must be between 0 and ", end - 1);
  }
  return {};
}

Status look_up(const Lookup& work) {
  for (uint64_t t = 0; t < work.tokens; ++t) {
    const int64_t row = work.ids[t] - work.first;
    void* const to = row_of(work.output, work.output_type, work.output_stride, static_cast<int64_t>(t));
    if (row < 0 || row >= work.rows) {
      std::memset(to, 0, work.features * size_of(work.output_type));
      continue;
    }
    const Status copied =
        cast(to, work.output_type, row_of(work.table, work.table_type, work.table_stride, row), work.table_type, work.features);
    if (!copied) return copied;
  }
  return {};
}

Status add_up_rows(const Lookup& work) {
  std::vector<std::pair<int64_t, uint64_t>> uses;  // of rows of this rank, by tokens
  for (uint64_t t = 0; t < work.tokens; ++t) {
    const int64_t row = work.ids[t] - work.first;
    if (row >= 0 && row < work.rows) uses.emplace_back(row, t);
  }
  std::sort(uses.begin(), uses.end());
  std::vector<float> sum(work.features);
  auto use = uses.begin();
  for (int64_t row = 0; row < work.rows; ++row) {
    void* const to = row_of(work.table, work.table_type, work.table_stride, row);
    const bool is_used = use != uses.end() && use->first == row;
    if (!is_used) {
      if (!work.add) std::memset(to, 0, work.features * size_of(work.table_type));
      continue;
    }
    std::fill(sum.begin(), sum.end(), 0.0F);
    Status added = work.add ? cast(sum.data(), DType::f32, to, work.table_type, work.features) : Status();
    for (; added.ok() && use != uses.end() && use->first == row; ++use) {
      const void* const from = row_of(work.output, work.output_type, work.output_stride, static_cast<int64_t>(use->second));
      added = add_cast(sum.data(), DType::f32, from, work.output_type, work.features);
    }
    if (added.ok()) added = cast(to, work.table_type, sum.data(), DType::f32, work.features);
    if (!added) return added;
  }
  return {};
}

Status cross_entropy(const CrossEntropy& work, CrossEntropyPass pass, const Kernels& kernels) {
  if (pass == CrossEntropyPass::scores) work.scores[work.tokens] = work.settings;
  for (uint64_t token = 0; token < work.tokens; ++token) {
    if (pass == CrossEntropyPass::scores) score(work, token, *kernels.vocabulary);
    if (pass == CrossEntropyPass::losses) finish_loss(work, token);
    if (pass == CrossEntropyPass::gradient) gradient(work, token, *kernels.vocabulary);
  }
  return {};
}

}  // namespace megadp::host
