// How lines differ from earlier ones of the same text: the code that writes them leaves these hints for the code that
// compresses them, which then need not compare them again.
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

// What differs, at one position. All text between it and the run before is also found `back` bytes earlier.
struct LikeRun {
  uint32_t from;         // in the text
  uint16_t back;         //
  uint16_t first, last;  // its literals, if it is up to four digits; otherwise there is no last one
  uint8_t size;          // 0: what follows it is found elsewhere
};

// Where calls repeat, the previous line of the same call is the best reference: the lines of a round are as far apart
// as those of the round before. Elsewhere, and between lines about several files, comparing finds better ones, so no
// hints are kept.
class LikeLines {
 public:
  LikeLines() = default;
  LikeLines(const LikeLines&) = delete;  // the cursor points into `runs_`
  LikeLines& operator=(const LikeLines&) = delete;

  static constexpr uint32_t kFarthest = 28 << 10;  // well inside the window of deflate, with all that may come between
  // Lines that follow each other.
  struct Piece {
    uint32_t begin, end;
    uint32_t runs;  // the number of the first one after it
    uint16_t back;  // of the text after its last run
  };

  void clear() {
    cursor_.run = runs_.data();
    cursor_.end = kNone;
    pieces_.clear();
  }
  std::span<const LikeRun> runs() const { return {runs_.data(), size_t(cursor_.run - runs_.data())}; }
  std::span<const Piece> pieces() const { return pieces_; }

  // Where the next hint goes. Code that writes many lines keeps a copy and sets it back at the end: to the compiler,
  // that copy is not in memory that the lines might be written to.
  struct Cursor {
    LikeRun* run = nullptr;   // where those of the next line go
    LikeRun* last = nullptr;  // there is room for those of a line before it
    uint32_t end = kNone;     // of the last piece
    uint32_t back = 0;        // of the text after its last run
    uint32_t settled = 0, last_line_back = 0;
  };
  Cursor cursor() const { return cursor_; }
  void set_cursor(const Cursor& cursor) {
    cursor_ = cursor;
    end_piece(cursor);
  }

  // Where to put the runs of the line that begins there: room for kMaxRuns. None without memory.
  static constexpr unsigned kMaxRuns = 16;
  LikeRun* begin_line(Cursor& cursor, uint32_t begin, uint32_t back) {
    if (cursor.run >= cursor.last) [[unlikely]]
      if (!make_room(cursor)) return nullptr;
    LikeRun* run = cursor.run;
    if (back != cursor.back && begin == cursor.end) *run++ = {begin, uint16_t(cursor.back), 0, 0, 0};
    return run;
  }
  // `back` and `last_back`: how far before the line the earlier one begins, and how far before its end that one ends.
  void end_line(Cursor& cursor, uint32_t begin, uint32_t end, uint32_t back, uint32_t last_back, bool other_file,
                LikeRun* run) {
    constexpr uint32_t kSettled = 16, kMax = 64, kSetback = 8, kNearly = 16;
    bool repeats = back + kNearly - cursor.last_line_back < 2 * kNearly;
    cursor.last_line_back = back;
    if (repeats && !other_file) [[likely]]
      cursor.settled += cursor.settled < kMax;
    else
      cursor.settled = other_file ? 0 : cursor.settled - std::min(cursor.settled, kSetback);
    if (cursor.settled <= kSettled) return;
    if (begin != cursor.end && !begin_piece(cursor, begin)) [[unlikely]]
      return;
    cursor.run = run;
    cursor.end = end;
    cursor.back = last_back;
  }

 private:
  static constexpr uint32_t kNone = ~0u;
  bool make_room(Cursor& cursor) try {
    constexpr size_t kFirst = 4096;
    size_t used = size_t(cursor.run - runs_.data());
    runs_.resize(std::max(kFirst, 2 * runs_.size()));
    cursor.run = runs_.data() + used;
    cursor.last = runs_.data() + runs_.size() - kMaxRuns;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  bool begin_piece(const Cursor& cursor, uint32_t begin) try {
    end_piece(cursor);
    pieces_.push_back({begin, begin, 0, 0});
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  void end_piece(const Cursor& cursor) {
    if (pieces_.empty()) return;
    pieces_.back().end = cursor.end;
    pieces_.back().runs = uint32_t(cursor.run - runs_.data());
    pieces_.back().back = uint16_t(cursor.back);
  }

  std::vector<LikeRun> runs_;  // room for more than there are
  std::vector<Piece> pieces_;
  Cursor cursor_;
};

}  // namespace dft
