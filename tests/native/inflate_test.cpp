// The reader's decoder of whole members: the same bytes as zlib for everything zlib writes, and no harm from
// anything else.
#include "load/whole_inflate.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"

using dft::load::WholeInflate;
using Bytes = std::vector<uint8_t>;

static std::mt19937 g_random(7);

static unsigned below(unsigned n) { return unsigned(g_random() % n); }

static Bytes text_of_kind(unsigned kind, size_t n) {
  Bytes text;
  while (text.size() < n) {
    switch (kind) {
      case 0: text.push_back(uint8_t(g_random())); break;                         // no code shorter than a byte
      case 1: text.insert(text.end(), 1 + below(400), uint8_t(below(4))); break;  // distance 1, longest matches
      case 2: text.push_back(uint8_t("0123456789,:{}\""[below(15)])); break;      // literals only, two at a time
      case 3: {                                                                   // rows like ours
        const std::string row =
            "{\"id\":" + std::to_string(text.size()) +
            ",\"name\":\"read\",\"cat\":\"POSIX\",\"ts\":" + std::to_string(1760000000000000 + text.size()) +
            ",\"dur\":" + std::to_string(below(999)) + "}\n";
        text.insert(text.end(), row.begin(), row.end());
        break;
      }
      case 4: {  // very uneven frequencies: codes of all lengths, so second tables too
        uint8_t byte = 0;
        while (byte < 250 && below(3) != 0) ++byte;
        text.push_back(byte);
        if (below(50) == 0 && text.size() > 40) {
          const size_t from = below(unsigned(text.size() - 30));
          for (size_t i = 0; i < 3 + below(27); ++i) text.push_back(text[from + i]);
        }
        break;
      }
      default: {  // short distances of every size
        const size_t period = 1 + below(20), times = 3 + below(60);
        const size_t from = text.size();
        for (size_t i = 0; i < period; ++i) text.push_back(uint8_t(g_random()));
        for (size_t i = 0; i < times; ++i) text.push_back(text[from + i]);
      }
    }
  }
  text.resize(n);
  return text;
}

static Bytes deflated(const Bytes& text, int level, int strategy) {
  z_stream z{};
  CHECK(deflateInit2(&z, level, Z_DEFLATED, -15, 9, strategy) == Z_OK);
  Bytes out(deflateBound(&z, uLong(text.size())) + 64);
  z.next_in = const_cast<Bytef*>(text.data());
  z.avail_in = uInt(text.size());
  z.next_out = out.data();
  z.avail_out = uInt(out.size());
  CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(out.size() - z.avail_out);
  deflateEnd(&z);
  return out;
}

// Exactly as much memory as allowed, so that a sanitizer sees every byte beyond.
static size_t decode(WholeInflate& d, const Bytes& packed, size_t size, Bytes& out) {
  const Bytes input(packed);
  out.assign(size, 0xee);
  const size_t used = d.decode(input.data(), input.size(), out.data(), size);
  return used;
}

TEST(gives_back_what_zlib_packed) {
  WholeInflate d;
  Bytes out;
  for (unsigned kind = 0; kind < 6; ++kind)
    for (const size_t n : {size_t{0}, size_t{1}, size_t{2}, size_t{300}, size_t{70000}})
      for (const int level : {0, 1, 6, 9})
        for (const int strategy : {Z_DEFAULT_STRATEGY, Z_HUFFMAN_ONLY, Z_RLE, Z_FIXED}) {
          const Bytes text = text_of_kind(kind, n == 0 ? 0 : n + below(7));
          const Bytes packed = deflated(text, level, strategy);
          CHECK(decode(d, packed, text.size(), out) == packed.size());
          CHECK(out == text);
          // Bytes after the stream are not taken for part of it.
          Bytes more = packed;
          more.insert(more.end(), 40, 0xff);
          CHECK(decode(d, more, text.size(), out) == packed.size());
          CHECK(out == text);
          // Another size than stated is a lie.
          CHECK(decode(d, packed, text.size() + 1, out) == 0);
          if (!text.empty()) CHECK(decode(d, packed, text.size() - 1, out) == 0);
          if (!packed.empty()) CHECK(decode(d, Bytes(packed.begin(), packed.end() - 1), text.size(), out) == 0);
        }
}

// Whether zlib makes something else of a stream. One that zlib refuses, for codes that no encoder writes, proves
// nothing: the checksum of the member decides.
static bool zlib_disagrees(const Bytes& packed, const Bytes& text) {
  z_stream z{};
  CHECK(inflateInit2(&z, -15) == Z_OK);
  Bytes out(text.size() + 1);
  z.next_in = const_cast<Bytef*>(packed.data());
  z.avail_in = uInt(packed.size());
  z.next_out = out.data();
  z.avail_out = uInt(out.size());
  const bool whole = inflate(&z, Z_FINISH) == Z_STREAM_END;
  const size_t made = z.total_out;
  inflateEnd(&z);
  return whole && (made != text.size() || memcmp(out.data(), text.data(), text.size()) != 0);
}

TEST(damaged_streams_do_no_harm) {
  WholeInflate d;
  Bytes out;
  unsigned taken = 0;
  for (unsigned round = 0; round < 4000; ++round) {
    const Bytes text = text_of_kind(below(6), 1 + below(3000));
    Bytes packed = deflated(text, int(1 + below(9)), round % 5 == 0 ? Z_FIXED : Z_DEFAULT_STRATEGY);
    switch (below(4)) {
      case 0: packed[below(unsigned(packed.size()))] ^= uint8_t(1 << below(8)); break;
      case 1: packed.resize(below(unsigned(packed.size()))); break;
      case 2:
        for (unsigned i = 0; i < 8; ++i) packed[below(unsigned(packed.size()))] = uint8_t(g_random());
        break;
      default: packed[below(std::min(unsigned(packed.size()), 40u))] = uint8_t(g_random()); break;
    }
    if (decode(d, packed, text.size(), out) != 0) {
      CHECK(!zlib_disagrees(packed, out));
      ++taken;
    }
  }
  CHECK(taken > 0);
  for (unsigned round = 0; round < 20000; ++round) {
    Bytes noise(below(200));
    for (uint8_t& b : noise) b = uint8_t(g_random());
    const size_t size = below(500);
    if (decode(d, noise, size, out) != 0) CHECK(!zlib_disagrees(noise, out));
  }
}

TEST_MAIN
