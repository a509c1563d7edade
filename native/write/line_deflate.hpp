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
  // `hints`: what is known about some of its lines; their positions count from `base` before the text.
  void compress(std::string_view text, std::vector<uint8_t>& out, const LikeLines* hints = nullptr, uint64_t base = 0);

 private:
  struct Line {
    uint32_t begin, end;
    uint64_t key;
  };
  void tokenize(std::string_view text, std::vector<uint8_t>& out, const LikeLines& hints, uint64_t base);
  void compare(const uint8_t* text, uint32_t begin, uint32_t end, std::vector<uint8_t>& out);
  void put_hinted(const uint8_t* text, uint32_t begin, std::span<const LikeRun> runs);
  void write_full_block(std::vector<uint8_t>& out);
  void make_room(size_t tokens);
  void diff(const uint8_t* text, const Line& line, const Line& reference);
  uint32_t match_string(const uint8_t* text, const uint8_t* a, const uint8_t* a_end);
  // What the next token will be, once something comes that does not belong to it.
  struct Pending {
    uint32_t literal = 0, length = 0, distance = 0;
  };
  void literals(Pending& pending, const uint8_t* from, const uint8_t* to);
  void match(Pending& pending, uint32_t length, uint32_t distance);
  void put(const Pending& pending);
  void put_long_match(const Pending& pending);
  void put_token(uint32_t literal, uint32_t match);
  uint32_t known_match(uint32_t length, uint32_t distance);
  static uint32_t slot_of_match(uint32_t key);
  uint32_t new_match(uint32_t key);
  void begin_block();
  void count_symbols();
  uint64_t token_bits(const uint8_t* literal_lengths, const uint8_t* distance_lengths) const;
  void write_block(std::vector<uint8_t>& out, bool last);

  // A token is a byte, or two digits at once, and the match that follows: the number of the match << 16 | of the
  // literal. Either may be 0, for none. Room for more of them than there are.
  std::vector<uint32_t> tokens_;
  size_t token_count_ = 0;
  Pending pending_;
  uint32_t literal_tokens_[kLiteralTokens];  // how many of each
  // Lines that are alike have the same few matches: each is counted here, and its code put together once for a block.
  struct Match {
    uint32_t key;  // length << 16 | distance - 1
    uint32_t count;
  };
  std::vector<Match> matches_;
  std::vector<uint64_t> match_codes_;
  static constexpr unsigned kMatchBits = 10;
  uint16_t match_slots_[1 << kMatchBits];  // the number of the last match of a hash
  uint32_t literal_count_[288], distance_count_[32];
  uint64_t bits_ = 0;  // of the last byte, which the next block continues
  unsigned bits_used_ = 0;
  const LikeLines nothing_;
  static constexpr size_t kRecent = 256;
  Line recent_[kRecent], last_;
  static constexpr unsigned kSeenBits = 10;
  // Where a key was last where a match had to begin, where with the same first bytes of its value, and where a string
  // was that differed from the reference's.
  uint32_t keys_[1 << kSeenBits], keys_and_values_[1 << kSeenBits], strings_[1 << kSeenBits];
};

}  // namespace dft
