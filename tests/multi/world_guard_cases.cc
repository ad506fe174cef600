// SPDX-License-Identifier: Apache-2.0
// World: two jobs that were given one name, where the launcher hands round no secret. Ranks are processes, and those of both jobs are
// alike.
#include "world_ranks.h"

namespace megadp::test {
namespace {

constexpr int kPatientMs = 20'000, kHurriedMs = 2'000;

// Both ranks of a job of this name.
struct Pair {
  RankProcess first, second;
  Pair(const std::string& job, const std::string& behaviour, int timeout_ms = kPatientMs)
      : first(job, 0, 2, timeout_ms, behaviour), second(job, 1, 2, timeout_ms, behaviour) {}
  void join(const char* who, Place at = Place::current()) {
    check(first.read_line(30 * kSecond) == "joined" && second.read_line(30 * kSecond) == "joined", text(who, " joins"), at);
  }
};

void the_second_of_two_jobs_is_refused() {
  const std::string job = fresh_job();
  Pair earlier(job, "watch a second without a secret");
  earlier.join("the first job");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // by now it has two communicators, or one again
  {
    Pair later(job, "watch without a secret", kHurriedMs);
    says(later.first.read_line(30 * kSecond), {"did not join MDP_E_INVALID", text("process ", earlier.first.pid(), " of user ", ::getuid(),
                                                                                  " is rank 0 of a job of this name already")});
    says(later.second.read_line(30 * kSecond), {"did not join MDP_E_TIMEOUT", text("process ", earlier.first.pid(), " of user"),
                                                "waits for nobody", "ranks of the two may have met"});
  }
  // With a secret each finds its own.
  Pair with_secret(job, "leave");
  with_secret.join("a job with a secret");
}

// A job that follows another need not wait until every process of it is gone, but for its rank 0.
void the_next_job_waits_for_the_end() {
  const std::string job = fresh_job();
  auto earlier = std::make_unique<Pair>(job, "fork without a secret");  // the children live on, with all they have inherited
  earlier->join("the first job");
  Pair next(job, "leave without a secret");
  check(next.first.read_line(kSecond).empty(), "the next job has begun beside the first");
  earlier.reset();
  next.join("the next job");
}

// Several communicators of a process have one name, and so has that of a child, which begins anew.
void a_process_and_its_children_may_have_one_name() {
  const std::string job = fresh_job();
  on_threads(2, [&](int rank) {
    Launch launch = launch_of(job, rank, 2);
    launch.secret = {};
    auto one = World::join(launch, 20 * kSecond);
    if (!check(one.ok(), one.status().text())) return;
    auto other = World::join(launch, 20 * kSecond);
    if (!check(other.ok(), other.status().text())) return;
    one = Status(Code::aborted, "left");
    auto again = World::join(launch, 20 * kSecond);
    check(again.ok(), again.status().text());
    if (rank == 0) Pair(job, "leave without a secret").join("a job of children");
    check((*other)->exchange({0, 1}, "test", "").ok(), "the second communicator works on");
  });
}

}  // namespace

void guard_cases() {
  the_second_of_two_jobs_is_refused();
  the_next_job_waits_for_the_end();
  a_process_and_its_children_may_have_one_name();
}

}  // namespace megadp::test
