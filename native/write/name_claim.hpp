// File names are claimed without replacing: a file with a trace is never overwritten, and one whose owner may be alive
// stays where it is. This also works on file systems without locks.
#pragma once

#include <string>

namespace dft {

// Renames without replacing. 0 or errno; EEXIST if `to` exists.
int rename_exclusively(const std::string& from, const std::string& to);

struct Claimant {
  std::string run;
  // Completes what a dead process left for this file; false while part of it is still elsewhere.
  bool (*complete_trace)(const std::string& path) = nullptr;
};

enum class Claim {
  kGranted,
  kTaken,    // by our own run, or by one that may be alive
  kForeign,  // by something that is not a trace
  kFailed,   // see errno
};

// Renames our file `from`, which names its run already, to `to`. The finished trace of another run is moved
// aside first, under its own run's name and with all its parts.
Claim claim_name(const std::string& from, const std::string& to, const Claimant& claimant);

}  // namespace dft
