#include "record/descriptors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace dft {
namespace {

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

}  // namespace dft
