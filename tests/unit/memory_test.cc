// SPDX-License-Identifier: Apache-2.0
// Where large mappings of the host backend lie: arrays that a step walks through side by side must not lie a multiple of 2^28 bytes apart.
#include "host/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "check.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPeriod = host::kColours * host::kColourBytes;

std::vector<host::Mapping> map_all(const std::vector<size_t>& sizes, int fd = -1) {
  std::vector<host::Mapping> mappings;
  for (const size_t bytes : sizes) {
    Result<host::Mapping> made = host::Mapping::create(bytes, fd, "placement");
    if (check(made.ok(), made.status().text())) mappings.push_back(*std::move(made));
  }
  return mappings;
}

void differ(const std::vector<host::Mapping>& mappings, const std::string& what) {
  for (size_t i = 0; i < mappings.size(); ++i) {
    const auto at = reinterpret_cast<uintptr_t>(mappings[i].data());
    check(at % host::kColourBytes == 0, text(what, ": mapping ", i, " begins ", at % host::kColourBytes, " bytes off"));
    for (size_t j = 0; j < i; ++j) {
      const uintptr_t distance = (at - reinterpret_cast<uintptr_t>(mappings[j].data())) % kPeriod;
      check(distance != 0, text(what, ": mappings ", j, " and ", i, " lie a multiple of 2^28 bytes apart"));
    }
  }
}

// Whole numbers of 2^28 and of 2^27 are what a run of plain mappings cannot keep apart; 2^28 - 2 MiB what a gap of 2 MiB before each
// cannot.
void arrays_of_one_size_differ() {
  for (const size_t bytes : {size_t{2} << 20, size_t{16} << 20, size_t{1} << 27, size_t{1} << 28, (size_t{1} << 28) - (size_t{2} << 20),
                             (size_t{1} << 28) + kPage, size_t{1} << 29, (size_t{1} << 26) + 2 * kPage})
    differ(map_all(std::vector<size_t>(16, bytes)), text("16 of ", bytes, " bytes"));
}

void arrays_of_a_step_differ() {
  const size_t elements = size_t{1} << 26;
  differ(map_all({2 * elements, 4 * elements, 4 * elements, 4 * elements, 4 * elements}), "parameters, gradients, masters, moments");
}

void shared_memory_differs() {
  const int fd = memfd_create("placement", MFD_CLOEXEC);
  const size_t bytes = size_t{1} << 28;
  check(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0, "a memfd");
  std::vector<host::Mapping> mappings = map_all(std::vector<size_t>(8, bytes), fd);
  differ(mappings, "windows of 8 ranks");
  *mappings[0].data() = std::byte{7};
  check(*mappings[7].data() == std::byte{7}, "the mappings are of one memory");
  close(fd);
}

// Colours come back: also after more mappings than there are colours, in any order.
void colours_come_back() {
  const size_t bytes = host::kLargeMapping;
  std::vector<host::Mapping> kept = map_all({bytes, bytes, bytes});
  for (size_t i = 0; i < 3 * host::kColours; ++i) {
    std::vector<host::Mapping> some = map_all({bytes, bytes});
    some.push_back(std::move(kept[i % kept.size()]));
    kept[i % kept.size()] = std::move(some[0]);
  }
  differ(kept, "what is left");
  kept.clear();
  differ(map_all(std::vector<size_t>(host::kColours, bytes)), "as many as there are colours");
}

int64_t mapped_bytes() {
  FILE* const file = fopen("/proc/self/statm", "r");
  long pages = 0;
  if (file == nullptr || fscanf(file, "%ld", &pages) != 1) pages = 0;
  if (file != nullptr) fclose(file);
  return static_cast<int64_t>(pages) * sysconf(_SC_PAGESIZE);
}

void no_address_space_is_kept() {
  const size_t bytes = size_t{64} << 20;
  const int64_t before = mapped_bytes();
  {
    const std::vector<host::Mapping> four = map_all({bytes, bytes, bytes, bytes});
    check_equal(mapped_bytes() - before, static_cast<int64_t>(4 * bytes), "address space of four mappings");
  }
  check_equal(mapped_bytes(), before, "address space after them");
}

// If there is too little address space to choose from, a mapping is better than none.
void little_address_space_is_enough() {
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  rlimit little = before;
  little.rlim_cur = static_cast<rlim_t>(mapped_bytes()) + (size_t{100} << 20);
  setrlimit(RLIMIT_AS, &little);
  check_equal(map_all({size_t{64} << 20}).size(), size_t{1}, "mappings");
  Result<host::Mapping> more = host::Mapping::create(size_t{128} << 20, -1, "placement");
  setrlimit(RLIMIT_AS, &before);
  fails(more.status(), Code::memory, {"134217728 bytes"});
}

}  // namespace

int main() {
  arrays_of_one_size_differ();
  arrays_of_a_step_differ();
  shared_memory_differs();
  colours_come_back();
  no_address_space_is_kept();
  little_address_space_is_enough();
  return finish();
}
