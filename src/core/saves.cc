// SPDX-License-Identifier: Apache-2.0
#include "core/saves.h"

#include <sys/resource.h>

#include <utility>

#include "base/log.h"
#include "control/interrupt.h"
#include "core/checkpoint_write.h"
#include "core/comm.h"
#include "core/request.h"

namespace megadp {
namespace {

constexpr int kNice = 10;  // the training goes first: about a tenth of a processor is left where there is none to spare

}  // namespace

// Its thread ends at its next look: a wait for other ranks is a call that is interrupted. What became of the last one is told here if no
// request has told it, as nobody can ask any more.
Saves::~Saves() {
  is_leaving_->store(true);
  if (!outcome_ || outcome_->is_seen.load()) return;
  const bool is_over = outcome_->is_over.load();
  if (is_over && (outcome_->status.ok() || outcome_->is_told)) return;
  (void)attempt([&] {
    log(LogLevel::warning,
        is_over ? text("the checkpoint that was saved into ", outcome_->directory, " is not there: ", outcome_->status.text())
                : text("the checkpoint that is being saved into ", outcome_->directory,
                       " is given up: its communicator is destroyed before it is written"));
    return Status();
  });
}

Status Saves::wait() {
  if (!outcome_) return {};
  auto end = stream_->record();
  if (!end) return end.status();
  const Status reached = (*end)->wait(Deadline::never());
  return reached.code() == Code::pending ? interruption() : Status();
}

Status Saves::unseen_failure() {
  const auto outcome = std::exchange(outcome_, nullptr);
  if (!outcome || outcome->is_seen.exchange(true)) return {};
  return outcome->status.with_context("the save before this one, whose request nobody has waited for");
}

Result<std::byte*> Saves::room(Backend& backend, uint64_t bytes) {
  if (!room_ || room_->bytes() < bytes) {
    room_.reset();
    auto memory = backend.allocate_host(bytes);
    if (!memory) return memory.status();
    room_ = *std::move(memory);
  }
  return static_cast<std::byte*>(room_->data());
}

// If it fails, nothing runs.
Status Saves::put(Backend& control, const std::shared_ptr<CheckpointWrite>& write, const std::shared_ptr<Start>& start) {
  if (!stream_) {
    auto stream = control.create_stream("mdp-save");
    if (!stream) return stream.status();
    stream_ = *std::move(stream);
  }
  write->given_up = [wanted = std::move(write->given_up), leaving = is_leaving_]() -> Status {
    return leaving->load() ? Outcome().status : wanted();
  };
  auto outcome = std::make_shared<Outcome>();
  outcome->directory = write->directory;
  const auto work = [write, outcome, start, leaving = is_leaving_] {
    start->is_known.wait(false);
    (void)::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread
    const CallInWait call(kSaveCall);
    const auto asked = [](void* is_leaving) -> int32_t { return static_cast<std::atomic<bool>*>(is_leaving)->load() ? 1 : 0; };
    ask_while_waiting({asked, leaving.get()}, write->world->rank(), nullptr);
    outcome->status = write->run(start->mine);
    outcome->is_told = outcome->status.code() == Code::aborted && !leaving->load();
    outcome->is_over.store(true);
    if (!outcome->is_told) return;
    // Its buffer or optimizer was destroyed: mostly nobody asks the request then.
    (void)attempt([&] {
      log(LogLevel::warning,
          text("the checkpoint that was being saved into ", write->directory, " was given up: ", outcome->status.text()));
      return Status();
    });
  };
  if (Status submitted = control.run(*stream_, work); !submitted) return submitted;
  outcome_ = std::move(outcome);
  return {};
}

Status Saves::make_request(const std::shared_ptr<Context>& context, std::shared_ptr<Request>* request) {
  std::shared_ptr<Notice> notice = context->notice();
  auto end = stream_->record(notice);
  if (!end) return end.status();
  *request = std::make_shared<Request>(context, *end, std::move(notice), [outcome = outcome_] {
    outcome->is_seen.store(true);
    return outcome->status;
  });
  return {};
}

Result<std::shared_ptr<Request>> Saves::submit(const std::shared_ptr<Context>& context, const std::shared_ptr<CheckpointWrite>& write,
                                               const Status& mine) {
  std::shared_ptr<Start> start;
  const Status submitted = attempt([&] {
    start = std::make_shared<Start>();
    return put(context->backend->control(), write, start);
  });
  if (!submitted) {
    (void)write->run(submitted);
    return submitted;
  }
  std::shared_ptr<Request> request;
  const Status made = attempt([&] { return make_request(context, &request); });
  if (!made) outcome_->is_seen.store(true);  // the caller is told now
  start->mine = made.ok() ? mine : made;
  start->is_known.store(true);
  start->is_known.notify_one();
  if (!made) return made;
  return request;
}

}  // namespace megadp
