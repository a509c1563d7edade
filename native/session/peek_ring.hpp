// Reads the ring of a process that may be running: nothing is written or locked, and no process is woken.
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
  std::string state;        // "running", "dead", or "unknown" if the process is not visible from here
  uint64_t final_size = 0;  // of the trace file: everything before it is final
  uint64_t size = 0;        // of the valid part of the trace file
  std::string tail;         // the bytes of the file between the two
  std::string text;         // lines that are in no file yet
  uint64_t records = 0, lost = 0, dropped = 0;
  bool refusing = false;    // the disk rejects writes at the moment
  bool consistent = false;  // all of it is from one moment
};

// Nothing if it is not a ring of this user.
DFT_API std::optional<PeekedRing> peek_ring(const std::string& path);

// Where this user's rings are: in the usual place and in `more_places`.
DFT_API std::vector<std::string> ring_paths(const std::vector<std::string>& more_places);

}  // namespace dft
