// LD_PRELOAD: begins the session of an unmodified program. The engine is in the shared core, so that
// a Python program which also imports the package finds this session and joins it.
#include <cstdlib>

#include "session/environment.hpp"
#include "session/run.hpp"
#include "session/session.hpp"

namespace dft {
namespace {

__attribute__((constructor)) void begin() {
  SettingValues values = settings_in_environment();
  const char* enable = getenv("DFTRACER_ENABLE");
  // Requested by both variables, it needs no third one; an explicit 0 still keeps it off.
  bool off = enable && *enable && values["enable"].number == 0;
  if (off || values["init"].text == "FUNCTION") return;
  Settings settings = settings_from(values);
  settings.version = DFTRACER_VERSION;
  settings.facts = rank_facts(rank_in_environment());
  // Next to the trace of the process that announced it, as for a Python program.
  if (const char* session = getenv("DFTRACER_SESSION"); session && *session) settings.prefix = session;
  configure(settings);
  start_session("", "preload");
  // Before main() nobody else looks at the environment.
  setenv(kRunVariable, run_id().c_str(), 1);
}

}  // namespace
}  // namespace dft
