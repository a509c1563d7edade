// JSON as text: what the line scanner needs, without building a tree.
//
// All of these may read up to kPadding bytes past `end`.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// Eight digits as a number, the first of them in the lowest byte.
inline uint64_t joined_digits(uint64_t digits) {
  digits = (digits * 2561 >> 8) & 0x00FF00FF00FF00FFull;
  digits = (digits * 6553601 >> 16) & 0x0000FFFF0000FFFFull;
  return digits * 42949672960001ull >> 32;
}

// Eight digits at once; -1 if one of them is not a digit.
inline int64_t eight_digits(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  if (((v & 0xF0F0F0F0F0F0F0F0ull) | (((v + 0x0606060606060606ull) & 0xF0F0F0F0F0F0F0F0ull) >> 4)) !=
      0x3333333333333333ull)
    return -1;
  return int64_t(joined_digits(v & 0x0F0F0F0F0F0F0F0Full));
}

// A whole 64-bit integer of any length, or nothing.
bool any_integer(const char*& p, int64_t& out);

// Up to seven digits at p: how many they are, and their number; 0 if there are none, or more.
[[gnu::always_inline]] inline unsigned few_digits(const char* p, int64_t& out) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  v ^= 0x3030303030303030ull;
  // The highest bit of the first byte that is no digit is set, and of none before it.
  const uint64_t others = ((v + 0x7676767676767676ull) | v) & 0x8080808080808080ull;
  const auto bits = unsigned(std::countr_zero(others)) & 0x38u;
  if (bits != 0) out = int64_t(joined_digits(v << (64 - bits)));
  return bits / 8;
}

// The same as any_integer(); nearly all numbers are short.
[[gnu::always_inline]] inline bool integer(const char*& p, int64_t& out) {
  const unsigned n = few_digits(p, out);
  if (n == 0) [[unlikely]]
    return any_integer(p, out);
  p += n;
  return true;
}

// The same of a number that nearly always has as many digits as the last one of its kind: what follows it is then read
// without waiting until they are counted.
[[gnu::always_inline]] inline bool integer(const char*& p, int64_t& out, uint8_t& digits) {
  const unsigned n = few_digits(p, out);
  if (n == digits && n != 0) [[likely]] {
    p += digits;
#if defined(__GNUC__)
    asm("" : "+r"(p));  // not the same to the compiler as adding n
#endif
    return true;
  }
  digits = uint8_t(n);
  if (n == 0) return any_integer(p, out);
  p += n;
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
