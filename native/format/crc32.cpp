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

const bool g_can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");

#endif

}  // namespace

uint32_t gzip_crc32(const void* data, size_t size) {
  const auto* p = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  if (size >= 64 && g_can_fold) {
    uint8_t rest[16];
    fold_all(p, size, rest);
    // The initial inversion is folded in already; zlib would apply its own.
    uint32_t crc = with_zlib(0xffffffffu, rest, sizeof rest);
    return with_zlib(crc, p + (size & ~size_t(15)), size & 15);
  }
#endif
  return with_zlib(0, p, size);
}

}  // namespace dft
