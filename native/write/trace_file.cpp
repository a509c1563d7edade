#include "write/trace_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "record/quiet_writes.hpp"

namespace dft {

std::string without_suffix(const std::string& path) {
  for (const char* suffix : {".pfw.gz", ".pfw"}) {
    size_t n = strlen(suffix);
    if (path.size() > n && path.compare(path.size() - n, n, suffix) == 0) return path.substr(0, path.size() - n);
  }
  return path;
}

std::string with_suffix(const std::string& path, bool compress) {
  return without_suffix(path) + (compress ? ".pfw.gz" : ".pfw");
}

std::string rows_of(const std::string& path) { return without_suffix(path) + ".rows"; }

std::string absolute_path(const std::string& path) {
  if (!path.empty() && path[0] == '/') return path;
  char cwd[PATH_MAX];
  std::string rest = path.compare(0, 2, "./") == 0 ? path.substr(2) : path;
  return getcwd(cwd, sizeof cwd) ? std::string(cwd) + "/" + rest : path;
}

std::string trace_stem(const std::string& path) {
  std::string stem = absolute_path(without_suffix(path));
  return stem.ends_with('/') ? stem + "trace" : stem;
}

std::string directory_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

bool make_directories(const std::string& directory) {
  if (mkdir(directory.c_str(), 0777) == 0 || errno == EEXIST) return true;
  if (errno != ENOENT || directory.size() <= 1) return false;
  return make_directories(directory_of(directory)) && (mkdir(directory.c_str(), 0777) == 0 || errno == EEXIST);
}

void remove_if_same(const std::string& path, const FileId& file) {
  struct stat st;
  if (stat(path.c_str(), &st) == 0 && uint64_t(st.st_dev) == file.device && uint64_t(st.st_ino) == file.inode)
    unlink(path.c_str());
}

bool TraceFile::create(const std::string& path) {
  if (!make_directories(directory_of(path))) {
    error_ = directory_of(path) + ": " + strerror(errno);
    return false;
  }
  int fd = open_high_fd(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0666);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) {
    error_ = path + ": " + strerror(errno);
    if (fd >= 0) ::close(fd);
    return false;
  }
  // Tells readers and movers that the owner is alive; nothing depends on it if there are no locks.
  flock(fd, LOCK_EX | LOCK_NB);
  fd_.set(fd);
  open_ = true;
  device_ = st.st_dev;
  inode_ = st.st_ino;
  path_ = path;
  return true;
}

Claim TraceFile::claim(const std::string& path, const Claimant& claimant) {
  if (path == path_) return Claim::kGranted;
  if (!make_directories(directory_of(path))) return Claim::kFailed;
  Claim claim = claim_name(path_, path, claimant);
  if (claim == Claim::kGranted) path_ = path;
  return claim;
}

void TraceFile::rename_to(const std::string& path) {
  if (path != path_ && rename_exclusively(path_, path) == 0) path_ = path;
}

bool TraceFile::owns_descriptor() const {
  struct stat st;
  int fd = fd_.get();
  return open_ && fd >= 0 && fstat(fd, &st) == 0 && uint64_t(st.st_dev) == device_ && uint64_t(st.st_ino) == inode_;
}

// Another thread's table may have it, or the program closed our descriptor (os.closerange, daemonising) and may have
// reused the number for its own file.
bool TraceFile::reopen_if_missing() {
  if (owns_descriptor()) return true;
  struct stat st;
  int fd = open_high_fd(path_.c_str(), O_RDWR);
  if (fd < 0) return false;
  if (fstat(fd, &st) != 0 || uint64_t(st.st_dev) != device_ || uint64_t(st.st_ino) != inode_) {
    ::close(fd);
    errno = ENOENT;
    return false;
  }
  flock(fd, LOCK_EX | LOCK_NB);
  fd_.set(fd);
  return true;
}

bool TraceFile::write_at(uint64_t offset, std::string_view bytes) {
  if (!reopen_if_missing()) {
    error_ = path_ + ": " + strerror(errno);
    return false;
  }
  QuietWrites quiet;
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t n = pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, off_t(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error_ = path_ + ": " + strerror(n < 0 ? errno : ENOSPC);
      if (ftruncate(fd_.get(), off_t(offset)) != 0) error_ += " (and cannot remove the partially written data)";
      return false;
    }
    done += size_t(n);
  }
  return true;
}

bool TraceFile::truncate(uint64_t size) { return reopen_if_missing() && ftruncate(fd_.get(), off_t(size)) == 0; }

bool TraceFile::vanished() const {
  struct stat st;
  return owns_descriptor() && fstat(fd_.get(), &st) == 0 && st.st_nlink == 0;
}

void TraceFile::close() {
  if (owns_descriptor()) ::close(fd_.get());
  fd_.forget();
  open_ = false;
}

}  // namespace dft
