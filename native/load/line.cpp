#include "line.hpp"

#include "escapes.hpp"
#include "format/envelope.hpp"

namespace dft::load {
namespace {

// Between the duration and the first argument that differs from row to row.
constexpr const char* kHost = envelope::kEventArgs.data();
constexpr std::size_t kHostSize = envelope::kEventArgs.size(), kHashSize = 16;

constexpr std::uint64_t key8(const char* s, std::size_t n) {
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < n && i < 8; ++i)
    v |= static_cast<std::uint64_t>(static_cast<unsigned char>(s[i])) << (8 * i);
  return v;
}
template <std::size_t N>
constexpr std::uint64_t key(const char (&s)[N]) {
  static_assert(N <= 9, "keys are told apart by their first eight bytes");
  return key8(s, N - 1);
}

inline std::uint64_t load8(const char* p, std::size_t n) {
  std::uint64_t v;
  std::memcpy(&v, p, 8);  // little endian, checked in the build file; the text is padded
  return n >= 8 ? v : v & ((1ull << (8 * n)) - 1);
}

// First '"' or '\\' at or after p.
inline const char* quote_or_escape(const char* p, const char* end) {
#if defined(__SSE2__)
  const __m128i q = _mm_set1_epi8('"'), b = _mm_set1_epi8('\\');
  for (;;) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const int m = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(v, q), _mm_cmpeq_epi8(v, b)));
    if (m != 0) return p + __builtin_ctz(static_cast<unsigned>(m));
    p += 16;
    if (p >= end) return end;
  }
#else
  while (p < end && *p != '"' && *p != '\\') ++p;
  return p;
#endif
}

inline const char* blanks(const char* p) {
  while (*p == ' ' || *p == '\t' || *p == '\r') ++p;
  return p;
}

inline bool digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

// Eight digits at once; -1 where one of them is none.
inline std::int64_t eight_digits(const char* p) {
  std::uint64_t v;
  std::memcpy(&v, p, 8);
  if (((v & 0xF0F0F0F0F0F0F0F0ull) | (((v + 0x0606060606060606ull) & 0xF0F0F0F0F0F0F0F0ull) >> 4)) !=
      0x3333333333333333ull)
    return -1;
  v = (v & 0x0F0F0F0F0F0F0F0Full) * 2561 >> 8;
  v = (v & 0x00FF00FF00FF00FFull) * 6553601 >> 16;
  return static_cast<std::int64_t>((v & 0x0000FFFF0000FFFFull) * 42949672960001ull >> 32);
}

// A whole 64-bit integer, or nothing.
inline bool integer(const char*& p, std::int64_t& out) {
  const char* s = p;
  const bool negative = *s == '-';
  if (negative) ++s;
  if (!digit(*s)) return false;
  std::uint64_t v = 0;
  const char* first = s;
  while (digit(*s)) v = v * 10 + static_cast<std::uint64_t>(*s++ - '0');
  if (s - first > 18) {  // may have wrapped: redo with a check
    v = 0;
    for (const char* q = first; q < s; ++q)
      if (__builtin_mul_overflow(v, std::uint64_t{10}, &v) ||
          __builtin_add_overflow(v, static_cast<std::uint64_t>(*q - '0'), &v))
        return false;
    if (v > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return false;
  }
  out = negative ? -static_cast<std::int64_t>(v) : static_cast<std::int64_t>(v);
  p = s;
  return true;
}

}  // namespace

LineScanner::LineScanner(Dictionaries& d, const Filter& filter)
    : filter_(&filter),
      name_(d.name),
      cat_(d.cat),
      hhash_(d.hhash),
      fhash_(d.fhash),
      dictionaries_(&d),
      start_code_(name_("start")),
      end_code_(name_("end")),
      tracer_code_(cat_("dftracer")) {}

inline bool LineScanner::string(const char*& p, const char* end, Text& out) {
  if (*p != '"') return false;
  const char* const from = ++p;
  bool escaped = false;
  for (;;) {
    p = quote_or_escape(p, end);
    if (p >= end) return false;
    if (*p == '"') break;
    escaped = true;
    p += 2;
    if (p >= end) return false;
  }
  out = {{from, static_cast<std::size_t>(p - from)}, escaped};
  ++p;
  return true;
}

bool LineScanner::skip(const char*& p, const char* end, int depth) {
  p = blanks(p);
  if (*p == '"') {
    Text t;
    return string(p, end, t);
  }
  if (*p == '{' || *p == '[') {
    if (depth > 64) return false;
    const bool map = *p == '{';
    const char close = map ? '}' : ']';
    p = blanks(p + 1);
    if (*p == close) return ++p, true;
    for (;;) {
      if (map) {
        Text t;
        if (!string(p, end, t)) return false;
        p = blanks(p);
        if (*p++ != ':') return false;
      }
      if (!skip(p, end, depth + 1)) return false;
      p = blanks(p);
      if (*p == ',') {
        p = blanks(p + 1);
        continue;
      }
      return *p == close ? (++p, true) : false;
    }
  }
  // number, true, false, null, and the NaN/Infinity some writers emit
  const char* const from = p;
  while (p < end && *p != ',' && *p != '}' && *p != ']' && *p != '\n' && *p != ' ') ++p;
  return p != from;
}

void LineScanner::rest(const char* from, const char* to) {
  rest_ += rest_.empty() ? '{' : ',';
  rest_.append(from, to);
}

// An integer, plain or quoted, goes to its column; any other value stays in the rest.
inline bool LineScanner::integer_or_rest(const char*& p, const char* end, const char* key_at, std::int64_t& out,
                                         Field field) {
  const char* s = p;
  std::int64_t v;
  const bool quoted = *s == '"';
  if (quoted) ++s;
  if (integer(s, v) && v != kMissing) {
    if (quoted ? *s == '"' : (*s == ',' || *s == '}' || *s == ' ')) {
      p = s + (quoted ? 1 : 0);
      out = v;
      take(field);
      return true;
    }
  }
  if (!skip(p, end, 0)) return false;
  rest(key_at, p);
  return true;
}

std::string_view LineScanner::plain(const Text& t, std::string& buffer) {
  if (!t.escaped) return t.raw;
  unescape(t.raw, buffer);
  return buffer;
}

// Text is interned as it reads; older writers spell hashes as numbers.
inline bool LineScanner::text_code(const char*& p, const char* end, Interner& in, std::int32_t& out, Field field) {
  Text t;
  take(field);
  if (*p == '"') {
    if (!string(p, end, t)) return false;
    out = in(plain(t, buffer_));
    return true;
  }
  const char* const from = p;
  if (!skip(p, end, 0)) return false;
  out = in(std::string_view(from, static_cast<std::size_t>(p - from)));
  return true;
}

bool LineScanner::arguments(const char*& p, const char* end) {
  if (*p != '{') return skip(p, end, 0);
  p = blanks(p + 1);
  if (*p == '}') return ++p, true;
  return more_arguments(p, end, nullptr, 0);
}

// Arguments from the one at p to the end of the object. `shape` learns them; p is at its argument number `n`.
bool LineScanner::more_arguments(const char*& p, const char* end, Shape* shape, std::size_t n) {
  for (;; ++n) {
    const char* const key_at = p;
    Text k;
    if (!string(p, end, k)) return false;
    if (*p != ':') {
      p = blanks(p);
      if (*p != ':') return false;
    }
    ++p;
    if (*p == ' ') p = blanks(p);
    if (shape != nullptr) shape->known = n;
    const auto learn = [&](Argument::Kind kind, Field field, const char* value) {
      if (shape != nullptr && shape->known == n)
        shape->learn(n, key_at, static_cast<std::size_t>(value - key_at), kind, field);
    };
    bool ok = true;
    const bool meta = row_.ph == 'M';
    const auto number = [&](std::int64_t& slot, Field field) {
      const char* const value = p;
      const std::uint32_t before = row_.has;
      ok = integer_or_rest(p, end, key_at, slot, field);
      if (row_.has == before) return;
      const bool quoted = *value == '"';
      learn(quoted ? Argument::Kind::quoted_number : Argument::Kind::number, field, value + (quoted ? 1 : 0));
    };
    switch (k.raw.size() > 8 ? 0 : load8(k.raw.data(), k.raw.size())) {
      case key("hhash"): ok = text_code(p, end, hhash_, row_.hhash, f_hhash); break;
      case key("fhash"): {
        const char* const value = p;
        ok = text_code(p, end, fhash_, row_.fhash, f_fhash);
        if (*value == '"') learn(Argument::Kind::file, f_fhash, value + 1);
        break;
      }
      case key("p_idx"): number(row_.p_idx, f_p_idx); break;
      case key("level"): number(row_.level, f_level); break;
      case key("epoch"): number(row_.epoch, f_epoch); break;
      case key("step"): number(row_.step, f_step); break;
      case key("count"): number(row_.count, f_count); break;
      case key("size"): number(row_.size, f_size); break;
      case key("offset"): number(row_.offset, f_offset); break;
      case key("ret"): number(row_.ret, f_ret); break;
      case key("errno"): number(row_.errno_, f_errno_); break;
      case key("filename"):
      case key("fname"):
        if (!row_.have(f_fhash) && *p == '"') {
          ok = text_code(p, end, fhash_, row_.fhash, f_fhash);
        } else {
          ok = skip(p, end, 0);
          rest(key_at, p);
        }
        break;
      case key("name"):
      case key("value"):
        if (meta) {
          Text& t = k.raw.size() == 4 ? meta_key_ : meta_value_;
          if (*p == '"') {
            ok = string(p, end, t);
          } else {
            const char* const from = p;
            ok = skip(p, end, 0);
            t = {{from, static_cast<std::size_t>(p - from)}, false};
          }
          break;
        }
        [[fallthrough]];
      default:
        if (k.raw == "image_idx") {
          number(row_.image_idx, f_image_idx);
          break;
        }
        learn(Argument::Kind::other, f_id, p);
        ok = skip(p, end, 0);
        if (ok) rest(key_at, p);
    }
    if (!ok) return false;
    // Nothing is known beyond an argument that could not be learnt.
    if (shape != nullptr && shape->known == n) shape = nullptr;
    if (*p == ' ') p = blanks(p);
    if (*p == ',') {
      ++p;
      if (*p == ' ') p = blanks(p);
      continue;
    }
    if (*p != '}') return false;
    ++p;
    return true;
  }
}

// Arguments of a row that looks like the last of its kind; from the first difference on they are read one by one.
inline bool LineScanner::known_arguments(const char*& p, const char* end, Shape& shape) {
  for (std::size_t n = 0; n < shape.known; ++n) {
    const Argument& a = shape.arguments[n];
    if (!a.at(p)) return more_arguments(p, end, &shape, n);
    const char* s = p + a.size;
    switch (a.kind) {
      case Argument::Kind::number:
      case Argument::Kind::quoted_number: {
        std::int64_t v;
        if (!integer(s, v)) return more_arguments(p, end, &shape, n);
        if (a.kind == Argument::Kind::quoted_number && *s++ != '"') return more_arguments(p, end, &shape, n);
        if ((*s != ',' && *s != '}') || v == kMissing) return more_arguments(p, end, &shape, n);
        row_.slot(a.field) = v;
        take(a.field);
        break;
      }
      case Argument::Kind::file:
        if (s[16] == '"' && equal_long(s, last_file_, 16)) {
          row_.fhash = last_file_code_;
          s += 17;
        } else {
          const char* const from = s;
          s = quote_or_escape(s, end);
          if (s >= end || *s != '"') return more_arguments(p, end, &shape, n);
          row_.fhash = fhash_(std::string_view(from, static_cast<std::size_t>(s - from)));
          if (s - from == 16) {
            std::memcpy(last_file_, from, 16);
            last_file_code_ = row_.fhash;
          }
          ++s;
        }
        take(f_fhash);
        break;
      case Argument::Kind::other:
        if (!skip(s, end, 0)) return false;
        rest(p, s);
        break;
    }
    p = s;
    if (*p == '}') return ++p, true;
    if (*p != ',') {
      p = blanks(p);
      if (*p == '}') return ++p, true;
      if (*p != ',') return false;
    }
    ++p;
    if (*p == ' ') p = blanks(p);
  }
  return more_arguments(p, end, &shape, shape.known);
}

bool LineScanner::wanted() {
  const Filter& f = *filter_;
  const std::int64_t from = row_.ts;
  if (from > f.ts_max || from < f.ts_min) return false;
  if (!f.pids.empty() && !(row_.have(f_pid) && f.pids.contains(row_.pid))) return false;
  const auto check = [](std::vector<std::int8_t>& known, const std::vector<std::string>& list, const Dictionary& d,
                        std::int32_t code) {
    if (list.empty()) return true;
    if (code < 0) return false;
    const auto i = static_cast<std::size_t>(code);
    if (known.size() <= i) known.resize(i + 64, 0);
    if (known[i] == 0) {
      const std::string_view text = d.at(i);
      known[i] = 2;
      for (const std::string& s : list)
        if (s == text) known[i] = 1;
    }
    return known[i] == 1;
  };
  if (!check(name_ok_, f.names, dictionaries_->name, row_.name)) return false;
  if (!check(cat_ok_, f.cats, dictionaries_->cat, row_.have(f_cat) ? row_.cat : kNoCode)) return false;
  const auto inside = [](bool there, std::int64_t v, std::int64_t low, std::int64_t high) {
    return low == kMissing || (there && v >= low && v <= high);
  };
  return inside(row_.have(f_step), row_.step, f.step_min, f.step_max) &&
         inside(row_.have(f_epoch), row_.epoch, f.epoch_min, f.epoch_max);
}

// A row as we write it: fixed keys in a fixed order, no blanks. False, and nothing taken, otherwise.
inline bool LineScanner::usual_head(const char*& p, const char* end, Shape*& shape) {
  const char* s = p;
  if (std::memcmp(s, "{\"id\":", 6) != 0) return false;
  s += 6;
  if (!integer(s, row_.id) || std::memcmp(s, ",\"name\":\"", 9) != 0) return false;
  s += 9;
  shape = &shapes_.of(s);
  if (!shape->at(s, end) && !learn_head(s, end, *shape)) return false;
  s += shape->head_size;
  row_.name = shape->name;
  row_.cat = shape->cat;
  row_.pid = shape->pid;
  if (!integer(s, row_.tid) || std::memcmp(s, ",\"ts\":", 6) != 0) return false;
  s += 6;
  const std::int64_t high = eight_digits(s), low = eight_digits(s + 8);
  if (high >= 0 && low >= 0 && s[16] == ',') {
    row_.ts = high * 100000000 + low;
    s += 16;
  } else if (!integer(s, row_.ts)) {
    return false;
  }
  if (std::memcmp(s, ",\"dur\":", 7) != 0) return false;
  s += 7;
  if (!integer(s, row_.dur)) return false;
  row_.ph = 'X';
  row_.has = 1u << f_id | 1u << f_name | 1u << f_cat | 1u << f_pid | 1u << f_tid | 1u << f_ts | 1u << f_dur;
  static_assert(sizeof last_host_ == kHostSize + kHashSize + 2);
  if (static_cast<std::size_t>(end - s) > sizeof last_host_ && equal_long(s, last_host_, sizeof last_host_)) {
    row_.hhash = last_host_code_;
    take(f_hhash);
    p = s + sizeof last_host_;
    return true;
  }
  if (static_cast<std::size_t>(end - s) <= sizeof last_host_ || std::memcmp(s, kHost, kHostSize) != 0) return false;
  const char* const hash = s + kHostSize;
  if (quote_or_escape(hash, end) != hash + kHashSize || hash[kHashSize + 1] != ',') return false;
  row_.hhash = last_host_code_ = hhash_(std::string_view(hash, kHashSize));
  take(f_hhash);
  std::memcpy(last_host_, s, sizeof last_host_);
  p = s + sizeof last_host_;
  return true;
}

// The row whose name begins at s is the new shape's first; its arguments are not known yet.
bool LineScanner::learn_head(const char* s, const char* end, Shape& shape) {
  const char* const from = s;
  const auto text = [&](Interner& in, std::int32_t& code) {
    const char* const begin = s;
    s = quote_or_escape(s, end);
    if (s >= end || *s != '"') return false;
    code = in(std::string_view(begin, static_cast<std::size_t>(s - begin)));
    return true;
  };
  shape.head_size = shape.known = 0;
  if (!text(name_, shape.name) || std::memcmp(s, "\",\"cat\":\"", 9) != 0) return false;
  s += 9;
  if (!text(cat_, shape.cat) || std::memcmp(s, "\",\"pid\":", 8) != 0) return false;
  s += 8;
  if (!integer(s, shape.pid) || std::memcmp(s, ",\"tid\":", 7) != 0) return false;
  s += 7;
  const auto size = static_cast<std::size_t>(s - from);
  if (size > Shape::kLongestHead) return false;
  std::memcpy(shape.head, from, size);
  shape.head_size = size;
  return true;
}

bool LineScanner::object(const char*& p, const char* end, Columns& out) {
  row_.has = 0;
  row_.ph = 0;
  rest_.clear();
  const char* late_args = nullptr;  // `ph` decides how args are read; some writers put it after them
  Shape* shape = nullptr;
  if (usual_head(p, end, shape)) {
    if (!known_arguments(p, end, *shape) || *p != '}') return false;
    ++p;
    return finish_row(nullptr, end, out);
  }
  row_.has = 0;
  row_.ph = 0;
  rest_.clear();
  ++p;
  if (*p == ' ') p = blanks(p);
  for (;;) {
    const char* const key_at = p;
    Text k;
    if (!string(p, end, k)) return false;
    if (*p != ':') {
      p = blanks(p);
      if (*p != ':') return false;
    }
    ++p;
    if (*p == ' ') p = blanks(p);
    bool ok = true;
    switch (k.raw.size() > 8 ? 0 : load8(k.raw.data(), k.raw.size())) {
      case key("id"): ok = integer_or_rest(p, end, key_at, row_.id, f_id); break;
      case key("pid"): ok = integer_or_rest(p, end, key_at, row_.pid, f_pid); break;
      case key("tid"): ok = integer_or_rest(p, end, key_at, row_.tid, f_tid); break;
      case key("ts"):
      case key("dur"): {
        std::int64_t& slot = k.raw.size() == 2 ? row_.ts : row_.dur;
        const char* s = p + (*p == '"' ? 1 : 0);
        if (integer(s, slot)) {
          take(k.raw.size() == 2 ? f_ts : f_dur);
          if (*s == '.') {  // a fraction of a microsecond is cut off
            ++s;
            while (digit(*s)) ++s;
          }
          if (*p == '"') ++s;
          p = s;
        } else {
          ok = skip(p, end, 0);
        }
        break;
      }
      case key("name"): ok = text_code(p, end, name_, row_.name, f_name); break;
      case key("cat"): ok = text_code(p, end, cat_, row_.cat, f_cat); break;
      case key("ph"):
        if (*p == '"') {
          Text t;
          ok = string(p, end, t) && t.raw.size() == 1;
          if (ok) row_.ph = static_cast<std::int8_t>(t.raw[0]);
        } else {
          std::int64_t v = 0;
          ok = integer(p, v);
          row_.ph = static_cast<std::int8_t>(v == 1 ? 'X' : v == 2 ? 'C' : v == 3 ? 'C' : v == 4 ? 'M' : '?');
        }
        break;
      case key("args"):
        if (row_.ph == 0) {
          late_args = p;
          ok = skip(p, end, 0);
        } else {
          ok = arguments(p, end);
        }
        break;
      default:
        ok = skip(p, end, 0);
        if (ok) rest(key_at, p);
    }
    if (!ok) return false;
    if (*p == ' ') p = blanks(p);
    if (*p == ',') {
      ++p;
      if (*p == ' ') p = blanks(p);
      continue;
    }
    if (*p != '}') return false;
    ++p;
    break;
  }
  if (row_.ph == 0) row_.ph = 'X';
  return finish_row(late_args, end, out);
}

bool LineScanner::finish_row(const char* late_args, const char* end, Columns& out) {
  if (late_args != nullptr && !arguments(late_args, end)) return false;
  if (!row_.have(f_name)) return false;

  const bool tracer_event =
      row_.have(f_cat) && row_.cat == tracer_code_ && (row_.name == start_code_ || row_.name == end_code_);
  if (row_.ph == 'M' || tracer_event) {
    Meta m;
    m.kind = dictionaries_->name.at(static_cast<std::size_t>(row_.name));
    std::string b;
    m.key = plain(meta_key_, b);
    m.value = plain(meta_value_, b);
    if (!rest_.empty()) m.rest = rest_ + '}';
    m.pid = row_.have(f_pid) ? row_.pid : kMissing;
    m.tid = row_.have(f_tid) ? row_.tid : kMissing;
    m.ts = row_.have(f_ts) ? row_.ts : kMissing;
    meta_key_ = meta_value_ = {};
    out.meta.push_back(std::move(m));
    if (row_.ph == 'M') {
      ++counts.meta;
      return true;
    }
  }
  if (!row_.have(f_ts)) return false;
  if (!row_.have(f_dur)) {
    row_.dur = 0;
    take(f_dur);
  }
  if (row_.ts > kTimeLimit || row_.ts < -kTimeLimit || row_.dur > kTimeLimit || row_.dur < -kTimeLimit) return false;
  if (filter_->any && !wanted()) {
    ++counts.filtered;
    return true;
  }
  if (!rest_.empty()) {
    rest_ += '}';
    out.args_text.append(rest_.data(), rest_.size());
  }
  out.push(row_);
  ++counts.events;
  return true;
}

std::size_t LineScanner::scan(const char* text, std::size_t size, Columns& out) {
  const char* p = text;
  const char* const end = text + size;
  while (p < end) {
    const char c = *p;
    if (c == '\n' || c == ' ' || c == '\t' || c == '\r' || c == ',' || c == '[' || c == ']' || c == '\0') {
      ++p;
      continue;
    }
    const char* const line = p;
    ++counts.lines;
    const std::size_t rows = out.rows;
    const std::size_t text_size = out.args_text.size();
    const std::size_t metas = out.meta.size();
    const LineCounts before = counts;
    // A record never spans lines, so a bad one costs its own line and nothing else.
    bool ok = c == '{' && object(p, end, out) && p <= end;
    if (ok) {
      while (p < end && (*p == ' ' || *p == ',' || *p == '\r' || *p == '\t' || *p == ']')) ++p;
      ok = (p >= end || *p == '\n' || *p == '{') && static_cast<std::size_t>(p - line) <= kLineLimit;
    }
    if (ok) continue;
    if (out.rows != rows || out.meta.size() != metas || out.args_text.size() != text_size) {
      out.meta.resize(metas);
      out.cut(rows);
      out.args_text.resize_down(text_size);
    }
    counts = before;
    meta_key_ = meta_value_ = {};
    const auto* next = static_cast<const char*>(std::memchr(line, '\n', static_cast<std::size_t>(end - line)));
    if (next == nullptr) return static_cast<std::size_t>(end - line);
    ++counts.bad;
    p = next + 1;
  }
  return 0;
}

}  // namespace dft::load
