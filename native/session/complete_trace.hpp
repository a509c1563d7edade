// Adds the contents of a dead process's ring to its trace. The ring is trusted only if the trace confirms it.
#pragma once

#include <cstdint>
#include <string>

#include "session/dead_ring.hpp"

namespace dft {

struct Completion {
  enum Outcome { kCompleted, kNothingToDo, kKept } outcome = kKept;
  std::string why;      // it is kept
  uint64_t events = 0;  // taken out of the ring
};

// `path`: the trace, wherever it is by now.
Completion complete_trace(const DeadRing& ring, const std::string& path);
// If there is no trace to complete: a new file with the contents of the ring.
Completion write_apart(const DeadRing& ring, const std::string& path);

// Whether the file is the one that the dead process wrote.
bool is_trace_of(const DeadRing& ring, const std::string& path);
// What is in no file yet, as lines of text.
struct RingText {
  std::string text;
  uint64_t records = 0;
  uint64_t lost = 0;  // too large for the ring: only the process itself has them
};
RingText text_in(const DeadRing& ring);
// How many records wait in the ring.
uint64_t records_in(const DeadRing& ring);

}  // namespace dft
