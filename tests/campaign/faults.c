/* Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.

   Interposed file operations: counts the operations that change files below one folder, and at the n-th one kills the
   process group, or reports a full disk or an I/O error. Loaded with LD_PRELOAD, so that it sees the writes of
   PyTorch, safetensors and Arrow too. The state is a shared file, so that all processes of a command count together. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, BEFORE, HALF, AFTER, FULL, BROKEN, ONE };

struct state {
  long count, at, kind, fired;
};

#define MAX_FD 65536
static struct state *state;
static char root[4096];
static size_t root_length;
static int log_fd = -1;
static unsigned char tracked[MAX_FD];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void die(void) {
  kill(0, SIGKILL); /* the whole group: the command and its workers */
  for (;;) pause();
}

/* Begins to count; called by the child before the command, and by programs that it starts. */
int faults_arm(const char *state_path, const char *folder, const char *log_path) {
  int fd = syscall(SYS_openat, AT_FDCWD, state_path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return -1;
  void *found = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (found == MAP_FAILED) return -1;
  root_length = snprintf(root, sizeof root, "%s", folder);
  log_fd = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  state = found;
  return 0;
}

__attribute__((constructor)) static void arm_from_environment(void) {
  const char *path = getenv("FAULTS_STATE"), *folder = getenv("FAULTS_ROOT"), *log = getenv("FAULTS_LOG");
  if (path && folder && log) faults_arm(path, folder, log);
}

static int below(int directory, const char *path) {
  char whole[8192], base[4096];
  if (!state || !path) return 0;
  if (path[0] == '/') {
    snprintf(whole, sizeof whole, "%s", path);
  } else if (directory == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) return 0;
    snprintf(whole, sizeof whole, "%s/%s", base, path);
  } else {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) return 0;
    base[length] = 0;
    snprintf(whole, sizeof whole, "%s/%s", base, path);
  }
  return !strncmp(whole, root, root_length) && (whole[root_length] == '/' || !whole[root_length]);
}

/* The path of an open file, for the log. */
static const char *path_of(int fd) {
  static __thread char path[4096];
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length < 0 ? 0 : length] = 0;
  return path;
}

static int below_fd(int fd) { return state && fd >= 0 && fd < MAX_FD && tracked[fd]; }

/* Counts one operation; the fault to make now. */
static int next_fault(const char *name, const char *path, int allocates) {
  long number = __atomic_add_fetch(&state->count, 1, __ATOMIC_SEQ_CST);
  if (log_fd >= 0) {
    char line[4400];
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, name, path ? path : "");
    syscall(SYS_write, log_fd, line, length);
  }
  if (number == state->at) {
    state->fired = 1;
    if (state->kind == ONE) kill(getpid(), SIGKILL); /* one process; the others have to notice */
    return state->kind;
  }
  return state->kind == FULL && state->fired && allocates ? FULL : NONE; /* a full disk stays full */
}

/* An operation with one path. `result` is what it returns; half of it is nothing. */
#define SIMPLE(op_name, path_text, allocates, call)                \
  do {                                                             \
    int fault = next_fault(op_name, path_text, allocates);         \
    if (fault == BEFORE || fault == HALF) die();                   \
    if (fault == FULL && !(allocates)) fault = NONE;               \
    if (fault == FULL || fault == BROKEN) {                        \
      errno = fault == FULL ? ENOSPC : EIO;                        \
      return -1;                                                   \
    }                                                              \
    int result = call;                                             \
    if (fault == AFTER) die();                                     \
    return result;                                                 \
  } while (0)

/* A write of `size` bytes; half of it is the first half of the bytes. A full disk takes a half first, as a real one. */
#define WRITE(op_name, size, whole, half)                          \
  do {                                                             \
    int first = !state->fired;                                     \
    int fault = next_fault(op_name, path_of(fd), 1);                      \
    if (fault == BEFORE) die();                                    \
    if (fault == HALF) {                                           \
      if ((size) > 1) (void)!(half);                               \
      die();                                                       \
    }                                                              \
    if (fault == FULL && first && (size) > 1) return half;         \
    if (fault == FULL || fault == BROKEN) {                        \
      errno = fault == FULL ? ENOSPC : EIO;                        \
      return -1;                                                   \
    }                                                              \
    ssize_t result = whole;                                        \
    if (fault == AFTER) die();                                     \
    return result;                                                 \
  } while (0)

static int changes(int flags) { return (flags & O_ACCMODE) != O_RDONLY && !(flags & O_DIRECTORY); }

static int note(int fd, int counted) {
  if (fd >= 0 && fd < MAX_FD) tracked[fd] = counted;
  return fd;
}

static int opened(int directory, const char *path, int flags, int mode) {
  int counted = changes(flags) && below(directory, path);
  if (!counted) return note(syscall(SYS_openat, directory, path, flags, mode), 0);
  int fault = next_fault("open", path, flags & O_CREAT);
  if (fault == BEFORE || fault == HALF) die();
  if (fault == FULL || fault == BROKEN) {
    errno = fault == FULL ? ENOSPC : EIO;
    return -1;
  }
  int fd = note(syscall(SYS_openat, directory, path, flags, mode), 1);
  if (fault == AFTER) die();
  return fd;
}

static int mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; }

#define OPEN(name, large)                                          \
  int name(const char *path, int flags, ...) {                     \
    va_list rest;                                                  \
    va_start(rest, flags);                                         \
    int mode = mode_of(flags, rest);                               \
    va_end(rest);                                                  \
    return opened(AT_FDCWD, path, flags | (large), mode);          \
  }
OPEN(open, 0)
OPEN(open64, O_LARGEFILE)

#define OPENAT(name, large)                                        \
  int name(int directory, const char *path, int flags, ...) {      \
    va_list rest;                                                  \
    va_start(rest, flags);                                         \
    int mode = mode_of(flags, rest);                               \
    va_end(rest);                                                  \
    return opened(directory, path, flags | (large), mode);         \
  }
OPENAT(openat, 0)
OPENAT(openat64, O_LARGEFILE)

static FILE *stream(FILE *(*real)(const char *, const char *), const char *path, const char *mode) {
  int counted = strpbrk(mode, "wa+") && below(AT_FDCWD, path);
  int fault = counted ? next_fault("open", path, 1) : NONE;
  if (fault == BEFORE || fault == HALF) die();
  if (fault == FULL || fault == BROKEN) {
    errno = fault == FULL ? ENOSPC : EIO;
    return NULL;
  }
  FILE *file = real(path, mode);
  if (file) note(fileno(file), counted);
  if (fault == AFTER) die();
  return file;
}
FILE *fopen(const char *path, const char *mode) { return stream(REAL(fopen), path, mode); }
FILE *fopen64(const char *path, const char *mode) { return stream(REAL(fopen64), path, mode); }

int close(int fd) {
  note(fd, 0);
  return syscall(SYS_close, fd);
}

static ssize_t plain_write(int fd, const void *bytes, size_t size) { return syscall(SYS_write, fd, bytes, size); }

ssize_t write(int fd, const void *bytes, size_t size) {
  if (!below_fd(fd)) return plain_write(fd, bytes, size);
  WRITE("write", size, plain_write(fd, bytes, size), plain_write(fd, bytes, size / 2));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (!below_fd(fd)) return REAL(writev)(fd, parts, count);
  size_t begin = count ? parts[0].iov_len : 0;
  WRITE("write", begin, REAL(writev)(fd, parts, count), plain_write(fd, parts[0].iov_base, begin / 2));
}

#define PWRITE(name)                                                                             \
  ssize_t name(int fd, const void *bytes, size_t size, off_t offset) {                           \
    if (!below_fd(fd)) return REAL(name)(fd, bytes, size, offset);                               \
    WRITE("write", size, REAL(name)(fd, bytes, size, offset), REAL(name)(fd, bytes, size / 2, offset)); \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t sendfile(int fd, int source, off_t *offset, size_t size) {
  if (!below_fd(fd)) return REAL(sendfile)(fd, source, offset, size);
  WRITE("write", size, REAL(sendfile)(fd, source, offset, size), REAL(sendfile)(fd, source, offset, size / 2));
}

#define WITH_FD(name, allocates, arguments, ...)                   \
  int name arguments {                                             \
    if (!below_fd(fd)) return REAL(name)(__VA_ARGS__);             \
    SIMPLE(#name, path_of(fd), allocates, REAL(name)(__VA_ARGS__));       \
  }
WITH_FD(fsync, 1, (int fd), fd)
WITH_FD(fdatasync, 1, (int fd), fd)
WITH_FD(ftruncate, 0, (int fd, off_t size), fd, size)
WITH_FD(ftruncate64, 0, (int fd, off64_t size), fd, size)

#define WITH_PATH(name, directory, path, allocates, arguments, ...) \
  int name arguments {                                             \
    if (!below(directory, path)) return REAL(name)(__VA_ARGS__);   \
    SIMPLE(#name, path, allocates, REAL(name)(__VA_ARGS__));       \
  }
WITH_PATH(rename, AT_FDCWD, to, 0, (const char *from, const char *to), from, to)
WITH_PATH(renameat, d2, to, 0, (int d1, const char *from, int d2, const char *to), d1, from, d2, to)
WITH_PATH(unlink, AT_FDCWD, path, 0, (const char *path), path)
WITH_PATH(unlinkat, d, path, 0, (int d, const char *path, int flags), d, path, flags)
WITH_PATH(rmdir, AT_FDCWD, path, 0, (const char *path), path)
WITH_PATH(mkdir, AT_FDCWD, path, 1, (const char *path, mode_t mode), path, mode)
WITH_PATH(mkdirat, d, path, 1, (int d, const char *path, mode_t mode), d, path, mode)
WITH_PATH(link, AT_FDCWD, to, 1, (const char *from, const char *to), from, to)
WITH_PATH(linkat, d2, to, 1, (int d1, const char *from, int d2, const char *to, int flags), d1, from, d2, to, flags)
