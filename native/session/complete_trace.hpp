// Puts what a dead process's ring holds into its trace. The ring is believed only where the trace bears it out.
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
// Where there is no trace to complete: a new file with what the ring holds.
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
