#include "record/ring_place.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>

namespace dft {
namespace {

// A smaller tmpfs (containers get 64 MiB) belongs to the DataLoader's shared tensors.
constexpr uint64_t kEnoughSharedMemory = 512ull << 20;

// In a world-writable directory, only the sticky bit keeps others from putting their files under our names.
bool names_stay(const char* directory) {
  struct stat st;
  return stat(directory, &st) == 0 && S_ISDIR(st.st_mode) && ((st.st_mode & S_ISVTX) || !(st.st_mode & 022));
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_ring_name(const std::string& name) { return name.starts_with("dftracer-") && name.ends_with(".ring"); }

std::vector<std::string> ring_names_in(const std::string& directory) {
  std::vector<std::string> found;
  int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
  DIR* dir = fd < 0 ? nullptr : fdopendir(fd);
  if (!dir) {
    if (fd >= 0) close(fd);
    return found;
  }
  while (dirent* entry = readdir(dir))
    if (is_ring_name(entry->d_name)) found.emplace_back(entry->d_name);
  closedir(dir);
  return found;
}

}  // namespace

std::string own_ring_directory(bool make) {
  if (!names_stay(kSharedMemory)) return {};
  std::string path = std::string(kSharedMemory) + "/dftracer-" + std::to_string(geteuid());
  // The program's umask may remove too many permissions.
  if (make && mkdir(path.c_str(), 0700) == 0) chmod(path.c_str(), 0700);
  struct stat st;
  bool ours = lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
  return ours && (st.st_mode & 0777) == 0700 ? path : std::string();
}

std::vector<std::string> ring_directories(const std::string& requested, const std::string& trace_directory) {
  if (!requested.empty()) return {requested};
  std::vector<std::string> out;
  struct statvfs fs;
  if (statvfs(kSharedMemory, &fs) == 0 && uint64_t(fs.f_bavail) * fs.f_frsize >= kEnoughSharedMemory)
    if (std::string own = own_ring_directory(true); !own.empty()) out.push_back(own);
  out.push_back(trace_directory);
  return out;
}

bool is_private_file(const struct stat& st) {
  return S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_nlink == 1 && (st.st_mode & 0777) == 0600;
}

void link_ring(const std::string& ring) {
  std::string own = own_ring_directory(true), link = own + "/" + base_name(ring);
  if (own.empty() || ring[0] != '/' || link == ring) return;
  // Without it, only readers that know the directory find the ring.
  if (symlink(ring.c_str(), link.c_str()) != 0) return;
}

void unlink_ring(const std::string& ring) {
  unlink(ring.c_str());
  std::string own = own_ring_directory(), link = own + "/" + base_name(ring);
  struct stat st;
  if (!own.empty() && link != ring && lstat(link.c_str(), &st) == 0 && S_ISLNK(st.st_mode)) unlink(link.c_str());
}

std::vector<std::string> ring_files_in(const std::string& directory) {
  std::vector<std::string> found;
  bool own = directory == own_ring_directory();
  for (const auto& name : ring_names_in(directory)) {
    std::string path = directory + "/" + name;
    struct stat st;
    if (lstat(path.c_str(), &st) != 0) continue;
    if (S_ISREG(st.st_mode)) found.push_back(path);
    if (!own || !S_ISLNK(st.st_mode)) continue;
    char target[PATH_MAX];
    ssize_t n = readlink(path.c_str(), target, sizeof target - 1);
    if (n > 0 && target[0] == '/') found.emplace_back(target, size_t(n));
  }
  return found;
}

std::vector<std::string> old_ring_files() {
  std::vector<std::string> found;
  for (const auto& name : ring_names_in(kSharedMemory)) found.push_back(std::string(kSharedMemory) + "/" + name);
  return found;
}

}  // namespace dft
