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
  Prefix& p = prefixes_[name];
  if (p.text.empty()) {
    auto [text, cat] = lookup_(name);
    envelope::append_names(p.text, text, cat, pid_);
  }
  return p;
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

char* LineFormatter::write_times(char* p, uint64_t start_ns, uint64_t end_ns, Line* line) {
  // Both ends are truncated to us, and the duration is their difference: a child never extends beyond its parent.
  uint64_t start = start_ns / 1000;
  uint64_t end = end_ns / 1000;
  p = put(p, envelope::kTs);
  p = put_time(p, start);
  p = put(p, envelope::kDuration);
  line->dur = end > start ? end - start : 0;
  p = put_uint(p, line->dur);
  line->ts = start;
  line->event = true;
  return p;
}

char* LineFormatter::write(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line) {
  if (disable_tids_) tid = pid_;
  if (r.kind == Kind::kIo) return write_io(r, tid, clock, out, line);
  std::string_view payload = payload_of(r);
  if (r.kind != Kind::kSpan) return write_strings(r, payload, tid, clock, out, line);
  char* p = put(out, envelope::kId);
  p = put_uint(p, r.id);
  p = put(p, prefix(r.name).text);
  p = put_int(p, tid);
  bool absolute = r.flags & kAbsoluteTime;
  p = write_times(p, absolute ? r.start : clock.to_epoch_ns(r.start), absolute ? r.end : clock.to_epoch_ns(r.end),
                  line);
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

// Most calls differ from the thread's last one of the same name in a few digits only.
char* LineFormatter::write_io(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line) {
  IoPayload io;
  memcpy(&io, r.payload(), sizeof io);
  // Both ends are truncated to us, and the duration is their difference: a child never extends beyond its parent.
  uint64_t start = clock.to_epoch_ns(r.start) / 1000, end = clock.to_epoch_ns(r.end) / 1000;
  line->ts = start;
  line->dur = end > start ? end - start : 0;
  line->event = true;
  Shape* shape = shape_of(r, tid);
  if (shape && shape->is_of(r, tid, io)) return write_like(*shape, r, io, out, line);
  return write_first(shape, r, tid, io, out, line);
}

LineFormatter::Shape* LineFormatter::shape_of(const Record& r, int64_t tid) {
  if (!shapes_) shapes_.reset(new (std::nothrow) Shape[1 << kShapeBits]);
  if (!shapes_) return nullptr;
  uint64_t hash = (uint64_t(tid) << 32 ^ uint64_t(r.level) << 24 ^ r.name) * 0x9e3779b97f4a7c15u;
  return &shapes_[hash >> (64 - kShapeBits)];
}

namespace {

uint64_t kind_of_call(const IoPayload& io) {
  uint64_t kind;
  static_assert(offsetof(IoPayload, error) + sizeof kind == sizeof io);
  memcpy(&kind, reinterpret_cast<const char*>(&io) + offsetof(IoPayload, error), sizeof kind);
  return kind;
}

}  // namespace

inline bool LineFormatter::Shape::is_of(const Record& r, int64_t its_tid, const IoPayload& io) const {
  return size && name == r.name && tid == its_tid && level == r.level && call == kind_of_call(io) &&
         has_file == (io.file != 0);
}

// Writes the line piece by piece, and keeps it as the one that later lines are like.
char* LineFormatter::write_first(Shape* shape, const Record& r, int64_t tid, const IoPayload& io, char* out,
                                 Line* line) {
  Shape none;
  Shape& s = shape ? *shape : none;
  memset(s.at, 0, sizeof s.at);
  bool numbers_only = true;
  auto mark = [&](Shape::Field field, uint64_t number, char* from, char* to) {
    s.number[field] = number;
    s.at[field] = uint16_t(from - out);
    s.digits[field] = uint8_t(to - from);
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
  bool fits = size + Shape::kFields * kLongestNumber <= Shape::kLongest;
  s.size = numbers_only && fits ? uint16_t(size) : 0;
  if (!s.size) return p;
  s.name = r.name;
  s.tid = tid;
  s.level = r.level;
  s.call = kind_of_call(io);
  s.has_file = io.file != 0;
  s.last = out;
  s.text_number = text_number_;
  memcpy(s.text, out, size);
  return p;
}

__attribute__((noinline)) void LineFormatter::Shape::change_all_digits(Field field, uint64_t v, LikeLine::Run& run) {
  unsigned begin = at[field], n = digits[field];
  char* p = text + begin;
  char now[24];
  auto m = unsigned((field <= kDur ? put_uint(now, v) : put_int(now, int64_t(v))) - now);
  unsigned same = 0;
  while (same < m && same < n && now[same] == p[same]) ++same;
  if (m != n) {
    memmove(p + m, p + n, size - begin - n);
    for (unsigned later = field + 1u; later < kFields; ++later)
      if (at[later]) at[later] = uint16_t(at[later] + m - n);
    size = uint16_t(size + m - n);
    digits[field] = uint8_t(m);
  }
  memcpy(p, now, m);
  run = {uint16_t(begin + same), uint8_t(m - same), uint8_t(n - same)};
}

inline void LineFormatter::Shape::change_digits(Field field, uint64_t v, LikeLine& like) {
  constexpr uint64_t kLow = 10000;
  uint64_t was = std::exchange(number[field], v);
  unsigned begin = at[field], n = digits[field];
  char* p = text + begin;
  LikeLine::Run& run = like.run[like.runs++];
  uint64_t high = v / kLow;
  if (int64_t(v) >= 0 && high == was / kLow && (high || (v >= kLow / 10 && was >= kLow / 10))) {
    // All but the last four digits are the same.
    auto low = uint32_t(v - high * kLow);
    uint32_t old, now;
    char four[4];
    memcpy(four, kDigitPairs.text + 2 * (low / 100), 2);
    memcpy(four + 2, kDigitPairs.text + 2 * (low % 100), 2);
    memcpy(&now, four, 4);
    memcpy(&old, p + n - 4, 4);
    memcpy(p + n - 4, &now, 4);
    constexpr bool kLittle = std::endian::native == std::endian::little;
    auto same = unsigned(kLittle ? std::countr_zero(old ^ now) : std::countl_zero(old ^ now)) / 8;
    run = {uint16_t(begin + n - 4 + same), uint8_t(4 - same), uint8_t(4 - same)};
    return;
  }
  if (v < 10 && was < 10) {
    *p = char('0' + v);
    run = {uint16_t(begin), 1, 1};
    return;
  }
  change_all_digits(field, v, run);
}

inline void LineFormatter::Shape::change(Field field, uint64_t v, LikeLine& like) {
  if (number[field] != v) change_digits(field, v, like);
}

char* LineFormatter::write_like(Shape& s, const Record& r, const IoPayload& io, char* out, Line* line) {
  constexpr ptrdiff_t kFarthest = 28 << 10;  // well inside the window of deflate, with all that may come to lie between
  LikeLine& like = line->like;
  like.runs = 0;
  like.other_file = false;
  s.change(Shape::kId, r.id, like);
  s.change(Shape::kTs, line->ts, like);
  s.change(Shape::kDur, line->dur, like);
  if (inc_metadata_) {
    s.change(Shape::kParent, uint64_t(r.parent), like);
    if (s.number[Shape::kFile] != io.file && io.file) s.change_file(io.file, like);
    for (uint32_t i = 0; i < io.values && i < 4; ++i) {
      if (!s.at[Shape::kValues + i]) break;
      uint64_t value;
      memcpy(&value, r.payload() + sizeof io + i * sizeof value, sizeof value);
      s.change(Shape::Field(Shape::kValues + i), value, like);
    }
    if (io.has_ret) s.change(Shape::kRet, uint64_t(io.ret), like);
  }
  ptrdiff_t back = out - s.last;
  like.back = s.text_number == text_number_ && back > 0 && back < kFarthest ? uint16_t(back) : 0;
  like.size = s.size;
  s.last = out;
  s.text_number = text_number_;
  memcpy(out, s.text, s.size);
  return out + s.size;
}

void LineFormatter::Shape::change_file(uint64_t hash, LikeLine& like) {
  number[kFile] = hash;
  char quoted[18];
  put_hash(quoted, hash);
  memcpy(text + at[kFile], quoted + 1, 16);
  like.run[like.runs++] = {at[kFile], 16, 16};
  like.other_file = true;
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
  bool absolute = r.flags & kAbsoluteTime;
  uint64_t start = absolute ? r.start : clock.to_epoch_ns(r.start);
  if (r.kind == Kind::kCounter) {
    p = put(p, envelope::kTs);
    p = put_uint(p, start / 1000);
    line->ts = start / 1000;
    p = put(p, envelope::kCounterArgs);
    p = put(p, rest.empty() ? rest : rest.substr(1));
    return put(p, envelope::kEnd);
  }
  p = write_times(p, start, absolute ? r.end : clock.to_epoch_ns(r.end), line);
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
