#include "format/md5.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace dft {
namespace {

struct Tables {
  uint32_t sine[64];
  Tables() {
    for (int i = 0; i < 64; ++i) sine[i] = uint32_t(std::floor(std::fabs(std::sin(i + 1.0)) * 4294967296.0));
  }
};

constexpr int kShift[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

const Tables tables;

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
    b += std::rotl(a + f + tables.sine[i] + word[g], kShift[i / 16][i % 4]);
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
