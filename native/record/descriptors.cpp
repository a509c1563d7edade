#include "record/descriptors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "record/quiet_writes.hpp"
#include "record/sanitizer.hpp"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace dft {
namespace {

constexpr unsigned kUnshare = 1u << 1;  // CLOSE_RANGE_UNSHARE

__attribute__((tls_model("initial-exec"))) __thread bool tls_own_descriptors = false;

bool is_file(int fd, const struct stat& wanted) {
  struct stat st;
  return fstat(fd, &st) == 0 && st.st_dev == wanted.st_dev && st.st_ino == wanted.st_ino;
}

// A descriptor for the program's standard error in a table that does not have it: keeping one would hide from a reader
// of a pipe that the program has closed its end.
int open_stderr() {
  int process = int(syscall(SYS_pidfd_open, getpid(), 0));
  int fd = process < 0 ? -1 : int(syscall(SYS_pidfd_getfd, process, 2, 0));
  if (process >= 0) close(process);
  return fd >= 0 ? fd : open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

int open_high_fd(const char* path, int flags, mode_t mode) {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    int low = open(path, flags | O_CLOEXEC, mode);
    if (low < 0 || low >= kOutOfTheWay || tls_own_descriptors) return low;
    int high = fcntl(low, F_DUPFD_CLOEXEC, kOutOfTheWay);
    struct stat wanted;
    if (high < 0 || stat(path, &wanted) != 0) {
      if (high >= 0) close(high);
      return low;  // no such high numbers here, or the file is gone: this is the best we can do
    }
    if (is_file(low, wanted)) close(low);
    if (is_file(high, wanted)) return high;
    close(high);
    flags &= ~O_EXCL;  // it exists since the first try, and is ours
  }
  errno = EMFILE;
  return -1;
}

bool can_have_own_descriptors() {
  // A range without descriptors: nothing happens, except where the kernel or a container does not have the call.
  // A sanitizer knows one table.
  static const bool can = !any_sanitizer() && syscall(SYS_close_range, UINT_MAX - 1, UINT_MAX - 1, 0) == 0;
  return can;
}

bool take_own_descriptors(std::initializer_list<int> kept) {
  if (!can_have_own_descriptors()) return false;
  unsigned unshare = kUnshare;
  for (unsigned from = 0;;) {
    unsigned next = UINT_MAX;  // the lowest one from here on that stays
    for (int fd : kept)
      if (fd >= 0 && unsigned(fd) >= from) next = std::min(next, unsigned(fd));
    if (next > from) {
      if (syscall(SYS_close_range, from, next == UINT_MAX ? next : next - 1, unshare) != 0) return tls_own_descriptors;
      tls_own_descriptors = true;
      unshare = 0;
    }
    if (next == UINT_MAX) break;
    from = next + 1;
  }
  // What a library prints in this thread must not end up in a file of ours.
  for (int i = 0; i < 3; ++i)
    if (int fd = open("/dev/null", O_RDWR | O_CLOEXEC); fd > 2) close(fd);
  return true;
}

bool has_own_descriptors() { return tls_own_descriptors; }

void write_to_stderr(const iovec* pieces, int n) {
  QuietWrites quiet;
  int fd = tls_own_descriptors ? open_stderr() : 2;
  ssize_t ignored = fd < 0 ? 0 : writev(fd, pieces, n);
  (void)ignored;
  if (tls_own_descriptors && fd >= 0) close(fd);
}

}  // namespace dft
