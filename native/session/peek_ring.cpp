#include "session/peek_ring.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "record/clock.hpp"
#include "record/ring_place.hpp"
#include "session/complete_trace.hpp"
#include "session/dead_ring.hpp"
#include "session/left_rings.hpp"

namespace dft {
namespace {

constexpr int kTries = 8;
constexpr uint64_t kLargestTail = 64 << 20;  // the open tail of a trace is far smaller

std::string bytes_of(const std::string& path, uint64_t from, uint64_t to) {
  if (to <= from || to - from > kLargestTail) return {};
  int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return {};
  std::string out(size_t(to - from), '\0');
  out.resize(read_fully(fd, out.data(), out.size(), from));
  close(fd);
  return out;
}

const char* state_of(const DeadRing& ring) {
  switch (ring.life()) {
    case DeadRing::Life::kAlive: return "running";
    case DeadRing::Life::kDead: return "dead";
    case DeadRing::Life::kUnknown: break;
  }
  return "unknown";
}

}  // namespace

std::optional<PeekedRing> peek_ring(const std::string& path) {
  init_clock();
  DeadRing ring;
  if (ring.open(path, DeadRing::To::kLook) != DeadRing::Opened::kYes) return std::nullopt;
  PeekedRing out;
  // The writer changes the commit word before it lets producers overwrite what it has taken: as long as the
  // word is the same before and after, what was read in between is consistent.
  for (int i = 0; i < kTries && !out.consistent; ++i) {
    if (i) usleep(useconds_t(500 << i));
    if (!ring.read_header()) return std::nullopt;
    const FileHeader& h = ring.header();
    uint64_t commit = h.commit.load();
    out.trace = ring.trace_path();
    out.pid = h.pid;
    out.size = committed_size(commit);
    out.final_size = std::min(h.tail_offset.load(), out.size);
    out.refusing = h.refusing.load();
    out.dropped = 0;
    for (auto& d : h.dropped) out.dropped += d.load();
    RingText rest = text_in(ring);
    out.text = std::move(rest.text);
    out.records = rest.records;
    out.lost = rest.lost;
    out.tail = bytes_of(out.trace, out.final_size, out.size);
    out.state = state_of(ring);
    if (!ring.read_header()) return std::nullopt;
    out.consistent = ring.header().commit.load() == commit;
  }
  return out;
}

std::vector<std::string> ring_paths(const std::vector<std::string>& more_places) {
  std::set<std::string> found;
  std::vector<std::string> places = usual_ring_places();
  places.insert(places.end(), more_places.begin(), more_places.end());
  for (const auto& place : places)
    for (const auto& path : ring_files_in(place)) found.insert(path);
  return {found.begin(), found.end()};
}

}  // namespace dft
