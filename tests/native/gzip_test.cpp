// Members written by write/gzip.cpp are what any inflate reads back, for events and for arbitrary bytes.
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "format/crc32.hpp"
#include "write/gzip.hpp"

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int kTexts = 1000;
#else
constexpr int kTexts = 3000;
#endif
int g_failures = 0;

void check(bool good, const char* what) {
  if (good) return;
  fprintf(stderr, "failed: %s\n", what);
  ++g_failures;
}

// Inflates exactly one gzip member with zlib, which also checks the CRC and the size.
bool inflates_to(std::string_view member, const std::string& text) {
  std::string back(text.size() + 1, '\0');
  z_stream z{};
  if (inflateInit2(&z, 31) != Z_OK) return false;
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(member.data()));
  z.avail_in = uInt(member.size());
  z.next_out = reinterpret_cast<Bytef*>(back.data());
  z.avail_out = uInt(back.size());
  int rc = inflate(&z, Z_FINISH);
  size_t n = z.total_out, left = z.avail_in;
  inflateEnd(&z);
  back.resize(n);
  return rc == Z_STREAM_END && left == 0 && back == text;
}

std::string event(std::mt19937& draw, unsigned id) {
  char line[256];
  snprintf(
      line, sizeof line,
      "{\"id\":%u,\"name\":\"n%u\",\"cat\":\"c\",\"pid\":77,\"tid\":77,\"ts\":17531232136%05u,\"dur\":%u,\"ph\":\"X\","
      "\"args\":{\"hhash\":\"2a702c695247d487\",\"p_idx\":%u,\"step\":%u,\"level\":2}}\n",
      id, unsigned(draw() % 4), unsigned(draw() % 100000), unsigned(draw() % 5000), id / 3, id / 100);
  return line;
}

// What a program does with one file: the same path in every line, the names in turns.
std::string calls(std::mt19937& draw, unsigned id) {
  char hash[17];
  snprintf(hash, sizeof hash, "%08x%08x", unsigned(draw()), unsigned(draw()));
  std::string size = std::to_string(draw() % 500);
  const std::string names_and_args[][2] = {
      {"open", "\"flags\":524288,\"mode\":0,\"ret\":" + size},
      {"fstat", "\"ret\":0"},
      {"lseek", "\"offset\":0,\"whence\":1,\"ret\":0"},
      {"read", "\"count\":4096,\"ret\":" + size},
      {"close", "\"ret\":0"},
  };
  std::string text;
  for (const auto& [name, args] : names_and_args) {
    char line[320];
    snprintf(
        line, sizeof line,
        "{\"id\":%u,\"name\":\"%s\",\"cat\":\"POSIX\",\"pid\":77,\"tid\":77,\"ts\":17531232%08u,\"dur\":%u,\"ph\":\"X\","
        "\"args\":{\"hhash\":\"2a702c695247d487\",\"p_idx\":-1,\"fhash\":\"%s\",%s,\"level\":1}}\n",
        id, name.c_str(), id * 23 + unsigned(draw() % 9), unsigned(draw() % 4), hash, args.c_str());
    text += line;
    ++id;
  }
  return text;
}

std::string anything(std::mt19937& draw) {
  std::string text;
  for (unsigned part = draw() % 40; part; --part) {
    switch (draw() % 8) {
      case 0:
        for (unsigned n = draw() % 300; n; --n) text += char(draw());
        break;
      case 1: text += std::string(draw() % 9000, char('a' + draw() % 3)); break;
      case 2: text += '\n'; break;
      case 3: text += calls(draw, unsigned(draw() % 1000)); break;
      case 4:
        text += calls(draw, unsigned(draw() % 1000));
        text.resize(text.size() - draw() % 200);
        break;
      default: text += event(draw, unsigned(draw() % 1000));
    }
  }
  return text;
}

}  // namespace

int main() {
  std::mt19937 draw(7);
  dft::Gzip gzip;

  std::string events;
  for (unsigned id = 1; id <= 5000; ++id) events += event(draw, id);
  std::string_view member = gzip.member(events, {});
  check(inflates_to(member, events), "events come back");
  uLong bound = compressBound(uLong(events.size()));
  std::vector<Bytef> by_zlib(bound);
  compress2(by_zlib.data(), &bound, reinterpret_cast<const Bytef*>(events.data()), uLong(events.size()), 3);
  check(member.size() < bound, "events take less room than with zlib's level 3");

  std::string about_files;
  for (unsigned id = 1; id <= 5000; id += 5) about_files += calls(draw, id);
  member = gzip.member(about_files, {});
  check(inflates_to(member, about_files), "calls about files come back");
  check(member.size() < 5000 * 14, "a path is written once for all calls about its file");

  check(inflates_to(gzip.member("", {}), ""), "an empty member");
  check(inflates_to(gzip.member("\n", {}), "\n"), "an empty line");
  std::string alike(600000, 'x');
  check(inflates_to(gzip.member(alike, {}), alike), "one long line");
  std::string giant;
  while (giant.size() < (8u << 20)) giant += char(draw());
  check(inflates_to(gzip.member(giant, {}), giant), "a giant string, in several blocks");
  while (events.size() < (8u << 20)) events += event(draw, unsigned(events.size()));
  check(inflates_to(gzip.member(events, {}), events), "many events, in several blocks");
  for (int i = 0; i < kTexts; ++i) {
    std::string text = anything(draw);
    check(inflates_to(gzip.member(text, {}), text), "arbitrary bytes");
  }

  std::string bytes;
  for (int i = 0; i < 6000; ++i) bytes += char(draw());
  for (size_t n = 0; n < 600; ++n) {
    const char* p = bytes.data() + draw() % 64;
    check(dft::gzip_crc32(p, n) == crc32(0, reinterpret_cast<const Bytef*>(p), uInt(n)), "crc of short buffers");
  }
  check(dft::gzip_crc32(bytes.data(), bytes.size()) ==
            crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), uInt(bytes.size())),
        "crc of a long buffer");

  if (g_failures) fprintf(stderr, "%d checks failed\n", g_failures);
  return g_failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
