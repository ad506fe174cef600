/* SPDX-License-Identifier: Apache-2.0
 *
 * A STAND-IN for NCCL, for tests alone: it has NCCL's functions and moves no data. The test says through standin_*() which function fails
 * and how, how long a communicator stays in progress, which version it claims to be; and asks what was called. Never installed. */
#include "nccl_standin.h"

#include <stdlib.h>
#include <string.h>

enum {
  invalid_argument = 4,
  in_progress = 7,
  most_calls = 64
};

struct ncclComm {
  int size;
  int pending; /* how many questions are still answered with "in progress"; -1: for ever */
};

static int claimed_version = 22809;
static int pending_questions;
static int async_result;
static const char* failing;
static int failure;
static struct standin_call calls[most_calls];
static int call_count;
static int living_comms, living_memory;
static int groups_open, group_failure;

void standin_reset(void) {
  claimed_version = 22809;
  pending_questions = async_result = failure = call_count = 0;
  failing = NULL;
}
void standin_claim_version(int version) {
  claimed_version = version;
}
void standin_stay_pending(int questions) {
  pending_questions = questions;
}
void standin_fail(const char* function, int result) {
  failing = function;
  failure = result;
}
void standin_fail_later(int result) {
  async_result = result;
}
int standin_count(const char* function) {
  int count = 0;
  for (int i = 0; i < call_count; i++) count += strcmp(calls[i].function, function) == 0;
  return count;
}
const struct standin_call* standin_last(const char* function) {
  for (int i = call_count - 1; i >= 0; i--) {
    if (strcmp(calls[i].function, function) == 0) return &calls[i];
  }
  return NULL;
}
int standin_living_comms(void) {
  return living_comms;
}
int standin_living_memory(void) {
  return living_memory;
}

static struct standin_call* note(const char* function) {
  struct standin_call* call = &calls[call_count < most_calls ? call_count++ : most_calls - 1];
  memset(call, 0, sizeof *call);
  call->function = function;
  return call;
}

static int outcome(const char* function) {
  return failing != NULL && strcmp(failing, function) == 0 ? failure : 0;
}

/* What a non-blocking call gives: its failure, "in progress", or success. As NCCL: outside a group, none may come before the one before it
 * is done. */
static int begin(struct ncclComm* comm, const char* function) {
  const int result = outcome(function);
  if (result != 0) return result;
  if (comm->pending != 0 && groups_open == 0) return invalid_argument;
  comm->pending = pending_questions;
  return pending_questions != 0 ? in_progress : 0;
}

static struct ncclComm* make(int size) {
  struct ncclComm* comm = calloc(1, sizeof *comm);
  if (comm != NULL) {
    comm->size = size;
    living_comms++;
  }
  return comm;
}

int ncclGetVersion(int* version) {
  *version = claimed_version;
  return outcome("ncclGetVersion");
}
int ncclGetUniqueId(struct standin_id* id) {
  memset(id, 7, sizeof *id);
  return outcome("ncclGetUniqueId");
}
const char* ncclGetErrorString(int result) {
  return result == 6 ? "the stand-in lost a rank" : "the stand-in was told to fail";
}
const char* ncclGetLastError(struct ncclComm* comm) {
  (void)comm;
  return "last words of the stand-in";
}

int ncclCommInitRankConfig(struct ncclComm** comm, int size, struct standin_id id, int rank, const void* config) {
  (void)id;
  (void)rank;
  note("ncclCommInitRankConfig")->config = *(const struct standin_config*)config;
  if (outcome("ncclCommInitRankConfig") != 0) return outcome("ncclCommInitRankConfig");
  *comm = make(size);
  return begin(*comm, "ncclCommInitRankConfig");
}
int ncclCommGetAsyncError(struct ncclComm* comm, int* state) {
  *state = 0;
  if (outcome("ncclCommGetAsyncError") != 0) return outcome("ncclCommGetAsyncError");
  if (comm->pending != 0) {
    if (comm->pending > 0) comm->pending--;
    *state = in_progress;
    return 0;
  }
  *state = async_result;
  return 0;
}
static int end(struct ncclComm* comm, const char* function) {
  note(function);
  free(comm);
  living_comms--;
  return outcome(function);
}
int ncclCommAbort(struct ncclComm* comm) {
  return end(comm, "ncclCommAbort");
}

int ncclMemAlloc(void** memory, size_t bytes) {
  if (outcome("ncclMemAlloc") != 0) return outcome("ncclMemAlloc");
  *memory = calloc(1, bytes);
  living_memory++;
  return 0;
}
int ncclMemFree(void* memory) {
  free(memory);
  living_memory--;
  return outcome("ncclMemFree");
}
int ncclCommRegister(struct ncclComm* comm, void* memory, size_t bytes, void** handle) {
  (void)comm;
  (void)bytes;
  *handle = memory;
  return outcome("ncclCommRegister");
}
int ncclCommDeregister(struct ncclComm* comm, void* handle) {
  (void)comm;
  (void)handle;
  return outcome("ncclCommDeregister");
}
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, struct ncclComm* comm) {
  (void)comm;
  struct standin_call* const call = note("ncclRedOpCreatePreMulSum");
  call->type = type;
  call->op = residence;
  memcpy(call->scalar, scalar, type == 8 ? 8 : type == 7 ? 4 : 2);
  *op = 100 + call_count;
  return outcome("ncclRedOpCreatePreMulSum");
}
int ncclRedOpDestroy(int op, struct ncclComm* comm) {
  (void)comm;
  note("ncclRedOpDestroy")->op = op;
  return outcome("ncclRedOpDestroy");
}

int ncclGroupStart(void) {
  note("ncclGroupStart");
  if (outcome("ncclGroupStart") != 0) return outcome("ncclGroupStart");
  if (groups_open++ == 0) group_failure = 0;
  return 0;
}
/* As NCCL: if a call of the group failed, the end says so again, and nothing of it is started. */
int ncclGroupEnd(void) {
  note("ncclGroupEnd");
  if (groups_open-- <= 0) return 5;
  return group_failure != 0 ? group_failure : outcome("ncclGroupEnd");
}

static int collective(struct ncclComm* comm, const char* function, const void* from, void* to, size_t count, int type, int op) {
  struct standin_call* const call = note(function);
  call->from = from;
  call->to = to;
  call->count = count;
  call->type = type;
  call->op = op;
  const int result = begin(comm, function);
  if (groups_open > 0 && group_failure == 0 && result != in_progress) group_failure = result;
  return result;
}
int ncclSend(const void* from, size_t count, int type, int peer, struct ncclComm* comm, void* stream) {
  (void)stream;
  return collective(comm, "ncclSend", from, NULL, count, type, peer);
}
int ncclRecv(void* to, size_t count, int type, int peer, struct ncclComm* comm, void* stream) {
  (void)stream;
  return collective(comm, "ncclRecv", NULL, to, count, type, peer);
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, struct ncclComm* comm, void* stream) {
  (void)stream;
  return collective(comm, "ncclAllReduce", from, to, count, type, op);
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, struct ncclComm* comm, void* stream) {
  (void)stream;
  return collective(comm, "ncclReduceScatter", from, to, count, type, op);
}
int ncclAllGather(const void* from, void* to, size_t count, int type, struct ncclComm* comm, void* stream) {
  (void)stream;
  return collective(comm, "ncclAllGather", from, to, count, type, 0);
}
int ncclReduce(const void* from, void* to, size_t count, int type, int op, int root, struct ncclComm* comm, void* stream) {
  (void)stream;
  (void)root;
  return collective(comm, "ncclReduce", from, to, count, type, op);
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, struct ncclComm* comm, void* stream) {
  (void)stream;
  return collective(comm, "ncclBroadcast", from, to, count, type, root);
}

#ifndef STANDIN_IS_OLD /* 2.19 has none of these */
int ncclCommWindowRegister(struct ncclComm* comm, void* memory, size_t bytes, void** window, int flags) {
  (void)bytes;
  (void)flags;
  const int result = outcome("ncclCommWindowRegister");
  if (result != 0) return result;
  *window = memory;
  comm->pending = pending_questions; /* as NCCL 2.28: it says success, and is in progress */
  return 0;
}
int ncclCommWindowDeregister(struct ncclComm* comm, void* window) {
  (void)comm;
  (void)window;
  note("ncclCommWindowDeregister");
  return outcome("ncclCommWindowDeregister");
}
#endif
