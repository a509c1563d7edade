// The thread that takes events out of the rings and puts them into the file.
#pragma once

#include <string>

#include "session/session_state.hpp"

namespace dft {

// A process that ends within this time writes its trace itself.
inline constexpr uint64_t kAloneNs = 100'000'000;

// Call with the state's mutex held. False if there can be no thread: records then wait in their rings for the end.
bool start_writer_thread(Session* s);
// Wakes it, or starts it if it is due.
void wake_writer_thread();
// Whether there is anything that someone would look for: not the few look-ups that every command makes.
bool is_worth_a_trace(Session* s, const std::vector<RingSlot*>& slots);
// Ends the thread; the next record after `for_ns` starts another. Not with the state's mutex held.
void pause_writer(Session* s, uint64_t for_ns);
void delay_writer(Session* s, uint64_t for_ns);  // one that is paused, from now on
// For a call that fails in a process with threads: the thread ends, and comes back with a later record.
void rest_writer();
// Waits for it, for a bounded time; `abandoned` says that it did not finish.
void stop_writer(Session* s);
// Copies what others may read. Call with writer_mutex held.
void show(Session* s);
std::string shown_path(Session* s);

}  // namespace dft
