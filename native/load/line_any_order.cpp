// Rows that are not written like the last of their kind: any order of keys, any spelling of values.
#include "escapes.hpp"
#include "format/keys.hpp"
#include "line.hpp"

namespace dft::load {
namespace {

enum class Next : uint8_t { key, end, damage };

// Moves p from behind a key to its value.
inline bool to_value(const char*& p) {
  if (*p != ':') {
    p = blanks(p);
    if (*p != ':') return false;
  }
  ++p;
  if (*p == ' ') p = blanks(p);
  return true;
}

// Moves p from behind a value to the next key, or behind the object.
inline Next after_value(const char*& p) {
  if (*p == ' ') p = blanks(p);
  if (*p == ',') {
    ++p;
    if (*p == ' ') p = blanks(p);
    return Next::key;
  }
  if (*p != '}') return Next::damage;
  ++p;
  return Next::end;
}

inline uint64_t key_of(const Text& k) { return k.raw.size() > 8 ? 0 : load8(k.raw.data(), k.raw.size()); }

// A value as it is written, without the quotes of a string.
bool written_value(const char*& p, const char* end, Text& out) {
  if (*p == '"') return read_string(p, end, out);
  const char* const from = p;
  if (!skip_value(p, end)) return false;
  out = {{from, size_t(p - from)}, false};
  return true;
}

// A time, plain or quoted; a fraction of a microsecond is cut off.
bool time_value(const char*& p, int64_t& out) {
  const char* s = p + (*p == '"' ? 1 : 0);
  if (!integer(s, out)) return false;
  if (*s == '.') {
    ++s;
    while (digit(*s)) ++s;
  }
  p = s + (*p == '"' ? 1 : 0);
  return true;
}

// A letter, or the number that some writers have for it; 0: neither.
int8_t phase_value(const char*& p, const char* end) {
  if (*p == '"') {
    Text t;
    return read_string(p, end, t) && t.raw.size() == 1 ? int8_t(t.raw[0]) : int8_t{0};
  }
  int64_t v = 0;
  if (!integer(p, v)) return 0;
  switch (v) {
    case 1: return 'X';
    case 2: return 'C';
    case 3: return 'A';
    case 4: return 'M';
    default: return '?';
  }
}

}  // namespace

// Inlined by force where one function became several: the calls cost 8 % of files in this dialect.

// What is learnt about argument number `n` of rows of one shape.
struct LineScanner::Learner {
  Shape* shape;  // null: nothing is
  size_t n;
  const char* key_at;

  void operator()(Argument::Kind kind, Field field, const char* value) const {
    if (shape && shape->known == n) shape->learn(n, key_at, size_t(value - key_at), kind, field);
  }
};

void LineScanner::rest(const char* from, const char* to) {
  rest_ += rest_.empty() ? '{' : ',';
  rest_.append(from, to);
}

// An integer, plain or quoted, goes to its column; any other value stays in the rest.
inline bool LineScanner::integer_or_rest(const char*& p, const char* end, const char* key_at, int64_t& out,
                                         Field field) {
  const char* s = p;
  int64_t v;
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
  if (!skip_value(p, end)) return false;
  rest(key_at, p);
  return true;
}

std::string_view LineScanner::plain(const Text& t, std::string& buffer) {
  if (!t.escaped) return t.raw;
  unescape(t.raw, buffer);
  return buffer;
}

// Text is interned as it reads; older writers spell hashes as numbers.
inline bool LineScanner::text_code(const char*& p, const char* end, Interner& in, int32_t& out, Field field) {
  Text t;
  take(field);
  if (*p == '"') {
    if (!read_string(p, end, t)) return false;
    out = in(plain(t, buffer_));
    return true;
  }
  const char* const from = p;
  if (!skip_value(p, end)) return false;
  out = in(std::string_view(from, size_t(p - from)));
  return true;
}

bool LineScanner::arguments(const char*& p, const char* end) {
  if (*p != '{') return skip_value(p, end);
  p = blanks(p + 1);
  if (*p == '}') return ++p, true;
  return more_arguments(p, end, nullptr, 0);
}

// An argument that belongs into a column of integers.
[[gnu::always_inline]] inline bool LineScanner::number(const char*& p, const char* end, const Learner& learn,
                                                       int64_t& slot, Field field) {
  const char* const value = p;
  const uint32_t before = row_.has;
  if (!integer_or_rest(p, end, learn.key_at, slot, field)) return false;
  if (row_.has == before) return true;
  const bool quoted = *value == '"';
  learn(quoted ? Argument::Kind::quoted_number : Argument::Kind::number, field, value + (quoted ? 1 : 0));
  return true;
}

inline bool LineScanner::other_argument(const char*& p, const char* end, const Learner& learn) {
  learn(Argument::Kind::other, f_id, p);
  if (!skip_value(p, end)) return false;
  rest(learn.key_at, p);
  return true;
}

// The argument with the key `k`, whose value is at p.
[[gnu::always_inline]] inline bool LineScanner::argument(const Text& k, const char*& p, const char* end,
                                                         const Learner& learn) {
  switch (key_of(k)) {
    case key(keys::kHostHash): return text_code(p, end, hhash_, row_.hhash, f_hhash);
    case key(keys::kFileHash): {
      const char* const value = p;
      const bool ok = text_code(p, end, fhash_, row_.fhash, f_fhash);
      if (*value == '"') learn(Argument::Kind::file, f_fhash, value + 1);
      return ok;
    }
    case key(keys::kParent): return number(p, end, learn, row_.p_idx, f_p_idx);
    case key(keys::kLevel): return number(p, end, learn, row_.level, f_level);
    case key(keys::kEpoch): return number(p, end, learn, row_.epoch, f_epoch);
    case key(keys::kStep): return number(p, end, learn, row_.step, f_step);
    case key(keys::kCount): return number(p, end, learn, row_.count, f_count);
    case key(keys::kSize): return number(p, end, learn, row_.size, f_size);
    case key(keys::kOffset): return number(p, end, learn, row_.offset, f_offset);
    case key(keys::kReturn): return number(p, end, learn, row_.ret, f_ret);
    case key(keys::kErrno): return number(p, end, learn, row_.errno_, f_errno_);
    case key(keys::kFileName):
    case key(keys::kShortFileName): {
      if (!row_.have(f_fhash) && *p == '"') return text_code(p, end, fhash_, row_.fhash, f_fhash);
      const bool ok = skip_value(p, end);
      rest(learn.key_at, p);
      return ok;
    }
    case key(keys::kMetadataName):
      return row_.ph == 'M' ? written_value(p, end, meta_key_) : other_argument(p, end, learn);
    case key(keys::kMetadataValue):
      return row_.ph == 'M' ? written_value(p, end, meta_value_) : other_argument(p, end, learn);
    default:
      return k.raw == keys::kImageIndex ? number(p, end, learn, row_.image_idx, f_image_idx)
                                        : other_argument(p, end, learn);
  }
}

// Arguments from the one at p to the end of the object. `shape` learns them; p is at its argument number `n`.
bool LineScanner::more_arguments(const char*& p, const char* end, Shape* shape, size_t n) {
  for (;; ++n) {
    const Learner learn{shape, n, p};
    Text k;
    if (!read_string(p, end, k) || !to_value(p)) return false;
    if (shape) shape->forget(n);
    if (!argument(k, p, end, learn)) return false;
    // Nothing is known beyond an argument that could not be learnt.
    if (shape && shape->known == n) shape = nullptr;
    if (const Next next = after_value(p); next != Next::key) return next == Next::end;
  }
}

// The member of a record with the key `k`, whose value is at p.
[[gnu::always_inline]] inline bool LineScanner::member(const Text& k, const char* key_at, const char*& p,
                                                       const char* end, const char*& late_args) {
  switch (key_of(k)) {
    case key(keys::kId): return integer_or_rest(p, end, key_at, row_.id, f_id);
    case key(keys::kPid): return integer_or_rest(p, end, key_at, row_.pid, f_pid);
    case key(keys::kTid): return integer_or_rest(p, end, key_at, row_.tid, f_tid);
    case key(keys::kTs):
      if (!time_value(p, row_.ts)) return skip_value(p, end);
      take(f_ts);
      return true;
    case key(keys::kDuration):
      if (!time_value(p, row_.dur)) return skip_value(p, end);
      take(f_dur);
      return true;
    case key(keys::kName): return text_code(p, end, name_, row_.name, f_name);
    case key(keys::kCategory): return text_code(p, end, cat_, row_.cat, f_cat);
    case key(keys::kPhase): row_.ph = phase_value(p, end); return row_.ph != 0;
    case key(keys::kArgs):
      if (row_.ph != 0) return arguments(p, end);
      late_args = p;
      return skip_value(p, end);
    default:
      if (!skip_value(p, end)) return false;
      rest(key_at, p);
      return true;
  }
}

bool LineScanner::any_object(const char*& p, const char* end, const char*& late_args) {
  ++p;
  if (*p == ' ') p = blanks(p);
  for (;;) {
    const char* const key_at = p;
    Text k;
    if (!read_string(p, end, k) || !to_value(p) || !member(k, key_at, p, end, late_args)) return false;
    const Next next = after_value(p);
    if (next == Next::damage) return false;
    if (next == Next::end) break;
  }
  if (row_.ph == 0) row_.ph = 'X';
  return true;
}

}  // namespace dft::load
