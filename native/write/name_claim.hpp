// File names are claimed, never taken: a file that holds a trace is not replaced, and one whose owner may live stays
// where it is. Holds on file systems without locks.
#pragma once

#include <string>

namespace dft {

// Renames without replacing. 0 or errno; EEXIST when `to` is there.
int rename_exclusively(const std::string& from, const std::string& to);

struct Claimant {
  std::string run;
  // Completes what a dead process left for this file; false while something of it still waits elsewhere.
  bool (*complete_trace)(const std::string& path) = nullptr;
};

enum class Claim {
  kGranted,
  kTaken,    // by our own run, or by one that may live
  kForeign,  // by something that is not a trace
  kFailed,   // see errno
};

// Gives our file `from`, which names its run already, the name `to`. The finished trace of another run is moved
// aside first, under its own run's name and with all its parts.
Claim claim_name(const std::string& from, const std::string& to, const Claimant& claimant);

}  // namespace dft
