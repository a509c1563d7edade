#include "write/line.hpp"

#include <bit>

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

const LineFormatter::Prefix& LineFormatter::prefix(uint32_t name) {
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
  size_t payload = payload_of(r).size();
  if (r.kind == Kind::kSpan) return kFixed + prefix(r.name).text.size() + payload;
  if (r.kind == Kind::kIo) return 2 * kFixed + prefix(r.name).text.size();
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
  std::string_view payload = payload_of(r);
  if (disable_tids_) tid = pid_;
  if (r.kind == Kind::kIo) return write_io(r, tid, clock, out, line);
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

char* LineFormatter::write_io(const Record& r, int64_t tid, const ClockMap& clock, char* out, Line* line) {
  IoPayload io;
  memcpy(&io, r.payload(), sizeof io);
  char* p = put(out, envelope::kId);
  p = put_uint(p, r.id);
  p = put(p, prefix(r.name).text);
  p = put_int(p, tid);
  p = write_times(p, clock.to_epoch_ns(r.start), clock.to_epoch_ns(r.end), line);
  if (!inc_metadata_) return put(p, envelope::kEventWithoutArgs);
  p = put(p, args_head_);
  p = put_int(p, r.parent);
  if (io.file) p = put_hash(put(p, envelope::kFileHash), io.file);
  const CallKeys* keys = io.call < std::size(kCalls) ? &call_keys()[io.call] : nullptr;
  for (uint32_t i = 0; keys && i < io.values && i < std::size(keys->text) && !keys->text[i].empty(); ++i) {
    int64_t value;
    memcpy(&value, r.payload() + sizeof io + i * sizeof value, sizeof value);
    if (!keys->is_hash[i]) {
      p = put_int(put(p, keys->text[i]), value);
    } else if (value) {
      p = put_hash(put(p, keys->text[i]), uint64_t(value));
    }
  }
  if (io.has_ret) p = put_int(put(p, envelope::kReturn), io.ret);
  if (io.error) p = put_int(put(p, envelope::kErrno), io.error);
  p = put(p, envelope::kLevel);
  p = put_uint(p, r.level);
  return put(p, envelope::kEnd);
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
