#include "intercept/data_dirs.hpp"

#include <climits>
#include <cstdlib>

#include "write/trace_file.hpp"

namespace dft {
namespace {

bool within(std::string_view path, std::string_view dir) {
  if (dir == "/") return true;
  return path.starts_with(dir) && (path.size() == dir.size() || path[dir.size()] == '/');
}

bool is_own_file(std::string_view path) {
  return path.ends_with(".pfw.gz") || path.ends_with(".pfw") ||
         (path.ends_with(".ring") && path.find("/dftracer-") != std::string_view::npos);
}

bool is_shared_object(std::string_view name) {
  if (name.ends_with(".so")) return true;
  size_t at = name.find(".so.");
  return at != std::string_view::npos && at + 4 < name.size() && name[at + 4] >= '0' && name[at + 4] <= '9';
}

bool is_device(std::string_view path) {
  if (!path.starts_with("/dev/")) return false;
  std::string_view rest = path.substr(5);
  if (rest.starts_with("shm")) return false;
  for (std::string_view name : {"null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "fd", "stdin",
                                "stdout", "stderr", "console", "nvidia", "dri", "kfd", "infiniband"})
    if (rest.starts_with(name)) return true;
  return false;
}

bool left_out_of_all(std::string_view path) {
  if (is_device(path) || path.starts_with("/memfd:")) return true;
  for (std::string_view system : {"/proc", "/sys", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ssl",
                                  "/usr/share/locale", "/usr/share/zoneinfo"})
    if (within(path, system)) return true;
  size_t slash = path.rfind('/');
  std::string_view name = path.substr(slash + 1);
  if (name.ends_with(".py") || name.ends_with(".pyc") || is_shared_object(name)) return true;
  if (name.ends_with(".pth") && path.find("/lib/python") != std::string_view::npos) return true;
  for (std::string_view part : {"/site-packages", "/dist-packages", "/__pycache__", "/lib/python3", "/lib64/python3"})
    if (path.find(part) != std::string_view::npos) return true;
  return name == "pyvenv.cfg" || name == "ld.so.cache" || name == "ld.so.preload";
}

std::string tidy(std::string dir) {
  while (dir.size() > 1 && (dir.back() == '/' || dir.ends_with("/."))) dir.pop_back();
  return dir;
}

}  // namespace

void DataDirs::set(const std::string& list, const std::vector<std::string>& never) {
  never_.clear();
  for (const std::string& dir : never) never_.push_back(tidy(absolute_path(dir)));
  text_ = list;
  dirs_.clear();
  all_ = list.empty() || list == "all";
  for (size_t at = 0; !all_ && at <= list.size();) {
    size_t end = std::min(list.find(':', at), list.size());
    std::string dir = list.substr(at, end - at);
    at = end + 1;
    if (dir.empty()) continue;
    dir = tidy(absolute_path(dir));
    dirs_.push_back(dir);
    // The program may use either name of a directory behind a symbolic link.
    char real[PATH_MAX];
    if (realpath(dir.c_str(), real) && dir != real) dirs_.push_back(real);
  }
}

bool DataDirs::matches(std::string_view path) const {
  if (is_own_file(path)) return false;
  if (all_) {
    for (const std::string& dir : never_)
      if (path == dir) return false;
    return !left_out_of_all(path);
  }
  for (const std::string& dir : dirs_)
    if (within(path, dir)) return true;
  return false;
}

}  // namespace dft
