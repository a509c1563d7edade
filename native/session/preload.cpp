// LD_PRELOAD: begins the session of an unmodified program. The engine is in the shared core, so that
// a Python program which also imports the package finds this session and joins it. Nothing else is here: every
// command of a script loads this, and what it needs.
#include "session/begin.hpp"
#include "session/session.hpp"

namespace {

__attribute__((constructor)) void begin() { dft::begin_preloaded(DFTRACER_VERSION); }

// Before the destructors of other preloaded libraries, as ours is the first of them under `dftracer run`.
__attribute__((destructor)) void end() { dft::exit_begins(); }

}  // namespace
