// The life of a recording: settings, start, fork, flush, finish.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "record/engine.hpp"
#include "record/settings.hpp"
#include "record/warn_once.hpp"
#include "write/row_maker.hpp"

namespace dft {

struct Stats {
  uint64_t events, dropped[int(Drop::kCount)], bytes, rings, members;
};

// Arms a session; the files appear with the first record. `path` empty: a name made from the prefix.
// False if one is already armed. `role` is the last part of a generated file name.
DFT_API bool start_session(const std::string& path, const char* role);
// The process has begun to exit, and other libraries may be torn down before we have finished.
DFT_API void exit_begins();
// Writes everything, closes the trace, and ends the session.
DFT_API void finish_session();
// Everything recorded before the call is in the file when it returns true.
DFT_API bool flush_session(uint64_t timeout_ms);
DFT_API bool session_armed();
// Whether the session has begun its trace; being armed does not count.
bool session_recording();
// False in the child of a vfork, which runs in our memory.
bool in_session_process();
// The exit status, for the trace's last record.
void note_exit_status(int status);
DFT_API std::string session_path();
// The id of the run this process belongs to; empty as long as it is not known.
DFT_API std::string run_id();
DFT_API Stats session_stats();
// Who this process is, for a file beside its trace; false without a session, or while that begins or ends.
struct SessionFacts {
  std::string path, run, host, rank, world_size;
  int attempt = 0;
  std::vector<std::string> events;  // the latest, as they are in the trace
};
DFT_API bool session_facts(SessionFacts* out);
// The open events of a thread as they were a moment ago: where they are in memory, which may change at any time.
DFT_API bool open_events(int64_t tid, Stack* out);
// The latest step, and the sums of all; nothing before the first.
DFT_API std::optional<RowSums> session_rows();
// Sets the file of the armed session; renames the one in use if it has begun.
DFT_API void rename_session(const std::string& path);
DFT_API uint64_t now_epoch_ns();
DFT_API uint64_t ticks_to_us(uint64_t ticks);

// Completes the traces in `directory` whose processes died; returns the files touched.
DFT_API std::vector<std::string> recover_directory(const std::string& directory, bool below = false);

// Completes the trace of a dead process; false while part of it is still in a ring.
bool recover_trace(const std::string& path);

// The same for a directory at the end of a traced program: in a bounded time, and only if nothing has to be searched
// for.
void recover_at_exit(const std::string& directory);

void install_signal_hooks();

}  // namespace dft
