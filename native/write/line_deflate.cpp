#include "write/line_deflate.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dft {
namespace {

constexpr uint32_t kWindow = 32768;
constexpr uint32_t kMaxLength = 258;
// A block is written when it has this many tokens: a long string must not take many times its size.
constexpr size_t kBlockTokens = 1 << 17;
// Their numbers have 16 bits; a line adds fewer than kMaxLine.
constexpr size_t kBlockMatches = 60000;
constexpr uint32_t kPiece = 1 << 15;
constexpr uint32_t kMaxLine = 4096;  // a longer one is not compared with others
// A shorter match costs more bits than its literals.
constexpr uint32_t kMinWorthwhile = 5;

struct LengthCode {
  uint16_t symbol;
  uint8_t extra_bits;
  uint8_t extra;
};
struct Tables {
  LengthCode length[259];
  uint8_t near_distance[257];  // symbol of distances 1..256
  uint8_t far_distance[256];   // symbol of (distance - 1) >> 7
  uint16_t distance_base[30];
  uint8_t distance_extra[30];

  constexpr Tables() : length{}, near_distance{}, far_distance{}, distance_base{}, distance_extra{} {
    unsigned base = 3;
    for (unsigned symbol = 257; symbol < 285; ++symbol) {
      unsigned extra = symbol < 265 ? 0 : (symbol - 261) / 4;
      for (unsigned i = 0; i < (1u << extra); ++i)
        if (base + i <= 258) length[base + i] = {uint16_t(symbol), uint8_t(extra), uint8_t(i)};
      base += 1u << extra;
    }
    length[258] = {285, 0, 0};
    unsigned distance = 1;
    for (unsigned symbol = 0; symbol < 30; ++symbol) {
      unsigned extra = symbol < 4 ? 0 : symbol / 2 - 1;
      distance_base[symbol] = uint16_t(distance);
      distance_extra[symbol] = uint8_t(extra);
      for (unsigned i = 0; i < (1u << extra); ++i, ++distance) {
        if (distance <= 256)
          near_distance[distance] = uint8_t(symbol);
        else
          far_distance[(distance - 1) >> 7] = uint8_t(symbol);
      }
    }
  }
  unsigned distance_symbol(uint32_t d) const { return d <= 256 ? near_distance[d] : far_distance[(d - 1) >> 7]; }
};
constexpr Tables kTables;

inline uint64_t load8(const uint8_t* p) {
  uint64_t v;
  memcpy(&v, p, 8);
  return v;
}

// The number of equal bytes from both positions, at most `limit`.
inline uint32_t agreement(const uint8_t* a, const uint8_t* b, uint32_t limit) {
  uint32_t n = 0;
  if constexpr (std::endian::native == std::endian::little) {
    while (n + 8 <= limit) {
      uint64_t difference = load8(a + n) ^ load8(b + n);
      if (difference) return n + uint32_t(std::countr_zero(difference)) / 8;
      n += 8;
    }
  }
  while (n < limit && a[n] == b[n]) ++n;
  return n;
}

inline bool is_digit(uint8_t c) { return uint8_t(c - '0') < 10; }
inline bool ends_value(uint8_t c) { return c == ',' || c == '"' || c == '}'; }

class Bits {
 public:
  Bits(uint8_t* p, uint64_t buffer, unsigned used) : p_(p), buffer_(buffer), used_(used) {}
  void put(uint64_t value, unsigned count) {
    buffer_ |= value << used_;
    used_ += count;
  }
  // At most 56 bits may be put after a flush before the next one.
  void flush() {
    memcpy(p_, &buffer_, 8);
    p_ += used_ >> 3;
    buffer_ >>= used_ & ~7u;
    used_ &= 7;
  }
  uint8_t* position() const { return p_; }
  uint64_t buffer() const { return buffer_; }
  unsigned used() const { return used_; }

 private:
  uint8_t* p_;
  uint64_t buffer_;
  unsigned used_;
};

uint32_t reversed(uint32_t code, unsigned bits) {
  uint32_t r = 0;
  for (unsigned i = 0; i < bits; ++i) r |= ((code >> i) & 1) << (bits - 1 - i);
  return r;
}

// Huffman code lengths of at most `limit` bits; unused symbols get 0.
void code_lengths(const uint32_t* counts, unsigned n, unsigned limit, uint8_t* lengths) {
  struct Leaf {
    uint32_t count;
    uint16_t symbol;
  };
  Leaf leaves[288];
  unsigned used = 0;
  memset(lengths, 0, n);
  for (unsigned s = 0; s < n; ++s)
    if (counts[s]) leaves[used++] = {counts[s], uint16_t(s)};
  if (used == 0) return;
  if (used == 1) {
    lengths[leaves[0].symbol] = 1;
    return;
  }
  std::sort(leaves, leaves + used,
            [](const Leaf& a, const Leaf& b) { return a.count != b.count ? a.count < b.count : a.symbol < b.symbol; });
  // Two queues: the sorted leaves and the inner nodes, which come out sorted by themselves.
  uint64_t weight[288];
  uint16_t parent_of_leaf[288], parent_of_node[288];
  unsigned leaf = 0, node = 0, made = 0;
  while (made + 1 < used) {
    uint64_t sum = 0;
    for (int k = 0; k < 2; ++k) {
      if (leaf < used && (node >= made || leaves[leaf].count <= weight[node])) {
        sum += leaves[leaf].count;
        parent_of_leaf[leaf++] = uint16_t(made);
      } else {
        sum += weight[node];
        parent_of_node[node++] = uint16_t(made);
      }
    }
    weight[made++] = sum;
  }
  uint8_t depth[288];
  depth[made - 1] = 0;
  for (unsigned i = made - 1; i-- > 0;) depth[i] = uint8_t(depth[parent_of_node[i]] + 1);
  unsigned per_length[64] = {};
  for (unsigned i = 0; i < used; ++i) per_length[std::min<unsigned>(depth[parent_of_leaf[i]] + 1u, limit)]++;
  // Cutting at the limit made the code too full: lengthen the deepest short codes until it fits again.
  uint64_t fill = 0;
  for (unsigned l = 1; l <= limit; ++l) fill += uint64_t(per_length[l]) << (limit - l);
  while (fill > (uint64_t(1) << limit)) {
    unsigned l = limit - 1;
    while (!per_length[l]) --l;
    --per_length[l];
    ++per_length[l + 1];
    fill -= uint64_t(1) << (limit - l - 1);
  }
  // Readers also reject a code with gaps: give back what was taken too much.
  for (uint64_t gap = (uint64_t(1) << limit) - fill; gap;) {
    unsigned l = 2;
    while (!per_length[l] || uint64_t(1) << (limit - l) > gap) ++l;
    --per_length[l];
    ++per_length[l - 1];
    gap -= uint64_t(1) << (limit - l);
  }
  unsigned i = 0;
  for (unsigned l = limit; l >= 1; --l)
    for (unsigned k = per_length[l]; k; --k) lengths[leaves[i++].symbol] = uint8_t(l);
}

struct Code {
  uint32_t bits;
  uint8_t length;
};

void assign_codes(const uint8_t* lengths, unsigned n, Code* codes) {
  unsigned per_length[16] = {};
  for (unsigned s = 0; s < n; ++s) per_length[lengths[s]]++;
  per_length[0] = 0;
  uint32_t next[16] = {}, code = 0;
  for (unsigned l = 1; l < 16; ++l) next[l] = code = (code + per_length[l - 1]) << 1;
  for (unsigned s = 0; s < n; ++s) codes[s] = {lengths[s] ? reversed(next[lengths[s]]++, lengths[s]) : 0, lengths[s]};
}

}  // namespace

// Before the tokens of a line or of a piece: the rest goes without a look at the room.
inline void LineDeflate::make_room(size_t tokens) {
  if (tokens_.size() < token_count_ + tokens) [[unlikely]]
    tokens_.resize(std::max(2 * tokens_.size(), token_count_ + tokens));
}

inline void LineDeflate::put_token(uint32_t literal, uint32_t match) {
  tokens_[token_count_++] = match << 16 | literal;
  ++literal_tokens_[literal];
}

inline uint32_t LineDeflate::slot_of_match(uint32_t key) { return (key * 0x9e3779b1u) >> (32 - kMatchBits); }

__attribute__((noinline)) uint32_t LineDeflate::new_match(uint32_t key) {
  auto number = uint32_t(matches_.size());
  match_slots_[slot_of_match(key)] = uint16_t(number);
  matches_.push_back({key, 1});
  return number;
}

inline uint32_t LineDeflate::known_match(uint32_t length, uint32_t distance) {
  uint32_t key = length << 16 | (distance - 1);
  uint32_t number = match_slots_[slot_of_match(key)];
  if (matches_[number].key != key) [[unlikely]]
    return new_match(key);
  ++matches_[number].count;
  return number;
}

inline void LineDeflate::put(const Pending& pending) {
  if (pending.length > kMaxLength) [[unlikely]]
    put_long_match(pending);
  else if (pending.length)
    put_token(pending.literal, known_match(pending.length, pending.distance));
  else if (pending.literal)
    put_token(pending.literal, 0);
}

void LineDeflate::put_long_match(const Pending& pending) {
  uint32_t left = pending.length, literal = pending.literal;
  make_room(left / kMaxLength + kMaxLine);
  while (left > kMaxLength) {
    // Leave a remainder that is itself a match.
    uint32_t piece = left - kMaxLength < 3 ? left - 3 : kMaxLength;
    put_token(literal, known_match(piece, pending.distance));
    literal = 0;
    left -= piece;
  }
  put_token(literal, known_match(left, pending.distance));
}

inline void LineDeflate::literals(Pending& pending, const uint8_t* from, const uint8_t* to) {
  while (from != to) {
    put(pending);
    pending.length = 0;
    uint32_t tens = uint32_t(from[0]) - '0', ones = to - from > 1 ? uint32_t(from[1]) - '0' : 10;
    bool pair = tens < 10 && ones < 10;
    pending.literal = pair ? kPairLiteral + 10 * tens + ones : kByteLiteral + *from;
    from += pair ? 2 : 1;
  }
}

inline void LineDeflate::match(Pending& pending, uint32_t length, uint32_t distance) {
  if (pending.length && pending.distance != distance) {
    put(pending);
    pending.literal = pending.length = 0;
  }
  pending.distance = distance;
  pending.length += length;
}

namespace {

size_t slot_of(uint64_t bytes, unsigned bits) { return size_t((bytes * 0x9e3779b97f4a7c15u) >> (64 - bits)); }

// What a match saves, in bits: a literal takes about four, a distance grows with its digits.
int gain_of(uint32_t length, uint32_t distance) { return 4 * int(length) - int(std::bit_width(distance)); }

// The place in a reference line that `a` has in its own line: behind the same key, or as far inside it. The end where
// the reference lacks the key.
const uint8_t* same_key(const uint8_t* line, const uint8_t* a, const uint8_t* a_end, const uint8_t* from,
                        const uint8_t* end, bool* inside_key) {
  const uint8_t* key = a - 1;
  while (key > line && !(key[0] == ',' && key[1] == '"')) --key;
  auto* quote = static_cast<const uint8_t*>(memchr(key + 2, '"', size_t(std::max<ptrdiff_t>(a_end - key - 2, 0))));
  *inside_key = false;
  if (!quote) return end;
  size_t size = size_t(quote - key);
  auto* found = static_cast<const uint8_t*>(memmem(from, size_t(end - from), key, size));
  if (!found) return end;
  *inside_key = a < quote + 2;
  return std::min(end, found + (*inside_key ? a - key : ptrdiff_t(size) + 2));
}

}  // namespace

// If the string before `a` is that of a recent line, not that of the reference: the bytes that are matched from its
// beginning on, 0 otherwise. Most lines about a file follow another about the same.
uint32_t LineDeflate::match_string(const uint8_t* text, const uint8_t* a, const uint8_t* a_end) {
  constexpr uint32_t kShortest = 3, kSearched = 16;
  if (pending_.length <= kShortest) return 0;
  const uint8_t* string = a;
  const uint8_t* lowest = a - std::min(pending_.length - kShortest, kSearched);
  while (string > lowest && !ends_value(string[-1])) --string;
  if (string - text < 8 || string[-1] != '"' || string[-2] != ':') return 0;
  uint32_t here = uint32_t(string - text), past = uint32_t(a - string);
  uint32_t& seen = strings_[slot_of(load8(string - 8), kSeenBits)];
  uint32_t back = here - seen;
  bool known = seen && back && back < kWindow;
  seen = here;
  uint32_t length = known ? agreement(string, string - back, uint32_t(a_end - string)) : 0;
  if (length < past + kMinWorthwhile) return 0;
  pending_.length -= past;
  match(pending_, length, back);
  return length - past;
}

void LineDeflate::diff(const uint8_t* text, const Line& line, const Line& reference) {
  const uint8_t* const a_begin = text + line.begin;
  const uint8_t* const b_begin = text + reference.begin;
  const uint8_t* a = a_begin;
  const uint8_t* const a_end = text + line.end;
  const uint8_t* b = b_begin;
  const uint8_t* const b_end = text + reference.end;
  auto continues = [&](uint32_t distance) { return pending_.length && pending_.distance == distance; };
  while (a < a_end) {
    uint32_t n = agreement(a, b, uint32_t(std::min(a_end - a, b_end - b)));
    uint32_t taken = n, distance = uint32_t(a - b);
    if (a_end - a >= 12) {
      // The same key in any other line, nearer or with the same value, may cost fewer bits or go on for longer.
      uint32_t here = uint32_t(a - text);
      int best = gain_of(n, distance) + (continues(distance) ? 16 : 0);
      auto consider = [&](uint32_t& seen) {
        uint32_t back = here - seen;
        if (seen && back && back < kWindow && back != distance) {
          uint32_t length = agreement(a, a - back, uint32_t(a_end - a));
          int gain = gain_of(length, back) + (continues(back) ? 16 : 0);
          if (length >= kMinWorthwhile && gain > best) best = gain, taken = length, distance = back;
        }
        seen = here;
      };
      uint64_t key = load8(a) << 8;
      consider(keys_[slot_of(key, kSeenBits)]);
      consider(keys_and_values_[slot_of(key ^ std::rotl(load8(a + 4), 29), kSeenBits)]);
    }
    if (taken >= kMinWorthwhile || (taken && continues(distance)))
      match(pending_, taken, distance);
    else
      literals(pending_, a, a + taken);
    a += taken;
    if (a == a_end) return;
    b += std::min(n, taken);
    uint32_t more = match_string(text, a, a_end);
    a += more;
    if (a == a_end) return;
    if (more || taken > n) {
      bool inside_key;
      b = same_key(a_begin, a, a_end, b - std::min<ptrdiff_t>(b - b_begin, 40), b_end, &inside_key);
      if (inside_key) continue;
    }
    // A value that differs: numbers first, then anything else, up to its end.
    const uint8_t* from = a;
    while (a < a_end && is_digit(*a)) ++a;
    while (b < b_end && is_digit(*b)) ++b;
    auto differ = [&] { return a < a_end && (b == b_end || *a != *b); };
    if (differ()) {
      while (a < a_end && !ends_value(*a)) ++a;
      while (b < b_end && !ends_value(*b)) ++b;
      if (differ()) ++a, b += b < b_end;
    }
    literals(pending_, from, a);
  }
}

// The text from `begin` up to the last of the runs, which describe all of it.
void LineDeflate::put_hinted(const uint8_t* text, uint32_t begin, std::span<const LikeRun> runs) {
  // In registers: what is written here could be anything to the compiler.
  uint32_t literal = pending_.literal, at = begin;
  uint32_t* token = tokens_.data() + token_count_;
  Match* matches = matches_.data();
  bool open_match = pending_.length;  // what the first match continues, or ends
  for (const LikeRun& run : runs) {
    uint32_t length = run.from - at;
    at = run.from + run.size;
    if (length - 3 <= kMaxLength - 3 && !open_match) [[likely]] {
      uint32_t key = length << 16 | (run.back - 1u);
      uint32_t number = match_slots_[slot_of_match(key)];
      if (matches[number].key != key) [[unlikely]] {
        number = new_match(key);
        matches = matches_.data();
      } else {
        ++matches[number].count;
      }
      *token++ = number << 16 | literal;
      ++literal_tokens_[literal];
    } else {
      if (!open_match) pending_ = {literal, 0, 0};
      open_match = false;
      token_count_ = size_t(token - tokens_.data());
      match(pending_, length, run.back);
      put(pending_);
      token = tokens_.data() + token_count_;
      matches = matches_.data();
    }
    literal = run.last;
    if (run.first) [[unlikely]] {
      *token++ = run.first;
      ++literal_tokens_[run.first];
    }
    if (!literal) [[unlikely]] {
      token_count_ = size_t(token - tokens_.data());
      pending_ = {};
      literals(pending_, text + run.from, text + at);
      literal = pending_.literal;
      token = tokens_.data() + token_count_;
    }
  }
  token_count_ = size_t(token - tokens_.data());
  pending_ = {literal, 0, 0};
}

void LineDeflate::write_full_block(std::vector<uint8_t>& out) {
  if (token_count_ < kBlockTokens && matches_.size() < kBlockMatches) [[likely]]
    return;
  put(pending_);
  pending_ = {};
  write_block(out, false);
  begin_block();
}

// The lines between two places.
void LineDeflate::compare(const uint8_t* text, uint32_t begin, uint32_t size, std::vector<uint8_t>& out) {
  while (begin < size) {
    make_room(kMaxLine);
    const void* newline = memchr(text + begin, '\n', size - begin);
    uint32_t end = newline ? uint32_t(static_cast<const uint8_t*>(newline) - text) + 1 : size;
    // The key is what follows the first number of the line: name and category.
    const uint8_t* p = text + begin;
    const uint8_t* stop = text + end;
    while (p < stop && *p != ',') ++p;
    uint64_t key = 0;
    for (int i = 0; i < 5 && p + 8 <= stop; ++i, p += 8) key = (std::rotl(key, 23) ^ load8(p)) * 0x9e3779b97f4a7c15u;
    Line line{begin, end, key};
    Line& slot = recent_[(key >> 48) % kRecent];
    const Line& reference = slot.key == key && slot.end && begin - slot.begin < kWindow - kMaxLine ? slot : last_;
    bool usable = reference.end && begin - reference.begin < kWindow - kMaxLine && end - begin < kMaxLine &&
                  reference.end - reference.begin < kMaxLine;
    if (usable) {
      diff(text, line, reference);
      write_full_block(out);
    }
    for (uint32_t at = usable ? end : begin; at < end; at += std::min(end - at, kPiece)) {
      make_room(kPiece);
      literals(pending_, text + at, text + at + std::min(end - at, kPiece));
      write_full_block(out);
    }
    last_ = slot = line;
    begin = end;
  }
}

void LineDeflate::tokenize(std::string_view view, std::vector<uint8_t>& out, const LikeLines& hints, uint64_t base) {
  // The positions in `hints` count from there.
  const uint8_t* text = reinterpret_cast<const uint8_t*>(view.data()) - base;
  auto at = uint32_t(base), end = uint32_t(base + view.size());
  // Hints about the first lines after that may refer to lines before.
  uint32_t hints_from = base ? at + LikeLines::kFarthest : 0;
  std::span<const LikeRun> all = hints.runs();
  uint32_t first = 0;
  for (const LikeLines::Piece& piece : hints.pieces()) {
    std::span<const LikeRun> runs = all.subspan(first, piece.runs - first);
    first = piece.runs;
    if (piece.end <= hints_from || piece.end > end) continue;
    uint32_t begin = piece.begin;
    if (begin < hints_from) {
      auto* newline = static_cast<const uint8_t*>(memchr(text + hints_from, '\n', piece.end - hints_from));
      begin = uint32_t(newline - text) + 1;
      if (begin >= piece.end) continue;
      auto inside = std::lower_bound(runs.begin(), runs.end(), begin,
                                     [](const LikeRun& run, uint32_t place) { return run.from < place; });
      // One without a size only says where the text before it is found.
      while (inside != runs.end() && inside->from == begin) ++inside;
      runs = runs.subspan(size_t(inside - runs.begin()));
    }
    compare(text, at, begin, out);
    at = begin;
    while (!runs.empty()) {
      constexpr size_t kAtOnce = 128, kMaxTokens = 32;  // of a run
      std::span<const LikeRun> some = runs.first(std::min(runs.size(), kAtOnce));
      runs = runs.subspan(some.size());
      make_room(kAtOnce * kMaxTokens + kMaxLine);
      put_hinted(text, at, some);
      at = some.back().from + some.back().size;
      write_full_block(out);
    }
    match(pending_, piece.end - at, piece.back);
    at = piece.end;
    auto* newline = static_cast<const uint8_t*>(memrchr(text + begin, '\n', at - begin - 1));
    last_ = {newline ? uint32_t(newline - text) + 1 : begin, at, 0};
  }
  compare(text, at, end, out);
  put(pending_);
}

void LineDeflate::begin_block() {
  token_count_ = 0;
  memset(literal_tokens_, 0, sizeof literal_tokens_);
  memset(match_slots_, 0, sizeof match_slots_);
  matches_.assign(1, {0, 0});  // the one that is none
}

void LineDeflate::count_symbols() {
  memset(literal_count_, 0, sizeof literal_count_);
  memset(distance_count_, 0, sizeof distance_count_);
  for (unsigned byte = 0; byte < 256; ++byte) literal_count_[byte] = literal_tokens_[kByteLiteral + byte];
  for (unsigned pair = 0; pair < 100; ++pair) {
    literal_count_['0' + pair / 10] += literal_tokens_[kPairLiteral + pair];
    literal_count_['0' + pair % 10] += literal_tokens_[kPairLiteral + pair];
  }
  for (size_t i = 1; i < matches_.size(); ++i) {
    literal_count_[kTables.length[matches_[i].key >> 16].symbol] += matches_[i].count;
    distance_count_[kTables.distance_symbol((matches_[i].key & 0xffff) + 1)] += matches_[i].count;
  }
  literal_count_[256] = 1;
}

namespace {

constexpr unsigned kLiterals = 286, kDistances = 30;

// The lengths of a block's codes as its head has them: run lengths, themselves Huffman coded.
class LengthRuns {
 public:
  LengthRuns(const uint8_t* lengths, unsigned total) {
    for (unsigned i = 0; i < total;) {
      unsigned n = 1;
      while (i + n < total && lengths[i + n] == lengths[i]) ++n;
      i += n;
      add_run(lengths[i - 1], n);
    }
    code_lengths(counts_, 19, 7, code_lengths_);
    assign_codes(code_lengths_, 19, codes_);
    while (order_ > 4 && !code_lengths_[kOrder[order_ - 1]]) --order_;
  }

  void write(Bits& bits, unsigned literals, unsigned distances) const {
    bits.put(literals - 257, 5);
    bits.put(distances - 1, 5);
    bits.put(order_ - 4, 4);
    bits.flush();
    for (unsigned i = 0; i < order_; ++i) {
      bits.put(code_lengths_[kOrder[i]], 3);
      bits.flush();
    }
    for (unsigned i = 0; i < count_; ++i) {
      const Run& r = runs_[i];
      bits.put(codes_[r.symbol].bits, codes_[r.symbol].length);
      if (r.symbol >= 16) bits.put(r.extra, r.symbol == 16 ? 2 : r.symbol == 17 ? 3 : 7);
      bits.flush();
    }
  }

 private:
  struct Run {
    uint8_t symbol, extra;
  };
  static constexpr uint8_t kOrder[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};

  void add(uint8_t symbol, unsigned extra) {
    runs_[count_++] = {symbol, uint8_t(extra)};
    ++counts_[symbol];
  }
  void add_run(uint8_t value, unsigned n) {
    if (value == 0) {
      for (; n >= 11; n -= std::min(n, 138u)) add(18, std::min(n, 138u) - 11);
      if (n >= 3) add(17, n - 3), n = 0;
    } else {
      add(value, 0);
      --n;
      while (n >= 3) {
        unsigned piece = std::min(n, 6u);
        add(16, piece - 3);
        n -= piece;
      }
    }
    for (; n; --n) add(value, 0);
  }

  Run runs_[320];
  unsigned count_ = 0;
  uint32_t counts_[19] = {};
  uint8_t code_lengths_[19];
  Code codes_[19];
  unsigned order_ = 19;
};

unsigned used(const uint8_t* lengths, unsigned n, unsigned least) {
  while (n > least && !lengths[n - 1]) --n;
  return n;
}

// A literal or a match with all its bits, and how many they are: at most 48.
constexpr uint64_t packed(uint64_t bits, unsigned count) { return bits << 8 | count; }

void write_tokens(Bits& bits, std::span<const uint32_t> tokens, const uint64_t* literals, const uint64_t* matches) {
  for (uint32_t token : tokens) {
    uint64_t literal = literals[token & 0xffff], match = matches[token >> 16];
    unsigned first = literal & 0xff, second = match & 0xff;
    if (first + second <= 56) [[likely]] {
      bits.put(literal >> 8 | (match >> 8) << first, first + second);
    } else {
      bits.put(literal >> 8, first);
      bits.flush();
      bits.put(match >> 8, second);
    }
    bits.flush();
  }
}

}  // namespace

// How many bits the tokens of the block take with codes of these lengths.
uint64_t LineDeflate::token_bits(const uint8_t* literal_lengths, const uint8_t* distance_lengths) const {
  uint64_t size = 0;
  for (unsigned s = 0; s < kLiterals; ++s) {
    unsigned extra = s < 265 || s == 285 ? 0 : (s - 261) / 4;
    size += uint64_t(literal_count_[s]) * (literal_lengths[s] + extra);
  }
  for (unsigned s = 0; s < kDistances; ++s)
    size += uint64_t(distance_count_[s]) * (distance_lengths[s] + kTables.distance_extra[s]);
  return size;
}

void LineDeflate::write_block(std::vector<uint8_t>& out, bool last) {
  uint8_t literal_lengths[288], distance_lengths[32];
  Code literal_codes[288], distance_codes[32];
  count_symbols();
  code_lengths(literal_count_, kLiterals, 15, literal_lengths);
  code_lengths(distance_count_, kDistances, 15, distance_lengths);
  assign_codes(literal_lengths, kLiterals, literal_codes);
  assign_codes(distance_lengths, kDistances, distance_codes);
  unsigned literals = used(literal_lengths, kLiterals, 257), distances = used(distance_lengths, kDistances, 1);
  uint8_t lengths[288 + 32];
  memcpy(lengths, literal_lengths, literals);
  memcpy(lengths + literals, distance_lengths, distances);
  const LengthRuns runs(lengths, literals + distances);

  size_t start = out.size();
  constexpr size_t kTablesAndSlack = 512;
  out.resize(start + token_bits(literal_lengths, distance_lengths) / 8 + kTablesAndSlack);
  Bits bits(out.data() + start, bits_, bits_used_);
  bits.put(last, 1);
  bits.put(2, 2);
  runs.write(bits, literals, distances);
  uint64_t literal_tokens[kLiteralTokens];
  literal_tokens[0] = 0;
  for (unsigned byte = 0; byte < 256; ++byte)
    literal_tokens[kByteLiteral + byte] = packed(literal_codes[byte].bits, literal_codes[byte].length);
  for (unsigned pair = 0; pair < 100; ++pair) {
    const Code &tens = literal_codes['0' + pair / 10], &ones = literal_codes['0' + pair % 10];
    literal_tokens[kPairLiteral + pair] =
        packed(tens.bits | uint64_t(ones.bits) << tens.length, tens.length + ones.length);
  }
  match_codes_.resize(matches_.size());
  match_codes_[0] = 0;
  for (size_t i = 1; i < matches_.size(); ++i) {
    const LengthCode& length = kTables.length[matches_[i].key >> 16];
    uint32_t distance = (matches_[i].key & 0xffff) + 1;
    unsigned symbol = kTables.distance_symbol(distance);
    const Code &near = literal_codes[length.symbol], &far = distance_codes[symbol];
    unsigned count = near.length;
    uint64_t all = near.bits | uint64_t(length.extra) << count;
    count += length.extra_bits;
    all |= uint64_t(far.bits) << count;
    count += far.length;
    all |= uint64_t(distance - kTables.distance_base[symbol]) << count;
    match_codes_[i] = packed(all, count + kTables.distance_extra[symbol]);
  }
  write_tokens(bits, {tokens_.data(), token_count_}, literal_tokens, match_codes_.data());
  bits.put(literal_codes[256].bits, literal_codes[256].length);
  bits.flush();
  size_t whole = size_t(bits.position() - out.data());
  bits_ = bits.buffer();
  bits_used_ = bits.used();
  if (last && bits_used_) ++whole;  // the rest of the byte is there already
  out.resize(whole);
}

void LineDeflate::compress(std::string_view text, std::vector<uint8_t>& out, const LikeLines* hints, uint64_t base) {
  begin_block();
  pending_ = {};
  bits_ = 0;
  bits_used_ = 0;
  last_ = {};
  for (Line& line : recent_) line = last_;
  memset(keys_, 0, sizeof keys_);
  memset(keys_and_values_, 0, sizeof keys_and_values_);
  memset(strings_, 0, sizeof strings_);
  make_room(kMaxLine);
  tokenize(text, out, hints ? *hints : nothing_, hints ? base : 0);
  write_block(out, true);
}

}  // namespace dft
