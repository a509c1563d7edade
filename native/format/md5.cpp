#include "format/md5.hpp"

#include <bit>
#include <cstring>

namespace dft {
namespace {

// floor(2^32 * |sin(i + 1)|). Written out: calling sin() would load libm into every traced process.
constexpr uint32_t kSine[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};
constexpr int kShift[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

void block(uint32_t state[4], const uint8_t* p) {
  uint32_t word[16];
  memcpy(word, p, 64);
  auto [a, b, c, d] = std::array{state[0], state[1], state[2], state[3]};
  for (int i = 0; i < 64; ++i) {
    uint32_t f;
    int g;
    switch (i / 16) {
      case 0:
        f = (b & c) | (~b & d);
        g = i;
        break;
      case 1:
        f = (d & b) | (~d & c);
        g = (5 * i + 1) % 16;
        break;
      case 2:
        f = b ^ c ^ d;
        g = (3 * i + 5) % 16;
        break;
      default:
        f = c ^ (b | ~d);
        g = (7 * i) % 16;
        break;
    }
    uint32_t next = d;
    d = c;
    c = b;
    b += std::rotl(a + f + kSine[i] + word[g], kShift[i / 16][i % 4]);
    a = next;
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
}

}  // namespace

std::array<uint8_t, 16> md5(std::string_view text) {
  uint32_t state[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  size_t left = text.size();
  for (; left >= 64; left -= 64, p += 64) block(state, p);
  uint8_t tail[128] = {};
  memcpy(tail, p, left);
  tail[left] = 0x80;
  size_t padded = left < 56 ? 64 : 128;
  uint64_t bits = uint64_t(text.size()) * 8;
  memcpy(tail + padded - 8, &bits, 8);
  for (size_t i = 0; i < padded; i += 64) block(state, tail + i);
  std::array<uint8_t, 16> out;
  memcpy(out.data(), state, 16);
  return out;
}

uint64_t short_hash_bits(std::string_view text) {
  auto digest = md5(text);
  uint64_t out = 0;
  for (int i = 0; i < 16; i += 2) out = out << 8 | digest[i];
  return out;
}

std::string short_hash(std::string_view text) {
  static const char* hex = "0123456789abcdef";
  auto digest = md5(text);
  std::string out;
  for (int i = 0; i < 16; i += 2) {
    out += hex[digest[i] >> 4];
    out += hex[digest[i] & 15];
  }
  return out;
}

}  // namespace dft
