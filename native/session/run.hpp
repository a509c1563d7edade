// Which run a process belongs to: inherited from the process that began it, or derived from the launcher.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "api.hpp"

namespace dft {

struct Run {
  std::string id;  // [A-Za-z0-9._-]{1,64}
  std::string launcher, rank, world_size;
  int attempt = 0;  // how often the launcher has restarted it
};

// Two variables that descendants inherit: the run, and the names of files given in it.
inline constexpr const char* kRunVariable = "DFTRACER_RUN";
inline constexpr const char* kNamesVariable = "DFTRACER_GIVEN_NAMES";

// The run of a process that writes `<stem>*.pfw`. If only a launcher's ids identify the run, earlier traces there
// reveal a new start of the same job; `{run}` in the stem stands for the id. With an empty stem: if the run is known
// without it, otherwise an empty id.
DFT_API Run identify_run(const std::string& stem);

// Half of the digits in the names of a rank's files, so that its earlier ones are found without opening any other.
std::string rank_digits(const Run& run);

// Whether another process of the run has given the name already, with or without events in it yet.
bool is_given_by_another(const std::string& run, const std::string& stem);
// The value of kNamesVariable for processes started from now on, this process having given the name `path`.
DFT_API std::string given_names_with(const std::string& run, const std::string& path);

}  // namespace dft
