// The decoder of whole members against zlib's: what zlib takes, it takes too, and makes the same of it.
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "load/whole_inflate.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto decoder = std::make_unique<dft::load::WholeInflate>();
  if (size < 2) return 0;
  // A real stream with the input's bytes as damage in it, or the bytes themselves.
  std::vector<uint8_t> stream(data + 1, data + size);
  if (data[0] % 2 != 0) {
    uLongf bound = compressBound(uLong(size)) + 16;
    stream.resize(bound);
    compress2(stream.data(), &bound, data, uLong(size), 1 + data[0] % 9);
    stream.resize(bound > 6 ? bound - 4 : bound);
    stream.erase(stream.begin(), stream.begin() + 2);
    if (data[0] % 4 == 3) stream[data[1] % stream.size()] ^= uint8_t(1 + data[1] % 255);
  }
  z_stream z{};
  if (inflateInit2(&z, -15) != Z_OK) std::abort();
  std::vector<uint8_t> expected(size * 1040 + 64);
  z.next_in = stream.data();
  z.avail_in = uInt(stream.size());
  z.next_out = expected.data();
  z.avail_out = uInt(expected.size());
  const bool whole = inflate(&z, Z_FINISH) == Z_STREAM_END;
  const size_t made = z.total_out, used = z.total_in;
  inflateEnd(&z);
  std::vector<uint8_t> out(made);
  const size_t got = decoder->decode(stream.data(), stream.size(), out.data(), made);
  if (whole && (got != used || std::memcmp(out.data(), expected.data(), made) != 0)) std::abort();
  return 0;
}
