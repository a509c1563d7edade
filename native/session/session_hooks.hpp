// What an embedding language adds to the engine.
#pragma once

#include "record/engine.hpp"

namespace dft {

// Frees ThreadState::contexts when its thread ends; called without any language lock.
DFT_API void set_context_cleanup(void (*cleanup)(void*));

}  // namespace dft
