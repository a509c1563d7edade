// The moment a session gets its first record.
#pragma once

#include "session/session_state.hpp"

namespace dft {

// Ring file, opening records, writer thread. `for_io`: the trace file may be opened at once.
bool begin_recording(Session* s, bool for_io);
// The session of a program that knows nothing of us, as its environment asks for it.
DFT_API void begin_preloaded(const char* version);

}  // namespace dft
