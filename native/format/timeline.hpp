// Who owns each instant of a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dft {

struct Segments {
  std::vector<int64_t> from, to;
  std::vector<uint8_t> stage;
};

// The exclusive timeline of one thread: at each instant the innermost open event decides.
// `rule[class * stages + stage of the parent]` gives an event's stage; `none` is the stage outside of all.
Segments timeline(const int64_t* ts, const int64_t* dur, const uint8_t* cls, size_t n, const uint8_t* rule,
                  size_t stages, uint8_t none);

}  // namespace dft
