/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in for NCCL: what it is told, what it is asked, and the functions of NCCL's that it has, as NCCL's ABI has them. */
#ifndef NCCL_STANDIN_H
#define NCCL_STANDIN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm;
struct standin_id {
  char bytes[128];
};
/* The beginning of ncclConfig_t. */
struct standin_config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share;
};
/* One call, with those of its arguments that it has. */
struct standin_call {
  const char* function;
  const void* from;
  void* to;
  size_t count;
  int type, op; /* op: also the root, the peer or the residence */
  unsigned char scalar[8];
  struct standin_config config;
};

void standin_reset(void);
void standin_claim_version(int version);
void standin_stay_pending(int questions); /* after each call from now on; -1: for ever */
void standin_fail(const char* function, int result);
void standin_fail_later(int result); /* what a communicator says once it is no longer in progress */
int standin_count(const char* function);
const struct standin_call* standin_last(const char* function);
int standin_living_comms(void);
int standin_living_memory(void);

int ncclGetVersion(int* version);
int ncclGetUniqueId(struct standin_id* id);
const char* ncclGetErrorString(int result);
const char* ncclGetLastError(struct ncclComm* comm);
int ncclCommInitRankConfig(struct ncclComm** comm, int size, struct standin_id id, int rank, const void* config);
int ncclCommGetAsyncError(struct ncclComm* comm, int* state);
int ncclCommAbort(struct ncclComm* comm);
int ncclMemAlloc(void** memory, size_t bytes);
int ncclMemFree(void* memory);
int ncclCommRegister(struct ncclComm* comm, void* memory, size_t bytes, void** handle);
int ncclCommDeregister(struct ncclComm* comm, void* handle);
int ncclCommWindowRegister(struct ncclComm* comm, void* memory, size_t bytes, void** window, int flags);
int ncclCommWindowDeregister(struct ncclComm* comm, void* window);
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, struct ncclComm* comm);
int ncclRedOpDestroy(int op, struct ncclComm* comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void* from, size_t count, int type, int peer, struct ncclComm* comm, void* stream);
int ncclRecv(void* to, size_t count, int type, int peer, struct ncclComm* comm, void* stream);
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, struct ncclComm* comm, void* stream);
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, struct ncclComm* comm, void* stream);
int ncclAllGather(const void* from, void* to, size_t count, int type, struct ncclComm* comm, void* stream);
int ncclReduce(const void* from, void* to, size_t count, int type, int op, int root, struct ncclComm* comm, void* stream);
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, struct ncclComm* comm, void* stream);

#ifdef __cplusplus
}
#endif
#endif
