#include "json_text.hpp"

namespace dft::load {

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
