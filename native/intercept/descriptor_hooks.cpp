// What programs do with open files.
#include <sys/stat.h>
#include <sys/uio.h>

#include "intercept/hook_table.hpp"
#include "intercept/posix_calls.hpp"

namespace dft {
namespace {

// For functions that return an error number and leave errno alone.
template <typename... P, typename... A>
inline int on_descriptor_error(Call call, int fd, const Values& values, int (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  File file = file_of(fd);
  if (!file) return function(args...);
  uint64_t start = call_starts();
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

// Calls on several buffers: their sum is known to be readable only if the call succeeded.
template <typename... P, typename... A>
inline ssize_t on_vector(Call call, int fd, const iovec* vector, int n, Values values, ssize_t (*function)(P...),
                         A... args) {
  if (!io_active()) {
    not_recorded(fd);
    return function(args...);
  }
  File file = file_of(fd);
  if (!file) return function(args...);
  uint64_t start = call_starts();
  ssize_t ret = function(args...);
  Finished done;
  if (ret >= 0 && vector)
    for (int i = 0; i < n; ++i) values.v[0] += int64_t(vector[i].iov_len);
  record_file(call, file, start, done, true, ret, ret == -1, values);
  return ret;
}

template <int S>
ssize_t hook_readv(int fd, const iovec* vector, int n) {
  return on_vector(Call::readv_, fd, vector, n, Values(0, n), real<S, ssize_t(int, const iovec*, int)>(), fd, vector,
                   n);
}

template <int S>
ssize_t hook_writev(int fd, const iovec* vector, int n) {
  return on_vector(Call::writev_, fd, vector, n, Values(0, n), real<S, ssize_t(int, const iovec*, int)>(), fd, vector,
                   n);
}

template <int S>
ssize_t hook_preadv(int fd, const iovec* vector, int n, off_t offset) {
  return on_vector(Call::preadv_, fd, vector, n, Values(0, offset, n),
                   real<S, ssize_t(int, const iovec*, int, off_t)>(), fd, vector, n, offset);
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

using Stat = struct stat;

template <int S>
int hook_fstat(int fd, Stat* out) {
  return on_descriptor(Call::fstat_, fd, Values(), real<S, int(int, Stat*)>(), fd, out);
}

template <int S>
int hook_fxstat(int version, int fd, Stat* out) {
  return on_descriptor(Call::fstat_, fd, Values(), real<S, int(int, int, Stat*)>(), version, fd, out);
}

template <int S>
int hook_fchmod(int fd, mode_t mode) {
  return on_descriptor(Call::fchmod_, fd, Values(mode), real<S, int(int, mode_t)>(), fd, mode);
}

template <int S>
int hook_fchown(int fd, uid_t user, gid_t group) {
  return on_descriptor(Call::fchown_, fd, Values(user, group), real<S, int(int, uid_t, gid_t)>(), fd, user, group);
}

template <int S>
int hook_flock(int fd, int operation) {
  return on_descriptor(Call::flock_, fd, Values(operation), real<S, int(int, int)>(), fd, operation);
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

}  // namespace

#define IO_HOOK_DESCRIPTOR ADD_HOOK
void add_descriptor_hooks(std::vector<Hook>* out) {
#include "format/io_hooks.def"
}

}  // namespace dft
