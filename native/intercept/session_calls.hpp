// What intercepted calls ask of the session that they are recorded for. The session fills this in when the library is
// loaded, so this folder need not know it.
#pragma once

namespace dft {

struct ThreadState;

struct SessionCalls {
  // False in the child of a vfork, which runs in our memory.
  bool (*in_process)() = [] { return false; };
  // Whether the session has begun its trace; being armed does not count.
  bool (*recording)() = [] { return false; };
  // The exit status, for the trace's last record.
  void (*note_exit_status)(int status) = [](int) {};
  // Writes everything, closes the trace, and ends the session.
  void (*finish)() = [] {};

  // exec is about to replace this image: write everything to the file, close it, and undo that if exec fails.
  void (*before_exec)() = [] {};
  void (*after_failed_exec)() = [] {};

  // For a call that fails in a process with threads: ours ends, and comes back with a later record.
  void (*rest_writer)() = [] {};

  // An event of a signal handler that could not be recorded, by a session that records or by one that is armed.
  void (*count_signal_drop)() = [] {};
  void (*count_signal_drop_before_begin)() = [] {};
  // The ring is nearly full: a short pause now rather than a long one or a lost event later.
  void (*ease_off)(ThreadState* t) = [](ThreadState*) {};
};

extern SessionCalls g_session_calls;

}  // namespace dft
