#include "format/json.hpp"

namespace dft {
namespace {

bool is_plain(uint8_t c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

// Length of the valid UTF-8 sequence at p, 0 if there is none (overlong, surrogate, cut).
size_t utf8_length(const uint8_t* p, const uint8_t* end) {
  uint8_t c = p[0];
  size_t n = c < 0x80 ? 1 : (c >> 5) == 6 ? 2 : (c >> 4) == 14 ? 3 : (c >> 3) == 30 ? 4 : 0;
  if (n == 0 || size_t(end - p) < n) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((p[i] & 0xc0) != 0x80) return 0;
  if (n == 2 && c < 0xc2) return 0;
  if (n == 3 && ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] >= 0xa0))) return 0;
  if (n == 4 && ((c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] >= 0x90) || c > 0xf4)) return 0;
  return n;
}

void append_escape(std::string& out, uint8_t c) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
  }
  static const char* hex = "0123456789abcdef";
  out += "\\u00";
  out += hex[c >> 4];
  out += hex[c & 15];
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const auto* end = p + text.size();
  while (p < end) {
    const auto* run = p;
    while (p < end && is_plain(*p)) ++p;
    out.append(reinterpret_cast<const char*>(run), size_t(p - run));
    if (p == end) break;
    if (*p < 0x20 || *p == '"' || *p == '\\' || *p == 0x7f) {
      append_escape(out, *p++);
    } else if (size_t n = utf8_length(p, end)) {
      out.append(reinterpret_cast<const char*>(p), n);
      p += n;
    } else {
      out += "\xef\xbf\xbd";
      ++p;
    }
  }
  out += '"';
}

}  // namespace dft
