// What a session is asked to do; src/dftracer/_config.py explains each field.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "api.hpp"

namespace dft {

inline constexpr uint64_t kBlackBoxParts = 16;  // files in which the detail of a black box goes round

struct Settings {
  bool compress = true;
  bool inc_metadata = true;
  bool disable_tids = false;
  bool bind_signals = false;
  bool record_affinity = false;
  uint64_t ring_size = 4 << 20;
  uint64_t max_stall_us = 1000;
  uint64_t member_size = 512 * 1024;
  uint64_t flush_ms = 100;
  uint64_t counter_ms = 0;
  bool aggregate = false;
  bool aggregate_selected = false;
  std::string aggregation_file;
  uint64_t interval_ms = 1000;
  uint64_t hang_s = 0;
  uint64_t rotate_size = 0;
  uint64_t rotate_keep = 0;
  uint64_t max_size = 0;
  uint64_t black_box = 0;  // bytes in which detail goes round; 0: all of it is kept
  std::string ring_dir;
  std::string data_dir = "all";
  std::vector<std::string> import_dirs;  // accessed by the interpreter, not by the program
  bool trace_posix = false;
  bool trace_stdio = false;
  bool trace_cuda = false;
  std::string prefix = "trace";
  std::string version = "0";
  int log_level = 0;
  std::vector<std::pair<std::string, std::string>> facts;  // PR records: rank, name of the run and the like
};

DFT_API void configure(Settings settings);
DFT_API const Settings& settings();

}  // namespace dft
