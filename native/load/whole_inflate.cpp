#include "whole_inflate.hpp"

#include <cstring>

namespace dft::load {
namespace {

// A table entry says what the next bits mean.
//   bits 0-7    how many bits to drop: the code, and the extra bits of a length or distance
//   literal     bits 8-15 the byte, bits 16-23 a second byte where kTwo is set
//   length      bits 8-11 length of the code, bits 16-24 the base
//   distance    bits 8-11 length of the code, bits 16-30 the base
//   second      bits 8-11 index bits of a second table, bits 16-28 where it begins
constexpr std::uint32_t kLiteral = 1u << 31, kTwo = 1u << 30;
constexpr std::uint32_t kSpecial = 1u << 15;                  // none of these: look closer
constexpr std::uint32_t kSecond = 1u << 14, kEnd = 1u << 13;  // neither: no code has these bits

constexpr std::uint32_t with_extra(std::uint32_t base, std::uint32_t extra) { return base << 16 | extra; }

struct Meanings {
  std::uint32_t literal[288], distance[32], plain[19];
  constexpr Meanings() : literal(), distance(), plain() {
    for (std::uint32_t i = 0; i < 256; ++i) literal[i] = kLiteral | i << 8;
    literal[256] = kSpecial | kEnd;
    std::uint32_t base = 3;
    for (std::uint32_t i = 257; i < 285; ++i) {
      const std::uint32_t extra = i < 265 ? 0 : (i - 261) / 4;
      literal[i] = with_extra(base, extra);
      base += 1u << extra;
    }
    literal[285] = with_extra(258, 0);
    literal[286] = literal[287] = kSpecial;
    base = 1;
    for (std::uint32_t i = 0; i < 30; ++i) {
      const std::uint32_t extra = i < 4 ? 0 : (i - 2) / 2;
      distance[i] = with_extra(base, extra);
      base += 1u << extra;
    }
    distance[30] = distance[31] = kSpecial;
    for (std::uint32_t i = 0; i < 19; ++i) plain[i] = i << 16;
  }
};
constexpr Meanings kMeanings;

inline std::uint64_t load64(const std::uint8_t* p) {
  std::uint64_t v;
  std::memcpy(&v, p, 8);  // little endian, checked in the build file
  return v;
}

inline void copy16(std::uint8_t* to, const std::uint8_t* from) {
  std::uint64_t a[2];
  std::memcpy(a, from, 16);
  std::memcpy(to, a, 16);
}

inline std::uint64_t low_bits(std::uint64_t v, unsigned n) { return v & ((std::uint64_t{1} << n) - 1); }

unsigned reversed(unsigned code, unsigned n) {
  unsigned r = 0;
  for (unsigned i = 0; i < n; ++i) r |= (code >> i & 1) << (n - 1 - i);
  return r;
}

}  // namespace

struct WholeInflate::Stream {
  const std::uint8_t* in;
  const std::uint8_t* in_end;
  std::uint8_t* out_begin;
  std::uint8_t* out;
  std::uint8_t* out_end;
  std::uint64_t bits = 0;
  unsigned count = 0;

  // Up to 56 bits and more; those past the end of the input are not counted.
  void fill() {
    while (count <= 56 && in < in_end) {
      bits |= std::uint64_t{*in++} << count;
      count += 8;
    }
  }
  bool take(unsigned n, unsigned& v) {
    fill();
    if (count < n) return false;
    v = static_cast<unsigned>(low_bits(bits, n));
    drop(n);
    return true;
  }
  void drop(unsigned n) {
    bits >>= n;
    count -= n;
  }
};

bool WholeInflate::build(const std::uint8_t* lengths, std::size_t n, const std::uint32_t* meaning, std::uint32_t* table,
                         std::size_t room, unsigned first_bits, bool may_be_sparse) {
  unsigned of_length[kLongest + 1] = {};
  for (std::size_t i = 0; i < n; ++i) ++of_length[lengths[i]];
  const std::size_t used = n - of_length[0];
  of_length[0] = 0;
  unsigned next[kLongest + 2];
  unsigned code = 0, longest = 0;
  std::uint32_t left = 1;
  for (unsigned len = 1; len <= kLongest; ++len) {
    next[len] = code;
    code = (code + of_length[len]) << 1;
    left <<= 1;
    if (of_length[len] > left) return false;  // more codes than there is room for
    left -= of_length[len];
    if (of_length[len] != 0) longest = len;
  }
  const std::size_t first_size = std::size_t{1} << first_bits;
  if (left != 0) {
    // The one exception to codes that use every bit pattern: a single distance, or none.
    if (!may_be_sparse || used > 1 || longest > 1) return false;
    for (std::size_t i = 0; i < first_size; ++i) table[i] = kSpecial;
  }
  // Symbols of one length in order, shortest first.
  std::uint16_t sorted[kLiteralCodes], at[kLongest + 2];
  at[1] = 0;
  for (unsigned len = 1; len <= kLongest; ++len) at[len + 1] = static_cast<std::uint16_t>(at[len] + of_length[len]);
  for (std::size_t i = 0; i < n; ++i)
    if (lengths[i] != 0) sorted[at[lengths[i]]++] = static_cast<std::uint16_t>(i);

  const unsigned second_bits = longest > first_bits ? longest - first_bits : 0;
  std::size_t free = first_size, second = 0,
              shared = first_size;  // `shared`: the first bits of the second table's codes
  for (std::size_t k = 0; k < used; ++k) {
    const std::size_t symbol = sorted[k];
    const unsigned len = lengths[symbol];
    std::size_t bits = reversed(next[len]++, len), size = first_size;
    unsigned own = len;
    std::uint32_t* to = table;
    if (len > first_bits) {
      const std::size_t key = bits & (first_size - 1);
      if (key != shared) {  // codes with the same first bits follow each other
        shared = key;
        second = free;
        free += std::size_t{1} << second_bits;
        if (free > room) return false;
        table[key] = kSpecial | kSecond | static_cast<std::uint32_t>(second) << 16 | second_bits << 8 | first_bits;
      }
      to = table + second;
      size = std::size_t{1} << second_bits;
      bits >>= first_bits;
      own = len - first_bits;
    }
    const std::uint32_t m = meaning[symbol];
    const std::uint32_t entry = ((m & (kLiteral | kSpecial)) != 0 ? m : m | own << 8) + own;
    for (std::size_t i = bits; i < size; i += std::size_t{1} << own) to[i] = entry;
  }
  return true;
}

// Two literals at once where both codes fit into the first table's index.
void WholeInflate::pair_literals() {
  // From the top down: what follows a code is looked up at a smaller index, which is still unpaired.
  for (std::size_t i = std::size_t{1} << kLiteralBits; i-- > 0;) {
    const std::uint32_t one = literals_[i];
    if ((one & kLiteral) == 0) continue;
    const unsigned used = one & 0xff;
    const std::uint32_t two = literals_[i >> used];
    if ((two & kLiteral) == 0 || used + (two & 0xff) > kLiteralBits) continue;
    literals_[i] = (one + (two & 0xff)) | kTwo | (two & 0xff00) << 8;
  }
}

bool WholeInflate::fixed_codes() {
  if (fixed_ready_) return true;
  std::uint8_t lengths[kLiteralCodes + kDistanceCodes];
  for (std::size_t i = 0; i < kLiteralCodes; ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  for (std::size_t i = 0; i < kDistanceCodes; ++i) lengths[kLiteralCodes + i] = 5;
  fixed_ready_ = build(lengths, kLiteralCodes, kMeanings.literal, literals_, kLiteralTable, kLiteralBits, false) &&
                 build(lengths + kLiteralCodes, kDistanceCodes, kMeanings.distance, distances_, kDistanceTable,
                       kDistanceBits, true);
  pair_literals();
  return fixed_ready_;
}

bool WholeInflate::read_codes(Stream& s) {
  unsigned literals, distances, n;
  if (!s.take(5, literals) || !s.take(5, distances) || !s.take(4, n)) return false;
  literals += 257;
  distances += 1;
  n += 4;
  if (literals > 286) return false;
  static constexpr std::uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  std::uint8_t lengths[kLiteralCodes + kDistanceCodes] = {};
  for (unsigned i = 0; i < n; ++i) {
    unsigned v;
    if (!s.take(3, v)) return false;
    lengths[order[i]] = static_cast<std::uint8_t>(v);
  }
  fixed_ready_ = false;
  constexpr unsigned kPlainBits = 7;
  std::uint32_t plain[1 << kPlainBits];
  if (!build(lengths, 19, kMeanings.plain, plain, std::size_t{1} << kPlainBits, kPlainBits, false)) return false;
  const unsigned all = literals + distances;
  std::memset(lengths, 0, sizeof lengths);
  for (unsigned i = 0; i < all;) {
    s.fill();
    const std::uint32_t e = plain[low_bits(s.bits, kPlainBits)];
    if ((e & 0xff) > s.count) return false;
    s.drop(e & 0xff);
    const unsigned symbol = e >> 16;
    if (symbol < 16) {
      lengths[i++] = static_cast<std::uint8_t>(symbol);
      continue;
    }
    static constexpr std::uint8_t extra[3] = {2, 3, 7}, least[3] = {3, 3, 11};
    if (symbol == 16 && i == 0) return false;
    const std::uint8_t value = symbol == 16 ? lengths[i - 1] : std::uint8_t{0};
    unsigned times;
    if (!s.take(extra[symbol - 16], times)) return false;
    times += least[symbol - 16];
    if (i + times > all) return false;
    std::memset(lengths + i, value, times);
    i += times;
  }
  if (!build(lengths, literals, kMeanings.literal, literals_, kLiteralTable, kLiteralBits, false) ||
      !build(lengths + literals, distances, kMeanings.distance, distances_, kDistanceTable, kDistanceBits, true))
    return false;
  pair_literals();
  return true;
}

// The symbols of one block, up to and with its end.
bool WholeInflate::block(Stream& s) {
  const auto length_of = [](std::uint32_t e, std::uint64_t bits) {
    return static_cast<std::size_t>((e >> 16) + (low_bits(bits, e & 0xff) >> (e >> 8 & 15)));
  };
  // Far from both ends nothing needs to be checked but distances.
  constexpr std::ptrdiff_t kInputMargin = 32, kOutputMargin = 258 + 8;
  if (s.in_end - s.in > kInputMargin && s.out_end - s.out > kOutputMargin) {
    const std::uint8_t* in = s.in;
    const std::uint8_t* const in_safe = s.in_end - kInputMargin;
    std::uint8_t* out = s.out;
    std::uint8_t* const out_safe = s.out_end - kOutputMargin;
    std::uint64_t bits = s.bits;
    unsigned count = s.count;
    const auto fill = [&] {  // to at least 56 bits; those above `count` are right already and come again
      bits |= load64(in) << count;
      in += (63 - count) >> 3;
      count |= 56;
    };
    const auto drop = [&](unsigned n) {
      bits >>= n & 63;
      count -= n;
    };
    const auto put = [&](std::uint32_t e) {
      drop(e & 0xff);
      const auto two = static_cast<std::uint16_t>(e >> 8);
      std::memcpy(out, &two, 2);
      out += 1 + (e >> 30 & 1);
    };
    bool ended = false, bad = false;
    fill();
    std::uint32_t e = literals_[low_bits(bits, kLiteralBits)];
    do {
      // Three times 11 bits of literals and 20 of a length are there without filling up.
      if ((e & kLiteral) != 0) {
        put(e);
        e = literals_[low_bits(bits, kLiteralBits)];
        if ((e & kLiteral) != 0) {
          put(e);
          e = literals_[low_bits(bits, kLiteralBits)];
          if ((e & kLiteral) != 0) {
            put(e);
            fill();
            e = literals_[low_bits(bits, kLiteralBits)];
            continue;
          }
        }
      }
      if ((e & kSpecial) != 0) {
        if ((e & kSecond) != 0) {
          drop(kLiteralBits);
          e = literals_[(e >> 16) + low_bits(bits, e >> 8 & 15)];
        }
        if ((e & kLiteral) != 0) {
          put(e);
          fill();
          e = literals_[low_bits(bits, kLiteralBits)];
          continue;
        }
        if ((e & kSpecial) != 0) {
          ended = (e & kEnd) != 0;
          bad = !ended;
          drop(e & 0xff);
          break;
        }
      }
      const std::size_t length = length_of(e, bits);
      drop(e & 0xff);
      fill();
      std::uint32_t d = distances_[low_bits(bits, kDistanceBits)];
      if ((d & kSpecial) != 0) {
        if ((d & kSecond) == 0) {
          bad = true;
          break;
        }
        drop(kDistanceBits);
        d = distances_[(d >> 16) + low_bits(bits, d >> 8 & 15)];
        if ((d & kSpecial) != 0) {
          bad = true;
          break;
        }
      }
      const std::size_t distance = length_of(d, bits);
      drop(d & 0xff);
      if (distance > static_cast<std::size_t>(out - s.out_begin)) {
        bad = true;
        break;
      }
      fill();
      e = literals_[low_bits(bits, kLiteralBits)];  // on its way while the match is copied
      const std::uint8_t* from = out - distance;
      std::uint8_t* const end = out + length;
      if (distance >= 16) {
        copy16(out, from);
        copy16(out + 16, from + 16);
        for (out += 32, from += 32; out < end; out += 16, from += 16) copy16(out, from);
      } else {
        while (out < end) *out++ = *from++;
      }
      out = end;
    } while (in < in_safe && out < out_safe);
    s.in = in;
    s.out = out;
    s.bits = low_bits(bits, count);
    s.count = count;
    if (bad) return false;
    if (ended) return true;
  }
  for (;;) {
    s.fill();
    std::uint32_t e = literals_[low_bits(s.bits, kLiteralBits)];
    if ((e & (kLiteral | kSpecial)) == kSpecial && (e & kSecond) != 0) {
      if (s.count < kLiteralBits) return false;
      s.drop(kLiteralBits);
      e = literals_[(e >> 16) + low_bits(s.bits, e >> 8 & 15)];
    }
    if ((e & 0xff) > s.count) return false;
    if ((e & kLiteral) != 0) {
      if (s.out_end - s.out < ((e & kTwo) != 0 ? 2 : 1)) return false;
      s.drop(e & 0xff);
      *s.out++ = static_cast<std::uint8_t>(e >> 8);
      if ((e & kTwo) != 0) *s.out++ = static_cast<std::uint8_t>(e >> 16);
      continue;
    }
    if ((e & kSpecial) != 0) {
      s.drop(e & 0xff);
      return (e & kEnd) != 0;
    }
    const std::size_t length = length_of(e, s.bits);
    s.drop(e & 0xff);
    s.fill();
    std::uint32_t d = distances_[low_bits(s.bits, kDistanceBits)];
    if ((d & kSpecial) != 0) {
      if ((d & kSecond) == 0 || s.count < kDistanceBits) return false;
      s.drop(kDistanceBits);
      d = distances_[(d >> 16) + low_bits(s.bits, d >> 8 & 15)];
      if ((d & kSpecial) != 0) return false;
    }
    if ((d & 0xff) > s.count) return false;
    const std::size_t distance = length_of(d, s.bits);
    s.drop(d & 0xff);
    if (distance > static_cast<std::size_t>(s.out - s.out_begin) ||
        length > static_cast<std::size_t>(s.out_end - s.out))
      return false;
    for (std::size_t i = 0; i < length; ++i, ++s.out) *s.out = *(s.out - distance);
  }
}

std::size_t WholeInflate::decode(const std::uint8_t* in, std::size_t n, std::uint8_t* out, std::size_t size) {
  Stream s{in, in + n, out, out, out + size};
  for (;;) {
    unsigned last, kind;
    if (!s.take(1, last) || !s.take(2, kind) || kind == 3) return 0;
    if (kind == 0) {
      s.drop(s.count & 7);
      unsigned length, check;
      if (!s.take(16, length) || !s.take(16, check) || (length ^ check) != 0xffff) return 0;
      s.in -= s.count / 8;
      s.bits = s.count = 0;
      if (length > static_cast<std::size_t>(s.in_end - s.in) || length > static_cast<std::size_t>(s.out_end - s.out))
        return 0;
      std::memcpy(s.out, s.in, length);
      s.in += length;
      s.out += length;
    } else if (!(kind == 1 ? fixed_codes() : read_codes(s)) || !block(s)) {
      return 0;
    }
    if (last != 0) return s.out == s.out_end ? static_cast<std::size_t>(s.in - in) - s.count / 8 : 0;
  }
}

}  // namespace dft::load
