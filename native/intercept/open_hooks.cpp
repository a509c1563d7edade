// Opening and closing descriptors: open, dup, close.
#include <fcntl.h>
#include <stdarg.h>

#include "intercept/hook_table.hpp"
#include "intercept/posix_calls.hpp"

namespace dft {
namespace {

bool needs_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

template <int S>
int hook_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (needs_mode(flags)) {
    va_list list;
    va_start(list, flags);
    mode = mode_t(va_arg(list, int));
    va_end(list);
  }
  auto* function = real<S, int(const char*, int, ...)>();
  if (!io_active()) return function(path, flags, mode);
  uint64_t start = call_starts();
  int fd = function(path, flags, mode);
  opened(Call::open_, AT_FDCWD, path, start, fd, Values(flags, mode));
  return fd;
}

template <int S>
int hook_open_checked(const char* path, int flags) {
  auto* function = real<S, int(const char*, int)>();
  if (!io_active()) return function(path, flags);
  uint64_t start = call_starts();
  int fd = function(path, flags);
  opened(Call::open_, AT_FDCWD, path, start, fd, Values(flags, 0));
  return fd;
}

template <int S>
int hook_openat(int dirfd, const char* path, int flags, ...) {
  mode_t mode = 0;
  if (needs_mode(flags)) {
    va_list list;
    va_start(list, flags);
    mode = mode_t(va_arg(list, int));
    va_end(list);
  }
  auto* function = real<S, int(int, const char*, int, ...)>();
  if (!io_active()) return function(dirfd, path, flags, mode);
  uint64_t start = call_starts();
  int fd = function(dirfd, path, flags, mode);
  opened(Call::openat_, dirfd, path, start, fd, Values(flags, mode));
  return fd;
}

template <int S>
int hook_openat_checked(int dirfd, const char* path, int flags) {
  auto* function = real<S, int(int, const char*, int)>();
  if (!io_active()) return function(dirfd, path, flags);
  uint64_t start = call_starts();
  int fd = function(dirfd, path, flags);
  opened(Call::openat_, dirfd, path, start, fd, Values(flags, 0));
  return fd;
}

template <int S>
int hook_creat(const char* path, mode_t mode) {
  auto* function = real<S, int(const char*, mode_t)>();
  if (!io_active()) return function(path, mode);
  uint64_t start = call_starts();
  int fd = function(path, mode);
  opened(Call::creat_, AT_FDCWD, path, start, fd, Values(mode));
  return fd;
}

template <int S>
int hook_close(int fd) {
  auto* function = real<S, int(int)>();
  if (!io_active()) return function(fd);
  FileOf file(fd);
  if (!file.hash) {
    clear_descriptor(fd);
    return function(fd);
  }
  if (Descriptor* d = file.descriptor) {
    if (DFT_UNLIKELY(d->announced.load(std::memory_order_relaxed) != g_generation.load(std::memory_order_relaxed)))
      if (ThreadState* t = g_io_on[int(Call::close_)] ? io_thread() : nullptr) announce_descriptor(t, d);
    // Forgotten before it is closed: afterwards the number may already be another thread's new file.
    d->state.store(Descriptor::kUnknown, std::memory_order_relaxed);
  }
  uint64_t start = call_starts();
  int ret = function(fd);
  record_call(Call::close_, file.hash, nullptr, start, ticks(), ret, ret == -1, Values());
  return ret;
}

template <int S>
int hook_close_range(unsigned first, unsigned last, int flags) {
  constexpr int kCloseOnExec = 4;
  auto* function = real<S, int(unsigned, unsigned, int)>();
  if (io_active() && !(flags & kCloseOnExec)) clear_descriptors(first, last);
  return function(first, last, flags);
}

template <int S>
void hook_closefrom(int first) {
  auto* function = real<S, void(int)>();
  if (io_active()) clear_descriptors(first < 0 ? 0 : unsigned(first), ~0u);
  function(first);
}

template <int S>
int hook_dup(int fd) {
  auto* function = real<S, int(int)>();
  if (!io_active()) return function(fd);
  File file = file_of(fd);
  uint64_t start = call_starts();
  int ret = function(fd);
  Finished done;
  if (ret >= 0) copy_descriptor(fd, ret);
  if (file) record_file(Call::dup_, file, start, done, true, ret, ret == -1, Values());
  return ret;
}

template <typename... P, typename... A>
int duplicated(Call call, int from, int to, const Values& values, int (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  File file = file_of(from);
  uint64_t start = call_starts();
  int ret = function(args...);
  Finished done;
  if (ret >= 0 && from != to) copy_descriptor(from, to);
  if (file) record_file(call, file, start, done, true, ret, ret == -1, values);
  return ret;
}

template <int S>
int hook_dup2(int from, int to) {
  return duplicated(Call::dup2_, from, to, Values(), real<S, int(int, int)>(), from, to);
}

template <int S>
int hook_dup3(int from, int to, int flags) {
  return duplicated(Call::dup3_, from, to, Values(flags), real<S, int(int, int, int)>(), from, to, flags);
}

template <int S>
int hook_fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  auto* function = real<S, int(int, int, ...)>();
  if (!io_active()) return function(fd, command, argument);
  File file = file_of(fd);
  uint64_t start = call_starts();
  int ret = function(fd, command, argument);
  Finished done;
  bool duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  if (duplicates && ret >= 0) copy_descriptor(fd, ret);
  if (!file) return ret;
  bool number = duplicates || command == F_SETFD || command == F_SETFL || command == F_SETPIPE_SZ;
  auto value = number ? int64_t(int(reinterpret_cast<intptr_t>(argument))) : 0;
  record_file(Call::fcntl_, file, start, done, true, ret, ret == -1, Values(command, value));
  return ret;
}

}  // namespace

#define IO_HOOK_OPEN ADD_HOOK
void add_open_hooks(std::vector<Hook>* out) {
#include "format/io_hooks.def"
}

}  // namespace dft
