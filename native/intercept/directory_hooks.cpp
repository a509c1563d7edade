// Directories: their entries, and which of them is the current one.
#include <dirent.h>
#include <fcntl.h>

#include "intercept/hook_table.hpp"
#include "intercept/posix_calls.hpp"

namespace dft {
namespace {

template <int S>
DIR* hook_opendir(const char* path) {
  auto* function = real<S, DIR*(const char*)>();
  if (!io_active()) return function(path);
  uint64_t start = call_starts();
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
  uint64_t start = call_starts();
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
  uint64_t start = call_starts();
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
  uint64_t start = call_starts();
  int ret = function(dir);
  Finished done;
  record_file(Call::closedir_, file, start, done, true, ret, ret == -1, Values());
  return ret;
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

#define IO_HOOK_DIRECTORY ADD_HOOK
void add_directory_hooks(std::vector<Hook>* out) {
#include "format/io_hooks.def"
}

}  // namespace dft
