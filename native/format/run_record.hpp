// What every file says about its run, in the record that names its host (docs/format.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dft {

struct RunRecord {
  std::string id;
  uint64_t start_us = 0;         // of the process
  std::string owner;             // the process, as record/process_owner.hpp states it
  std::string rank, world_size;  // digits, or empty
  int64_t attempt = 0;
  std::string launcher, host, version, python, command;
};

// The arguments beside the host.
std::string run_arguments(const RunRecord& run);
// Only what claiming a name needs: id, owner, rank and attempt. False if the text names no run. Earlier versions
// wrote a record of its own.
bool find_run_record(std::string_view text, RunRecord* out);

}  // namespace dft
