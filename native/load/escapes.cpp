#include "escapes.hpp"

#include <cstdint>

namespace dft::load {
namespace {

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xC0 | (c >> 6));
    out += char(0x80 | (c & 63));
  } else if (c < 0x10000) {
    out += char(0xE0 | (c >> 12));
    out += char(0x80 | ((c >> 6) & 63));
    out += char(0x80 | (c & 63));
  } else {
    out += char(0xF0 | (c >> 18));
    out += char(0x80 | ((c >> 12) & 63));
    out += char(0x80 | ((c >> 6) & 63));
    out += char(0x80 | (c & 63));
  }
}

int hex4(const char* p, const char* end) {
  if (end - p < 4) return -1;
  int v = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = p[i];
    const int d = (c >= '0' && c <= '9')   ? c - '0'
                  : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                  : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                           : -1;
    if (d < 0) return -1;
    v = v * 16 + d;
  }
  return v;
}

}  // namespace

void unescape(std::string_view raw, std::string& out) {
  out.clear();
  const char* p = raw.data();
  const char* const end = p + raw.size();
  while (p < end) {
    if (*p != '\\') {
      out += *p++;
      continue;
    }
    if (++p == end) break;
    const char c = *p++;
    switch (c) {
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'r': out += '\r'; break;
      case 'b': out += '\b'; break;
      case 'f': out += '\f'; break;
      case 'u': {
        int u = hex4(p, end);
        if (u < 0) {
          append_utf8(out, 0xFFFD);
          break;
        }
        p += 4;
        auto code = uint32_t(u);
        if (code >= 0xD800 && code < 0xE000) {
          const int low = (code < 0xDC00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') ? hex4(p + 2, end) : -1;
          if (low >= 0xDC00 && low < 0xE000) {
            p += 6;
            code = 0x10000 + ((code - 0xD800) << 10) + (uint32_t(low) - 0xDC00);
          } else {
            code = 0xFFFD;
          }
        }
        append_utf8(out, code);
        break;
      }
      default: out += c;
    }
  }
}

}  // namespace dft::load
