// SPDX-License-Identifier: Apache-2.0
// The parts of `megadp run` that need no ranks: how processors are shared out, how output is cut into lines, what root addresses and
// secrets are taken, and the bare loops of `megadp bench` against sums written out.
#include <fcntl.h>
#include <rapidcheck.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>

#include "base/math.h"
#include "bench_loops.h"
#include "check.h"
#include "run_environment.h"
#include "run_output.h"

using namespace megadp;
using namespace megadp::test;
using namespace megadp::tool;

namespace {

void shares_out_processors() {
  check(rc::check("every processor goes to one rank, in order, and shares differ by at most one",
                  [] {
                    const auto chosen = *rc::gen::unique<std::vector<int>>(rc::gen::inRange(0, 5000));
                    const std::vector<int> cpus = [&] {
                      std::vector<int> sorted = chosen;
                      std::sort(sorted.begin(), sorted.end());
                      return sorted;
                    }();
                    const int count = *rc::gen::inRange(1, 40);
                    std::vector<int> joined;
                    std::set<size_t> sizes;
                    for (int index = 0; index < count; ++index) {
                      const std::vector<int> share = cpu_share(cpus, Binding::cores, index, count);
                      joined.insert(joined.end(), share.begin(), share.end());
                      sizes.insert(share.size());
                      RC_ASSERT(cpu_share(cpus, Binding::none, index, count).empty());
                    }
                    const bool enough = cpus.size() >= static_cast<size_t>(count);
                    RC_ASSERT(joined == (enough ? cpus : std::vector<int>()));
                    RC_ASSERT(*sizes.rbegin() - *sizes.begin() <= 1);
                  }),
        "processors are shared out wrongly");
}

struct Pipe {
  Pipe() { check(pipe(fds) == 0, "no pipe"); }
  ~Pipe() {
    close(fds[0]);
    close(fds[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int fds[2] = {-1, -1};
};

// What a Sink wrote, by way of a pipe that holds it.
class Collected {
 public:
  Sink& sink() { return sink_; }
  std::string text() {
    sink_.flush();
    // A last byte of our own, so that there is something to read even if nothing was written.
    if (!check(!sink_.waiting() && write(pipe_.fds[1], "", 1) == 1, "the sink did not write all it was given")) return {};
    std::string out(65536, '\0');
    const ssize_t got = read(pipe_.fds[0], out.data(), out.size());
    out.resize(static_cast<size_t>(std::max<ssize_t>(got, 1)) - 1);
    return out;
  }

 private:
  Pipe pipe_;
  Sink sink_{pipe_.fds[1]};
};

void cuts_lines() {
  check(rc::check("lines do not depend on how the bytes arrive",
                  [] {
                    const auto lines = *rc::gen::resize(
                        20, rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(rc::gen::inRange('a', 'e'))));
                    const bool ended = *rc::gen::arbitrary<bool>();
                    std::string bytes, prefixed;
                    for (size_t i = 0; i < lines.size(); ++i) {
                      const bool open = !ended && i + 1 == lines.size();
                      bytes += lines[i] + (open ? "" : "\n");
                      if (!open || !lines[i].empty()) prefixed += "[3] " + lines[i] + "\n";
                    }
                    const size_t most = *rc::gen::inRange<size_t>(1, 9);
                    for (const bool prefix : {true, false}) {
                      Collected collected;
                      LineCutter cutter(collected.sink(), 3, prefix ? "[3] " : "");
                      for (size_t at = 0; at < bytes.size(); at += most) cutter.add(std::string_view(bytes).substr(at, most));
                      cutter.finish();
                      RC_ASSERT(collected.text() == (prefix ? prefixed : bytes));
                    }
                  }),
        "lines are cut wrongly");

  Collected collected;
  LineCutter one(collected.sink(), 1, ""), two(collected.sink(), 2, "");
  one.add("open");
  one.finish();
  two.add("other\n");
  check_equal(collected.text(), "open\nother\n", "a line after one without an end");
}

void survives_a_reader_that_goes_away() {
  int fds[2];
  check(pipe(fds) == 0, "no pipe");
  close(fds[0]);
  signal(SIGPIPE, SIG_IGN);
  Sink sink(fds[1]);
  sink.line("", "text", true, 0);
  sink.flush();
  check(sink.broken() && !sink.waiting(), "the sink notices that nobody reads");
  sink.line("", "more", true, 0);
  check(!sink.waiting(), "nothing is kept for nobody");
  check(sink.error() == EPIPE, "why is known");
  close(fds[1]);
}

void tries_a_full_disk_again() {
  const int full = open("/dev/full", O_WRONLY);
  check(full >= 0, "no /dev/full");
  Sink sink(full);
  for (int line = 0; line < 2; ++line) {
    sink.line("", "text", true, 0);
    check(sink.waiting(), "a line after a failure is tried too");
    sink.flush();
    check(!sink.broken() && !sink.waiting() && sink.error() == ENOSPC, "what a full disk does not take is lost, and that is known");
  }
  close(full);
}

void checks_roots() {
  for (const char* good : {"host:1", "a.example.org:65535", "10.0.0.1:2222", "[::1]:80", "[fe80::1]:5"})
    check(check_root(good).ok(), text(good, " is a root"));
  for (const char* bad : {"", ":", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "host:-1", "host: 1", "::1:80", "[]:80",
                          "[::1]80", "a b:1", "host:99999999999"})
    fails(check_root(bad), Code::invalid, {text("'", bad, "'"), "HOST:PORT"});
}

void names_jobs() {
  const auto first = random_secret(), second = random_secret();
  if (!check(first.ok() && second.ok(), "secrets can be made")) return;
  check(first->size() == 64 && first->find_first_not_of("0123456789abcdef") == std::string::npos, "64 hexadecimal digits");
  check(*first != *second, "secrets differ");
  const std::string name = shared_job_name(*first, "a:1", 4);
  check_equal(shared_job_name(*first, "a:1", 4), name, "the name is the same on every node");
  check(
      shared_job_name(*second, "a:1", 4) != name && shared_job_name(*first, "a:2", 4) != name && shared_job_name(*first, "a:1", 5) != name,
      "the name depends on the secret, the root and the number of ranks");
  check(*unique_name() != *unique_name(), "unique names differ");
}

// Small whole numbers and two, four or eight ranks: exact in every type.
template <class T>
void bare_loops(DType type, size_t ranks) {
  const size_t piece = 2048 + 48, count = piece * ranks;
  for (int which = 0; which < 3; ++which) {
    std::vector<std::vector<T>> windows(ranks, std::vector<T>(count));
    const auto value = [&](size_t rank, size_t i) { return static_cast<float>((i * 7 + rank * 5) % 32) * static_cast<float>(ranks); };
    const auto mean = [&](size_t i) {
      float sum = 0;
      for (size_t rank = 0; rank < ranks; ++rank) sum += value(rank, i);
      return sum / static_cast<float>(ranks);
    };
    BareRange range{{}, 0, count, type};
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t i = 0; i < count; ++i) from_f32(&windows[rank][i], value(rank, i));
      range.windows.push_back(windows[rank].data());
    }
    for (range.rank = 0; range.rank < static_cast<int>(ranks); ++range.rank)
      which == 0 ? bare_reduce_scatter(range) : which == 1 ? bare_all_reduce(range) : bare_all_gather(range);
    size_t wrong = 0;
    for (size_t rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < count; ++i) {
        const bool own = i / piece == rank;
        const float expected = which == 2 ? value(i / piece, i) : which == 1 || own ? mean(i) : value(rank, i);
        wrong += to_f32(windows[rank][i]) != expected;
      }
    check_equal(wrong, size_t{0}, text("wrong elements of loop ", which, " for ", name_of(type), " on ", ranks, " ranks"));
  }
}

}  // namespace

int main() {
  set_property_runs(200);
  shares_out_processors();
  cuts_lines();
  survives_a_reader_that_goes_away();
  tries_a_full_disk_again();
  checks_roots();
  names_jobs();
  for (const size_t ranks : {1, 2, 4, 8}) {
    bare_loops<float>(DType::f32, ranks);
    bare_loops<Bf16>(DType::bf16, ranks);
    bare_loops<F16>(DType::f16, ranks);
  }
  return finish();
}
