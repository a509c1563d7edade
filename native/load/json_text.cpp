#include "json_text.hpp"

#include <limits>

namespace dft::load {

bool any_integer(const char*& p, int64_t& out) {
  const char* s = p;
  const bool negative = *s == '-';
  if (negative) ++s;
  if (!digit(*s)) return false;
  uint64_t v = 0;
  const char* first = s;
  while (digit(*s)) v = v * 10 + uint64_t(*s++ - '0');
  if (s - first > 18) {  // may have wrapped: redo with a check
    v = 0;
    for (const char* q = first; q < s; ++q)
      if (__builtin_mul_overflow(v, uint64_t{10}, &v) || __builtin_add_overflow(v, uint64_t(*q - '0'), &v))
        return false;
    if (v > uint64_t(std::numeric_limits<int64_t>::max())) return false;
  }
  out = negative ? -int64_t(v) : int64_t(v);
  p = s;
  return true;
}

bool skip_value(const char*& p, const char* end, int depth) {
  p = blanks(p);
  if (*p == '"') {
    Text t;
    return read_string(p, end, t);
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
        if (!read_string(p, end, t)) return false;
        p = blanks(p);
        if (*p++ != ':') return false;
      }
      if (!skip_value(p, end, depth + 1)) return false;
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

}  // namespace dft::load
