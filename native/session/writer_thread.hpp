// The thread that takes events out of the rings and puts them into the file.
#pragma once

#include <string>

#include "session/session_state.hpp"

namespace dft {

bool start_writer_thread(Session* s);
// Waits for it, for a bounded time; `abandoned` says that it did not finish.
void stop_writer(Session* s);
// Copies what others may read. Call with writer_mutex held.
void show(Session* s);
std::string shown_path(Session* s);

}  // namespace dft
