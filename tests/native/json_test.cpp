#include "format/json.hpp"

#include <random>

#include "check.hpp"
#include "json_reader.hpp"

static std::string quoted(std::string_view text) {
  std::string out;
  dft::append_json_string(out, text);
  return out;
}

static bool comes_back(std::string_view text) {
  auto value = parse_json(quoted(text));
  if (!value || value->kind != Json::kString) return false;
  return valid_utf8(text) ? value->text == text : valid_utf8(value->text) && value->text != text;
}

TEST(every_byte) {
  for (int c = 0; c < 256; ++c) CHECK(comes_back(std::string(1, char(c))));
}

TEST(every_pair_of_bytes) {
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b) CHECK(comes_back(std::string{char(a), char(b)}));
}

TEST(every_code_point) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    std::string s;
    if (c < 0x80)
      s = {char(c)};
    else if (c < 0x800)
      s = {char(0xc0 | c >> 6), char(0x80 | (c & 63))};
    else if (c < 0x10000)
      s = {char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
    else
      s = {char(0xf0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
    bool surrogate = c >= 0xd800 && c < 0xe000;
    CHECK(valid_utf8(s) == !surrogate);
    CHECK(comes_back(s));
  }
}

TEST(bad_utf8_is_replaced_and_the_rest_kept) {
  CHECK_EQ(parse_json(quoted("a\xff"
                             "b"))
               ->text,
           "a\xef\xbf\xbd"
           "b");
  CHECK_EQ(parse_json(quoted("\xc0\xaf"
                             "x"))
               ->text,
           "\xef\xbf\xbd\xef\xbf\xbd"
           "x");                                                                       // overlong
  CHECK_EQ(parse_json(quoted("\xf5\x80\x80\x80"))->text.size(), 12u);                  // beyond U+10FFFF
  CHECK_EQ(parse_json(quoted("end \xe2\x82"))->text, "end \xef\xbf\xbd\xef\xbf\xbd");  // cut
  CHECK_EQ(parse_json(quoted("\xe2\x28\xa1"))->text, "\xef\xbf\xbd(\xef\xbf\xbd");
}

TEST(escapes_are_the_short_ones) {
  CHECK_EQ(quoted("\"\\\n\r\t\b\f\x01\x7f/"), "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u007f/\"");
}

TEST(arbitrary_bytes) {
  std::mt19937 draw(3);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (unsigned n = draw() % 40; n; --n) text += char(draw() % 4 ? 0x80 + draw() % 0x80 : draw());
    CHECK(comes_back(text));
    CHECK(quoted(text).size() <= text.size() * 6 + 2);  // what the writer reserves
  }
}

TEST(integers) {
  for (int64_t v : {int64_t(0), int64_t(-1), INT64_MAX, INT64_MIN, int64_t(1) << 40}) {
    std::string out;
    dft::append_int(out, v);
    CHECK_EQ(out, std::to_string(v));
    char buf[24];
    CHECK_EQ(std::string(buf, dft::put_int(buf, v)), std::to_string(v));
    CHECK_EQ(std::string(buf, dft::put_uint(buf, uint64_t(v))), std::to_string(uint64_t(v)));
  }
  for (uint64_t power = 1;; power *= 10) {
    for (uint64_t v : {power - 1, power, power + 1}) {
      char buf[24];
      CHECK_EQ(std::string(buf, dft::put_uint(buf, v)), std::to_string(v));
    }
    if (power > UINT64_MAX / 10) break;
  }
  for (int bits = 0; bits < 64; ++bits) {
    char buf[24];
    const uint64_t v = uint64_t(1) << bits;
    CHECK_EQ(std::string(buf, dft::put_uint(buf, v)), std::to_string(v));
    CHECK_EQ(std::string(buf, dft::put_uint(buf, v - 1)), std::to_string(v - 1));
  }
}

TEST_MAIN
