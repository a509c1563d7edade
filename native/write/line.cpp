#include "write/line.hpp"

#include <bit>
#include <cstddef>
#include <new>
#include <utility>

#include "format/arguments.hpp"
#include "format/envelope.hpp"
#include "format/io_calls.hpp"
#include "format/json.hpp"

namespace dft {

std::string_view payload_of(const Record& r) {
  if (r.flags & kOnHeap) {
    HeapPayload heap;
    memcpy(&heap, r.payload(), sizeof heap);
    return {heap.data, heap.size};
  }
  return {r.payload(), r.payload_size};
}

void LineFormatter::setup(uint32_t pid, std::string host_hash, bool inc_metadata, bool disable_tids,
                          NameLookup lookup) {
  pid_ = pid;
  host_hash_ = std::move(host_hash);
  inc_metadata_ = inc_metadata;
  disable_tids_ = disable_tids;
  lookup_ = std::move(lookup);
  args_head_ = std::string(envelope::kEventArgs) + host_hash_ + std::string(envelope::kParent);
  prefixes_.clear();
}

inline const LineFormatter::Prefix& LineFormatter::prefix(uint32_t name) {
  if (name < prefixes_.size() && !prefixes_[name].text.empty()) return prefixes_[name];
  return make_prefix(name);
}

const LineFormatter::Prefix& LineFormatter::make_prefix(uint32_t name) {
  if (name >= prefixes_.size()) prefixes_.resize(name + 1);
  auto [text, cat] = lookup_(name);
  std::string names;  // in place once it is whole: it may run out of memory
  envelope::append_names(names, text, cat, pid_);
  prefixes_[name].text = std::move(names);
  return prefixes_[name];
}

size_t LineFormatter::bound(const Record& r) {
  constexpr size_t kFixed = 320;  // keys and numbers
  if (r.kind == Kind::kIo) return 2 * kFixed + prefix(r.name).text.size();
  size_t payload = payload_of(r).size();
  if (r.kind == Kind::kSpan) return kFixed + prefix(r.name).text.size() + payload;
  return kFixed + payload * 6;  // raw strings may be escaped
}

// The digits of the second are those of the line before, nearly always.
char* LineFormatter::put_time(char* p, uint64_t us) {
  constexpr uint64_t kSecond = 1000000;
  if (us < kSecond) return put_uint(p, us);
  uint64_t second = us / kSecond;
  if (second != second_) {
    second_ = second;
    second_size_ = size_t(put_uint(second_text_, second) - second_text_);
  }
  memcpy(p, second_text_, sizeof second_text_);
  p += second_size_;
  auto rest = uint32_t(us % kSecond);
  memcpy(p, kDigitPairs.text + 2 * (rest / 10000), 2);
  memcpy(p + 2, kDigitPairs.text + 2 * (rest / 100 % 100), 2);
  memcpy(p + 4, kDigitPairs.text + 2 * (rest % 100), 2);
  return p + 6;
}

// Both ends are truncated to us, and the duration is their difference: a child never extends beyond its parent.
EventTimes times_of(const Record& r, const ClockMap& clock) {
  bool absolute = r.flags & kAbsoluteTime;
  uint64_t start = absolute ? r.start / 1000 : clock.to_epoch_us(r.start);
  uint64_t end = absolute ? r.end / 1000 : clock.to_epoch_us(r.end);
  return {start, end > start ? end - start : 0};
}

char* LineFormatter::write_times(char* p, const Record& r, const ClockMap& clock, Line* line) {
  EventTimes times = times_of(r, clock);
  p = put(p, envelope::kTs);
  p = put_time(p, times.ts);
  p = put(p, envelope::kDuration);
  p = put_uint(p, times.dur);
  *line = {times.ts, times.dur, true};
  return p;
}

char* LineFormatter::write(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line, LikeLines* hints,
                           uint64_t begin) {
  if (r.kind == Kind::kIo) {
    if (hints)
      if (char* end = write_alike(r, tid, clock, out, line, *hints, begin)) return end;
    return write_first(r, disable_tids_ ? pid_ : tid, clock, out, line, uint32_t(begin), hints ? text_number_ : 0);
  }
  if (disable_tids_) tid = pid_;
  std::string_view payload = payload_of(r);
  if (r.kind != Kind::kSpan) return write_strings(r, payload, tid, clock, out, line);
  char* p = put(out, envelope::kId);
  p = put_uint(p, r.id);
  p = put(p, prefix(r.name).text);
  p = put_int(p, tid);
  p = write_times(p, r, clock, line);
  if (!inc_metadata_) return put(p, envelope::kEventWithoutArgs);
  p = put(p, args_head_);
  p = put_int(p, r.parent);
  p = put(p, payload);
  p = put(p, envelope::kLevel);
  p = put_uint(p, r.level);
  return put(p, envelope::kEnd);
}

namespace {

// Eight hexadecimal digits at once, the first in the lowest byte.
uint64_t hex_digits(uint32_t v) {
  uint64_t x = __builtin_bswap32(v);
  // One byte to two nibbles, each in a byte of its own.
  x = (x | x << 16) & 0x0000ffff0000ffffu;
  x = (x | x << 8) & 0x00ff00ff00ff00ffu;
  x = ((x & 0x000f000f000f000fu) << 8) | ((x >> 4) & 0x000f000f000f000fu);
  uint64_t letters = ((x + 0x0606060606060606u) >> 4) & 0x0101010101010101u;  // 1 for ten and more
  return x + 0x3030303030303030u + letters * ('a' - '0' - 10);
}

char* put_hash(char* p, uint64_t hash) {
  *p++ = '"';
  if constexpr (std::endian::native == std::endian::little) {
    uint64_t halves[2] = {hex_digits(uint32_t(hash >> 32)), hex_digits(uint32_t(hash))};
    memcpy(p, halves, 16);
    p += 16;
  } else {
    for (int shift = 60; shift >= 0; shift -= 4) *p++ = "0123456789abcdef"[hash >> shift & 15];
  }
  *p++ = '"';
  return p;
}

// The keys of all calls as they appear in the text, made once.
struct CallKeys {
  std::string text[4];
  bool is_hash[4] = {};
};

const CallKeys* call_keys() {
  static const CallKeys* all = [] {
    auto* keys = new CallKeys[std::size(kCalls)];
    for (size_t call = 0; call < std::size(kCalls); ++call) {
      for (int i = 0; i < 4 && kCalls[call].keys[i]; ++i) {
        append_key(keys[call].text[i], kCalls[call].keys[i]);
        keys[call].is_hash[i] = std::string_view(kCalls[call].keys[i]).ends_with("hash");
      }
    }
    return keys;
  }();
  return all;
}

}  // namespace

void make_line_tables() { call_keys(); }

namespace {

uint64_t load_word(const void* p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

uint64_t head_of(const Record& r) {
  static_assert(offsetof(Record, id) == sizeof(uint64_t));
  return load_word(&r);
}

uint64_t name_word(const Record& r) {
  static_assert(offsetof(Record, name) + sizeof(uint64_t) == sizeof(Record));
  return load_word(&r.name);
}

uint64_t kind_of_call(const IoPayload& io) {
  static_assert(offsetof(IoPayload, error) + sizeof(uint64_t) == sizeof io);
  return load_word(&io.error);
}

}  // namespace

inline bool LineFormatter::Shape::is_of(const Record& r, int64_t its_tid, const IoPayload& io) const {
  return name == name_word(r) && tid == its_tid && head == head_of(r) && call == kind_of_call(io) &&
         has_file == (io.file != 0);
}

// Two for each hash: with one, two calls of a loop would take it from each other in every round, in one run of five.
inline LineFormatter::Shape* LineFormatter::shapes_of(const Record& r, int64_t tid) {
  uint64_t hash = (uint64_t(tid) << 32 ^ uint64_t(r.level) << 24 ^ r.name) * 0x9e3779b97f4a7c15u;
  return shapes_[hash >> (64 - kShapeBits)].shape;
}

inline LineFormatter::Shape* LineFormatter::shape_of(const Record& r, int64_t tid, const IoPayload& io) {
  if (!shapes_) [[unlikely]]
    return nullptr;
  Shape* pair = shapes_of(r, tid);
  if (pair[0].is_of(r, tid, io)) return pair;
  return pair[1].is_of(r, tid, io) ? pair + 1 : nullptr;
}

LineFormatter::Shape* LineFormatter::new_shape(const Record& r, int64_t tid) {
  if (!shapes_) shapes_.reset(new (std::nothrow) ShapePair[1 << kShapeBits]());
  if (!shapes_) return nullptr;
  Shape* pair = shapes_of(r, tid);
  bool second_is_older = pair[0].text_number != pair[1].text_number ? pair[1].text_number < pair[0].text_number
                                                                    : pair[1].begin < pair[0].begin;
  return pair + second_is_older;
}

namespace {

constexpr uint64_t kFourDigits = 10000, kEightDigits = 100000000;
constexpr uint32_t kPowers[] = {0, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

}  // namespace

void LineFormatter::Number::set(uint64_t v, unsigned its_place, unsigned its_digits, bool counts) {
  value = v;
  at = uint16_t(its_place);
  last_at = uint16_t(its_place + its_digits - 4);  // if there are four
  digits = uint8_t(its_digits);
  if (int64_t(v) < 0 || digits == 0) {
    values = 0;
  } else if (counts) {
    from = v / kFourDigits * kFourDigits;
    values = from ? kFourDigits : 0;
  } else if (digits > 8) {
    from = v / kEightDigits * kEightDigits;
    values = kEightDigits;
  } else {
    from = kPowers[digits - 1];
    values = kPowers[digits] - kPowers[digits - 1];
  }
}

// Writes the line piece by piece, and keeps it as the one that later lines are like.
char* LineFormatter::write_first(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line,
                                 uint32_t begin, uint64_t text_number) {
  IoPayload io;
  memcpy(&io, r.payload(), sizeof io);
  EventTimes times = times_of(r, clock);
  *line = {times.ts, times.dur, true};
  Shape* shape = new_shape(r, tid);
  Shape none;
  Shape& s = shape ? *shape : none;
  for (Number& each : s.numbers) each.set(0, 0, 0, false);
  bool numbers_only = true;
  auto mark = [&](Shape::Field field, uint64_t number, char* from, char* to) {
    s.numbers[field].set(number, unsigned(from - out), unsigned(to - from), Shape::counts(field));
    return to;
  };
  auto put_unsigned = [&](char* p, Shape::Field field, uint64_t v) { return mark(field, v, p, put_uint(p, v)); };
  auto put_signed = [&](char* p, Shape::Field field, int64_t v) { return mark(field, uint64_t(v), p, put_int(p, v)); };
  char* p = put_unsigned(put(out, envelope::kId), Shape::kId, r.id);
  p = put(p, prefix(r.name).text);
  p = put_int(p, tid);
  p = put(p, envelope::kTs);
  p = mark(Shape::kTs, line->ts, p, put_time(p, line->ts));
  p = put_unsigned(put(p, envelope::kDuration), Shape::kDur, line->dur);
  if (!inc_metadata_) {
    p = put(p, envelope::kEventWithoutArgs);
  } else {
    p = put_signed(put(p, args_head_), Shape::kParent, r.parent);
    if (io.file) {
      p = put(p, envelope::kFileHash);
      char* end = put_hash(p, io.file);
      mark(Shape::kFile, io.file, p + 1, end - 1);
      p = end;
    }
    const CallKeys* keys = io.call < std::size(kCalls) ? &call_keys()[io.call] : nullptr;
    for (uint32_t i = 0; keys && i < io.values && i < std::size(keys->text) && !keys->text[i].empty(); ++i) {
      int64_t value;
      memcpy(&value, r.payload() + sizeof io + i * sizeof value, sizeof value);
      if (!keys->is_hash[i]) {
        p = put_signed(put(p, keys->text[i]), Shape::Field(Shape::kValues + i), value);
      } else {
        numbers_only = false;
        if (value) p = put_hash(put(p, keys->text[i]), uint64_t(value));
      }
    }
    if (io.has_ret) p = put_signed(put(p, envelope::kReturn), Shape::kRet, io.ret);
    if (io.error) p = put_int(put(p, envelope::kErrno), io.error);
    p = put(p, envelope::kLevel);
    p = put_uint(p, r.level);
    p = put(p, envelope::kEnd);
  }
  constexpr size_t kLongestNumber = 20;
  size_t size = size_t(p - out);
  bool fits = size + Shape::kFields * kLongestNumber <= kMaxAlike;
  s.head = numbers_only && fits ? head_of(r) : 0;
  if (!s.head) return p;
  s.size = uint16_t(size);
  s.name = name_word(r);
  s.tid = tid;
  s.call = kind_of_call(io);
  s.has_file = io.file != 0;
  for (s.values = 0; s.values < 4 && s.numbers[Shape::kValues + s.values].at; ++s.values) {
  }
  for (Shape::Field field : {Shape::kId, Shape::kTs})
    if (s.numbers[field].values) memcpy(&s.numbers[field].last_four, out + s.numbers[field].last_at, 4);
  s.begin = begin;
  s.text_number = text_number;
  memcpy(s.text, out, size);
  return p;
}

namespace {

constexpr bool kLittle = std::endian::native == std::endian::little;

// The first in the lowest byte, where the processor has it so.
inline uint32_t four_digits(uint32_t low) {
  uint16_t pair[2];
  memcpy(&pair[0], kDigitPairs.text + 2 * (low / 100), 2);
  memcpy(&pair[1], kDigitPairs.text + 2 * (low % 100), 2);
  uint32_t four;
  memcpy(&four, pair, 4);
  return four;
}

}  // namespace

// The last `size` of four digits, which `low` is. Whether it is one or two decides no branch: that is not to be
// foreseen.
inline __attribute__((always_inline)) void LineFormatter::LineHints::add_digits(uint32_t from, unsigned size,
                                                                                uint32_t low, uint32_t digits,
                                                                                bool changed) {
  uint32_t high = low / 100;
  uint32_t one = kByteLiteral + (kLittle ? digits >> 24 : digits & 0xff), two = kPairLiteral + low - 100 * high;
  uint32_t last = one + ((two - one) & (0 - uint32_t(size > 1)));
  uint32_t first = 0;
  if (size > 2) [[unlikely]]
    first = size > 3 ? kPairLiteral + high : kByteLiteral + '0' + high % 10;
  add(from, size, size, first, last, changed);
}

__attribute__((noinline)) LineFormatter::LineHints LineFormatter::Shape::change_all_digits(Field field, uint64_t v,
                                                                                           char* out, LineHints hints) {
  unsigned place = numbers[field].at, n = numbers[field].digits;
  char* p = text + place;
  char now[24];
  auto m = unsigned((field <= kDur ? put_uint(now, v) : put_int(now, int64_t(v))) - now);
  unsigned same = 0;
  while (same < m && same < n && now[same] == p[same]) ++same;
  if (m != n) {
    memmove(p + m, p + n, size - place - n);
    for (unsigned later = field + 1u; later < kFields; ++later) numbers[later].move(m - n);
    size = uint16_t(size + m - n);
    memcpy(out + place + m, p + m, size - place - m);
  }
  numbers[field].set(v, place, m, counts(field));
  memcpy(p, now, m);
  memcpy(out + place, now, m);
  if (counts(field) && numbers[field].values) memcpy(&numbers[field].last_four, text + numbers[field].last_at, 4);
  hints.add(begin + place + same, m - same, n - same);
  return hints;
}

// A number that counts up: nearly always its last four digits are all that change.
inline __attribute__((always_inline)) LineFormatter::LineHints LineFormatter::Shape::count(Field field, uint64_t v,
                                                                                           char* out, LineHints hints) {
  Number& number = numbers[field];
  uint64_t low = v - number.from;
  if (low >= number.values) [[unlikely]] {
    // Without such values it is always here that it changes.
    return !number.values && number.value == v ? hints : change_all_digits(field, v, out, hints);
  }
  unsigned at = number.last_at;
  uint32_t now = four_digits(uint32_t(low));
  uint32_t changed = number.last_four ^ now;
  number.last_four = now;
  memcpy(text + at, &now, 4);
  memcpy(out + at, &now, 4);
  auto same = unsigned(kLittle ? std::countr_zero(changed | 1u << 31) : std::countl_zero(changed | 1)) / 8;
  hints.add_digits(begin + at + same, 4 - same, uint32_t(low), now, changed);
  return hints;
}

inline LineFormatter::LineHints LineFormatter::Shape::change(Field field, uint64_t v, char* out, LineHints hints) {
  return numbers[field].value == v ? hints : change_digits(field, v, out, hints);
}

// As many digits as before, and of many only the last eight change.
__attribute__((noinline)) LineFormatter::LineHints LineFormatter::Shape::change_digits(Field field, uint64_t v,
                                                                                       char* out, LineHints hints) {
  Number& number = numbers[field];
  unsigned at = number.at, n = number.digits;
  if (!kLittle || v - number.from >= number.values) return change_all_digits(field, v, out, hints);
  number.value = v;
  auto low = uint32_t(n > 8 ? v - number.from : v);
  at = at + n - 8;  // there is that much before it: the line begins with its id
  uint32_t last = four_digits(low % kFourDigits);
  uint64_t old, now = uint64_t(last) << 32 | four_digits(low / kFourDigits);
  memcpy(&old, text + at, 8);
  if (n < 8) {
    uint64_t before = (uint64_t(1) << (8 * (8 - n))) - 1;
    now = (now & ~before) | (old & before);
  }
  memcpy(text + at, &now, 8);
  memcpy(out + at, &now, 8);
  auto same = unsigned(std::countr_zero(old ^ now)) / 8;
  if (same >= 4)
    hints.add_digits(begin + at + same, 8 - same, low % kFourDigits, last);
  else
    hints.add(begin + at + same, 8 - same, 8 - same);
  return hints;
}

// The copy first, the digits then into both: what was written a moment ago in small pieces would be slow to copy.
inline __attribute__((always_inline)) char* LineFormatter::write_like(Shape& s, const Record& r, const IoPayload& io,
                                                                      char* out, uint64_t ts, uint64_t dur,
                                                                      LikeLines& hints, LikeLines::Cursor& cursor,
                                                                      uint32_t begin, uint64_t text_number) {
  // The last line is in another text, or in one that was started again: then there are no hints about this one.
  uint32_t back = begin - s.begin;
  bool near = back - 1 < LikeLines::kFarthest - 1 && s.text_number == text_number;
  LineHints line_hints{hints.begin_line(cursor, begin, back), back};
  if (!line_hints.run) [[unlikely]]
    return nullptr;
  s.begin = begin;
  memcpy(out, s.text, s.size);
  line_hints = s.count(Shape::kId, r.id, out, line_hints);
  line_hints = s.count(Shape::kTs, ts, out, line_hints);
  Number& number = s.numbers[Shape::kDur];
  if (dur < 10 && number.digits == 1) [[likely]] {
    // Whether it is the same is not to be foreseen either.
    bool changed = std::exchange(number.value, dur) != dur;
    s.text[number.at] = out[number.at] = char('0' + dur);
    line_hints.add(begin + number.at, 1, 1, 0, uint32_t(kByteLiteral + '0' + dur), changed);
  } else {
    line_hints = s.change(Shape::kDur, dur, out, line_hints);
  }
  bool other_file = false;
  if (inc_metadata_) {
    other_file = s.numbers[Shape::kFile].value != io.file;
    if (other_file || s.numbers[Shape::kParent].value != uint64_t(r.parent)) [[unlikely]]
      line_hints = s.change_place(r, io, out, line_hints);
    const char* value = r.payload() + sizeof io;
    for (Number *each = s.numbers + Shape::kValues, *end = each + s.values; each != end; ++each, value += 8)
      if (uint64_t v = load_word(value); each->value != v)
        line_hints = s.change_digits(Shape::Field(each - s.numbers), v, out, line_hints);
    if (s.numbers[Shape::kRet].value != uint64_t(io.ret) && io.has_ret)
      line_hints = s.change_digits(Shape::kRet, uint64_t(io.ret), out, line_hints);
  }
  uint32_t size = s.size;
  s.text_number = text_number;
  if (near) [[likely]]
    hints.end_line(cursor, begin, begin + size, back, uint32_t(line_hints.back), other_file, line_hints.run);
  return out + size;
}

// Most calls differ from the thread's last one of the same name in a few digits only.
char* LineFormatter::write_alike(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line,
                                 LikeLines& hints, uint64_t begin) {
  if (disable_tids_) tid = pid_;
  IoPayload io;
  memcpy(&io, r.payload(), sizeof io);
  Shape* shape = shape_of(r, tid, io);
  if (!shape) return nullptr;
  EventTimes times = times_of(r, clock);
  *line = {times.ts, times.dur, true};
  LikeLines::Cursor cursor = hints.cursor();
  char* end = write_like(*shape, r, io, out, line->ts, line->dur, hints, cursor, uint32_t(begin), text_number_);
  hints.set_cursor(cursor);
  return end;
}

// The first of two steps, each of which has its hands full: which earlier lines they are like, and their times.
unsigned LineFormatter::find_shapes(Calls& calls, const ClockMap& clock, WrittenCall* written, Shape** shapes) {
  if (!shapes_) return 0;
  const int64_t tid = disable_tids_ ? pid_ : calls.tid;
  ClockMap::Stretch stretch{};
  auto us = [&](uint64_t ticks) {
    if (!stretch.has(ticks)) [[unlikely]]
      stretch = clock.stretch_of(ticks);
    return stretch.to_epoch_us(ticks);
  };
  unsigned n = 0;
  for (uint64_t at = calls.read; n < kMaxCalls && at < calls.head; ++n) {
    auto& r = *reinterpret_cast<Record*>(calls.data + (at & calls.mask));
    // In the ring, where recovery finds it again: it compares ids with those in the file.
    if (r.id == kNumberedLater) r.id = calls.next_id++;
    if (r.kind != Kind::kIo) break;
    Shape* shape = shape_of(r, tid, *reinterpret_cast<const IoPayload*>(r.payload()));
    if (!shape) break;
    uint64_t from = us(r.start), to = us(r.end);
    written[n] = {&r, from, to > from ? to - from : 0};
    shapes[n] = shape;
    at += r.size;
  }
  return n;
}

unsigned LineFormatter::write_calls(Calls& calls, const ClockMap& clock, LikeLines& hints, WrittenCall* written) {
  Shape* shapes[kMaxCalls];
  const unsigned found = find_shapes(calls, clock, written, shapes);
  // Here, and not where it came from: text that is written could be anything to the compiler.
  const uint64_t text_number = text_number_;
  LikeLines::Cursor cursor = hints.cursor();
  char* const text = calls.text;
  uint64_t used = calls.used, read = calls.read;
  unsigned n = 0;
  for (; n < found && used < calls.limit; ++n) {
    const WrittenCall& call = written[n];
    const Record& r = *call.record;
    char* out = text + used;
    char* end = write_like(*shapes[n], r, *reinterpret_cast<const IoPayload*>(r.payload()), out, call.ts, call.dur,
                           hints, cursor, uint32_t(used), text_number);
    if (!end) break;
    used += uint64_t(end - out);
    read += r.size;
  }
  hints.set_cursor(cursor);
  calls.read = read;
  calls.used = used;
  return n;
}

LineFormatter::LineHints LineFormatter::Shape::change_place(const Record& r, const IoPayload& io, char* out,
                                                            LineHints hints) {
  hints = change(kParent, uint64_t(r.parent), out, hints);
  Number& file = numbers[kFile];
  if (file.value == io.file) return hints;
  file.value = io.file;
  char quoted[18];
  put_hash(quoted, io.file);
  memcpy(text + file.at, quoted + 1, 16);
  memcpy(out + file.at, quoted + 1, 16);
  hints.add(begin + file.at, 16, 16);
  return hints;
}

char* LineFormatter::write_strings(const Record& r, std::string_view payload, int64_t tid, const ClockMap& clock,
                                   char* out, Line* line) {
  Strings s;
  memcpy(&s, payload.data(), sizeof s);
  std::string_view first = payload.substr(sizeof s, s.first_size);
  std::string_view second = payload.substr(sizeof s + s.first_size, s.second_size);
  std::string_view rest = payload.substr(sizeof s + s.first_size + s.second_size);
  if (r.flags & kOtherLane) tid = s.tid;
  if (r.kind == Kind::kMetadata) return put(out, metadata_line(r.id, tid, first, second, rest));

  std::string text;
  envelope::append_head(text, r.id, first, second, pid_, tid);
  char* p = put(out, text);
  if (r.kind == Kind::kCounter) {
    line->ts = times_of(r, clock).ts;
    p = put(p, envelope::kTs);
    p = put_uint(p, line->ts);
    p = put(p, envelope::kCounterArgs);
    p = put(p, rest.empty() ? rest : rest.substr(1));
    return put(p, envelope::kEnd);
  }
  p = write_times(p, r, clock, line);
  if (!inc_metadata_) return put(p, envelope::kEventWithoutArgs);
  p = put(p, args_head_);
  p = put_int(p, r.parent);
  p = put(p, rest);
  p = put(p, envelope::kLevel);
  p = put_uint(p, r.level);
  return put(p, envelope::kEnd);
}

std::string LineFormatter::metadata_line(uint64_t id, int64_t tid, std::string_view kind, std::string_view key,
                                         std::string_view value, std::string_view more_args) const {
  std::string out;
  envelope::append_head(out, id, kind, envelope::kTracerCategory, pid_, tid);
  out += envelope::kMetadataArgs;
  out += host_hash_;
  out += envelope::kMetadataName;
  append_json_string(out, key);
  out += envelope::kMetadataValue;
  append_json_string(out, value);
  out += more_args;
  out += envelope::kEnd;
  return out;
}

std::string LineFormatter::counter_line(uint64_t id, std::string_view name, uint64_t ts_us,
                                        std::string_view args) const {
  std::string out;
  envelope::append_head(out, id, name, envelope::kCounterCategory, pid_, pid_);
  out += envelope::kTs;
  append_int(out, int64_t(ts_us));
  out += envelope::kCounterArgs;
  out += args.substr(args.empty() ? 0 : 1);
  out += envelope::kEnd;
  return out;
}

std::string LineFormatter::aggregated_line(uint64_t id, std::string_view names, uint64_t ts_us,
                                           std::string_view args) const {
  std::string out(envelope::kId);
  append_int(out, int64_t(id));
  out += names;
  append_int(out, int64_t(pid_));
  out += envelope::kTs;
  append_int(out, int64_t(ts_us));
  out += envelope::kAggregatedArgs;
  out += host_hash_;
  out += '"';
  out += args;
  out += envelope::kEnd;
  return out;
}

std::string LineFormatter::event_line(uint64_t id, int64_t tid, std::string_view name, uint64_t ts_us,
                                      std::string_view args) const {
  std::string out;
  envelope::append_head(out, id, name, envelope::kTracerCategory, pid_, tid);
  out += envelope::kTs;
  append_int(out, int64_t(ts_us));
  out += envelope::kDuration;
  out += '0';
  out += args_head_;
  out += "-1";
  out += args;
  out += envelope::kLevel;
  out += '1';
  out += envelope::kEnd;
  return out;
}

}  // namespace dft
