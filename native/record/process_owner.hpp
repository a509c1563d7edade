// Who wrote a file, in a form that lets a later process check whether the writer is still alive.
#pragma once

#include <string>

namespace dft {

// `boot/pid namespace/pid/start time` of this process.
std::string own_owner();
// Only if it is certain: the same boot, the same pid namespace, and no such process any more.
bool is_known_dead(const std::string& owner);

}  // namespace dft
