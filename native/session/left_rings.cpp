#include "session/left_rings.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "record/ring_place.hpp"
#include "record/settings.hpp"
#include "write/trace_file.hpp"

namespace dft {
namespace {

LeftRing look_at(const std::string& path, bool old_place) {
  LeftRing out;
  out.path = path;
  struct stat st;
  if (lstat(path.c_str(), &st) == 0) {
    out.owner = st.st_uid;
    out.bytes = uint64_t(st.st_blocks) * 512;
  }
  DeadRing ring;
  switch (ring.open(path)) {
    case DeadRing::Opened::kGone: out.state = "not visible here"; return out;
    case DeadRing::Opened::kNotOurs: out.state = out.owner == geteuid() ? "not private" : "of another user"; return out;
    case DeadRing::Opened::kNotARing: out.state = "not readable"; return out;
    case DeadRing::Opened::kOtherVersion: out.state = "of another version"; return out;
    case DeadRing::Opened::kUnfinished:
      out.state = ring.was_given_up() ? "killed during its set-up" : "being set up";
      return out;
    case DeadRing::Opened::kYes: break;
  }
  switch (ring.life()) {
    case DeadRing::Life::kDead: out.state = "dead"; break;
    case DeadRing::Life::kAlive: out.state = "running"; break;
    case DeadRing::Life::kUnknown: out.state = "of another host or container"; break;
  }
  // Nothing is taken from places where anyone can put files.
  if (old_place) out.state = "of another version";
  out.trace = ring.trace_path();
  out.pid = ring.header().pid;
  out.records = records_in(ring);
  return out;
}

// The directories of other users, which only root can look into.
std::vector<std::string> directories_of_others() {
  std::vector<std::string> found;
  DIR* dir = geteuid() == 0 ? opendir(kSharedMemory) : nullptr;
  if (!dir) return found;
  std::string own = own_ring_directory();
  while (dirent* entry = readdir(dir)) {
    std::string name = entry->d_name, path = std::string(kSharedMemory) + "/" + name;
    bool ours = name.starts_with("dftracer-") && name.find_first_not_of("0123456789", 9) == name.npos;
    struct stat st;
    if (ours && path != own && lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) found.push_back(path);
  }
  closedir(dir);
  return found;
}

}  // namespace

std::vector<std::string> usual_ring_places() {
  std::vector<std::string> out;
  if (std::string own = own_ring_directory(); !own.empty()) out.push_back(own);
  std::string requested = settings().ring_dir;
  const char* text = getenv("DFTRACER_RING_DIR");  // a reader has no session that would know it
  if (requested.empty() && text) requested = text;
  if (!requested.empty()) out.push_back(absolute_path(requested));
  return out;
}

std::vector<LeftRing> left_rings(const std::vector<std::string>& more_places) {
  std::vector<LeftRing> out;
  std::set<std::string> seen;
  auto add = [&](const std::vector<std::string>& paths, bool old_place) {
    for (const auto& path : paths)
      if (seen.insert(path).second) out.push_back(look_at(path, old_place));
  };
  for (const auto& place : usual_ring_places()) add(ring_files_in(place), false);
  for (const auto& place : more_places) add(ring_files_in(place), false);
  for (const auto& place : directories_of_others()) add(ring_files_in(place), false);
  add(old_ring_files(), true);
  return out;
}

bool discard_ring(const std::string& path) {
  DeadRing ring;
  DeadRing::Opened opened = ring.open(path);
  if (opened == DeadRing::Opened::kGone) {  // what knows of it is left
    unlink_ring(path);
    return true;
  }
  if (opened == DeadRing::Opened::kUnfinished && ring.was_given_up()) {
    unlink_ring(path);
    return true;
  }
  if (opened != DeadRing::Opened::kYes || ring.life() == DeadRing::Life::kAlive) return false;
  if (ring.lock() != DeadRing::Lock::kHeld) return false;
  unlink_ring(path);
  return true;
}

}  // namespace dft
