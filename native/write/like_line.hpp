// How lines differ from earlier ones of the same text, told by whoever wrote them to whoever compresses them: neither
// has to compare them again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

namespace dft {

// Literals as LineDeflate counts them: a byte, or two digits at once; 0 is none.
inline constexpr uint32_t kByteLiteral = 1, kPairLiteral = kByteLiteral + 256, kLiteralTokens = kPairLiteral + 100;

// What differs, at one place. All that lies between it and the run before is also found `back` bytes earlier.
struct LikeRun {
  uint32_t from;         // in the text
  uint16_t back;         //
  uint16_t first, last;  // its literals, if it is up to four digits; otherwise there is no last one
  uint8_t size;          // 0: what follows it is found elsewhere
};

// Where calls repeat, what was told of them is the best reference: then the lines of a round lie as far apart as those
// of the round before. Elsewhere, and between lines about several files, comparing finds better ones, so nothing is
// kept.
class LikeLines {
 public:
  static constexpr uint32_t kFarthest = 28 << 10;  // well inside the window of deflate, with all that may come between
  // Lines that follow each other.
  struct Piece {
    uint32_t begin, end;
    uint32_t runs;  // the number of the first one that lies behind it
    uint16_t back;  // of what lies behind its last run
  };

  void clear() {
    run_count_ = 0;
    pieces_.clear();
    end_ = 0;
  }
  std::span<const LikeRun> runs() const { return {runs_.data(), run_count_}; }
  std::span<const Piece> pieces() const { return pieces_; }

  // Where to put the runs of the line that begins there: room for kMostRuns. None without memory.
  static constexpr unsigned kMostRuns = 16;
  LikeRun* begin_line(uint32_t begin, uint32_t back) {
    if (runs_.size() < run_count_ + kMostRuns) [[unlikely]]
      if (!make_room()) return nullptr;
    LikeRun* run = &runs_[run_count_];
    if (begin == end_ && back != back_ && !pieces_.empty()) *run++ = {begin, back_, 0, 0, 0};
    return run;
  }
  // `back` and `last_back`: how far before the line the earlier one begins, and how far before its end that one ends.
  void end_line(uint32_t begin, uint32_t end, uint32_t back, uint32_t last_back, bool other_file, const LikeRun* run) {
    constexpr uint32_t kSettled = 16, kMost = 64, kSetback = 8, kNearly = 16;
    bool repeats = back + kNearly - last_line_back_ < 2 * kNearly;
    last_line_back_ = back;
    settled_ = repeats ? std::min(settled_ + 1, kMost) : settled_ - std::min(settled_, kSetback);
    if (other_file) settled_ = 0;
    if (settled_ <= kSettled) return;
    if ((begin != end_ || pieces_.empty()) && !begin_piece(begin)) return;
    run_count_ = size_t(run - runs_.data());
    Piece& piece = pieces_.back();
    end_ = piece.end = end;
    piece.runs = uint32_t(run_count_);
    back_ = piece.back = uint16_t(last_back);
  }

 private:
  bool make_room() try {
    constexpr size_t kFirst = 4096;
    runs_.resize(std::max(kFirst, 2 * runs_.size()));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  bool begin_piece(uint32_t begin) try {
    pieces_.push_back({begin, begin, 0, 0});
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  std::vector<LikeRun> runs_;  // room for more than there are
  size_t run_count_ = 0;
  std::vector<Piece> pieces_;
  uint32_t end_ = 0;  // of the last piece
  uint16_t back_ = 0;
  uint32_t settled_ = 0, last_line_back_ = 0;
};

}  // namespace dft
