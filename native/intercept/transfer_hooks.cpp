// Files whose bytes move without a buffer of the program: mappings, and copies inside the kernel.
#include <sys/mman.h>

#include "intercept/hook_table.hpp"
#include "intercept/posix_calls.hpp"

namespace dft {
namespace {

template <int S>
void* hook_mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  auto* function = real<S, void*(void*, size_t, int, int, int, off_t)>();
  if (!io_active()) return function(at, size, protection, flags, fd, offset);
  File file;
  if (fd >= 0 && !(flags & MAP_ANONYMOUS)) file = file_of(fd);
  uint64_t start = call_starts();
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
  uint64_t start = call_starts();
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

// Where a call that moves an offset of the caller's began; read afterwards, when it is known to be readable.
int64_t began_at(const off_t* offset, ssize_t moved) { return offset ? *offset - (moved > 0 ? moved : 0) : -1; }

template <typename... P, typename... A>
ssize_t transferred(Call call, int from, const off_t* from_at, int to, const off_t* to_at, size_t count,
                    ssize_t (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  File source = file_of(from), target = file_of(to);
  if (!source && !target) return function(args...);
  uint64_t start = call_starts();
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

}  // namespace

#define IO_HOOK_TRANSFER ADD_HOOK
void add_transfer_hooks(std::vector<Hook>* out) {
#include "format/io_hooks.def"
}

}  // namespace dft
