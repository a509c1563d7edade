#include "write/marker.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "write/name_claim.hpp"

namespace dft {
namespace {

// What is done meanwhile takes milliseconds. A marker as old as this belongs to a process that was killed.
constexpr time_t kAbandonedSeconds = 60;

std::string marker_of(const std::string& path, const char* purpose) {
  size_t name = path.rfind('/') + 1;
  return path.substr(0, name) + "." + path.substr(name) + "." + purpose;
}

bool create(const std::string& path, struct stat* st) {
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  bool known = fstat(fd, st) == 0;
  close(fd);
  return known;
}

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_mtime == b.st_mtime;
}

// By a rename to a name of our own: of several processes that find it abandoned, only one gets it.
void remove_abandoned(const std::string& marker) {
  struct stat seen, now, got;
  std::string own = marker + "." + std::to_string(getpid());
  // A file server's clock may differ from this host's: the time of a new file is compared.
  if (lstat(marker.c_str(), &seen) != 0 || !create(own, &now)) return;
  bool old = now.st_mtime - seen.st_mtime >= kAbandonedSeconds;
  bool other = old && rename(marker.c_str(), own.c_str()) == 0 && lstat(own.c_str(), &got) == 0 && !is_same(seen, got);
  if (!other || rename_exclusively(own, marker) != 0) unlink(own.c_str());
}

}  // namespace

Marker::Marker(const std::string& path, const char* purpose) {
  std::string marker = marker_of(path, purpose);
  struct stat st;
  if (create(marker, &st)) {
    path_ = marker;
  } else if (errno == EEXIST) {
    taken_ = true;
    remove_abandoned(marker);
  }
}

Marker::~Marker() {
  if (is_held()) unlink(path_.c_str());
}

}  // namespace dft
