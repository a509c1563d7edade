#include "write/moving_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

#include "write/name_claim.hpp"
#include "write/trace_file.hpp"

namespace dft {
namespace {

// Moving takes milliseconds. A marker as old as this belongs to a process that was killed meanwhile.
constexpr time_t kAbandonedSeconds = 60;

std::string marker_of(const std::string& path) {
  std::string directory = directory_of(path);
  size_t name = directory == "/" ? 1 : directory.size() + 1;
  return path.substr(0, name) + "." + path.substr(name) + ".moving";
}

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_mtime == b.st_mtime;
}

// By a rename to a name of our own: of several processes that find it abandoned, only one gets it.
void remove_abandoned(const std::string& marker) {
  struct stat seen, taken;
  if (lstat(marker.c_str(), &seen) != 0 || time(nullptr) - seen.st_mtime < kAbandonedSeconds) return;
  std::string own = marker + "." + std::to_string(getpid());
  if (rename(marker.c_str(), own.c_str()) != 0) return;
  if (lstat(own.c_str(), &taken) == 0 && !is_same(seen, taken)) {
    rename_exclusively(own, marker);
  } else {
    unlink(own.c_str());
  }
}

}  // namespace

// The marker works everywhere, file locks do not; those also tell that the owner of the file is alive.
MovingLock::MovingLock(const std::string& path) {
  std::string marker = marker_of(path);
  int created = open(marker.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (created < 0) {
    if (errno != EEXIST) return;
    remove_abandoned(marker);
    state_ = kInUse;
    return;
  }
  close(created);
  marker_ = marker;
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd_ < 0) {
    if (errno == ENOENT) state_ = kInUse;
  } else if (flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
    state_ = kHeld;
  }
}

MovingLock::~MovingLock() {
  if (fd_ >= 0) close(fd_);
  if (!marker_.empty()) unlink(marker_.c_str());
}

}  // namespace dft
