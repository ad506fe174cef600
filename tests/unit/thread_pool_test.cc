// SPDX-License-Identifier: Apache-2.0
// The threads of a rank: each piece once, help only while a caller waits; and each kernel on a long array with 2 and 3 threads, bit for bit
// what one thread gives (kernels_test.cc compares that with single elements).
#include "host/thread_pool.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/finding.h"
#include "base/rules.h"
#include "check.h"
#include "host/event.h"
#include "host/kernels.h"
#include "host/stream.h"

using namespace megadp;
using namespace megadp::host;
using namespace megadp::test;

namespace {

// ── the pool ──

void each_piece_once() {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads, true);
    for (const size_t count : {0, 1, 10, 11, 1000, 1003}) {
      std::vector<std::atomic<int>> seen(count);
      pool.split(count, 10, [&](size_t begin, size_t n) {
        for (size_t i = begin; i < begin + n; i++) ++seen[i];
      });
      size_t once = 0;
      for (const std::atomic<int>& times : seen) once += times == 1 ? 1 : 0;
      check_equal(once, count, text("elements of ", count, " that ", threads, " threads saw once"));
    }
  }
}

// Which threads take pieces of a job.
std::set<std::thread::id> workers_on(ThreadPool& pool) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> pieces{0};
  pool.split(64, 1, [&](size_t, size_t) {
    ++pieces;
    usleep(1000);
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  check_equal(pieces.load(), 64, "pieces");
  return ids;
}

void help_is_for_waiting_callers() {
  ThreadPool pool(3, false), eager(3, true);
  check_equal(workers_on(pool).size(), size_t{1}, "threads at work while the caller computes");
  {
    const ThreadPool::CallerIdle idle(&pool);
    check_equal(workers_on(pool).size(), size_t{3}, "threads at work while the caller waits");
  }
  check_equal(workers_on(pool).size(), size_t{1}, "threads at work after the caller has waited");
  check_equal(workers_on(eager).size(), size_t{3}, "threads at work always");
}

// Also where there are no other threads: who waits for a network asks this.
void one_thread_knows_who_waits() {
  ThreadPool pool(1, false);
  check(!pool.may_help(), "may help while the caller computes");
  {
    const ThreadPool::CallerIdle idle(&pool);
    check(pool.may_help(), "may not help while the caller waits");
  }
  check(!pool.may_help(), "may help after the caller has waited");
  check(ThreadPool(1, true).may_help(), "may not help always");
}

// The work has begun when the caller begins to wait: the threads sleep, and are woken.
void help_comes_when_the_caller_waits() {
  ThreadPool pool(2, false);
  std::atomic<bool> waits{false}, helped{false};
  std::thread stream([&] {
    const std::thread::id own = std::this_thread::get_id();
    pool.split(20000, 1, [&](size_t, size_t) {
      if (helped) return;
      if (std::this_thread::get_id() != own) helped = true;
      usleep(1000);
      if (!waits) usleep(1000);
    });
  });
  usleep(20'000);
  check(!helped, "helped before the caller waited");
  waits = true;
  const ThreadPool::CallerIdle idle(&pool);
  stream.join();
  check(helped, "nobody helped");
}

// Who waits for an event lets them help; streams wait for each other's events without that.
void who_waits_for_an_event() {
  auto pool = std::make_shared<ThreadPool>(2, false);
  const auto workers_while = [&](const auto& wait) {
    const auto event = std::make_shared<HostEvent>(nullptr, pool);
    wait(event);
    usleep(20'000);
    const size_t workers = workers_on(*pool).size();
    event->complete({});
    return workers;
  };
  std::thread waiter;
  const size_t beside_caller = workers_while([&](const std::shared_ptr<HostEvent>& event) {
    waiter = std::thread([event] { (void)event->wait(Deadline::after_ns(60'000'000'000)); });
  });
  waiter.join();
  check_equal(beside_caller, size_t{2}, "threads at work while a thread of the caller's waits for an event");
  auto stream = HostStream::create("waits", {}, pool);
  check(stream.ok(), "HostStream::create");
  const size_t beside_stream =
      workers_while([&](const std::shared_ptr<HostEvent>& event) { check((*stream)->wait_for(event).ok(), "HostStream::wait_for"); });
  check_equal(beside_stream, size_t{1}, "threads at work while a stream does");
}

void several_jobs_at_a_time() {
  ThreadPool pool(3, true);
  std::vector<std::thread> callers;
  std::atomic<size_t> sum{0};
  for (int caller = 0; caller < 4; caller++) {
    callers.emplace_back([&] {
      for (int turn = 0; turn < 200; turn++) pool.split(100, 7, [&](size_t, size_t n) { sum += n; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  check_equal(sum.load(), size_t{4 * 200 * 100}, "elements of all jobs");
}

void ended_well(pid_t child) {
  int status = 0;
  check_equal(waitpid(child, &status, 0), child, "waitpid");
  check_equal(status, 0, "how the child ended");
}

// The threads are the parent's alone; what a child has to do it does itself, and may end.
void a_forked_child() {
  ThreadPool pool(3, true);
  check_equal(workers_on(pool).size(), size_t{3}, "threads at work");
  const pid_t child = fork();
  if (child == 0) {
    size_t done = 0;
    pool.split(1000, 10, [&](size_t, size_t n) { done += n; });
    pool.~ThreadPool();
    _exit(done == 1000 ? 0 : 1);
  }
  ended_well(child);
}

// Where the system refuses a thread the work is done by those that there are. Sanitizers need more addresses than the limit leaves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void no_threads_to_be_had() {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_memory{64 << 20, 64 << 20};  // of addresses: less than there are, so that no stack can be mapped
    pthread_attr_t large;                        // larger than those that glibc keeps of threads that have ended
    if (pthread_attr_init(&large) != 0 || pthread_attr_setstacksize(&large, 256 << 20) != 0) _exit(2);
    if (pthread_setattr_default_np(&large) != 0) _exit(2);
    ThreadPool pool(3, true);
    if (setrlimit(RLIMIT_AS, &no_memory) != 0) _exit(2);
    std::atomic<size_t> done{0};
    pool.split(1000, 10, [&](size_t, size_t n) { done += n; });
    _exit(done == 1000 && workers_on(pool).size() == 1 ? 0 : 1);
  }
  ended_well(child);
}
#endif

// ── the kernels ──

constexpr DType kStorage[] = {DType::f32, DType::bf16, DType::f16};
// Several pieces, and something left over; runs of the sum of squares too, but for sanitizers, which are slow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kLong = (5 << 14) + 4097, kSide = 326, kPiece = kPieceBytes / 16;
#else
constexpr size_t kLong = (5 << 18) + 4097, kSide = 1300, kPiece = kPieceBytes;
#endif
std::mt19937 random_bits(5);

// Ordinary numbers of any type.
std::vector<std::byte> array_of(DType type, size_t n = kLong) {
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(random_bits())) / (1 << 24);
  std::vector<std::byte> bytes(n * size_of(type));
  if (type == DType::i64 || type == DType::u8) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_bits());
  } else {
    check(cast(bytes.data(), type, values.data(), DType::f32, n).ok(), "cast");
  }
  return bytes;
}

// run(on, bytes) on one thread and on the pool: the same bytes.
template <class Run>
void same(ThreadPool& pool, const std::string& what, std::vector<std::byte> bytes, const Run& run) {
  std::vector<std::byte> expected = bytes;
  const bool good = run(Executor(), expected.data()).ok() && run(Executor(pool), bytes.data()).ok();
  check(good && bytes == expected, text(what, " with ", pool.threads(), " threads"));
}

void casts(ThreadPool& pool) {
  constexpr DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  for (const DType to : types) {
    for (const DType from : types) {
      const auto source = array_of(from);
      const std::string both = text(" ", name_of(from), " to ", name_of(to));
      same(pool, "cast" + both, array_of(to),
           [&](const Executor& on, void* bytes) { return cast(bytes, to, source.data(), from, kLong, on); });
      same(pool, "add_cast" + both, array_of(to),
           [&](const Executor& on, void* bytes) { return add_cast(bytes, to, source.data(), from, kLong, on); });
    }
  }
  const auto source = array_of(DType::f32), small = array_of(DType::u8);
  same(pool, "round_with_feedback", array_of(DType::f32), [&](const Executor& on, void* residual) {
    std::vector<std::byte> to(kLong * 2);
    Status status = round_with_feedback(to.data(), reinterpret_cast<const float*>(source.data()), static_cast<float*>(residual), kLong, on);
    std::memcpy(residual, to.data(), to.size() / 2);
    return status;
  });
  for (const DType half : {DType::bf16, DType::f16}) {
    const auto params = array_of(half);
    same(pool, text("refresh_masters from ", name_of(half)), array_of(DType::f32),
         [&](const Executor& on, void* masters) { return refresh_masters(static_cast<float*>(masters), params.data(), half, kLong, on); });
  }
  same(pool, "copy_bytes", array_of(DType::u8), [&](const Executor& on, void* bytes) {
    copy_bytes(bytes, small.data(), kLong, on);
    return Status();
  });
  same(pool, "a long copy_bytes", array_of(DType::f32), [&](const Executor& on, void* bytes) {
    copy_bytes(bytes, source.data(), kLong * 4, on);
    return Status();
  });
  same(pool, "zero_bytes", array_of(DType::u8), [&](const Executor& on, void* bytes) {
    zero_bytes(bytes, kLong - 3, on);
    return Status();
  });
}

void reductions(ThreadPool& pool) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8}) {
    const std::vector<std::vector<std::byte>> arrays = {array_of(type), array_of(type), array_of(type), array_of(type), array_of(type)};
    std::vector<const void*> from;
    for (const auto& array : arrays) from.push_back(array.data());
    for (const Op op : {Op::sum, Op::avg, Op::max, Op::min}) {
      same(pool, text("reduce ", name_of(type), " op ", static_cast<int>(op)), array_of(type),
           [&](const Executor& on, void* to) { return reduce(to, from.data(), 5, kLong, type, op, 1, on); });
    }
    if (!is_trainable(type)) continue;
    same(pool, text("sum_in_f32 ", name_of(type)), array_of(DType::f32),
         [&](const Executor& on, void* to) { return sum_in_f32(static_cast<float*>(to), from.data(), 5, kLong, type, 3, on); });
  }
}

struct Looked {
  double sum = 0, nonfinite = 0;
  uint64_t zeros = 0, found = 0;
  float largest = 0;
  bool operator==(const Looked&) const = default;
};

// Several zeros, the largest numbers and infinities, in pieces of their own.
void looks(ThreadPool& pool) {
  for (const DType type : kStorage) {
    auto bytes = array_of(type);
    const auto set = [&](size_t i, float value) {
      check(cast(bytes.data() + i * size_of(type), type, &value, DType::f32, 1).ok(), "cast");
    };
    for (const size_t i : {size_t{3}, kLong / 3, kLong - 1}) set(i, 0);
    const auto look = [&](const Executor& on) {
      Looked seen;
      check(square_sum(bytes.data(), type, kLong, &seen.sum, &seen.nonfinite, on).ok(), "square_sum");
      check(extremes(bytes.data(), type, kLong, &seen.zeros, &seen.largest, on).ok(), "extremes");
      check(find_nonfinite(bytes.data(), type, kLong, first_finding(2), &seen.found, on).ok(), "find_nonfinite");
      return seen;
    };
    const Looked finite = look({});
    check(finite.sum > 0 && finite.found == 0 && finite.zeros >= 3, "nothing to look at");
    check(look(pool) == finite, text("looks at ", name_of(type), " with ", pool.threads(), " threads"));
    for (const size_t i : {kLong / 2, kLong / 2 + 1, kLong - 7}) set(i, HUGE_VALF);
    Looked one = look({}), several = look(pool);
    check(std::isinf(one.sum) && one.nonfinite == 3 && read_finding(one.found).element == kLong / 2, "what is not finite");
    check(one == several, text("looks at infinities of ", name_of(type), " with ", pool.threads(), " threads"));
  }
}

void scales(ThreadPool& pool) {
  for (const DType type : kStorage) {
    same(pool, text("scale ", name_of(type)), array_of(type),
         [&](const Executor& on, void* bytes) { return scale(bytes, type, kLong, 1.0F / 3, on); });
  }
}

// All that a launch writes.
struct Written {
  std::vector<std::byte> master, param;
  std::vector<std::byte> state[kMostStates];
  bool operator==(const Written&) const = default;
};

void updates(ThreadPool& pool) {
  StepScalars scalars{};
  scalars.grad_factor = 0.25F;
  scalars.grad_limit = HUGE_VALF;
  const uint64_t steps = 3;
  const auto grad = array_of(DType::f32);
  // A parameter with a master, its own master, bf16 state rounded with bits, and bf16 without a master.
  for (const int way : {0, 1, 2, 3}) {
    for (uint32_t number = 0; number < kRules; number++) {
      const DType state_type = way >= 2 ? DType::bf16 : DType::f32, param_type = way == 1 ? DType::f32 : DType::bf16;
      Written before;
      before.master = array_of(DType::f32);
      before.param = array_of(param_type);
      for (size_t k = 0; k < rule(number).state.size(); k++) {
        before.state[k] = array_of(rule(number).state[k].type);
        for (size_t i = 0; i < kLong && before.state[k].size() == 4 * kLong; i++) before.state[k][4 * i + 3] &= std::byte{0x7f};
      }
      const auto run = [&](const Executor& on) {
        Written after = before;
        float* const master = reinterpret_cast<float*>(after.master.data());
        void* const param = way == 1 ? static_cast<void*>(master) : after.param.data();
        Update u{{3e-3, 0.9, 0.95, 1e-8, 0.1, 0.8},
                 &scalars,
                 &steps,
                 grad.data(),
                 way == 3 ? nullptr : master,
                 {},
                 param,
                 kLong,
                 DType::f32,
                 param_type,
                 number,
                 state_type,
                 way >= 2,
                 {77, 5}};
        for (size_t k = 0; k < rule(number).state.size(); k++) u.state[k] = after.state[k].data();
        check(update(u, on).ok(), "update");
        return after;
      };
      const Written expected = run({});
      check(number == kCallerRule || !(expected == before), text("an update that changes nothing: ", rule(number).name, ", way ", way));
      check(run(pool) == expected, text(rule(number).name, ", way ", way, ", with ", pool.threads(), " threads"));
    }
  }
}

// Dense, rows with gaps, transposed, reversed; and one long dimension.
void strided_copies(ThreadPool& pool) {
  const auto source = array_of(DType::f32, kSide * (kSide + 1));
  const auto from = [&](std::vector<int64_t> shape, std::vector<int64_t> strides, size_t offset = 0) {
    StridedArray array;
    array.data = const_cast<std::byte*>(source.data()) + 4 * offset;
    array.type = DType::f32;
    array.shape.assign(shape.begin(), shape.end());
    array.strides.assign(strides.begin(), strides.end());
    return array;
  };
  constexpr int64_t side = kSide;
  const StridedArray ways[] = {from({side, side}, {side, 1}), from({side, side}, {side + 1, 1}),
                               from({side, side}, {1, side}), from({side, side}, {side, -1}, kSide - 1),
                               from({side * side / 2}, {2}),  from({2, side / 2, side / 2}, {1, 2 * side, 2})};
  for (const StridedArray& way : ways) {
    for (const DType to_type : {DType::f32, DType::bf16}) {
      for (const bool add : {false, true}) {
        same(pool, text("copy_strided of ", way.shape.size(), " dimensions to ", name_of(to_type)), array_of(to_type, kSide * kSide),
             [&](const Executor& on, void* bytes) {
               StridedArray to = way;
               to.data = bytes;
               to.type = to_type;
               int64_t stride = 1;
               for (size_t d = way.shape.size(); d-- > 0; stride *= way.shape[d]) to.strides[d] = stride;
               return copy_strided(to, way, add, on);
             });
      }
    }
  }
}

}  // namespace

int main() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  no_threads_to_be_had();
#endif
  each_piece_once();
  help_is_for_waiting_callers();
  one_thread_knows_who_waits();
  help_comes_when_the_caller_waits();
  who_waits_for_an_event();
  several_jobs_at_a_time();
  a_forked_child();
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads, true, kPiece);
    casts(pool);
    reductions(pool);
    looks(pool);
    scales(pool);
    updates(pool);
    strided_copies(pool);
  }
  return finish();
}
