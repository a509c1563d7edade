// Calls that query and change files by name.
#include <fcntl.h>
#include <sys/stat.h>

#include "intercept/hook_table.hpp"
#include "intercept/posix_calls.hpp"

namespace dft {
namespace {

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
  uint64_t start = call_starts();
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
  return on_path(Call::mkdirat_, dirfd, path, Values(mode), real<S, int(int, const char*, mode_t)>(), dirfd, path,
                 mode);
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
int hook_fchownat(int dirfd, const char* path, uid_t user, gid_t group, int flags) {
  return on_path_or_descriptor(Call::fchownat_, dirfd, path, Values(user, group, flags),
                               real<S, int(int, const char*, uid_t, gid_t, int)>(), dirfd, path, user, group, flags);
}

}  // namespace

#define IO_HOOK_PATH ADD_HOOK
void add_path_hooks(std::vector<Hook>* out) {
#include "format/io_hooks.def"
}

}  // namespace dft
