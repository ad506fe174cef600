// SPDX-License-Identifier: Apache-2.0
// The end of backward. Whatever happened here, every bucket is launched, so that no rank waits for one that will not come (or all ranks of
// a group keep theirs: grad_kept.cc); then all ranks tell each other, in one small exchange, who has a problem and which parameters were
// skipped, and all return the same outcome.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "core/gradients.h"

namespace megadp {

void SyncHeader::set_problem(uint32_t what, const std::string& sentence, int64_t of_param, int32_t of_bucket) {
  problem = what;
  param = of_param;
  bucket = of_bucket;
  std::strncpy(text, sentence.c_str(), sizeof text - 1);
}

// Deals with the parameters that did not come, and says what is wrong. Every slot then holds what it should add.
Result<SyncHeader> Gradients::settle_missing() {
  SyncHeader header{};
  header.bucket = -1;
  header.param = -1;
  header.microbatches = microbatch_;
  header.tokens = tokens_.value_or(std::numeric_limits<double>::quiet_NaN());
  size_t missing = 0;
  for (uint32_t number = 0; number < buckets_.size(); ++number) {
    Bucket& bucket = buckets_[number];
    if (bucket.launched || bucket.waiting == 0) continue;
    bucket.ready_ns = 0;  // an earlier step's
    const BucketRef ref = arenas_->plan().launch_order[number];
    const Layout& layout = arenas_->plan().arenas[ref.arena].layout;
    const BucketRange& range = layout.buckets[ref.bucket];
    for (uint32_t slot = range.first_slot; slot < range.end_slot; ++slot) {
      const size_t param = layout.slots[slot].param;
      ParamState& state = states_[param];
      if (state.ready) continue;
      if (Status cleared = clear_if_empty(param); !cleared) return cleared;
      if (arenas_->plan().config.missing == MissingPolicy::skip) state.skipped = !state.has_gradient;
      if (missing++ == 0 && arenas_->plan().config.missing == MissingPolicy::error && is_last_) {
        header.set_problem(kSyncMissing,
                           text(param_label(param, arenas_->plan().params[param].name), " never became ready (it came ", state.arrivals,
                                " of ", arenas_->plan().params[param].uses_per_step, " times)"),
                           static_cast<int64_t>(param), static_cast<int32_t>(number));
      }
    }
    bucket.waiting = 0;
  }
  for (ParamState& state : states_) {  // what is so in this microbatch need not be so in the step
    state.skipped = (state.skipped || (state.came && !state.has_gradient)) && !state.had_gradient;
  }
  if (const std::optional<size_t> lent = find_lent()) {
    header.set_problem(kSyncOther, text(param_label(*lent, arenas_->plan().params[*lent].name), " ", kIsLent), static_cast<int64_t>(*lent),
                       static_cast<int32_t>(arenas_->place(*lent).bucket));
  } else if (!is_last_) {
    header.set_problem(kSyncOther, "mdp_grad_sync was called in a microbatch that was not the last (mdp_microbatch_begin with is_last 0)",
                       -1, -1);
  } else if (lacks_tokens()) {
    header.set_problem(kSyncOther, "mdp_grad_sync comes before mdp_grad_tokens", -1, -1);
  } else if (header.problem != 0 && missing > 1) {
    const std::string more = text(header.text, ", nor did ", missing - 1, " more");
    std::strncpy(header.text, more.c_str(), sizeof header.text - 1);
  }
  tell_lacking(&header);
  return header;
}

// The parameters of a part that all tensor-parallel ranks hold and update each by itself, with the gradient that each has.
std::vector<size_t> Gradients::replicated(bool expert) const {
  const Plan& plan = arenas_->plan();
  std::vector<size_t> found;
  if (plan.grid.size(Grid::tp_axes(expert)) == 1) return found;
  for (size_t param = 0; param < plan.params.size(); ++param) {
    const ParamSpec& spec = plan.params[param];
    const bool is_one = spec.placement != Placement::sharded && !is_partial(spec.placement);
    const bool all_hold = plan.holders[param].count == plan.grid.size(Grid::tp_axes(expert));
    if (spec.expert == expert && !spec.frozen && is_one && all_hold) found.push_back(param);
  }
  return found;
}

namespace {

uint64_t digest_of(const std::string& name, bool skipped) {
  return hash_bytes(skipped ? name + '\0' : name);
}

}  // namespace

void Gradients::tell_lacking(SyncHeader* header) const {
  for (const bool expert : {false, true}) {
    const size_t part = expert ? 1 : 0;
    for (const size_t param : replicated(expert)) {
      if (states_[param].has_gradient || states_[param].had_gradient) continue;
      ++header->lacking[part];
      header->lacking_digest[part] ^= digest_of(arenas_->plan().params[param].name, states_[param].skipped);
    }
  }
}

// Where one of them has none, and takes zero for it or skips it, replicas would come apart; also where one skips it and the other takes
// zero. of_ranks: of each rank of the grid what it told.
Status Gradients::compare_lacking(std::span<const SyncHeader> of_ranks) const {
  const Grid& grid = arenas_->plan().grid;
  const std::vector<int>& world_ranks = arenas_->grid()->world()->group().members();
  const auto told = [&](int rank) { return Told{world_ranks[static_cast<size_t>(rank)], of_ranks[static_cast<size_t>(rank)]}; };
  for (const bool expert : {false, true}) {
    if (grid.size(Grid::tp_axes(expert)) == 1) continue;
    const size_t part = expert ? 1 : 0;
    for (const std::vector<int>& neighbours : grid.groups(Grid::tp_axes(expert))) {
      const Told first = told(neighbours.front());
      const auto other = std::find_if(neighbours.begin(), neighbours.end(), [&](int rank) {
        return told(rank).header.lacking_digest[part] != first.header.lacking_digest[part];
      });
      if (other != neighbours.end()) return lacks_gradient(expert, first, told(*other));
    }
  }
  return {};
}

// Of two ranks that differ in it. What a layer has that one of them left out was mostly registered together: then the difference of what
// they told is that of one run of names, left out or skipped on one of them, or both, each on one.
Status Gradients::lacks_gradient(bool expert, const Told& a, const Told& b) const {
  const Plan& plan = arenas_->plan();
  const size_t part = expert ? 1 : 0;
  const uint32_t a_lacks = a.header.lacking[part], b_lacks = b.header.lacking[part];
  const uint64_t difference = a.header.lacking_digest[part] ^ b.header.lacking_digest[part];
  Blame blame{.rank = a_lacks > b_lacks ? a.rank : b.rank};
  const int other = a_lacks > b_lacks ? b.rank : a.rank;
  const std::vector<size_t> all = replicated(expert);
  size_t last = 0;
  const auto find_run = [&](bool left_out, bool skipped) {
    for (size_t begin = 0; begin < all.size() && blame.param < 0; ++begin) {
      uint64_t digest = 0;
      for (size_t end = begin; end < all.size() && blame.param < 0; ++end) {
        const std::string& name = plan.params[all[end]].name;
        digest ^= (left_out ? digest_of(name, false) : 0) ^ (skipped ? digest_of(name, true) : 0);
        if (digest != difference) continue;
        last = all[end];
        blame.param = static_cast<int64_t>(all[begin]);
        blame.bucket = static_cast<int32_t>(arenas_->place(all[begin]).bucket);
      }
    }
    return blame.param >= 0;
  };
  const auto run = [&]() -> std::string {
    if (blame.param < 0) return "parameters";
    const auto first = static_cast<size_t>(blame.param);
    const auto label = [&plan](size_t param) { return param_label(param, plan.params[param].name); };
    return label(first) + (last > first ? " to " + label(last) : "");
  };
  const auto found = [&]() -> std::string {
    if (a_lacks != b_lacks) {
      if (!find_run(true, false)) find_run(false, true);
      return text("rank ", blame.rank, " has no gradient of ", run(), " in this step, and rank ", other, " has");
    }
    if (!find_run(true, true)) return text("ranks ", a.rank, " and ", b.rank, " lack gradients of different parameters in this step");
    return text("of ranks ", a.rank, " and ", b.rank, " one has skipped ", run(), " in this step, and the other takes zero for it");
  };
  const std::string difference_found = found();
  return Status(Code::state,
                text("mdp_grad_sync: ", difference_found,
                     ": what is replicated over tensor-parallel ranks would come apart. Put or skip it on both, or register it as "
                     "PARTIAL_SUM if each rank has a part of its gradient"),
                blame);
}

// Ranks of a stage. Pipeline stages have parameters of their own, and may be told what is theirs.
Status Gradients::compare_values(std::span<const SyncHeader> of_ranks) const {
  const std::vector<int>& world_ranks = arenas_->grid()->world()->group().members();
  const auto world_rank = [&](int rank) { return world_ranks[static_cast<size_t>(rank)]; };
  for (const std::vector<int>& stage : arenas_->plan().grid.groups(kTp | kCp | kDp)) {
    const ToldValues& first = of_ranks[static_cast<size_t>(stage.front())].told;
    for (const int rank : stage) {
      const ToldValues& other = of_ranks[static_cast<size_t>(rank)].told;
      if (other == first) continue;  // nearly always
      const std::string found = difference(world_rank(stage.front()), first, world_rank(rank), other);
      if (found.empty()) continue;
      const Blame blame{.rank = world_rank(rank)};
      if (!have_come_apart(first, other)) {
        return Status(
            Code::invalid,
            text("mdp_optimizer_step: ", found, ": all must be told the same, as they update parts or copies of the same parameters. ",
                 "No rank has changed anything; begin anew with mdp_buffer_zero_grad"),
            blame);
      }
      const Status apart(
          Code::desync,
          text("mdp_grad_sync: ", found, ": their parameters may have come apart; load a checkpoint, with a new communicator"), blame);
      arenas_->context().world->fail(apart);
      return apart;
    }
  }
  return {};
}

Status Gradients::submit_agreements(const SyncHeader& header) {
  for (Agreement& agreement : agreements_) {
    std::vector<std::byte> mine(agreement.bytes);
    std::memcpy(mine.data(), &header, sizeof header);
    for (size_t i = 0; i < agreement.params.size(); ++i) {
      const size_t param = agreement.params[i];
      if (param == kNotHere || states_[param].skipped) mine[sizeof header + i / 8] |= static_cast<std::byte>(1U << (i % 8));
    }
    if (Status written = arenas_->backend().control().write(agreement.send->data(), mine.data(), mine.size()); !written) return written;
  }
  if (Status told = tell_finding(); !told) return told;
  for (Agreement& agreement : agreements_) {
    Group& group = agreement.comm->group().control();
    if (Status submitted = group.all_gather(arenas_->grads().control(), agreement.send->data(), agreement.receive->data(), agreement.bytes,
                                            DType::u8, Tag{-1, "agreement at mdp_grad_sync", is_pooled() ? microbatch_ : 0});
        !submitted) {
      return submitted;
    }
  }
  return {};
}

// What the others said: the problem of the lowest rank that has one, or which parameters nobody has a gradient of.
Status Gradients::evaluate_agreements() {
  int problem_rank = -1;
  SyncHeader problem{};
  std::vector<SyncHeader> headers(static_cast<size_t>(arenas_->plan().grid.world()));
  Status counts;
  for (Agreement& agreement : agreements_) {
    const std::vector<int>& members = agreement.comm->group().members();
    std::vector<std::byte> all(agreement.bytes * members.size());
    if (Status read = arenas_->backend().control().read(all.data(), agreement.receive->data(), all.size()); !read) return read;
    for (size_t r = 0; r < members.size(); ++r) {
      SyncHeader& header = headers[static_cast<size_t>(agreement.ranks[r])];
      std::memcpy(&header, all.data() + r * agreement.bytes, sizeof header);
      if (is_pooled() && header.microbatches != microbatch_ && counts.ok()) {
        counts = Status(Code::desync,
                        text("mdp_grad_sync: rank ", members[r], " has made ", header.microbatches, " microbatches in this step, rank ",
                             arenas_->context().world->rank(), " ", microbatch_),
                        Blame{.rank = members[r]});
      }
      if (header.problem == 0) continue;
      // What is not finite is told only where nothing is wrong with the calls.
      const auto place = [](const SyncHeader& told, int rank) { return std::pair(told.problem == kSyncNonfinite, rank); };
      if (problem_rank >= 0 && place(problem, problem_rank) <= place(header, members[r])) continue;
      problem_rank = members[r];
      problem = header;
    }
    for (size_t i = 0; i < agreement.params.size(); ++i) {
      if (agreement.params[i] == kNotHere) continue;
      bool everywhere = true;
      for (size_t r = 0; r < members.size() && everywhere; ++r) {
        everywhere = (all[r * agreement.bytes + sizeof(SyncHeader) + i / 8] & static_cast<std::byte>(1U << (i % 8))) != std::byte{0};
      }
      states_[agreement.params[i]].skipped_everywhere = everywhere;
    }
  }
  if (!counts) arenas_->context().world->fail(counts);  // reductions of one will not be met by the other
  if (!counts) return counts;
  if (problem_rank < 0 || problem.problem == kSyncNonfinite) {
    if (Status alike = compare_lacking(headers); !alike) return alike;
    if (Status alike = compare_values(headers); !alike) return alike;
    const bool wanted = arenas_->plan().config.scaling == Scaling::tokens && !at_once_;
    Status added;
    if (wanted) {
      std::vector<double> tokens;
      for (const SyncHeader& one : headers) tokens.push_back(one.tokens);
      added = add_tokens(tokens).with_context("mdp_grad_sync");
    }
    if (!added || problem_rank < 0) return added;
  }
  problem.text[sizeof problem.text - 1] = '\0';
  return Status(
      problem.problem == kSyncNonfinite ? Code::numeric : Code::state,
      text("mdp_grad_sync: on rank ", problem_rank, " ", problem.text,
           problem.problem == kSyncMissing ? "; put, ready or skip it on every step, or choose another mdp_buffer_config.missing" : ""),
      Blame{.rank = problem_rank, .bucket = problem.bucket, .param = problem.param});
}

Status Gradients::complete_sync() {
  std::lock_guard lock(mutex_);
  sync_status_ = evaluate_agreements();
  phase_ = sync_status_.ok() || sync_status_.code() == Code::numeric ? Phase::reduced : Phase::failed;
  if (phase_ == Phase::reduced) note_order();
  stats_.large_gradients += checks_.judge();
  ++stats_.syncs;
  return sync_status_;
}

// All of a sync but the waiting.
Status Gradients::submit_sync(bool keeps, const std::optional<StepValues>& coming) {
  sync_ns_ = now_ns();
  stats_.launched_in_backward += launched();
  auto header = settle_missing();
  if (!header) return header.status();
  header->told = history_.told(coming);
  kept_ = keeps && can_keep();
  if (Status launched = kept_ ? Status() : launch_in_order(); !launched) return launched;
  if (Status joined = join_across(); !joined) return joined;
  if (Status summed = sum_owned(); !summed) return summed;
  if (Status fetched = fetch_checks(); !fetched) return fetched;
  if (Status submitted = submit_agreements(*header); !submitted) return submitted;
  auto end = arenas_->grads().control().record();
  if (!end) return end.status();
  auto reduced = arenas_->grads().stream().record();
  if (!reduced) return reduced.status();
  reduced_ = *reduced;
  sync_request_ = std::make_shared<Request>(arenas_->shared_context(), *end, nullptr, [this] { return complete_sync(); });
  phase_ = Phase::syncing;
  return {};
}

Result<std::shared_ptr<Request>> Gradients::sync(void* consumer, bool want_request, bool keeps, const std::optional<StepValues>& coming) {
  std::shared_ptr<Request> sync;
  {
    std::unique_lock lock(mutex_);
    if (Status quiet = wait_for_puts(lock); !quiet) return quiet;  // what is being put now counts
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    if (phase_ == Phase::stepping) return bad_state("mdp_grad_sync: ", kIsStepping);
    if (Status own = params_->check_swapped_back("mdp_grad_sync"); !own) return own;
    if (Status ordered = arenas_->grads().stream().wait_for_caller(consumer); !ordered) return ordered;
    if (phase_ == Phase::open) {
      if (Status submitted = arenas_->context().commit([&] { return submit_sync(keeps, coming); }); !submitted) return submitted;
    }
    sync = sync_request_;  // of a sync that was there before, too: the same outcome again
  }
  // Every caller gets a request and a notification of its own, since a request may be freed without having been tested.
  if (want_request) {
    return arenas_->grads().request(arenas_->shared_context(), [self = shared_from_this(), sync] { return sync->await(); });
  }
  const uint64_t begin = now_ns();
  const Status outcome = sync->await();
  {
    std::lock_guard lock(mutex_);
    stats_.exposed_ns += now_ns() - begin;
  }
  const Code code = outcome.code();
  if (!outcome && code != Code::state && code != Code::numeric && code != Code::invalid) return outcome;
  // On the host the reductions have finished before the agreement, or are kept. Also if the agreement failed: gradients may be written
  // anew.
  if (Status ordered = arenas_->grads().stream().make_caller_wait(consumer, *reduced_); !ordered) return ordered;
  if (!outcome) return outcome;
  return std::shared_ptr<Request>();
}

}  // namespace megadp
