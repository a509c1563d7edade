#include "write/gzip.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "format/crc32.hpp"
#include "write/line_deflate.hpp"

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

constexpr uint8_t kFixed[16] = {0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 4 + kIndexSize, 0, 'D', 'F', kIndexSize, 0};

void write_header(uint8_t* p, size_t member_size, size_t text_size, const MemberFacts& facts) {
  memcpy(p, kFixed, sizeof kFixed);
  store<uint32_t>(p + 16, uint32_t(member_size));
  store<uint32_t>(p + 20, uint32_t(text_size));
  store<uint32_t>(p + 24, facts.lines);
  store<uint32_t>(p + 28, 0);
  store<uint64_t>(p + 32, facts.first_ts);
  store<uint64_t>(p + 40, facts.last_ts);
}

}  // namespace

static_assert(kHeaderSize == kMemberHeader);

bool begins_as_member(std::string_view bytes) {
  return memcmp(bytes.data(), kFixed, std::min(bytes.size(), sizeof kFixed)) == 0;
}

bool read_member_index(std::string_view header, MemberIndex* out) {
  if (header.size() < kHeaderSize || memcmp(header.data(), "\x1f\x8b\x08\x04", 4) != 0 ||
      memcmp(header.data() + 12, "DF", 2) != 0)
    return false;
  uint32_t fields[3];
  memcpy(fields, header.data() + 16, sizeof fields);
  *out = {fields[0], fields[1], fields[2]};
  return out->member_size > kHeaderSize;
}

std::string first_member_text(std::string_view bytes, size_t limit) {
  std::string text(limit, '\0');
  z_stream z{};
  if (inflateInit2(&z, 31) != Z_OK) return {};
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = uInt(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(text.data());
  z.avail_out = uInt(text.size());
  inflate(&z, Z_SYNC_FLUSH);
  text.resize(z.total_out);
  inflateEnd(&z);
  return text;
}

struct Gzip::Impl {
  LineDeflate lines;
  std::vector<uint8_t> out;

  z_stream stream{};
  bool ready = false;
  std::vector<uint8_t> searched;

  // Raw deflate with zlib's search for matches; false when zlib has no memory.
  bool search(std::string_view text) {
    z_stream& z = stream;
    if (!ready) {
      ready = deflateInit2(&z, 3, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY) == Z_OK;
      if (!ready) return false;
    } else {
      deflateReset(&z);
    }
    searched.resize(deflateBound(&z, uLong(text.size())));
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = uInt(text.size());
    z.next_out = searched.data();
    z.avail_out = uInt(searched.size());
    bool done = deflate(&z, Z_FINISH) == Z_STREAM_END;
    searched.resize(searched.size() - z.avail_out);
    return done;
  }
};

Gzip::Gzip() : impl_(new Impl) {}

Gzip::~Gzip() {
  if (impl_->ready) deflateEnd(&impl_->stream);
  delete impl_;
}

const char* Gzip::backend() { return "gzip"; }

std::string_view Gzip::member(std::string_view text, const MemberFacts& facts) {
  // Lines of events come out 10 to 60 times smaller; what does not is long strings, which zlib knows better.
  constexpr size_t kUnlikeEvents = 6, kWorthASearch = 4096, kKeptMemory = 4 << 20;
  auto& out = impl_->out;
  if (out.capacity() > kKeptMemory) std::vector<uint8_t>().swap(out);  // after a giant string
  out.resize(kHeaderSize);
  impl_->lines.compress(text, out);
  size_t body = out.size() - kHeaderSize;
  if (text.size() > kWorthASearch && body * kUnlikeEvents > text.size() && impl_->search(text) &&
      impl_->searched.size() < body) {
    out.resize(kHeaderSize);
    out.insert(out.end(), impl_->searched.begin(), impl_->searched.end());
  }
  if (impl_->searched.capacity() > kKeptMemory) std::vector<uint8_t>().swap(impl_->searched);
  size_t trailer = out.size();
  out.resize(trailer + kTrailerSize);
  write_header(out.data(), out.size(), text.size(), facts);
  store<uint32_t>(out.data() + trailer, gzip_crc32(text.data(), text.size()));
  store<uint32_t>(out.data() + trailer + 4, uint32_t(text.size()));
  return {reinterpret_cast<char*>(out.data()), out.size()};
}

}  // namespace dft
