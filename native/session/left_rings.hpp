// The rings that processes have left behind, for managing them manually.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api.hpp"
#include "session/complete_trace.hpp"

namespace dft {

struct LeftRing {
  std::string path;
  std::string state;  // "dead", "running", or why it is not known
  uint64_t owner = 0, bytes = 0;
  // Known of those that can be read:
  std::string trace;
  uint32_t pid = 0;
  uint64_t records = 0;
};

// Where this user's rings are: in a directory of their own, and in the one that is asked for.
std::vector<std::string> usual_ring_places();

// Those of this user, and for root, to see, those of others. `more_places`: directories that may hold some.
DFT_API std::vector<LeftRing> left_rings(const std::vector<std::string>& more_places);

// Completes the trace of one ring: `trace`, the one it names if that is empty. `apart`: into a new file instead.
// `surely_dead`: the caller knows that the process has ended, where it cannot be seen from here.
DFT_API Completion recover_ring(const std::string& path, const std::string& trace, bool apart, bool surely_dead);
// Whether `trace` is what the process of this ring wrote.
DFT_API bool ring_belongs_to(const std::string& path, const std::string& trace);
// Deletes it, with everything in it.
DFT_API bool discard_ring(const std::string& path);

}  // namespace dft
