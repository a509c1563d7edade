// Arrow's bitmaps of which values are present.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "columns.hpp"

namespace dft::load {

// Eight values to a byte of an Arrow bitmap.
inline unsigned there8(const int32_t* v) {
  unsigned byte = 0;
#if defined(__SSE2__)
  const __m128i none = _mm_set1_epi32(kNoCode);
  for (int k = 0; k < 2; ++k) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 4 * k));
    byte |= unsigned(_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(x, none)))) << (4 * k);
  }
  return byte ^ 0xff;
#else
  for (unsigned k = 0; k < 8; ++k) byte |= unsigned(v[k] != kNoCode) << k;
  return byte;
#endif
}
inline unsigned there8(const int64_t* v) {
  unsigned byte = 0;
#if defined(__SSE2__)
  const __m128i none = _mm_set1_epi64x(kMissing);
  for (int k = 0; k < 4; ++k) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 2 * k));
    const __m128i halves = _mm_cmpeq_epi32(x, none);
    const __m128i both = _mm_and_si128(halves, _mm_shuffle_epi32(halves, 0xb1));
    byte |= unsigned(_mm_movemask_pd(_mm_castsi128_pd(both))) << (2 * k);
  }
  return byte ^ 0xff;
#else
  for (unsigned k = 0; k < 8; ++k) byte |= unsigned(v[k] != kMissing) << k;
  return byte;
#endif
}

template <class T>
size_t there_bits(const T* values, size_t n, T none, uint8_t* bits) {
  static constexpr uint8_t ones[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
  size_t there = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    const unsigned byte = there8(values + i);
    bits[i >> 3] = uint8_t(byte);
    there += ones[byte & 15] + size_t{ones[byte >> 4]};
  }
  for (; i < n; ++i)
    if (values[i] != none) {
      bits[i >> 3] |= uint8_t(1u << (i & 7));
      ++there;
    }
  return there;
}

}  // namespace dft::load
