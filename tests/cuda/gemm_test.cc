// SPDX-License-Identifier: Apache-2.0
// The plugin's side of cuBLASLt, against a stand-in (cublaslt_standin.c) that multiplies on the host by what the descriptors say: which
// library is taken, that the descriptors mean the product, and that every failure has its name and leaves nothing behind.
// gemm_test PLUGIN STANDIN STANDIN_THAT_LACKS_PRODUCTS NO_CUBLASLT
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "cublaslt_standin.h"
#include "plugin_test.h"
#include "product_oracle.h"

using namespace megadp;
using namespace megadp::cuda;
using namespace megadp::test;

namespace {

const PluginTable* plugin;
std::string standin, lacking;
bool there_is_a_device;

// The functions of the mapped stand-in; nothing of it is linked.
struct Standin {
  decltype(&standin_reset) reset;
  decltype(&standin_claim_version) claim_version;
  decltype(&standin_fail) fail;
  decltype(&standin_find_none) find_none;
  decltype(&standin_find_state) find_state;
  decltype(&standin_want_workspace) want_workspace;
  decltype(&standin_count) count;
  decltype(&standin_living) living;
  decltype(&standin_last_product) last_product;
  decltype(&standin_last_preference) last_preference;

  explicit Standin(const std::string& path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    check(library != nullptr, "the stand-in cannot be loaded");
    find(library, "standin_reset", &reset);
    find(library, "standin_claim_version", &claim_version);
    find(library, "standin_fail", &fail);
    find(library, "standin_find_none", &find_none);
    find(library, "standin_find_state", &find_state);
    find(library, "standin_want_workspace", &want_workspace);
    find(library, "standin_count", &count);
    find(library, "standin_living", &living);
    find(library, "standin_last_product", &last_product);
    find(library, "standin_last_preference", &last_preference);
  }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(library, name));
    check(*out != nullptr, text("the stand-in has no ", name));
  }
};
Standin* lt;

// ── loading ──

void refused(const char* path, const std::vector<std::string>& words, test::Place at = test::Place::current()) {
  Gemm* gemm = nullptr;
  char why[512] = "";
  const int32_t result = plugin->gemm_open(nullptr, path, &gemm, why, sizeof why);
  check(result != 0 && gemm == nullptr, "a library that should be refused was opened", at);
  check(std::strlen(why) + 1 < sizeof why, "the sentence was cut", at);
  for (const std::string& word : words) check(std::string(why).find(word) != std::string::npos, text("'", why, "' lacks '", word, "'"), at);
}

Gemm* open(const char* path, test::Place at = test::Place::current()) {
  Gemm* gemm = nullptr;
  char why[512] = "";
  check_equal(plugin->gemm_open(nullptr, path, &gemm, why, sizeof why), 0, text("gemm_open: ", why), at);
  return gemm;
}

// In a process of its own, before the stand-in is mapped: where the machine has a cuBLASLt, that would be mapped here from now on.
void none_is_there() {
  const pid_t child = fork();
  if (child == 0) {
    Gemm* gemm = nullptr;
    char why[512] = "";
    if (plugin->gemm_open(nullptr, nullptr, &gemm, why, sizeof why) == 0) {
      std::cerr << "cuBLASLt " << plugin->gemm_version(gemm) << " is here: what happens without one is not tried\n";
    } else {
      refused(nullptr, {"libcublasLt.so.13, .12 and .11", "No such file", "install cuBLAS", "nvidia-cublas", "LD_LIBRARY_PATH"});
    }
    _exit(finish());
  }
  int outcome = -1;
  check(child > 0 && waitpid(child, &outcome, 0) == child && outcome == 0, "what is said where there is no cuBLASLt");
}

void loading(const char* no_cublaslt) {
  refused("/nowhere/libcublasLt.so", {"could not be loaded", "/nowhere/libcublasLt.so"});
  refused(no_cublaslt, {"no cuBLASLt", "cublasLtGetProperty"});
  refused(lacking.c_str(), {"cuBLASLt 13.1.2 lacks cublasLtMatmul"});
  for (const int major : {10, 14}) {
    lt->claim_version(major, 2, 3);
    refused(standin.c_str(), {text("cuBLASLt ", major, ".2.3 was found"), "11, 12 or 13", "cublaslt_standin"});
  }
  lt->reset();
  lt->fail("cublasLtGetProperty", 3);
  refused(standin.c_str(), {"cublasLtGetProperty", "fails with 3"});
  for (const auto& [major, minor, version] : {std::tuple{11, 4, 110402}, {12, 9, 120902}, {13, 0, 130002}}) {
    lt->reset();
    lt->claim_version(major, minor, 2);
    Gemm* const gemm = open(standin.c_str());
    check_equal(plugin->gemm_version(gemm), version, "gemm_version");
    plugin->gemm_close(gemm);
  }
  plugin->gemm_close(nullptr);
  lt->reset();
}

// The stand-in is mapped, and its name within the process is that of cuBLASLt 12: no newer one is looked for.
void adopted() {
  lt->claim_version(12, 34, 56);
  Gemm* const gemm = open(nullptr);
  check_equal(plugin->gemm_version(gemm), 123456, "version of the adopted copy");
  plugin->gemm_close(gemm);
  lt->reset();
}

// ── products ──

std::mt19937 random_bits(5);

struct Filled {
  LaidMatrix laid;
  std::vector<std::byte> memory;

  explicit Filled(const LaidMatrix& as) : laid(as), memory(as.elements() * size_of(as.type)) {
    for (size_t i = 0; i < as.elements(); i++) {
      const float value = static_cast<float>(static_cast<int>(random_bits() % 20001) - 10000) / 8192;
      if (as.type == DType::f32) reinterpret_cast<float*>(memory.data())[i] = value;
      if (as.type == DType::bf16) from_f32(reinterpret_cast<Bf16*>(memory.data()) + i, value);
    }
  }
  Matrix view() { return laid.view(memory.data()); }
};

// What is left behind is counted when all is closed.
struct Fixture {
  Gemm* gemm;
  Fixture() : gemm(open(standin.c_str())) { lt->reset(); }
  ~Fixture() {
    plugin->gemm_close(gemm);
    check_equal(lt->living(), 0, "handles and descriptors left behind");
    lt->reset();
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  int32_t multiply(Filled& c, Filled& a, Filled& b, bool add = false, void* stream = nullptr) const {
    const Matrix on_c = c.view(), on_a = a.view(), on_b = b.view();
    return plugin->gemm(gemm, stream, &on_c, &on_a, &on_b, add);
  }
};

void products() {
  const Fixture f;
  for (const ProductCase& one : product_cases()) {
    Filled a(one.a), b(one.b), c(one.c);
    const std::vector<std::byte> before = c.memory;
    const int asked = lt->count("cublasLtMatmul");
    const int32_t result = f.multiply(c, a, b, one.add);
    const bool empty = c.laid.rows == 0 || c.laid.columns == 0, sums_nothing = a.laid.columns == 0;
    check_equal(lt->count("cublasLtMatmul") - asked, empty || sums_nothing ? 0 : 1, one.name());
    if (!empty && sums_nothing && !one.add) {  // zeros, which the stand-in has no part in
      if (!there_is_a_device) names(*plugin, result, kCudaFailure, "cudaError", one.name());
      continue;
    }
    check_equal(result, 0, one.name());
    const std::string wrong = wrong_in_product(c.laid, c.memory, before, a.view(), b.view(), one.add, Rounded::once);
    check(wrong.empty(), text(one.name(), ": ", wrong));
  }
}

// Exact f32, partial sums in f32, one scale; alignment as it is, and the caller's stream.
void what_is_asked_for() {
  const Fixture f;
  Filled a({DType::bf16, 8, 16, true, 0}), b({DType::bf16, 16, 24, true, 0}), c({DType::f32, 8, 24, false, 0});
  const Matrix on_a = a.view(), on_b = b.view();
  alignas(256) static float memory[256 + 2];
  Matrix on_c = c.laid.view(memory + 2);
  void* const stream = there_is_a_device ? nullptr : memory;
  check_equal(plugin->gemm(f.gemm, stream, &on_c, &on_a, &on_b, true), 0, "a product");
  const standin_product product = lt->last_product();
  check_equal(product.desc.compute, 68, "the compute type");
  check_equal(product.desc.scale, 0, "the scale type");
  check(product.alpha == 1 && product.beta == 1, "the factors");
  check(product.a == on_a.data && product.b == on_b.data && product.c == on_c.data && product.d == on_c.data, "the operands");
  check(product.stream == stream, "another stream than the caller's");
  check(product.workspace == nullptr && product.workspace_bytes == 0, "a workspace that nobody wants");
  const standin_preference preference = lt->last_preference();
  check_equal(preference.reduction, 2U, "how partial sums meet");
  check_equal(preference.workspace, uint64_t{kGemmWorkspaceBytes}, "the most of a workspace");
  check_equal(preference.alignment[2], 8U, "the alignment of c");
  check_equal(preference.alignment[3], 8U, "the alignment of d");
  for (int i = 0; i < 2; i++) {
    const auto address = reinterpret_cast<uintptr_t>(i == 0 ? on_a.data : on_b.data);
    const uint32_t alignment = preference.alignment[i];
    check(address % alignment == 0 && (alignment == 256 || address % (2 * alignment) != 0), "the alignment of an operand");
  }
  // By rows all is the other way round: the first operand is then b.
  on_c = {memory, DType::f32, 8, 24, 24, 1};
  check_equal(plugin->gemm(f.gemm, nullptr, &on_c, &on_a, &on_b, false), 0, "a product by rows");
  check(lt->last_product().a == on_b.data && lt->last_product().b == on_a.data, "the operands of a product by rows");
  check(lt->last_product().desc.transposed[0] == 0 && lt->last_product().desc.transposed[1] == 0, "transposed without a reason");
  check_equal(lt->last_preference().alignment[2], 256U, "the alignment of c");
}

// The stride over a single row or column says nothing.
void single_rows() {
  const Fixture f;
  float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, c[16] = {};
  for (const int64_t stride : {1, 4, 7}) {
    const Matrix row{a, DType::f32, 1, 4, stride, 1}, column{b, DType::f32, 4, 1, 1, stride}, one{c, DType::f32, 1, 1, 1, stride};
    check_equal(plugin->gemm(f.gemm, nullptr, &one, &row, &column, false), 0, "a row times a column");
    check_equal(c[0], 70.0F, "a row times a column");
    const Matrix upright = transposed(row), flat = transposed(column), square{c, DType::f32, 4, 4, 4, 1};
    check_equal(plugin->gemm(f.gemm, nullptr, &square, &upright, &flat, false), 0, "a column times a row");
    check(c[0] == 5 && c[3] == 8 && c[4] == 10 && c[15] == 32, "a column times a row");
  }
}

void bad_arguments() {
  const Fixture f;
  float memory[64] = {};
  const Matrix c{memory, DType::f32, 2, 3, 3, 1}, a{memory + 16, DType::f32, 2, 4, 4, 1}, b{memory + 32, DType::f32, 4, 3, 3, 1};
  const auto refuse = [&](const Matrix& to, const Matrix& left, const Matrix& right, const char* what) {
    names(*plugin, plugin->gemm(f.gemm, nullptr, &to, &left, &right, false), kOwnFailure, "does not know", what);
  };
  const auto with = [](Matrix matrix, auto change) {
    change(matrix);
    return matrix;
  };
  refuse(with(c, [](Matrix& m) { m.rows = 3; }), a, b, "other rows");
  refuse(with(c, [](Matrix& m) { m.columns = 2; }), a, b, "other columns");
  refuse(c, with(a, [](Matrix& m) { m.columns = 3; }), b, "another inner dimension");
  refuse(c, with(a, [](Matrix& m) { m.row_stride = 3; }), b, "rows that overlap");
  refuse(c, a, with(b, [](Matrix& m) { m.column_stride = 2; }), "no stride of 1");
  refuse(with(c, [](Matrix& m) { m.rows = -1; }), with(a, [](Matrix& m) { m.rows = -1; }), b, "less than no rows");
  for (const DType type : {DType::f16, DType::f64, DType::i64, DType::u8}) {
    const auto other = [type](Matrix& m) { m.type = type; };
    refuse(with(c, other), with(a, other), with(b, other), "a type that products do not have");
    refuse(with(c, other), a, b, "a result of such a type");
  }
  const auto half = [](Matrix& m) { m.type = DType::bf16; };
  refuse(with(c, half), a, b, "f32 to bf16");
  refuse(c, with(a, half), b, "two types");
  check_equal(lt->count("cublasLtMatmul") + lt->count("cublasLtMatmulAlgoGetHeuristic"), 0, "calls of cuBLASLt");
}

// ── algorithms ──

// One question for each shape, also when it comes again later; and no more is kept than fits.
void asked_once() {
  const Fixture f;
  for (int round = 0; round < 3; round++) {
    for (int64_t size = 1; size <= 20; size++) {
      Filled a({DType::f32, size, 3, true, 0}), b({DType::f32, 3, 2, true, 0}), c({DType::f32, size, 2, true, 0});
      // What `new` gives is not aligned alike each time.
      alignas(256) static float memory[3][256];
      const Matrix on_c = c.laid.view(memory[0]), on_a = a.laid.view(memory[1]), on_b = b.laid.view(memory[2]);
      check_equal(plugin->gemm(f.gemm, nullptr, &on_c, &on_a, &on_b, round == 1), 0, "a product");
    }
  }
  check_equal(lt->count("cublasLtMatmulAlgoGetHeuristic"), 20, "questions for algorithms");
  check_equal(lt->count("cublasLtMatmul"), 60, "products");
  check_equal(lt->count("cublasLtCreate"), 1, "handles");
  for (int64_t size = 1; size <= 600; size++) {
    Filled a({DType::f32, size, 1, true, 0}), b({DType::f32, 1, 1, true, 0}), c({DType::f32, size, 1, true, 0});
    check_equal(f.multiply(c, a, b), 0, "a product");
  }
  check(lt->living() > 4 && lt->living() < 2000, text(lt->living(), " descriptors are kept"));
}

// Another layout, type or alignment is another question.
void asked_apart() {
  const Fixture f;
  alignas(256) float memory[3][512] = {};
  const auto ask = [&](DType type, int64_t gap, bool by_rows, int64_t offset) {
    const LaidMatrix c{type, 4, 4, true, 0}, a{type, 4, 4, by_rows, gap}, b{type, 4, 4, true, 0};
    const Matrix on_c = c.view(memory[0]), on_a = a.view(memory[1] + offset), on_b = b.view(memory[2]);
    check_equal(plugin->gemm(f.gemm, nullptr, &on_c, &on_a, &on_b, false), 0, "a product");
    return lt->count("cublasLtMatmulAlgoGetHeuristic");
  };
  check_equal(ask(DType::f32, 0, true, 0), 1, "the first");
  check_equal(ask(DType::f32, 0, true, 64), 1, "elsewhere, aligned alike");
  check_equal(ask(DType::f32, 0, true, 4), 2, "another alignment");
  check_equal(ask(DType::f32, 4, true, 0), 3, "another leading dimension");
  check_equal(ask(DType::f32, 0, false, 0), 4, "another layout");
  check_equal(ask(DType::bf16, 0, true, 0), 5, "another type");
  check_equal(ask(DType::f32, 0, true, 0), 5, "the first again");
}

void workspace() {
  const Fixture f;
  Filled a({DType::f32, 4, 4, true, 0}), b({DType::f32, 4, 4, true, 0}), c({DType::f32, 4, 4, true, 0});
  lt->want_workspace(1000);
  const int32_t result = f.multiply(c, a, b);
  if (!there_is_a_device) {
    names(*plugin, result, kCudaFailure, "cudaError", "a workspace without a device");
    check_equal(lt->count("cublasLtMatmul"), 0, "products without their workspace");
    return;
  }
  check_equal(result, 0, "a product with a workspace");
  const standin_product product = lt->last_product();
  check(product.workspace != nullptr && product.workspace_bytes == 1000, "the workspace");
  check_equal(f.multiply(c, a, b), 0, "another product");
  check(lt->last_product().workspace == product.workspace, "another workspace");
}

// ── failures ──

void failures_by_name() {
  const Fixture f;
  for (const char* function :
       {"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute", "cublasLtCreate", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"}) {
    Filled a({DType::f32, 4, 5, false, 0}), b({DType::f32, 5, 4, false, 0}), c({DType::f32, 4, 4, true, 0});
    const std::vector<std::byte> before = c.memory;
    lt->fail(function, 14);
    names(*plugin, f.multiply(c, a, b), kCublasFailure, "CUBLAS_STATUS_INTERNAL_ERROR (14)", function);
    check(c.memory == before, text("a failed ", function, " has changed c"));
    // The handle is kept, and what a product that failed was described by.
    const std::string name = function;
    const int kept = name == "cublasLtMatmul" ? 5 : name == "cublasLtMatmulAlgoGetHeuristic" ? 1 : 0;
    check_equal(lt->living(), kept, text("left behind by a failed ", function));
    lt->fail("", 0);
  }
  Filled a({DType::f32, 4, 5, false, 0}), b({DType::f32, 5, 4, false, 0}), c({DType::f32, 4, 4, true, 0});
  check_equal(f.multiply(c, a, b), 0, "a product after failures");
  lt->fail("cublasLtMatmul", 3);
  check_equal(f.multiply(c, a, b), kCublasNoMemory, "a lack of memory");
  for (const auto& [status, name] : {std::pair{1, "CUBLAS_STATUS_NOT_INITIALIZED (1)"},
                                     {3, "CUBLAS_STATUS_ALLOC_FAILED (3)"},
                                     {7, "CUBLAS_STATUS_INVALID_VALUE (7)"},
                                     {8, "CUBLAS_STATUS_ARCH_MISMATCH (8)"},
                                     {11, "CUBLAS_STATUS_MAPPING_ERROR (11)"},
                                     {13, "CUBLAS_STATUS_EXECUTION_FAILED (13)"},
                                     {15, "CUBLAS_STATUS_NOT_SUPPORTED (15)"},
                                     {16, "CUBLAS_STATUS_LICENSE_ERROR (16)"},
                                     {77, "a status of cuBLAS (77)"}}) {
    lt->fail("cublasLtMatmul", status);
    names(*plugin, f.multiply(c, a, b), kCublasFailure, name, "cublasLtMatmul");
  }
}

// cuBLASLt says "success" and has found nothing, or nothing that can be used.
void no_algorithm() {
  const Fixture f;
  Filled a({DType::f32, 4, 5, false, 0}), b({DType::f32, 5, 4, false, 0}), c({DType::f32, 4, 4, true, 0});
  lt->find_none();
  names(*plugin, f.multiply(c, a, b), kCublasFailure, "CUBLAS_STATUS_NOT_SUPPORTED (15)", "no algorithm");
  lt->reset();
  lt->find_state(8);
  names(*plugin, f.multiply(c, a, b), kCublasFailure, "CUBLAS_STATUS_ARCH_MISMATCH (8)", "an algorithm of another device");
  check_equal(lt->count("cublasLtMatmul"), 0, "products without an algorithm");
}

}  // namespace

int main(int, char** arguments) {
  plugin = load_plugin(arguments[1]);
  if (plugin == nullptr) return finish();
  standin = arguments[2];
  lacking = arguments[3];
  none_is_there();
  Standin functions(standin);
  lt = &functions;
  int32_t count = 0;
  there_is_a_device = plugin->device_count(&count) == 0 && count > 0;
  loading(arguments[4]);
  adopted();
  products();
  what_is_asked_for();
  single_rows();
  bad_arguments();
  asked_once();
  asked_apart();
  workspace();
  failures_by_name();
  no_algorithm();
  return finish();
}
