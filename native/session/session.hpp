// The life of a recording: settings, start, fork, flush, finish.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "record/engine.hpp"

namespace dft {

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
  uint64_t rotate_size = 0;
  uint64_t rotate_keep = 0;
  uint64_t max_size = 0;
  std::string ring_dir;
  std::string data_dir = "all";
  std::vector<std::string> import_dirs;  // looked at by the interpreter, not by the program
  bool trace_posix = false;
  bool trace_stdio = false;
  std::string prefix = "trace";
  std::string version = "0";
  int log_level = 0;
  std::vector<std::pair<std::string, std::string>> facts;  // PR records: rank and the like
};

struct Stats {
  uint64_t events, dropped[int(Drop::kCount)], bytes, rings, members;
};

DFT_API void configure(Settings settings);
DFT_API const Settings& settings();

// Arms a session; the files appear with the first record. `path` empty: a name made from the prefix.
// False when one is armed already. `role` is the last part of a made-up file name.
DFT_API bool start_session(const std::string& path, const char* role);
DFT_API void finish_session();
// Everything recorded before the call is in the file when it returns true.
DFT_API bool flush_session(uint64_t timeout_ms);
DFT_API bool session_armed();
DFT_API std::string session_path();
DFT_API Stats session_stats();
// Gives the armed session another file; renames the one in use if it has begun.
DFT_API void rename_session(const std::string& path);
DFT_API uint64_t now_epoch_ns();
DFT_API uint64_t ticks_to_us(uint64_t ticks);

// Completes the traces in `directory` whose processes died; returns the files touched.
DFT_API std::vector<std::string> recover_directory(const std::string& directory);

// Removes what dead processes left for traces whose directory is gone: no reader will come for it.
void drop_lost_rings();

// One line on stderr, once per text.
DFT_API void complain(const std::string& text);

// exec is about to replace this image: put everything into the file, vouch for it, and undo if exec failed.
void before_exec();
void after_failed_exec();
bool in_session_process();
void install_exit_hooks();
void install_signal_hooks();

}  // namespace dft
