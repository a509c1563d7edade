#include "record/descriptors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace dft {
namespace {

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
constexpr unsigned kUnshare = 1u << 1;  // CLOSE_RANGE_UNSHARE, missing in older headers

bool is_file(int fd, const struct stat& wanted) {
  struct stat st;
  return fstat(fd, &st) == 0 && st.st_dev == wanted.st_dev && st.st_ino == wanted.st_ino;
}

}  // namespace

int open_high_fd(const char* path, int flags, mode_t mode) {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    int low = open(path, flags | O_CLOEXEC, mode);
    if (low < 0 || low >= kOutOfTheWay) return low;
    int high = fcntl(low, F_DUPFD_CLOEXEC, kOutOfTheWay);
    struct stat wanted;
    if (high < 0 || stat(path, &wanted) != 0) {
      if (high >= 0) close(high);
      return low;  // no such high numbers here, or the file has gone meanwhile: as good as it gets
    }
    if (is_file(low, wanted)) close(low);
    if (is_file(high, wanted)) return high;
    close(high);
    flags &= ~O_EXCL;  // it is there since the first try, and ours
  }
  errno = EMFILE;
  return -1;
}

bool unshare_fd_table() { return syscall(SYS_close_range, 0u, ~0u, kUnshare) == 0; }

}  // namespace dft
