// SPDX-License-Identifier: Apache-2.0
// What oneDNN has compiled code for goes to it as it is. The rest, which is bf16 on processors without instructions for it, is copied to
// f32 in blocks and multiplied by its sgemm.
#include "host/onednn_gemm.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "host/gemm_blocks.h"
#include "host/onednn_library.h"
#include "host/onednn_plan.h"

namespace megadp::host {
namespace {

// Products that want more scratch memory than this are cut. Some of it belongs to each thread; what grows with the product is a copy of c
// in f32, where c is bf16 and has gaps between its rows.
constexpr size_t kScratch = size_t{32} << 20, kScratchOfThread = size_t{2} << 20;
constexpr int64_t kFewRows = 256;  // are not cut
constexpr int64_t kEdge = 1024;    // of blocks that are copied to f32

// The OpenMP runtime that the library runs on; its functions are missing if it runs on another kind of threads.
struct OpenMp {
  explicit OpenMp(void* handle) noexcept : find(handle) {}

  Symbols find;  // sees what the library was linked with, too
  int (*get_max_threads)() = find("omp_get_max_threads");
  void (*set_num_threads)(int) = find("omp_set_num_threads");
};

// With how many threads the calling thread's products are done, until the end of the scope: OpenMP's count is the thread's own, and the
// program's.
class ThreadCount {
 public:
  ThreadCount(const OpenMp& openmp, int wanted) : openmp_(openmp) {
    if (openmp_.find.missing() != nullptr) return;
    now_ = before_ = openmp_.get_max_threads();
    if (wanted == 0 || wanted == before_) return;
    openmp_.set_num_threads(wanted);
    now_ = wanted;
  }
  ~ThreadCount() {
    if (now_ != before_) openmp_.set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;
  int now() const noexcept { return now_; }

 private:
  const OpenMp& openmp_;
  int before_ = 0, now_ = 0;
};

class OneDnn final : public GemmLibrary {
 public:
  OneDnn(const onednn::Library& library, onednn::Owned<onednn::Engine> engine, const OpenMp& openmp, std::string name, int threads)
      : library_(library), engine_(std::move(engine)), openmp_(openmp), name_(std::move(name)), threads_(threads) {}

  const std::string& name() const noexcept override { return name_; }

  Status multiply(const Matrix& c, const Matrix& a, const Matrix& b, bool add) override {
    // The threads of a pool that was there before a fork are not in the child, which would wait for them for ever.
    const ThreadCount threads(openmp_, getpid() == pid_ ? threads_ : 1);
    return multiply_part(c, a, b, add, threads.now());
  }

 private:
  Status multiply_part(const Matrix& c, const Matrix& a, const Matrix& b, bool add, int threads) {
    auto plan = plans_.get(library_, engine_.get(), onednn::plan_key(c, a, b, add, threads));
    if (!plan.ok()) return plan.status();
    if (!(*plan)->is_compiled()) {
      if (c.type == DType::f32 && a.type == DType::f32) return sgemm(c, a, b, add);
      return multiply_in_blocks(
          c, a, b, add, kEdge, c.type == DType::f32, &scratch_,
          [this](const Matrix& to, const Matrix& left, const Matrix& right, bool added) { return sgemm(to, left, right, added); });
    }
    const size_t most = kScratch + kScratchOfThread * static_cast<size_t>(threads);
    if ((*plan)->scratch_bytes() > most && c.rows > 2 * kFewRows) {
      return for_blocks(c.rows, (c.rows + 1) / 2, [&](int64_t row, int64_t rows) {
        return multiply_part(part(c, row, rows, 0, c.columns), part(a, row, rows, 0, a.columns), b, add, threads);
      });
    }
    auto scratch = scratch_.take((*plan)->scratch_bytes());
    if (!scratch.ok()) return scratch.status();
    return (*plan)->run(engine_.get(), c.data, a.data, b.data, scratch->data());
  }

  Status sgemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add) const {
    const auto order = [](const Matrix& matrix) { return matrix.is_row_major() ? 'N' : 'T'; };
    const onednn::Outcome outcome =
        library_.sgemm(order(a), order(b), c.rows, c.columns, a.columns, 1, static_cast<const float*>(a.data), leading_of(a),
                       static_cast<const float*>(b.data), leading_of(b), add ? 1 : 0, static_cast<float*>(c.data), leading_of(c));
    return outcome == 0 ? Status() : onednn::failure("sgemm", outcome);
  }

  const onednn::Library library_;
  const onednn::Owned<onednn::Engine> engine_;
  const OpenMp openmp_;
  const std::string name_;
  const int threads_;
  const pid_t pid_ = getpid();
  onednn::PlanCache plans_;
  ScratchPool scratch_;
};

}  // namespace

Result<std::unique_ptr<GemmLibrary>> open_onednn(void* handle, const std::string& file, int threads) {
  Symbols find(handle);
  const onednn::Version* (*get_version)() = find("dnnl_version");
  if (get_version == nullptr) return unsupported(file, " lacks dnnl_version");
  const onednn::Version version = *get_version();
  const std::string name = text("oneDNN ", version.major, ".", version.minor, ".", version.patch);
  if (version.major != 2 && version.major != 3) return unsupported(file, " is ", name, "; 2 or 3 is needed");
  if (version.cpu_runtime == onednn::kThreadpool) return unsupported(file, " is ", name, " for a thread pool of the program's own");
  const onednn::Library library(handle, version.major);
  if (const char* const missing = library.find.missing(); missing != nullptr) return unsupported(file, " lacks ", missing);
  onednn::Engine* engine = nullptr;
  if (const onednn::Outcome outcome = library.engine_create(&engine, onednn::kCpu, 0); outcome != 0) {
    return onednn::failure("making an engine", outcome);
  }
  const char* const said = std::getenv("OMP_NUM_THREADS");
  return std::unique_ptr<GemmLibrary>(new OneDnn(library, onednn::Owned<onednn::Engine>(engine, library.engine_destroy), OpenMp(handle),
                                                 name, said != nullptr && *said != '\0' ? 0 : threads));
}

}  // namespace megadp::host
