// Deflate decoding for a whole stream of known size: all input is there, all room for the output is there, so
// nothing is ever suspended. Faster than a general decoder, and smaller.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dft::load {

class WholeInflate {
 public:
  // How far past the `size` bytes of output may be written.
  static constexpr std::size_t kSlack = 64;

  // Decodes the raw deflate stream in [in, in+n) to exactly `size` bytes at `out`. Returns the bytes of input used,
  // 0 when the stream is damaged or does not give exactly `size` bytes; `out` then holds nothing of use.
  std::size_t decode(const std::uint8_t* in, std::size_t n, std::uint8_t* out, std::size_t size);

 private:
  static constexpr unsigned kLiteralBits = 11, kDistanceBits = 8, kLongest = 15;
  static constexpr std::size_t kLiteralCodes = 288, kDistanceCodes = 32;
  // Codes too long for the first table lie in second ones, of which each holds at least two codes.
  static constexpr std::size_t kLiteralTable =
      (1u << kLiteralBits) + kLiteralCodes / 2 * (1u << (kLongest - kLiteralBits));
  static constexpr std::size_t kDistanceTable =
      (1u << kDistanceBits) + kDistanceCodes / 2 * (1u << (kLongest - kDistanceBits));

  struct Stream;
  bool read_codes(Stream& s);
  bool fixed_codes();
  bool build(const std::uint8_t* lengths, std::size_t n, const std::uint32_t* meaning, std::uint32_t* table,
             std::size_t room, unsigned first_bits, bool may_be_sparse);
  void pair_literals();
  bool block(Stream& s);

  std::uint32_t literals_[kLiteralTable];
  std::uint32_t distances_[kDistanceTable];
  bool fixed_ready_ = false;  // the tables hold the fixed codes
};

}  // namespace dft::load
