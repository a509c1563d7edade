// Who wrote a file, in words that a later process can check: is that one still alive?
#pragma once

#include <string>

namespace dft {

// `boot/pid namespace/pid/start time` of this process.
std::string own_owner();
// Only what is known for sure: the same boot, the same pid namespace, and no such process any more.
bool is_known_dead(const std::string& owner);

}  // namespace dft
