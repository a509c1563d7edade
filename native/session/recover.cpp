// Completes the traces of processes that died before they could, from the ring files they left. A ring is removed only
// when everything in it is in its trace.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <set>

#include "record/clock.hpp"
#include "record/ring_place.hpp"
#include "session/complete_trace.hpp"
#include "session/left_rings.hpp"
#include "session/session.hpp"
#include "write/trace_file.hpp"

namespace dft {
namespace {

constexpr uint64_t kReadersPatienceNs = 2'000'000'000;
constexpr uint64_t kExitPatienceNs = 300'000'000;

// Without links, as far as the path exists.
std::string canonical(const std::string& path) {
  char buf[PATH_MAX];
  if (realpath(path.c_str(), buf)) return buf;
  std::string absolute = absolute_path(path);
  size_t slash = absolute.rfind('/');
  if (errno != ENOENT || slash == absolute.npos || slash == 0) return path;
  return canonical(absolute.substr(0, slash)) + absolute.substr(slash);
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Every place that may have rings of traces in `directory`; a ring found in two places counts once.
std::set<std::string> rings_for(const std::string& directory) {
  std::set<std::string> found;
  std::vector<std::string> places = usual_ring_places();
  places.push_back(directory);
  for (const auto& place : places)
    for (const auto& path : ring_files_in(canonical(place))) found.insert(path);
  return found;
}

// Waits for another reader that completes the same trace, but in total no longer than until `deadline`.
bool lock_until(DeadRing& ring, uint64_t deadline) {
  for (;;) {
    DeadRing::Lock got = ring.lock();
    if (got != DeadRing::Lock::kBusy) return got == DeadRing::Lock::kHeld;
    if (monotonic_ns() >= deadline) return false;
    usleep(2000);
  }
}

bool is_dead(const DeadRing& ring) { return ring.life() == DeadRing::Life::kDead; }

Completion finish_with(const DeadRing& ring, const std::string& trace) {
  Completion done = complete_trace(ring, trace);
  if (done.outcome != Completion::kKept) unlink_ring(ring.path());
  return done;
}

bool is_below(const std::string& path, const std::string& directory) {
  return path.starts_with(directory) && (directory.ends_with('/') || path[directory.size()] == '/');
}

// Where in `directory`, or `below` it, the trace of the ring is; empty if it is not there. A moved trace is recognised
// by its name and its first records.
std::string trace_in(const std::string& directory, bool below, const DeadRing& ring) {
  std::string trace = ring.trace_path(), place = canonical(directory_of(trace));
  if (place == directory || (below && is_below(place, directory))) {
    // Its process may have been killed before it made the directory.
    bool begun = committed_size(ring.header().commit.load()) != 0;
    if (!begun) make_directories(directory_of(trace));
    return trace;
  }
  std::string moved = directory + "/" + base_name(trace);
  struct stat st;
  bool gone = lstat(trace.c_str(), &st) != 0 && errno == ENOENT;
  return gone && is_trace_of(ring, moved) ? moved : std::string();
}

template <typename Where>
std::vector<std::string> recover_all(const std::set<std::string>& paths, uint64_t patience, bool hurried, Where where) {
  std::vector<std::string> done;
  init_clock();
  uint64_t deadline = monotonic_ns() + patience;
  for (const auto& path : paths) {
    if (hurried && monotonic_ns() >= deadline) break;
    try {
      DeadRing ring;
      if (ring.open(path) != DeadRing::Opened::kYes || !is_dead(ring)) continue;
      std::string trace = where(ring);
      if (trace.empty() || !lock_until(ring, deadline)) continue;
      if (finish_with(ring, trace).outcome == Completion::kCompleted) done.push_back(trace);
    } catch (...) {
      // Out of memory at worst; the traced program must not crash on another process's ring.
    }
  }
  return done;
}

}  // namespace

std::vector<std::string> recover_directory(const std::string& directory, bool below) {
  std::string wanted = canonical(directory);
  return recover_all(rings_for(wanted), kReadersPatienceNs, false,
                     [&](const DeadRing& ring) { return trace_in(wanted, below, ring); });
}

bool recover_trace(const std::string& path) {
  std::string directory = canonical(directory_of(path)), wanted = canonical(path);
  recover_directory(directory);
  for (const auto& left : rings_for(directory)) {
    DeadRing ring;
    if (ring.open(left) == DeadRing::Opened::kYes && canonical(ring.trace_path()) == wanted) return false;
  }
  return true;
}

void recover_at_exit(const std::string& directory) {
  // The paths are compared textually: accessing other users' directories may take forever.
  recover_all(rings_for(directory), kExitPatienceNs, true, [&](const DeadRing& ring) {
    std::string trace = ring.trace_path();
    return directory_of(trace) == directory ? trace : std::string();
  });
}

Completion recover_ring(const std::string& path, const std::string& trace, bool apart, bool surely_dead) {
  init_clock();
  DeadRing ring;
  if (ring.open(path) != DeadRing::Opened::kYes) return {Completion::kKept, "it cannot be read", 0};
  DeadRing::Life life = ring.life();
  if (life == DeadRing::Life::kAlive) return {Completion::kKept, "its process is running", 0};
  if (life == DeadRing::Life::kUnknown && !surely_dead)
    return {Completion::kKept, "its process is not visible from here", 0};
  if (!lock_until(ring, monotonic_ns() + kReadersPatienceNs))
    return {Completion::kKept, "another reader is using it", 0};
  if (!apart) return finish_with(ring, trace.empty() ? ring.trace_path() : trace);
  Completion done = write_apart(ring, trace);
  if (done.outcome != Completion::kKept) unlink_ring(path);
  return done;
}

bool ring_belongs_to(const std::string& path, const std::string& trace) {
  DeadRing ring;
  return ring.open(path) == DeadRing::Opened::kYes && is_trace_of(ring, trace);
}

}  // namespace dft
