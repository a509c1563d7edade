// A look at the ring of a process that may be running: nothing is written, nothing locked, nobody woken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api.hpp"

namespace dft {

struct PeekedRing {
  std::string trace;
  uint32_t pid = 0;
  std::string state;        // "running", "dead", or "unknown" where the process cannot be seen from here
  uint64_t final_size = 0;  // of the trace file: what is before it stays as it is
  uint64_t size = 0;        // of the trace file, as far as it counts
  std::string tail;         // the bytes of the file between the two
  std::string text;         // lines that are in no file yet
  uint64_t records = 0, lost = 0, dropped = 0;
  bool refusing = false;  // the disk takes nothing at the moment
  bool steady = false;    // all of it was taken at one moment
};

// Nothing where it is not a ring of this user.
DFT_API std::optional<PeekedRing> peek_ring(const std::string& path);

// Where this user's rings are: in the usual place and in `more_places`.
DFT_API std::vector<std::string> ring_paths(const std::vector<std::string>& more_places);

}  // namespace dft
