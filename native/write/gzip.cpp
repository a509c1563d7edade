#include "write/gzip.hpp"

#include <zlib.h>

#include <cstring>
#include <vector>

namespace dft {
namespace {

// Header: 10 fixed bytes, XLEN, then one subfield 'D' 'F' of 32 bytes (docs/format.md).
constexpr size_t kIndexSize = 32;
constexpr size_t kHeaderSize = 10 + 2 + 4 + kIndexSize;
constexpr size_t kTrailerSize = 8;

template <typename T>
void store(uint8_t* p, T v) {
  memcpy(p, &v, sizeof v);
}

void write_header(uint8_t* p, size_t member_size, size_t text_size, const MemberFacts& facts) {
  static const uint8_t fixed[10] = {0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255};
  memcpy(p, fixed, 10);
  store<uint16_t>(p + 10, 4 + kIndexSize);
  p[12] = 'D';
  p[13] = 'F';
  store<uint16_t>(p + 14, kIndexSize);
  store<uint32_t>(p + 16, uint32_t(member_size));
  store<uint32_t>(p + 20, uint32_t(text_size));
  store<uint32_t>(p + 24, facts.lines);
  store<uint32_t>(p + 28, 0);
  store<uint64_t>(p + 32, facts.first_ts);
  store<uint64_t>(p + 40, facts.last_ts);
}

}  // namespace

struct Gzip::Impl {
  z_stream stream{};
  bool ready = false;
  std::vector<uint8_t> out;
};

Gzip::Gzip() : impl_(new Impl) {}

Gzip::~Gzip() {
  if (impl_->ready) deflateEnd(&impl_->stream);
  delete impl_;
}

const char* Gzip::backend() { return "zlib"; }

std::string_view Gzip::member(std::string_view text, const MemberFacts& facts) {
  z_stream& z = impl_->stream;
  if (!impl_->ready) {
    impl_->ready = deflateInit2(&z, 3, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY) == Z_OK;
  } else {
    deflateReset(&z);
  }
  auto& out = impl_->out;
  out.resize(kHeaderSize + deflateBound(&z, uLong(text.size())) + kTrailerSize);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = uInt(text.size());
  z.next_out = out.data() + kHeaderSize;
  z.avail_out = uInt(out.size() - kHeaderSize - kTrailerSize);
  deflate(&z, Z_FINISH);
  size_t body = out.size() - kHeaderSize - kTrailerSize - z.avail_out;
  size_t total = kHeaderSize + body + kTrailerSize;
  write_header(out.data(), total, text.size(), facts);
  uint8_t* trailer = out.data() + kHeaderSize + body;
  store<uint32_t>(trailer, uint32_t(crc32(0, reinterpret_cast<const Bytef*>(text.data()), uInt(text.size()))));
  store<uint32_t>(trailer + 4, uint32_t(text.size()));
  return {reinterpret_cast<char*>(out.data()), total};
}

}  // namespace dft
