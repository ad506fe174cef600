/* SPDX-License-Identifier: Apache-2.0
 * A libpmix.so.2 whose fence ends only when the test says so: a job of which one rank alone asks. Its server knows no timeouts. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
int fake_pmix_started(void);
void fake_pmix_open_fence(void);
int PMIx_Init(void* proc, void* info, size_t count);
int PMIx_Finalize(const void* info, size_t count);
int PMIx_Put(uint8_t scope, const char* key, void* value);
int PMIx_Commit(void);
int PMIx_Fence(const void* procs, size_t nprocs, const void* info, size_t count);
int PMIx_Get(const void* proc, const char* key, const void* info, size_t count, void** value);
const char* PMIx_Error_string(int status);
#pragma GCC visibility pop

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int open, started;

int fake_pmix_started(void) {
  return started;
}
void fake_pmix_open_fence(void) {
  pthread_mutex_lock(&mutex);
  open = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

int PMIx_Init(void* proc, void* info, size_t count) {
  (void)proc, (void)info, (void)count;
  ++started;
  return 0;
}
int PMIx_Finalize(const void* info, size_t count) {
  (void)info, (void)count;
  return 0;
}
int PMIx_Put(uint8_t scope, const char* key, void* value) {
  (void)scope, (void)key, (void)value;
  return 0;
}
int PMIx_Commit(void) {
  return 0;
}
int PMIx_Fence(const void* procs, size_t nprocs, const void* info, size_t count) {
  (void)procs, (void)nprocs, (void)info, (void)count;
  pthread_mutex_lock(&mutex);
  while (!open) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  return 0;
}
int PMIx_Get(const void* proc, const char* key, const void* info, size_t count, void** value) {
  (void)proc, (void)key, (void)info, (void)count, (void)value;
  return -1;
}
const char* PMIx_Error_string(int status) {
  (void)status;
  return "an error of the test's";
}
