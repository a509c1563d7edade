// JSON text, appended to a string or written through a pointer.
#pragma once

#include "api.hpp"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace dft {

// Appends `text` as a JSON string, quotes included: valid JSON for any bytes, bad UTF-8 replaced by U+FFFD.
DFT_API void append_json_string(std::string& out, std::string_view text);

inline void append_int(std::string& out, int64_t v) {
  char buf[24];
  out.append(buf, std::to_chars(buf, buf + sizeof buf, v).ptr);
}

inline char* put(char* p, std::string_view s) {
  memcpy(p, s.data(), s.size());
  return p + s.size();
}

inline char* put_uint(char* p, uint64_t v) { return std::to_chars(p, p + 20, v).ptr; }
inline char* put_int(char* p, int64_t v) { return std::to_chars(p, p + 20, v).ptr; }

}  // namespace dft
