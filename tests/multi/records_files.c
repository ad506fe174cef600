/* SPDX-License-Identifier: Apache-2.0
 * To be preloaded: records, in order, what a process changes below the folder RECORD_BELOW, as lines of the file RECORD_TO. Files and
 * folders are told by their inodes, as folders are renamed. What is written to stdout is recorded too: the process says what it has done.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static FILE* record;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_below(const char* path) {
  const char* const below = getenv("RECORD_BELOW");
  return below != NULL && strncmp(path, below, strlen(below)) == 0;
}

/* The inode of a descriptor below the folder; 0: it is elsewhere. */
static unsigned long inode_of(int fd) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  struct stat about;
  if (length <= 0 || !is_below(path) || fstat(fd, &about) != 0) return 0;
  return (unsigned long)about.st_ino;
}

static unsigned long inode_at(int in, const char* name) {
  struct stat about;
  return fstatat(in, name, &about, AT_SYMLINK_NOFOLLOW) == 0 ? (unsigned long)about.st_ino : 0;
}

static void begin(void) {
  pthread_mutex_lock(&order);
  if (record == NULL && getenv("RECORD_TO") != NULL) record = fopen(getenv("RECORD_TO"), "w");
}

static void end(void) {
  if (record != NULL) fflush(record);
  pthread_mutex_unlock(&order);
}

#define SAY(...) \
  if (record != NULL) fprintf(record, __VA_ARGS__)

static void say_bytes(unsigned long inode, off_t at, const void* data, size_t bytes) {
  SAY("write %lu %lld ", inode, (long long)at);
  for (size_t i = 0; i < bytes; ++i) SAY("%02x", ((const unsigned char*)data)[i]);
  SAY("\n");
}

int mkdirat(int in, const char* name, mode_t mode) {
  begin();
  const int made = REAL(mkdirat)(in, name, mode);
  if (made == 0 && inode_of(in) != 0) SAY("mkdir %lu %s %lu\n", inode_of(in), name, inode_at(in, name));
  end();
  return made;
}

int mkdir(const char* path, mode_t mode) {
  char above[4096];
  snprintf(above, sizeof above, "%s", path);
  char* const slash = strrchr(above, '/');
  if (slash == NULL || !is_below(path)) return REAL(mkdir)(path, mode);
  *slash = '\0';
  const int in = REAL(open)(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (in < 0) return -1;
  const int made = mkdirat(in, slash + 1, mode);
  close(in);
  return made;
}

int openat(int in, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  begin();
  const int fd = REAL(openat)(in, name, flags, mode);
  if (fd >= 0 && (flags & O_CREAT) != 0 && inode_of(fd) != 0) SAY("create %lu %s %lu\n", inode_of(in), name, inode_of(fd));
  end();
  return fd;
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  begin();
  const ssize_t written = REAL(pwrite)(fd, data, bytes, at);
  if (written > 0 && inode_of(fd) != 0) say_bytes(inode_of(fd), at, data, (size_t)written);
  end();
  return written;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  begin();
  const off_t at = lseek(fd, 0, SEEK_CUR);
  const ssize_t written = REAL(write)(fd, data, bytes);
  if (fd == STDOUT_FILENO) SAY("said %.*s", (int)bytes, (const char*)data);
  if (fd != STDOUT_FILENO && written > 0 && inode_of(fd) != 0) say_bytes(inode_of(fd), at, data, (size_t)written);
  end();
  return written;
}

int fsync(int fd) {
  begin();
  const int synced = REAL(fsync)(fd);
  if (synced == 0 && inode_of(fd) != 0) SAY("fsync %lu\n", inode_of(fd));
  end();
  return synced;
}

int renameat2(int from_in, const char* from, int to_in, const char* to, unsigned flags) {
  begin();
  const int renamed = REAL(renameat2)(from_in, from, to_in, to, flags);
  if (renamed == 0 && inode_of(to_in) != 0) SAY("rename %lu %s %s\n", inode_of(to_in), from, to);
  end();
  return renamed;
}

int unlinkat(int in, const char* name, int flags) {
  begin();
  const int removed = REAL(unlinkat)(in, name, flags);
  if (removed == 0 && inode_of(in) != 0) SAY("unlink %lu %s\n", inode_of(in), name);
  end();
  return removed;
}
