// The records every trace file starts with: host, command, directory, process facts, `start`.
#pragma once

#include "session_state.hpp"

namespace dft {

Prelude make_prelude(Session* session);

}  // namespace dft
