#include "write/gzip.hpp"

#include <zlib.h>

#include <vector>

#include "write/line_deflate.hpp"

namespace dft {
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

std::string_view Gzip::member(std::string_view text, const MemberFacts& facts, const LikeLines* hints, uint64_t base) {
  // Lines of events shrink 10 to 60 times; if not, there are long strings, which zlib handles better.
  constexpr size_t kUnlikeEvents = 6, kWorthASearch = 4096, kKeptMemory = 4 << 20;
  auto& out = impl_->out;
  if (out.capacity() > kKeptMemory) std::vector<uint8_t>().swap(out);  // after a giant string
  out.resize(kMemberHeaderSize);
  impl_->lines.compress(text, out, hints, base);
  size_t body = out.size() - kMemberHeaderSize;
  if (text.size() > kWorthASearch && body * kUnlikeEvents > text.size() && impl_->search(text) &&
      impl_->searched.size() < body) {
    out.resize(kMemberHeaderSize);
    out.insert(out.end(), impl_->searched.begin(), impl_->searched.end());
  }
  if (impl_->searched.capacity() > kKeptMemory) std::vector<uint8_t>().swap(impl_->searched);
  size_t trailer = out.size();
  out.resize(trailer + kMemberTrailerSize);
  write_member_header(out.data(), out.size(), text.size(), facts);
  write_member_trailer(out.data() + trailer, text);
  return {reinterpret_cast<char*>(out.data()), out.size()};
}

}  // namespace dft
