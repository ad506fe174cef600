// SPDX-License-Identifier: Apache-2.0
// Matrix products on the host by every library that this machine has, against sums in double; which library is taken; bad arguments.
// Most matrices hold small whole numbers: sums in f32 are then exact in any order, and one rounding has one outcome.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "base/math.h"
#include "check.h"
#include "host/blas_gemm.h"
#include "host/gemm.h"
#include "host/gemm_library.h"

using namespace megadp;
using namespace megadp::test;
using host::GemmChoice;
using host::GemmLibrary;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr double kPadding = 77;  // what lies between the rows, and must stay there

double rounded(double value, DType type) {
  const auto single = static_cast<float>(value);
  if (type == DType::f32) return single;
  Bf16 half;
  from_f32(&half, single);
  return to_f32(half);
}

// A matrix in memory that is as long as its strides ask for.
class Array {
 public:
  Array(DType type, int64_t rows, int64_t columns, bool by_rows, int64_t padding) : type_(type) {
    const int64_t leading = (by_rows ? columns : rows) + padding, lines = by_rows ? rows : columns;
    bytes_.resize(static_cast<size_t>(leading * lines) * size_of(type) + 4);
    matrix_ = {bytes_.data(), type, rows, columns, by_rows ? leading : 1, by_rows ? 1 : leading};
    for (size_t i = 0; i < elements(); i++) set_at(i, kPadding);
  }
  const Matrix& matrix() const { return matrix_; }
  double get(int64_t row, int64_t column) const { return get_at(index(row, column)); }
  void set(int64_t row, int64_t column, double value) { set_at(index(row, column), value); }
  size_t elements() const { return bytes_.size() / size_of(type_); }
  double get_at(size_t i) const {
    if (type_ == DType::f32) return read<float>(i);
    return to_f32(read<Bf16>(i));
  }
  // Row by row, or column by column.
  std::vector<double> in_rows() const {
    std::vector<double> out;
    for (int64_t row = 0; row < matrix_.rows; row++) {
      for (int64_t column = 0; column < matrix_.columns; column++) out.push_back(get(row, column));
    }
    return out;
  }
  std::vector<double> in_columns() const {
    std::vector<double> out;
    for (int64_t column = 0; column < matrix_.columns; column++) {
      for (int64_t row = 0; row < matrix_.rows; row++) out.push_back(get(row, column));
    }
    return out;
  }
  // Whole numbers from -8 to 8, or fractions from -0.5 to 0.5.
  void fill(uint32_t seed, bool whole) {
    for (int64_t row = 0; row < matrix_.rows; row++) {
      for (int64_t column = 0; column < matrix_.columns; column++) {
        seed = seed * 1664525 + 1013904223;
        set(row, column, whole ? static_cast<double>((seed >> 16) % 17) - 8 : seed * 0x1p-32 - 0.5);
      }
    }
  }

 private:
  template <class T>
  T read(size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  size_t index(int64_t row, int64_t column) const { return static_cast<size_t>(row * matrix_.row_stride + column * matrix_.column_stride); }
  void set_at(size_t i, double value) {
    const auto single = static_cast<float>(value);
    Bf16 half;
    from_f32(&half, single);
    const void* const from = type_ == DType::f32 ? static_cast<const void*>(&single) : &half;
    std::memcpy(bytes_.data() + i * size_of(type_), from, size_of(type_));
  }

  DType type_;
  std::vector<std::byte> bytes_;
  Matrix matrix_;
};

struct Product {
  DType type = DType::f32, c_type = DType::f32;
  int64_t rows = 1, columns = 1, inner = 1;
  unsigned order = 0;  // bits: a, b, c by rows
  int64_t padding = 0;
  bool add = false, whole = true;

  std::string shown() const {
    return text(name_of(type), " -> ", name_of(c_type), " ", rows, " x ", columns, " x ", inner, " order ", order, " padding ", padding,
                add ? " added" : "", whole ? "" : " fractions");
  }
};

// Whether c is what a and b give; says the first element that is not.
bool is_product(const Product& of, const Array& c, const Array& before, const Array& a, const Array& b) {
  size_t padding = 0, padding_wanted = 0;
  for (size_t i = 0; i < c.elements(); i++) padding += c.get_at(i) == kPadding, padding_wanted += before.get_at(i) == kPadding;
  const std::vector<double> left = a.in_rows(), right = b.in_columns();
  for (int64_t row = 0; row < of.rows; row++) {
    for (int64_t column = 0; column < of.columns; column++) {
      double sum = of.add ? before.get(row, column) : 0, magnitude = std::fabs(sum);
      const double *const x = left.data() + row * of.inner, *const y = right.data() + column * of.inner;
      for (int64_t i = 0; i < of.inner; i++) {
        sum += x[i] * y[i];
        magnitude += std::fabs(x[i] * y[i]);
      }
      const double got = c.get(row, column), wanted = rounded(sum, of.c_type);
      padding -= got == kPadding;
      padding_wanted -= before.get(row, column) == kPadding;
      // Fractions: f32's own error, and one rounding to the type.
      const double allowed = of.whole ? 0 : magnitude * 1e-6 + (of.c_type == DType::bf16 ? std::fabs(sum) * 0x1p-8 : 0);
      if (!(std::fabs(got - wanted) <= allowed)) {
        return check(false, text(of.shown(), ": element (", row, ", ", column, ") is ", got, ", not ", wanted));
      }
    }
  }
  return check(padding == padding_wanted, text(of.shown(), ": what lies between the rows was written to"));
}

bool try_product(GemmLibrary& library, const Product& of, uint32_t seed = 1) {
  Array a(of.type, of.rows, of.inner, (of.order & 1) != 0, of.padding), b(of.type, of.inner, of.columns, (of.order & 2) != 0, of.padding);
  Array c(of.c_type, of.rows, of.columns, (of.order & 4) != 0, of.padding);
  a.fill(seed, of.whole);
  b.fill(seed + 1, of.whole);
  if (of.add) c.fill(seed + 2, of.whole);
  Array before(of.c_type, of.rows, of.columns, (of.order & 4) != 0, of.padding);
  if (of.add) before.fill(seed + 2, of.whole);
  const Status done = host::gemm_by(library, c.matrix(), a.matrix(), b.matrix(), of.add);
  if (!check(done.ok(), text(of.shown(), ": ", done.text()))) return false;
  return is_product(of, c, before, a, b);
}

void products(GemmLibrary& library) {
  const std::pair<DType, DType> types[] = {{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};
  const int64_t sizes[][3] = {{1, 1, 1}, {1, 5, 3}, {4, 1, 9}, {7, 3, 1}, {31, 17, 65}, {64, 48, 33}, {13, 150, 70}};
  for (const auto& [type, c_type] : types) {
    for (unsigned order = 0; order < 8; order++) {
      for (const bool add : {false, true}) {
        for (const int64_t padding : {0, 3}) {
          for (const auto& size : sizes) {
            const Product of = {type, c_type, size[0], size[1], size[2], order, padding, add};
            if (!try_product(library, of)) break;
          }
          try_product(library, {type, c_type, 33, 21, 300, order, padding, add, false});
        }
      }
    }
    if (kSanitized) continue;
    // Longer than blocks, those that are copied at a time and those of the library.
    try_product(library, {type, c_type, 1030, 3, 1100, 7, 1, true});
    try_product(library, {type, c_type, 3, 1030, 1100, 5, 1, true});
    try_product(library, {type, c_type, 70, 60, 9000, 5, 0, true});
  }
  // Where oneDNN would take more scratch memory than it is given.
  if (!kSanitized) try_product(library, {DType::bf16, DType::bf16, 521, 10240, 2, 5, 1, true});
}

void two_threads(GemmLibrary& library) {
  int good[2] = {};
  const auto work = [&library, &good](unsigned number) {
    for (int turn = 0; turn < 20; turn++) {
      const auto size = static_cast<int64_t>(20 + 7 * number) + turn % 3;
      const DType type = turn % 2 == 0 ? DType::f32 : DType::bf16;
      Array a(type, size, 90, true, 0), b(type, 90, size, false, 0), c(type, size, size, true, 0), zeros(type, size, size, true, 0);
      a.fill(number, true);
      b.fill(number + 5, true);
      if (!host::gemm_by(library, c.matrix(), a.matrix(), b.matrix(), false).ok()) continue;
      bool same = true;
      for (int64_t i = 0; i < size * size; i++) {
        double sum = 0;
        for (int64_t k = 0; k < 90; k++) sum += a.get(i / size, k) * b.get(k, i % size);
        same &= c.get(i / size, i % size) == rounded(sum, type);
      }
      good[number] += same;
    }
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  check_equal(good[0], 20, "right products of the first of two threads");
  check_equal(good[1], 20, "right products of the second of two threads");
}

// A child has none of the library's threads.
void after_fork(GemmLibrary& library) {
  if (kSanitized) return;  // ThreadSanitizer ends a child that begins threads
  const pid_t child = fork();
  if (child == 0) _exit(try_product(library, {DType::f32, DType::f32, 200, 300, 400, 7, 0, false}) ? 0 : 1);
  int status = 0;
  check(waitpid(child, &status, 0) == child && status == 0, text("products in a forked child: status ", status));
}

// The number of threads that the program has chosen for OpenMP is the same afterwards.
void leaves_openmp_alone(GemmLibrary& library) {
  void* const openmp = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (openmp == nullptr || kSanitized) return;  // sanitizers stumble over OpenMP's threads (tests/sanitizers/CMakeLists.txt)
  auto* const set = reinterpret_cast<void (*)(int)>(dlsym(openmp, "omp_set_num_threads"));
  auto* const get = reinterpret_cast<int (*)()>(dlsym(openmp, "omp_get_max_threads"));
  set(3);
  try_product(library, {DType::f32, DType::f32, 20, 30, 40, 7, 0, false});
  check_equal(get(), 3, "threads of the program's OpenMP after a product");
}

// One library by its soname; without it there is nothing to test.
void one_library(const char* soname) {
  auto library = host::open_gemm_library({.file = soname}, 2);
  if (!library.ok() && dlopen(soname, RTLD_NOW | RTLD_LOCAL) == nullptr) {
    std::cerr << "skipped " << soname << ": it is not installed\n";
    return;
  }
  if (!check(library.ok(), text(soname, ": ", library.status().text()))) return;
  std::cerr << soname << ": " << (*library)->name() << "\n";
  check((*library)->name().find_first_of("0123456789") != std::string::npos, text("'", (*library)->name(), "' says no version"));
  products(**library);
  two_threads(**library);
  after_fork(**library);
  leaves_openmp_alone(**library);
}

// What is larger than an int, at a size that can be tried: calls of 8 rows and columns at most, bf16 in blocks of 5.
void cut_products() {
  void* const handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::cerr << "skipped products that are cut: libopenblas.so.0 is not installed\n";
    return;
  }
  auto library = host::open_blas(handle, "libopenblas.so.0", 1, {.call = 8, .copied = 5});
  if (!check(library.ok(), library.status().text())) return;
  for (unsigned order = 0; order < 8; order++) {
    for (const bool add : {false, true}) {
      try_product(**library, {DType::f32, DType::f32, 8, 7, 6, order, 0, add});
      try_product(**library, {DType::f32, DType::f32, 21, 17, 35, order, 0, add});
      try_product(**library, {DType::bf16, DType::bf16, 21, 17, 300, order, 2, add});
      try_product(**library, {DType::bf16, DType::f32, 9, 10, 11, order, 0, add});
    }
  }
}

std::vector<std::string> files(std::string_view wanted, const std::vector<std::string>& mapped) {
  std::vector<std::string> out;
  for (const GemmChoice& choice : host::gemm_choices(wanted, mapped)) out.push_back((choice.must_be_mapped ? "mapped " : "") + choice.file);
  return out;
}

void choices() {
  using Files = std::vector<std::string>;
  const std::string dnnl = "libdnnl.so.3", old = "libdnnl.so.2", openblas = "libopenblas.so.0", program = "mapped ";
  check_equal(files("", {}), {program, dnnl, old, openblas}, "choices of a bare process");
  check_equal(files("", {"/lib/libc.so.6", "/lib/libgomp.so.1.0.0"}), {program, dnnl, old, openblas}, "choices beside the same OpenMP");
  check_equal(files("", {"/x/libopenblas.so.0", "/x/libmkl_rt.so.2"}),
              {"mapped /x/libopenblas.so.0", "mapped /x/libmkl_rt.so.2", program, dnnl, old, openblas}, "choices where there is a BLAS");
  check_equal(files("", {"/x/libopenblas-r0-f650aae0.3.3.so", "/x/libdnnl.so.2"}),
              {"mapped /x/libdnnl.so.2", "mapped /x/libopenblas-r0-f650aae0.3.3.so", program, dnnl, old, openblas},
              "choices where there are both");
  // Another OpenMP is there: oneDNN only if it is there too, or named.
  for (const char* other : {"/torch/lib/libgomp-a34b3233.so.1", "/x/libiomp5.so", "/usr/lib/libomp.so.5"}) {
    check_equal(files("", {other}), {program, openblas}, text("choices beside ", other));
    check_equal(files("", {other, "/x/libdnnl.so.2"}), {"mapped /x/libdnnl.so.2", program, openblas}, "choices beside both");
    check_equal(files("", {other, "/lib/libgomp.so.1"}), {program, dnnl, old, openblas}, "choices beside two of OpenMP");
    check_equal(files("onednn", {other}), {dnnl, old}, "oneDNN by name");
  }
  check_equal(files("openblas", {"/x/libdnnl.so.2", "/x/libopenblas.so.0"}), {"mapped /x/libopenblas.so.0", openblas}, "OpenBLAS by name");
  check_equal(files("/opt/libmine.so", {"/x/libdnnl.so.2"}), {"/opt/libmine.so"}, "a file by name");
  check_equal(host::openmp_runtimes({"/lib/libgomp.so.1", "/lib/libgomphash.so", "/x/libiomp5.so", "libm.so.6"}),
              Files{"libgomp.so.1", "libiomp5.so"}, "OpenMP's runtimes");
}

void not_found() {
  setenv("MEGADP_GEMM", "libnothing.so.9", 1);
  fails(host::find_gemm_library(0).status(), Code::unsupported, {"MEGADP_GEMM", "libnothing.so.9", "cannot open"});
  setenv("MEGADP_GEMM", "libm.so.6", 1);
  fails(host::find_gemm_library(0).status(), Code::unsupported, {"libm.so.6", "lacks cblas_sgemm"});
  setenv("MEGADP_GEMM", "openblas", 1);
  auto openblas = host::find_gemm_library(1);
  check(openblas.ok() ? (*openblas)->name().rfind("OpenBLAS", 0) == 0 : openblas.status().code() == Code::unsupported,
        text("MEGADP_GEMM=openblas gives ", openblas.ok() ? (*openblas)->name() : openblas.status().text()));
  unsetenv("MEGADP_GEMM");
  fails(host::open_gemm_library({.file = "libnothing.so.9", .must_be_mapped = true}, 0).status(), Code::unsupported, {"libnothing.so.9"});
}

void bad_arguments() {
  std::vector<float> memory(64);
  const Matrix good = {memory.data(), DType::f32, 4, 4, 4, 1};
  const auto changed = [&](const auto& change) {
    Matrix matrix = good;
    change(matrix);
    return matrix;
  };
  const auto bad = [&](const Matrix& c, const Matrix& a, const Matrix& b, const std::vector<std::string>& words) {
    fails(host::gemm(c, a, b, false), Code::invalid, words);
  };
  const Matrix half = changed([](Matrix&m) { m.type = DType::bf16; }), f16 = changed([](Matrix&m) { m.type = DType::f16; });
  bad(half, good, good, {"c bf16", "a is f32"});
  bad(good, half, good, {"a is bf16", "b f32"});
  bad(f16, f16, f16, {"a is f16"});
  bad(good, changed([](Matrix& m) { m.columns = 3; }), good, {"a 4 x 3", "do not fit"});
  bad(changed([](Matrix& m) { m.rows = 3; }), good, good, {"c is 3 x 4", "do not fit"});
  bad(changed([](Matrix& m) { m.columns = 3; }), good, good, {"c is 4 x 3", "do not fit"});
  bad(good, changed([](Matrix& m) { m.row_stride = 3; }), good, {"a is 4 x 4 with the strides 3 and 1"});
  bad(good, good, changed([](Matrix& m) { m.column_stride = 2; }), {"b is 4 x 4 with the strides 4 and 2"});
  bad(good, good, changed([](Matrix& m) { m.row_stride = 1, m.column_stride = 3; }), {"b is 4 x 4 with the strides 1 and 3"});
  bad(changed([](Matrix& m) { m.data = nullptr; }), good, good, {"c is NULL"});
  Matrix a = good, c = good;
  a.rows = c.rows = -1;
  bad(c, a, good, {"c is -1 x 4"});
  // Nothing to do needs no library and no memory.
  a.rows = c.rows = 0;
  a.data = c.data = nullptr;
  check(host::gemm(c, a, good, false).ok(), "a product of no rows");
}

void empty_inner() {
  for (const bool by_rows : {false, true}) {
    Array a(DType::bf16, 3, 0, true, 0), b(DType::bf16, 0, 4, true, 0), c(DType::f32, 3, 4, by_rows, 2);
    c.fill(3, true);
    c.set(2, 3, 5);
    check(host::gemm(c.matrix(), a.matrix(), b.matrix(), true).ok(), "an empty inner dimension, added");
    check_equal(c.get(2, 3), 5, "an element to which nothing was added");
    check(host::gemm(c.matrix(), a.matrix(), b.matrix(), false).ok(), "an empty inner dimension");
    double sum = 0;
    for (size_t i = 0; i < c.elements(); i++) sum += c.get_at(i);
    check_equal(sum, kPadding * static_cast<double>(c.elements() - 12), "zeros, and what lies between them");
  }
}

// By gemm() itself, with the library of the environment. A row or a column whose strides are both 1 is either.
void by_default() {
  auto name = host::gemm_library();
  if (!name.ok()) {
    std::cerr << "skipped the default library: " << name.status().text() << "\n";
    fails(name.status(), Code::unsupported, {"libdnnl2 or libopenblas0", "MEGADP_GEMM"});
    return;
  }
  std::cerr << "by default: " << *name << "\n";
  float a[3] = {1, 2, 3}, b[3] = {4, 5, 6}, c[9] = {};
  check(host::gemm({c, DType::f32, 3, 3, 3, 1}, {a, DType::f32, 3, 1, 1, 1}, {b, DType::f32, 1, 3, 1, 1}, false).ok(), "an outer product");
  check_equal(std::vector<float>(c, c + 9), {4, 5, 6, 8, 10, 12, 12, 15, 18}, "an outer product");
  check(host::gemm({c, DType::f32, 1, 1, 1, 1}, {a, DType::f32, 1, 3, 1, 1}, {b, DType::f32, 3, 1, 1, 1}, true).ok(), "an inner product");
  check_equal(c[0], 36, "an inner product");
  check(host::gemm({c, DType::f32, 1, 3, 1, 1}, {a, DType::f32, 1, 1, 1, 1}, {b, DType::f32, 1, 3, 1, 1}, false).ok(), "a row");
  check_equal(std::vector<float>(c, c + 4), {4, 5, 6, 8}, "a row");
}

// other_openmp: a library that is called like Intel's OpenMP runtime.
void beside_another_openmp(const char* other_openmp) {
  check(dlopen(other_openmp, RTLD_NOW | RTLD_LOCAL) != nullptr, text("cannot load ", other_openmp));
  auto found = host::find_gemm_library(1);
  check(found.ok() ? (*found)->name().rfind("oneDNN", 0) != 0 : found.status().code() == Code::unsupported,
        text("beside another OpenMP it is ", found.ok() ? (*found)->name() : found.status().text()));
  for (const char* soname : {"libdnnl.so.3", "libdnnl.so.2"}) {
    auto opened = host::open_gemm_library({.file = soname}, 1);
    fails(opened.status(), Code::unsupported, {soname});
    if (opened.status().text().find("cannot open") == std::string::npos)
      fails(opened.status(), Code::unsupported, {"another OpenMP", "libiomp5.so"});
  }
}

}  // namespace

// usage: unit_gemm [OTHER_OPENMP]
int main(int argc, char** argv) {
  if (argc > 1) {
    beside_another_openmp(argv[1]);
    return finish();
  }
  choices();
  not_found();
  bad_arguments();
  empty_inner();
  for (const char* soname : {"libdnnl.so.3", "libdnnl.so.2", "libopenblas.so.0"}) one_library(soname);
  cut_products();
  by_default();
  return finish();
}
