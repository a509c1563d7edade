// The interned (name, cat) pairs of the process. Numbers survive fork and repeated sessions.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "api.hpp"

namespace dft {

struct FileHeader;

DFT_API std::pair<std::string, std::string> name_of(uint32_t number);
// Copies all names into the ring file of a session, and from then on every new one.
void publish_names(FileHeader* header);
void unpublish_names();
std::mutex& names_mutex();

}  // namespace dft
