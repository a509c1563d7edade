// Deflate for text whose lines resemble each other: every line is matched field by field against the last line of the
// same name and the last one with the same key, so nothing is searched for; of a line that was made from an earlier one
// it is known where the two differ. Output is ordinary deflate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "write/like_line.hpp"

namespace dft {

class LineDeflate {
 public:
  // Raw deflate of `text`, appended to `out`. Any bytes are fine; lines of JSON are small.
  // `likes`: what is known of some of its lines, in order; their places count from `base` before the text.
  void compress(std::string_view text, std::vector<uint8_t>& out, std::span<const LikeLine> likes = {},
                uint64_t base = 0);

 private:
  struct Line {
    uint32_t begin, end;
    uint64_t key;
  };
  void tokenize(std::string_view text, std::vector<uint8_t>& out, std::span<const LikeLine> likes, uint64_t base);
  void put_like(const uint8_t* text, uint32_t begin, const LikeLine& like);
  void make_room(size_t tokens);
  void diff(const uint8_t* text, const Line& line, const Line& reference);
  uint32_t match_string(const uint8_t* text, const uint8_t* a, const uint8_t* a_end);
  void literals(const uint8_t* from, const uint8_t* to);
  void match(uint32_t length, uint32_t distance);
  void flush_match();
  void flush_long_match();
  void put_match(uint32_t length, uint32_t distance);
  void begin_block();
  uint64_t token_bits(const uint8_t* literal_lengths, const uint8_t* distance_lengths) const;
  void write_block(std::vector<uint8_t>& out, bool last);

  std::vector<uint32_t> tokens_;  // literal, or kMatch | length << 16 | distance - 1; room for more than there are
  size_t token_count_ = 0;
  uint32_t pending_length_ = 0, pending_distance_ = 0;
  uint32_t literal_count_[288], distance_count_[32];
  uint64_t bits_ = 0;  // of the last byte, which the next block continues
  unsigned bits_used_ = 0;
  static constexpr size_t kRecent = 256;
  Line recent_[kRecent];
  static constexpr unsigned kSeenBits = 10;
  // Where a key was last where a match had to begin, where with the same first bytes of its value, and where a string
  // was that differed from the reference's.
  uint32_t keys_[1 << kSeenBits], keys_and_values_[1 << kSeenBits], strings_[1 << kSeenBits];
};

}  // namespace dft
