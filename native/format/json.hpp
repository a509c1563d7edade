// JSON text, appended to a string or written through a pointer.
#pragma once

#include "api.hpp"

#include <bit>
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

struct PowersOfTen {
  uint64_t of[20];
  constexpr PowersOfTen() : of{} {
    uint64_t v = 1;
    for (uint64_t& each : of) {
      each = v;
      v *= 10;
    }
  }
};
inline constexpr PowersOfTen kPowersOfTen;

// How many digits a number has, from its bits: 1233 / 4096 is the logarithm of 2.
inline size_t digits_of(uint64_t v) {
  const size_t least = size_t(std::bit_width(v | 1)) * 1233 >> 12;
  return least + (v >= kPowersOfTen.of[least]);
}

// To where they belong, the last first: a copy of a length that is not known would be a call.
inline char* put_uint(char* p, uint64_t v) {
  if (v < 10) {
    *p = char('0' + v);
    return p + 1;
  }
  char* const end = p + digits_of(v);
  char* at = end;
  while (v >= 100) {
    at -= 2;
    memcpy(at, kDigitPairs.text + 2 * (v % 100), 2);
    v /= 100;
  }
  if (v >= 10)
    memcpy(p, kDigitPairs.text + 2 * v, 2);
  else
    *p = char('0' + v);
  return end;
}

inline char* put_int(char* p, int64_t v) {
  if (v >= 0) return put_uint(p, uint64_t(v));
  *p++ = '-';
  return put_uint(p, 0 - uint64_t(v));
}

}  // namespace dft
