// The records every trace file starts with: host, command, directory, process facts, `start`.
#pragma once

#include "session/session_state.hpp"

namespace dft {

Prelude make_prelude(Session* session);
// At most this many bytes of text, known before there is room for any.
size_t prelude_bound(const Session* session);

}  // namespace dft
