#include "format/crc32.hpp"

#include <zlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dft {
namespace {

uint32_t with_zlib(uint32_t crc, const uint8_t* p, size_t n) {
  while (n > (1u << 30)) {
    crc = uint32_t(crc32(crc, p, 1u << 30));
    p += 1u << 30;
    n -= 1u << 30;
  }
  return uint32_t(crc32(crc, p, uInt(n)));
}

#if defined(__x86_64__)

using Block = __m128i;

__attribute__((target("pclmul,sse4.1"))) inline Block load(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const Block*>(p));
}

// Moves `x` forward over the polynomial's distance that `k` stands for and adds what is there.
__attribute__((target("pclmul,sse4.1"))) inline Block fold(Block x, Block k, Block next) {
  Block low = _mm_clmulepi64_si128(x, k, 0x00);
  Block high = _mm_clmulepi64_si128(x, k, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// Folds all but the last n % 16 bytes into one block of the same CRC (Gopal et al., "Fast CRC computation
// for generic polynomials using PCLMULQDQ instruction"); n >= 64.
__attribute__((target("pclmul,sse4.1"))) void fold_all(const uint8_t* p, size_t n, uint8_t rest[16]) {
  const Block by_64_bytes = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
  const Block by_16_bytes = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  Block a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(-1));
  Block b = load(p + 16), c = load(p + 32), d = load(p + 48);
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    a = fold(a, by_64_bytes, load(p));
    b = fold(b, by_64_bytes, load(p + 16));
    c = fold(c, by_64_bytes, load(p + 32));
    d = fold(d, by_64_bytes, load(p + 48));
  }
  a = fold(a, by_16_bytes, b);
  a = fold(a, by_16_bytes, c);
  a = fold(a, by_16_bytes, d);
  for (; n >= 16; p += 16, n -= 16) a = fold(a, by_16_bytes, load(p));
  _mm_storeu_si128(reinterpret_cast<Block*>(rest), a);
}

using Pair = __m256i;

__attribute__((target("vpclmulqdq,avx2"))) inline Pair fold(Pair x, Pair k, const uint8_t* next) {
  Pair low = _mm256_clmulepi64_epi128(x, k, 0x00);
  Pair high = _mm256_clmulepi64_epi128(x, k, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(low, high), _mm256_loadu_si256(reinterpret_cast<const Pair*>(next)));
}

// The same with two blocks at a time; n >= 128.
__attribute__((target("vpclmulqdq,avx2"))) void fold_pairs(const uint8_t* p, size_t n, uint8_t rest[16]) {
  const Pair by_128_bytes = _mm256_set_epi64x(0x14a7fe880, 0x1e88ef372, 0x14a7fe880, 0x1e88ef372);
  const Block by_16_bytes = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  Pair x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm256_loadu_si256(reinterpret_cast<const Pair*>(p + 32 * i));
  x[0] = _mm256_xor_si256(x[0], _mm256_setr_epi32(-1, 0, 0, 0, 0, 0, 0, 0));
  for (p += 128, n -= 128; n >= 128; p += 128, n -= 128)
    for (int i = 0; i < 4; ++i) x[i] = fold(x[i], by_128_bytes, p + 32 * i);
  Block a = _mm256_castsi256_si128(x[0]);
  a = fold(a, by_16_bytes, _mm256_extracti128_si256(x[0], 1));
  for (int i = 1; i < 4; ++i) {
    a = fold(a, by_16_bytes, _mm256_castsi256_si128(x[i]));
    a = fold(a, by_16_bytes, _mm256_extracti128_si256(x[i], 1));
  }
  for (; n >= 16; p += 16, n -= 16) a = fold(a, by_16_bytes, load(p));
  _mm_storeu_si128(reinterpret_cast<Block*>(rest), a);
}

const bool g_can_fold_pairs = __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2");
const bool g_can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");

#endif

}  // namespace

uint32_t gzip_crc32(const void* data, size_t size) {
  const auto* p = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  if (size >= 64 && g_can_fold) {
    uint8_t rest[16];
    if (size >= 128 && g_can_fold_pairs)
      fold_pairs(p, size, rest);
    else
      fold_all(p, size, rest);
    // The initial inversion is folded in already; zlib would apply its own.
    uint32_t crc = with_zlib(0xffffffffu, rest, sizeof rest);
    return with_zlib(crc, p + (size & ~size_t(15)), size & 15);
  }
#endif
  return with_zlib(0, p, size);
}

}  // namespace dft
