// The tracer's only output inside the traced program.
#pragma once

#include <mutex>
#include <string>

#include "api.hpp"

namespace dft {

// One line on stderr, once per text.
DFT_API void warn_once(const std::string& text);
// Held across a fork, so that no child inherits it locked.
std::mutex& warnings_mutex();

}  // namespace dft
