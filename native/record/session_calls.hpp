// What the rooms to the left of the session ask of it. Declared here, defined in session/.
#pragma once

#include "api.hpp"

namespace dft {

struct ThreadState;

// Writes everything, closes the trace, and ends the session.
DFT_API void finish_session();
// False in the child of a vfork, which runs in our memory.
bool in_session_process();
// Whether the session has begun its trace; armed alone does not count.
bool session_recording();

// exec is about to replace this image: put everything into the file, vouch for it, and undo if exec failed.
void before_exec();
void after_failed_exec();

// An event of a signal handler that could not be recorded, by a session that records or by one that is armed.
void count_signal_drop();
void count_signal_drop_before_begin();
// Little room is left in the ring: a short pause now, rather than a long one or a lost event later.
void ease_off(ThreadState* t);

}  // namespace dft
