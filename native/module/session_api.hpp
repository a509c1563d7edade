// The session and the records that come from elsewhere, as module functions.
#pragma once

#include <cstdint>

#include "module/cpython_util.hpp"
#include "record/engine.hpp"

namespace dft::py {

extern PyMethodDef g_session_functions[];

// For an event that is complete when it is logged: it names the innermost anonymous frame, or lies below what is open.
Frame frame_for_event(ThreadState* t, bool other_lane);
// A time given by the program; 0 if it is not valid.
uint64_t clamp_ns(PyObject* value);

}  // namespace dft::py
