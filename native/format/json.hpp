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

// Two digits at a time; a line of a trace is mostly numbers.
struct DigitPairs {
  char text[200];
  constexpr DigitPairs() : text{} {
    for (int i = 0; i < 100; ++i) {
      text[2 * i] = char('0' + i / 10);
      text[2 * i + 1] = char('0' + i % 10);
    }
  }
};
inline constexpr DigitPairs kDigitPairs;

inline char* put_uint(char* p, uint64_t v) {
  if (v < 10) {
    *p = char('0' + v);
    return p + 1;
  }
  char buf[20];
  char* at = buf + sizeof buf;
  while (v >= 100) {
    at -= 2;
    memcpy(at, kDigitPairs.text + 2 * (v % 100), 2);
    v /= 100;
  }
  if (v >= 10) {
    at -= 2;
    memcpy(at, kDigitPairs.text + 2 * v, 2);
  } else {
    *--at = char('0' + v);
  }
  size_t n = size_t(buf + sizeof buf - at);
  memcpy(p, at, n);
  return p + n;
}

inline char* put_int(char* p, int64_t v) {
  if (v >= 0) return put_uint(p, uint64_t(v));
  *p++ = '-';
  return put_uint(p, 0 - uint64_t(v));
}

}  // namespace dft
