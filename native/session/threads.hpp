// The threads that record, and the rings they record into.
#pragma once

#include "session/session_state.hpp"

namespace dft {

// Makes a ring for the calling thread, and begins the recording if it is the first; null if nothing can be recorded.
ThreadState* attach_to_session(bool for_io);
// Rings of ended threads whose events are on disk are free for others.
void recycle_released(Session* s);
// Memory for rings that are being filled for the first time, ahead of their threads.
void extend_rings(Session* s, const std::vector<RingSlot*>& slots);
std::vector<RingSlot*> slots_now(Session* s);
// False if some thread does not finish writing its record: it has no CPU, or a debugger holds it.
bool wait_for_producers(Session* s);
// Makes every running thread of the process pass a full barrier: the hot path then needs none.
bool process_barrier();
// Once per process: what happens when a thread ends.
void watch_thread_ends();

inline constexpr size_t kSpareSlots = 256;

// For a thread whose ring cannot grow any more, in the middle of its recording. False: there is no memory, or not now.
bool move_to_private_ring(Session* s, ThreadState* t);

}  // namespace dft
