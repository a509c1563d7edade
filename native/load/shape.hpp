// What rows of one kind look like. Rows of the same name, category and process begin with the same text and have the
// same arguments in the same order, so a row is first compared with the last one of its kind and only read where that
// fails.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "columns.hpp"

namespace dft::load {

// Whether [a, a+n) and [b, b+n) are equal, for n >= 16; without the cost of a call.
inline bool equal_long(const char* a, const char* b, size_t n) {
#if defined(__SSE2__)
  const auto differ = [&](size_t at) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + at));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + at));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(x, y)) != 0xffff;
  };
  for (size_t at = 0; at + 16 < n; at += 16)
    if (differ(at)) return false;
  return !differ(n - 16);
#else
  return std::memcmp(a, b, n) == 0;
#endif
}

// How far [a, a+n) and [b, b+n) are equal; up to 15 bytes behind both are read.
inline size_t equal_bytes(const char* a, const char* b, size_t n) {
#if defined(__SSE2__)
  for (size_t at = 0; at < n; at += 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + at));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + at));
    const auto differ = unsigned(_mm_movemask_epi8(_mm_cmpeq_epi8(x, y))) ^ 0xffffu;
    if (differ != 0) return std::min(n, at + size_t(std::countr_zero(differ)));
  }
  return n;
#else
  return size_t(std::mismatch(a, a + n, b).first - a);
#endif
}

// An argument: its key as it is written, and where its value goes.
struct Argument {
  enum class Kind : uint8_t { number, quoted_number, file, other };
  static constexpr size_t kLongest = 16;

  char text[kLongest];  // `"key":`, with the quote that opens a quoted value
  uint8_t size;
  Kind kind;
  uint8_t digits;  // of the last number
  Field field;

  bool at(const char* p) const {
#if defined(__SSE2__)
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text));
    const auto same = unsigned(_mm_movemask_epi8(_mm_cmpeq_epi8(x, y)));
    return (~same & ((1u << size) - 1)) == 0;
#else
    return std::memcmp(p, text, size) == 0;
#endif
  }
};

struct Shape {
  static constexpr size_t kLongestHead = 160, kMaxArguments = 12, kLongestLast = 128;

  char head[kLongestHead];  // from the name up to the value of `tid`
  size_t head_size = 0;
  int32_t name = 0, cat = 0;
  int64_t pid = 0;
  std::array<Argument, kMaxArguments> arguments;
  size_t known = 0;  // of them

  // The arguments of the last row, behind the first, which is its parent: most rows have the same file and numbers as
  // the one before, and equal text has equal values.
  char last[kLongestLast + 16] = {};            // and as much as is read beyond it
  std::array<uint8_t, kMaxArguments> last_end;  // in it: where the next argument begins, or what follows the object
  std::array<int64_t, kMaxArguments> last_value;
  size_t remembered = 0;     // arguments up to this number are in it
  bool last_closes = false;  // the last of them ends the object

  bool at(const char* p, const char* end) const {
    return head_size != 0 && size_t(end - p) >= head_size && equal_long(p, head, head_size);
  }
  // The arguments from number `n` on are others.
  void forget(size_t n) {
    known = n;
    if (remembered > n) remember(n);
  }
  void remember(size_t n, bool closes = false) {
    remembered = n;
    last_closes = closes;
  }
  // `n` arguments were read whose second begins at p, and their ends and values are noted.
  void keep(const char* p, size_t n, bool closes = false) {
    while (n > 1 && last_end[n - 1] > kLongestLast) {
      --n;
      closes = false;
    }
    if (n < 2) return remember(0);
    for (size_t at = 0; at < last_end[n - 1]; at += 16) std::memcpy(last + at, p + at, 16);
    remember(n, closes);
  }
  // The argument after the first `n` is this one; what was known from there on is no longer valid.
  void learn(size_t n, const char* key, size_t size, Argument::Kind kind, Field field) {
    forget(n);
    if (n == kMaxArguments || size > Argument::kLongest) return;
    Argument& a = arguments[known++];
    std::memcpy(a.text, key, size);
    a.size = uint8_t(size);
    a.kind = kind;
    a.digits = 0;
    a.field = field;
  }
};

// The shapes a thread has seen recently.
class Shapes {
 public:
  // The place for rows whose name begins at p (16 readable bytes).
  Shape& of(const char* p) {
    uint64_t a, b;
    std::memcpy(&a, p, 8);
    std::memcpy(&b, p + 8, 8);
    return all_[((a ^ (b * 0x9E3779B97F4A7C15ull)) * 0xff51afd7ed558ccdull) >> 58];
  }

 private:
  std::array<Shape, 64> all_;
};

}  // namespace dft::load
