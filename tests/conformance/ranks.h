// SPDX-License-Identifier: Apache-2.0
// Ranks: the same function run once per rank, as threads or as processes, with what each found wrong brought together.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "control/world.h"

namespace megadp::test {

using Place = std::source_location;

enum class Ranks {
  on_test_world,  // threads, with thread_world.h between them
  on_test_hosts,  // the same, dealt out over two nodes by turns: what is between them goes through the backend's transport
  on_test_pairs,  // the same, two after another on each node
  threads,        // threads, each joining the real World
  processes       // processes forked by the test, each joining the real World
};

// What one rank has in hand.
class Rank {
 public:
  Rank(std::shared_ptr<World> world, std::shared_ptr<Backend> backend) : world_(std::move(world)), backend_(std::move(backend)) {}

  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  World& world() { return *world_; }
  Backend& backend() { return *backend_; }
  const std::shared_ptr<Backend>& shared_backend() { return backend_; }
  const std::shared_ptr<World>& shared_world() { return world_; }
  // Drops this rank's hold on its World and backend, as a program does that leaves.
  void leave() {
    backend_.reset();
    world_.reset();
  }
  std::vector<int> everyone() const;

  bool check(bool good, const std::string& what, Place at = Place::current());
  bool ok(const Status& status, Place at = Place::current());
  // A failure of this kind whose sentence has every one of the words.
  bool fails(const Status& status, Code code, const std::vector<std::string>& words, Place at = Place::current());
  // The value of a result, or an exception that ends this rank's part of the test.
  template <class T>
  T must(Result<T> result, Place at = Place::current()) {
    if (!ok(result.status(), at)) throw Stopped{};
    return std::move(*result);
  }
  void must(const Status& status, Place at = Place::current()) {
    if (!ok(status, at)) throw Stopped{};
  }
  struct Stopped {};

  const std::vector<std::string>& findings() const { return findings_; }
  int checks() const { return checks_; }

 private:
  void find(const std::string& what, Place at);

  std::shared_ptr<World> world_;
  std::shared_ptr<Backend> backend_;
  std::vector<std::string> findings_;
  int checks_ = 0;
};

struct Setting {
  Ranks ranks = Ranks::on_test_world;
  std::function<Result<std::shared_ptr<Backend>>(std::shared_ptr<World>)> open;
  uint64_t timeout_ns = 60'000'000'000;
  int killed = -1;              // with processes: this rank ends by SIGKILL, and says nothing
  int cycles = 200;             // how often cases repeat what starts anew
  std::vector<int> sizes = {};  // run with these numbers of ranks alone; empty: with all that a case asks for
};

struct Outcome {
  std::vector<std::string> findings;  // "rank 2: file:line: …"
  int checks = 0;
};

Outcome run_ranks(const Setting& setting, int size, const std::function<void(Rank&)>& body);

}  // namespace megadp::test
