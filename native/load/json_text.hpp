// JSON as text: what the line scanner needs, without building a tree.
//
// All of these may read up to kPadding bytes past `end`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dft::load {

// Text handed to the scanner must be readable this far past its end.
inline constexpr size_t kPadding = 64;

// A string as it is written, between its quotes.
struct Text {
  std::string_view raw;
  bool escaped;
};

// Keys of up to eight bytes as numbers, for a switch.
constexpr uint64_t key8(const char* s, size_t n) {
  uint64_t v = 0;
  for (size_t i = 0; i < n && i < 8; ++i) v |= uint64_t(static_cast<unsigned char>(s[i])) << (8 * i);
  return v;
}
template <size_t N>
constexpr uint64_t key(const char (&s)[N]) {
  static_assert(N <= 9, "keys are told apart by their first eight bytes");
  return key8(s, N - 1);
}

inline uint64_t load8(const char* p, size_t n) {
  uint64_t v;
  std::memcpy(&v, p, 8);  // little endian, checked in the build file; the text is padded
  return n >= 8 ? v : v & ((1ull << (8 * n)) - 1);
}

// First '"' or '\\' at or after p.
inline const char* quote_or_escape(const char* p, const char* end) {
#if defined(__SSE2__)
  const __m128i q = _mm_set1_epi8('"'), b = _mm_set1_epi8('\\');
  for (;;) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const int m = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(v, q), _mm_cmpeq_epi8(v, b)));
    if (m != 0) return p + __builtin_ctz(unsigned(m));
    p += 16;
    if (p >= end) return end;
  }
#else
  while (p < end && *p != '"' && *p != '\\') ++p;
  return p;
#endif
}

inline const char* blanks(const char* p) {
  while (*p == ' ' || *p == '\t' || *p == '\r') ++p;
  return p;
}

inline bool digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

// Eight digits at once; -1 if one of them is not a digit.
inline int64_t eight_digits(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  if (((v & 0xF0F0F0F0F0F0F0F0ull) | (((v + 0x0606060606060606ull) & 0xF0F0F0F0F0F0F0F0ull) >> 4)) !=
      0x3333333333333333ull)
    return -1;
  v = (v & 0x0F0F0F0F0F0F0F0Full) * 2561 >> 8;
  v = (v & 0x00FF00FF00FF00FFull) * 6553601 >> 16;
  return int64_t((v & 0x0000FFFF0000FFFFull) * 42949672960001ull >> 32);
}

// A whole 64-bit integer, or nothing.
inline bool integer(const char*& p, int64_t& out) {
  const char* s = p;
  const bool negative = *s == '-';
  if (negative) ++s;
  if (!digit(*s)) return false;
  uint64_t v = 0;
  const char* first = s;
  while (digit(*s)) v = v * 10 + uint64_t(*s++ - '0');
  if (s - first > 18) {  // may have wrapped: redo with a check
    v = 0;
    for (const char* q = first; q < s; ++q)
      if (__builtin_mul_overflow(v, uint64_t{10}, &v) || __builtin_add_overflow(v, uint64_t(*q - '0'), &v))
        return false;
    if (v > uint64_t(std::numeric_limits<int64_t>::max())) return false;
  }
  out = negative ? -int64_t(v) : int64_t(v);
  p = s;
  return true;
}

// Moves p past the string that begins at it.
inline bool read_string(const char*& p, const char* end, Text& out) {
  if (*p != '"') return false;
  const char* const from = ++p;
  bool escaped = false;
  for (;;) {
    p = quote_or_escape(p, end);
    if (p >= end) return false;
    if (*p == '"') break;
    escaped = true;
    p += 2;
    if (p >= end) return false;
  }
  out = {{from, size_t(p - from)}, escaped};
  ++p;
  return true;
}

// Moves p past the value, of any kind, that begins at it.
bool skip_value(const char*& p, const char* end, int depth = 0);

}  // namespace dft::load
