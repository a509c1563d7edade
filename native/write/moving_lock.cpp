#include "write/moving_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace dft {

// The marker works everywhere, file locks do not; those also tell that the owner of the file is alive.
MovingLock::MovingLock(const std::string& path) : marker_(path, "moving") {
  if (marker_.is_taken()) state_ = kInUse;
  if (!marker_.is_held()) return;
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd_ < 0) {
    if (errno == ENOENT) state_ = kInUse;
  } else if (flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
    state_ = kHeld;
  }
}

MovingLock::~MovingLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace dft
