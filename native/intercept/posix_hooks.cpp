// The POSIX calls. Every wrapper calls the real function exactly once, with the program's own arguments, and
// gives back its result and errno; paths are looked at only afterwards, when the kernel has found them readable.
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "intercept/hook_table.hpp"
#include "intercept/io_record.hpp"

namespace dft {
namespace {

template <typename R, typename... P, typename... A>
inline R on_descriptor(Call call, int fd, const Values& values, R (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  File file = file_of(fd);
  if (!file) return function(args...);
  uint64_t start = ticks();
  R ret = function(args...);
  Finished done;
  record_file(call, file, start, done, true, int64_t(ret), ret == R(-1), values);
  return ret;
}

// For functions that return an error number and leave errno alone.
template <typename... P, typename... A>
inline int on_descriptor_error(Call call, int fd, const Values& values, int (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  File file = file_of(fd);
  if (!file) return function(args...);
  uint64_t start = ticks();
  int ret = function(args...);
  Finished done;
  ThreadState* t = g_io_on[int(call)] ? io_thread() : nullptr;
  if (t) {
    if (file.descriptor && file.descriptor->announced.load(std::memory_order_relaxed) != t->generation)
      announce_descriptor(t, file.descriptor);
    emit_io(t, call, file.hash, start, done.end(), true, ret, ret, values);
  }
  return ret;
}

template <typename R, typename... P, typename... A>
inline R on_path(Call call, int dirfd, const char* path, const Values& values, R (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  uint64_t start = ticks();
  R ret = function(args...);
  Finished done;
  if (ret == R(-1) && done.error() == EFAULT) return ret;
  PathText text;
  if (File file = file_of_path(dirfd, path, &text))
    record_path(call, file, text, start, done, true, int64_t(ret), ret == R(-1), values);
  return ret;
}

// As on_path, with an empty path meaning the descriptor itself (AT_EMPTY_PATH).
template <typename... P, typename... A>
inline int on_path_or_descriptor(Call call, int dirfd, const char* path, const Values& values, int (*function)(P...),
                                 A... args) {
  if (path && !path[0] && dirfd >= 0) return on_descriptor(call, dirfd, values, function, args...);
  return on_path(call, dirfd, path, values, function, args...);
}

template <typename... P, typename... A>
inline int on_two_paths(Call call, int from_dir, const char* from, int to_dir, const char* to, Values values,
                        int (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  uint64_t start = ticks();
  int ret = function(args...);
  Finished done;
  if (ret == -1 && done.error() == EFAULT) return ret;
  PathText text;
  File new_file = file_of_path(to_dir, to, &text);
  if (new_file) {
    ThreadState* t = g_io_on[int(call)] ? io_thread() : nullptr;
    if (t && first_in_trace(new_file, t->generation)) announce(t, new_file.hash, text.view());
  }
  values.v[0] = int64_t(new_file.hash);
  if (File file = file_of_path(from_dir, from, &text)) {
    record_path(call, file, text, start, done, true, ret, ret == -1, values);
  } else if (new_file) {
    record_file(call, {}, start, done, true, ret, ret == -1, values);
  }
  return ret;
}

void opened(Call call, int dirfd, const char* path, uint64_t start, int fd, const Values& values) {
  Finished done;
  if (fd == -1 && done.error() == EFAULT) return;
  PathText text;
  File file = file_of_path(dirfd, path, &text);
  if (file) record_path(call, file, text, start, done, true, fd, fd == -1, values);
  if (fd >= 0) set_descriptor(fd, file, text.view(), file ? g_generation.load(std::memory_order_relaxed) : 0);
}

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
  uint64_t start = ticks();
  int fd = function(path, flags, mode);
  opened(Call::open_, AT_FDCWD, path, start, fd, Values(flags, mode));
  return fd;
}

template <int S>
int hook_open_checked(const char* path, int flags) {
  auto* function = real<S, int(const char*, int)>();
  if (!io_active()) return function(path, flags);
  uint64_t start = ticks();
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
  uint64_t start = ticks();
  int fd = function(dirfd, path, flags, mode);
  opened(Call::openat_, dirfd, path, start, fd, Values(flags, mode));
  return fd;
}

template <int S>
int hook_openat_checked(int dirfd, const char* path, int flags) {
  auto* function = real<S, int(int, const char*, int)>();
  if (!io_active()) return function(dirfd, path, flags);
  uint64_t start = ticks();
  int fd = function(dirfd, path, flags);
  opened(Call::openat_, dirfd, path, start, fd, Values(flags, 0));
  return fd;
}

template <int S>
int hook_creat(const char* path, mode_t mode) {
  auto* function = real<S, int(const char*, mode_t)>();
  if (!io_active()) return function(path, mode);
  uint64_t start = ticks();
  int fd = function(path, mode);
  opened(Call::creat_, AT_FDCWD, path, start, fd, Values(mode));
  return fd;
}

template <int S>
int hook_close(int fd) {
  auto* function = real<S, int(int)>();
  if (!io_active()) return function(fd);
  Descriptor* d = descriptor(fd);
  uint32_t state = d ? d->state.load(std::memory_order_acquire) : uint32_t(Descriptor::kUnknown);
  if (state == Descriptor::kNotTraced) {
    clear_descriptor(fd);
    return function(fd);
  }
  File file = file_of(fd);
  if (!file) {
    clear_descriptor(fd);
    return function(fd);
  }
  if (d && d->announced.load(std::memory_order_relaxed) != g_generation.load(std::memory_order_relaxed))
    if (ThreadState* t = g_io_on[int(Call::close_)] ? io_thread() : nullptr) announce_descriptor(t, d);
  // Forgotten before it is closed: afterwards the number may already be another thread's new file.
  clear_descriptor(fd);
  file.descriptor = nullptr;
  uint64_t start = ticks();
  int ret = function(fd);
  Finished done;
  record_file(Call::close_, file, start, done, true, ret, ret == -1, Values());
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
ssize_t hook_read(int fd, void* buffer, size_t count) {
  return on_descriptor(Call::read_, fd, Values(count), real<S, ssize_t(int, void*, size_t)>(), fd, buffer, count);
}

template <int S>
ssize_t hook_read_chk(int fd, void* buffer, size_t count, size_t room) {
  return on_descriptor(Call::read_, fd, Values(count), real<S, ssize_t(int, void*, size_t, size_t)>(), fd, buffer,
                       count, room);
}

template <int S>
ssize_t hook_write(int fd, const void* buffer, size_t count) {
  return on_descriptor(Call::write_, fd, Values(count), real<S, ssize_t(int, const void*, size_t)>(), fd, buffer,
                       count);
}

template <int S>
ssize_t hook_pread(int fd, void* buffer, size_t count, off_t offset) {
  return on_descriptor(Call::pread_, fd, Values(count, offset), real<S, ssize_t(int, void*, size_t, off_t)>(), fd,
                       buffer, count, offset);
}

template <int S>
ssize_t hook_pread_chk(int fd, void* buffer, size_t count, off_t offset, size_t room) {
  return on_descriptor(Call::pread_, fd, Values(count, offset), real<S, ssize_t(int, void*, size_t, off_t, size_t)>(),
                       fd, buffer, count, offset, room);
}

template <int S>
ssize_t hook_pwrite(int fd, const void* buffer, size_t count, off_t offset) {
  return on_descriptor(Call::pwrite_, fd, Values(count, offset), real<S, ssize_t(int, const void*, size_t, off_t)>(),
                       fd, buffer, count, offset);
}

// Calls on several buffers: their sum is known to be readable only when the call went well.
template <typename... P, typename... A>
inline ssize_t on_vector(Call call, int fd, const iovec* vector, int n, Values values, ssize_t (*function)(P...),
                         A... args) {
  if (!io_active()) return function(args...);
  File file = file_of(fd);
  if (!file) return function(args...);
  uint64_t start = ticks();
  ssize_t ret = function(args...);
  Finished done;
  if (ret >= 0 && vector)
    for (int i = 0; i < n; ++i) values.v[0] += int64_t(vector[i].iov_len);
  record_file(call, file, start, done, true, ret, ret == -1, values);
  return ret;
}

template <int S>
ssize_t hook_readv(int fd, const iovec* vector, int n) {
  return on_vector(Call::readv_, fd, vector, n, Values(0, n), real<S, ssize_t(int, const iovec*, int)>(), fd, vector, n);
}

template <int S>
ssize_t hook_writev(int fd, const iovec* vector, int n) {
  return on_vector(Call::writev_, fd, vector, n, Values(0, n), real<S, ssize_t(int, const iovec*, int)>(), fd, vector,
                   n);
}

template <int S>
ssize_t hook_preadv(int fd, const iovec* vector, int n, off_t offset) {
  return on_vector(Call::preadv_, fd, vector, n, Values(0, offset, n), real<S, ssize_t(int, const iovec*, int, off_t)>(),
                   fd, vector, n, offset);
}

template <int S>
ssize_t hook_pwritev(int fd, const iovec* vector, int n, off_t offset) {
  return on_vector(Call::pwritev_, fd, vector, n, Values(0, offset, n),
                   real<S, ssize_t(int, const iovec*, int, off_t)>(), fd, vector, n, offset);
}

template <int S>
ssize_t hook_preadv2(int fd, const iovec* vector, int n, off_t offset, int flags) {
  return on_vector(Call::preadv2_, fd, vector, n, Values(0, offset, n, flags),
                   real<S, ssize_t(int, const iovec*, int, off_t, int)>(), fd, vector, n, offset, flags);
}

template <int S>
ssize_t hook_pwritev2(int fd, const iovec* vector, int n, off_t offset, int flags) {
  return on_vector(Call::pwritev2_, fd, vector, n, Values(0, offset, n, flags),
                   real<S, ssize_t(int, const iovec*, int, off_t, int)>(), fd, vector, n, offset, flags);
}

template <int S>
off_t hook_lseek(int fd, off_t offset, int whence) {
  return on_descriptor(Call::lseek_, fd, Values(offset, whence), real<S, off_t(int, off_t, int)>(), fd, offset, whence);
}

template <int S>
int hook_fsync(int fd) {
  return on_descriptor(Call::fsync_, fd, Values(), real<S, int(int)>(), fd);
}

template <int S>
int hook_fdatasync(int fd) {
  return on_descriptor(Call::fdatasync_, fd, Values(), real<S, int(int)>(), fd);
}

template <int S>
int hook_ftruncate(int fd, off_t size) {
  return on_descriptor(Call::ftruncate_, fd, Values(size), real<S, int(int, off_t)>(), fd, size);
}

template <int S>
int hook_truncate(const char* path, off_t size) {
  return on_path(Call::truncate_, AT_FDCWD, path, Values(size), real<S, int(const char*, off_t)>(), path, size);
}

using Stat = struct stat;

template <int S>
int hook_stat(const char* path, Stat* out) {
  return on_path(Call::stat_, AT_FDCWD, path, Values(), real<S, int(const char*, Stat*)>(), path, out);
}

template <int S>
int hook_xstat(int version, const char* path, Stat* out) {
  return on_path(Call::stat_, AT_FDCWD, path, Values(), real<S, int(int, const char*, Stat*)>(), version, path, out);
}

template <int S>
int hook_lstat(const char* path, Stat* out) {
  return on_path(Call::lstat_, AT_FDCWD, path, Values(), real<S, int(const char*, Stat*)>(), path, out);
}

template <int S>
int hook_lxstat(int version, const char* path, Stat* out) {
  return on_path(Call::lstat_, AT_FDCWD, path, Values(), real<S, int(int, const char*, Stat*)>(), version, path, out);
}

template <int S>
int hook_fstat(int fd, Stat* out) {
  return on_descriptor(Call::fstat_, fd, Values(), real<S, int(int, Stat*)>(), fd, out);
}

template <int S>
int hook_fxstat(int version, int fd, Stat* out) {
  return on_descriptor(Call::fstat_, fd, Values(), real<S, int(int, int, Stat*)>(), version, fd, out);
}

template <int S>
int hook_fstatat(int dirfd, const char* path, Stat* out, int flags) {
  return on_path_or_descriptor(Call::fstatat_, dirfd, path, Values(flags), real<S, int(int, const char*, Stat*, int)>(),
                               dirfd, path, out, flags);
}

template <int S>
int hook_fxstatat(int version, int dirfd, const char* path, Stat* out, int flags) {
  return on_path_or_descriptor(Call::fstatat_, dirfd, path, Values(flags),
                               real<S, int(int, int, const char*, Stat*, int)>(), version, dirfd, path, out, flags);
}

template <int S>
int hook_statx(int dirfd, const char* path, int flags, unsigned mask, void* out) {
  return on_path_or_descriptor(Call::statx_, dirfd, path, Values(flags),
                               real<S, int(int, const char*, int, unsigned, void*)>(), dirfd, path, flags, mask, out);
}

template <int S>
int hook_access(const char* path, int mode) {
  return on_path(Call::access_, AT_FDCWD, path, Values(mode), real<S, int(const char*, int)>(), path, mode);
}

template <int S>
int hook_faccessat(int dirfd, const char* path, int mode, int flags) {
  return on_path(Call::faccessat_, dirfd, path, Values(mode, flags), real<S, int(int, const char*, int, int)>(), dirfd,
                 path, mode, flags);
}

template <int S>
int hook_mkdir(const char* path, mode_t mode) {
  return on_path(Call::mkdir_, AT_FDCWD, path, Values(mode), real<S, int(const char*, mode_t)>(), path, mode);
}

template <int S>
int hook_mkdirat(int dirfd, const char* path, mode_t mode) {
  return on_path(Call::mkdirat_, dirfd, path, Values(mode), real<S, int(int, const char*, mode_t)>(), dirfd, path, mode);
}

template <int S>
int hook_rmdir(const char* path) {
  return on_path(Call::rmdir_, AT_FDCWD, path, Values(), real<S, int(const char*)>(), path);
}

template <int S>
int hook_unlink(const char* path) {
  return on_path(Call::unlink_, AT_FDCWD, path, Values(), real<S, int(const char*)>(), path);
}

template <int S>
int hook_unlinkat(int dirfd, const char* path, int flags) {
  return on_path(Call::unlinkat_, dirfd, path, Values(flags), real<S, int(int, const char*, int)>(), dirfd, path,
                 flags);
}

template <int S>
int hook_remove(const char* path) {
  return on_path(Call::remove_, AT_FDCWD, path, Values(), real<S, int(const char*)>(), path);
}

template <int S>
int hook_rename(const char* from, const char* to) {
  return on_two_paths(Call::rename_, AT_FDCWD, from, AT_FDCWD, to, Values(0), real<S, int(const char*, const char*)>(),
                      from, to);
}

template <int S>
int hook_renameat(int from_dir, const char* from, int to_dir, const char* to) {
  return on_two_paths(Call::renameat_, from_dir, from, to_dir, to, Values(0),
                      real<S, int(int, const char*, int, const char*)>(), from_dir, from, to_dir, to);
}

template <int S>
int hook_renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
  return on_two_paths(Call::renameat2_, from_dir, from, to_dir, to, Values(0, flags),
                      real<S, int(int, const char*, int, const char*, unsigned)>(), from_dir, from, to_dir, to, flags);
}

template <int S>
int hook_link(const char* from, const char* to) {
  return on_two_paths(Call::link_, AT_FDCWD, from, AT_FDCWD, to, Values(0), real<S, int(const char*, const char*)>(),
                      from, to);
}

template <int S>
int hook_linkat(int from_dir, const char* from, int to_dir, const char* to, int flags) {
  return on_two_paths(Call::linkat_, from_dir, from, to_dir, to, Values(0, flags),
                      real<S, int(int, const char*, int, const char*, int)>(), from_dir, from, to_dir, to, flags);
}

template <int S>
int hook_symlink(const char* target, const char* path) {
  return on_path(Call::symlink_, AT_FDCWD, path, Values(), real<S, int(const char*, const char*)>(), target, path);
}

template <int S>
int hook_symlinkat(const char* target, int dirfd, const char* path) {
  return on_path(Call::symlinkat_, dirfd, path, Values(), real<S, int(const char*, int, const char*)>(), target, dirfd,
                 path);
}

template <int S>
ssize_t hook_readlink(const char* path, char* out, size_t room) {
  return on_path(Call::readlink_, AT_FDCWD, path, Values(room), real<S, ssize_t(const char*, char*, size_t)>(), path,
                 out, room);
}

template <int S>
ssize_t hook_readlink_chk(const char* path, char* out, size_t room, size_t size) {
  return on_path(Call::readlink_, AT_FDCWD, path, Values(room), real<S, ssize_t(const char*, char*, size_t, size_t)>(),
                 path, out, room, size);
}

template <int S>
ssize_t hook_readlinkat(int dirfd, const char* path, char* out, size_t room) {
  return on_path(Call::readlinkat_, dirfd, path, Values(room), real<S, ssize_t(int, const char*, char*, size_t)>(),
                 dirfd, path, out, room);
}

template <int S>
ssize_t hook_readlinkat_chk(int dirfd, const char* path, char* out, size_t room, size_t size) {
  return on_path(Call::readlinkat_, dirfd, path, Values(room),
                 real<S, ssize_t(int, const char*, char*, size_t, size_t)>(), dirfd, path, out, room, size);
}

template <int S>
int hook_chmod(const char* path, mode_t mode) {
  return on_path(Call::chmod_, AT_FDCWD, path, Values(mode), real<S, int(const char*, mode_t)>(), path, mode);
}

template <int S>
int hook_fchmod(int fd, mode_t mode) {
  return on_descriptor(Call::fchmod_, fd, Values(mode), real<S, int(int, mode_t)>(), fd, mode);
}

template <int S>
int hook_fchmodat(int dirfd, const char* path, mode_t mode, int flags) {
  return on_path(Call::fchmodat_, dirfd, path, Values(mode, flags), real<S, int(int, const char*, mode_t, int)>(),
                 dirfd, path, mode, flags);
}

template <int S>
int hook_chown(const char* path, uid_t user, gid_t group) {
  return on_path(Call::chown_, AT_FDCWD, path, Values(user, group), real<S, int(const char*, uid_t, gid_t)>(), path,
                 user, group);
}

template <int S>
int hook_lchown(const char* path, uid_t user, gid_t group) {
  return on_path(Call::lchown_, AT_FDCWD, path, Values(user, group), real<S, int(const char*, uid_t, gid_t)>(), path,
                 user, group);
}

template <int S>
int hook_fchown(int fd, uid_t user, gid_t group) {
  return on_descriptor(Call::fchown_, fd, Values(user, group), real<S, int(int, uid_t, gid_t)>(), fd, user, group);
}

template <int S>
int hook_fchownat(int dirfd, const char* path, uid_t user, gid_t group, int flags) {
  return on_path_or_descriptor(Call::fchownat_, dirfd, path, Values(user, group, flags),
                               real<S, int(int, const char*, uid_t, gid_t, int)>(), dirfd, path, user, group, flags);
}

template <int S>
DIR* hook_opendir(const char* path) {
  auto* function = real<S, DIR*(const char*)>();
  if (!io_active()) return function(path);
  uint64_t start = ticks();
  DIR* dir = function(path);
  opened(Call::opendir_, AT_FDCWD, path, start, dir ? dirfd(dir) : -1, Values());
  return dir;
}

template <int S>
DIR* hook_fdopendir(int fd) {
  auto* function = real<S, DIR*(int)>();
  if (!io_active()) return function(fd);
  File file = file_of(fd);
  if (!file) return function(fd);
  uint64_t start = ticks();
  DIR* dir = function(fd);
  Finished done;
  record_file(Call::fdopendir_, file, start, done, true, dir ? fd : -1, dir == nullptr, Values());
  return dir;
}

template <int S>
dirent* hook_readdir(DIR* dir) {
  auto* function = real<S, dirent*(DIR*)>();
  if (!io_active()) return function(dir);
  File file = file_of(dirfd(dir));
  if (!file) return function(dir);
  int before = errno;
  errno = 0;
  uint64_t start = ticks();
  dirent* entry = function(dir);
  bool failed = !entry && errno != 0;
  if (!failed) errno = before;  // the end of a directory leaves errno alone
  Finished done;
  record_file(Call::readdir_, file, start, done, true, entry ? 1 : failed ? -1 : 0, failed, Values());
  return entry;
}

template <int S>
int hook_closedir(DIR* dir) {
  auto* function = real<S, int(DIR*)>();
  if (!io_active() || !dir) return function(dir);
  int fd = dirfd(dir);
  File file = file_of(fd);
  if (file.descriptor && file.descriptor->announced.load() != g_generation.load(std::memory_order_relaxed))
    if (ThreadState* t = g_io_on[int(Call::closedir_)] ? io_thread() : nullptr) announce_descriptor(t, file.descriptor);
  clear_descriptor(fd);
  file.descriptor = nullptr;
  if (!file) return function(dir);
  uint64_t start = ticks();
  int ret = function(dir);
  Finished done;
  record_file(Call::closedir_, file, start, done, true, ret, ret == -1, Values());
  return ret;
}

template <int S>
int hook_dup(int fd) {
  auto* function = real<S, int(int)>();
  if (!io_active()) return function(fd);
  File file = file_of(fd);
  uint64_t start = ticks();
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
  uint64_t start = ticks();
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
  uint64_t start = ticks();
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

template <int S>
int hook_flock(int fd, int operation) {
  return on_descriptor(Call::flock_, fd, Values(operation), real<S, int(int, int)>(), fd, operation);
}

template <int S>
void* hook_mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  auto* function = real<S, void*(void*, size_t, int, int, int, off_t)>();
  if (!io_active()) return function(at, size, protection, flags, fd, offset);
  File file;
  if (fd >= 0 && !(flags & MAP_ANONYMOUS)) file = file_of(fd);
  uint64_t start = ticks();
  void* ret = function(at, size, protection, flags, fd, offset);
  Finished done;
  bool failed = ret == MAP_FAILED;
  if (!file) {
    if (!failed) mapping_at(ret, true);
    return ret;
  }
  if (!failed) note_mapping(ret, file.hash);
  record_file(Call::mmap_, file, start, done, true, failed ? -1 : 0, failed, Values(size, offset, protection, flags));
  return ret;
}

template <typename... P, typename... A>
int on_mapping(Call call, void* at, bool forget, const Values& values, int (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  uint64_t hash = mapping_at(at, forget);
  if (!hash) return function(args...);
  uint64_t start = ticks();
  int ret = function(args...);
  Finished done;
  record_file(call, {hash}, start, done, true, ret, ret == -1, values);
  return ret;
}

template <int S>
int hook_msync(void* at, size_t size, int flags) {
  return on_mapping(Call::msync_, at, false, Values(size, flags), real<S, int(void*, size_t, int)>(), at, size, flags);
}

template <int S>
int hook_munmap(void* at, size_t size) {
  return on_mapping(Call::munmap_, at, true, Values(size), real<S, int(void*, size_t)>(), at, size);
}

template <int S>
int hook_fadvise(int fd, off_t offset, off_t size, int advice) {
  return on_descriptor_error(Call::posix_fadvise_, fd, Values(offset, size, advice),
                             real<S, int(int, off_t, off_t, int)>(), fd, offset, size, advice);
}

template <int S>
int hook_posix_fallocate(int fd, off_t offset, off_t size) {
  return on_descriptor_error(Call::posix_fallocate_, fd, Values(offset, size), real<S, int(int, off_t, off_t)>(), fd,
                             offset, size);
}

template <int S>
int hook_fallocate(int fd, int mode, off_t offset, off_t size) {
  return on_descriptor(Call::fallocate_, fd, Values(offset, size, mode), real<S, int(int, int, off_t, off_t)>(), fd,
                       mode, offset, size);
}

// Where a call that moves an offset of the caller's began; read afterwards, when it is known to be readable.
int64_t began_at(const off_t* offset, ssize_t moved) { return offset ? *offset - (moved > 0 ? moved : 0) : -1; }

template <typename... P, typename... A>
ssize_t transferred(Call call, int from, const off_t* from_at, int to, const off_t* to_at, size_t count,
                    ssize_t (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  File source = file_of(from), target = file_of(to);
  if (!source && !target) return function(args...);
  uint64_t start = ticks();
  ssize_t ret = function(args...);
  Finished done;
  bool readable = ret != -1 || done.error() != EFAULT;
  Values values(count, readable ? began_at(from_at, ret) : -1);
  if (call != Call::sendfile_) values.v[values.n++] = readable ? began_at(to_at, ret) : -1;
  values.v[values.n++] = int64_t(target.hash);
  if (target && g_io_on[int(call)]) {
    ThreadState* t = io_thread();
    if (t && target.descriptor && target.descriptor->announced.load() != t->generation)
      announce_descriptor(t, target.descriptor);
  }
  record_file(call, source, start, done, true, ret, ret == -1, values);
  return ret;
}

template <int S>
ssize_t hook_sendfile(int to, int from, off_t* offset, size_t count) {
  return transferred(Call::sendfile_, from, offset, to, nullptr, count, real<S, ssize_t(int, int, off_t*, size_t)>(),
                     to, from, offset, count);
}

template <int S>
ssize_t hook_copy_file_range(int from, off_t* from_at, int to, off_t* to_at, size_t count, unsigned flags) {
  return transferred(Call::copy_file_range_, from, from_at, to, to_at, count,
                     real<S, ssize_t(int, off_t*, int, off_t*, size_t, unsigned)>(), from, from_at, to, to_at, count,
                     flags);
}

template <int S>
ssize_t hook_splice(int from, off_t* from_at, int to, off_t* to_at, size_t count, unsigned flags) {
  return transferred(Call::splice_, from, from_at, to, to_at, count,
                     real<S, ssize_t(int, off_t*, int, off_t*, size_t, unsigned)>(), from, from_at, to, to_at, count,
                     flags);
}

template <int S>
int hook_chdir(const char* path) {
  int ret = real<S, int(const char*)>()(path);
  if (io_active()) {
    Finished done;
    refresh_cwd();
  }
  return ret;
}

template <int S>
int hook_fchdir(int fd) {
  int ret = real<S, int(int)>()(fd);
  if (io_active()) {
    Finished done;
    refresh_cwd();
  }
  return ret;
}

}  // namespace

#define ADD(symbol, wrapper) out->push_back({#symbol, reinterpret_cast<void*>(wrapper<S_##symbol>), &g_real[S_##symbol]});
#define IO_HOOK(category, symbol, wrapper) IO_HOOK_##category(symbol, wrapper)
#define IO_HOOK_POSIX(symbol, wrapper) ADD(symbol, wrapper)
#define IO_HOOK_STDIO(symbol, wrapper)
#define IO_HOOK_PROCESS(symbol, wrapper)
void add_posix_hooks(std::vector<Hook>* out) {
#include "intercept/io_hooks.def"
}

}  // namespace dft
