// The escapes of JSON strings.
#pragma once

#include <string>
#include <string_view>

namespace dft::load {

// Decode a JSON string body (between the quotes), replacing `out`.
void unescape(std::string_view raw, std::string& out);

}  // namespace dft::load
