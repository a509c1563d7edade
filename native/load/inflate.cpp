#include "inflate.hpp"

#include <algorithm>

#include "line.hpp"
#include "format/crc32.hpp"

namespace dft::load {
namespace {
template <class T>
T little(const std::uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

constexpr std::size_t kTrailer = 8;

// Where the deflate stream of a member begins; 0 when the header is not one.
std::size_t header_size(const std::uint8_t* p, std::size_t n) {
  constexpr unsigned kHeaderCrc = 2, kExtra = 4, kName = 8, kComment = 16;
  if (n < 10 || p[0] != 0x1f || p[1] != 0x8b || p[2] != 8) return 0;
  std::size_t at = 10;
  if ((p[3] & kExtra) != 0) {
    if (n < at + 2) return 0;
    at += 2 + little<std::uint16_t>(p + at);
  }
  for (const unsigned text : {kName, kComment}) {
    if ((p[3] & text) == 0) continue;
    while (at < n && p[at] != 0) ++at;
    ++at;
  }
  if ((p[3] & kHeaderCrc) != 0) at += 2;
  return at < n ? at : 0;
}
}  // namespace

std::optional<MemberNote> read_note(const std::uint8_t* p, std::size_t n) {
  if (n < 12 || p[0] != 0x1f || p[1] != 0x8b || p[2] != 8 || (p[3] & 4) == 0) return std::nullopt;
  const std::size_t extra = little<std::uint16_t>(p + 10);
  if (n < 12 + extra) return std::nullopt;
  for (std::size_t at = 12; at + 4 <= 12 + extra;) {
    const std::size_t size = little<std::uint16_t>(p + at + 2);
    if (at + 4 + size > 12 + extra) break;
    if (p[at] == 'D' && p[at + 1] == 'F' && size >= 32) {
      const std::uint8_t* f = p + at + 4;
      const MemberNote note{little<std::uint32_t>(f), little<std::uint32_t>(f + 4), little<std::uint32_t>(f + 8),
                            little<std::uint64_t>(f + 16), little<std::uint64_t>(f + 24)};
      // A size that cannot hold a header and a trailer would make the walk stand still.
      if (note.member_size < 12 + extra + 8) return std::nullopt;
      return note;
    }
    at += 4 + size;
  }
  return std::nullopt;
}

static_assert(WholeInflate::kSlack <= kPadding);

// A member in one go, if it is just what its note says and unharmed.
bool MemberInflater::whole(const std::uint8_t* p, std::size_t n, std::size_t text_size, Bytes& out) {
  const std::size_t head = header_size(p, n);
  if (head == 0 || n < head + kTrailer) return false;
  auto* text = reinterpret_cast<std::uint8_t*>(out.data());
  const std::size_t used = decoder_.decode(p + head, n - head - kTrailer, text, text_size);
  if (used == 0 || head + used + kTrailer != n) return false;
  const std::uint8_t* const trailer = p + n - kTrailer;
  if (little<std::uint32_t>(trailer) != gzip_crc32(text, text_size) ||
      little<std::uint32_t>(trailer + 4) != static_cast<std::uint32_t>(text_size))
    return false;
  out.resize_down(text_size);
  std::memset(out.data() + text_size, 0, kPadding);
  return true;
}

bool MemberInflater::inflate(const std::uint8_t* p, std::size_t n, std::size_t text_size, Bytes& out) {
  out.clear();
  // A damaged note must not make us ask for gigabytes: deflate cannot expand more than about 1032 times.
  text_size = std::min({text_size, n * 1040 + 1024, kLargestMember});
  out.reserve(text_size + kPadding);
  if (whole(p, n, text_size, out)) return true;
  out.clear();
  StreamInflater slow;
  const std::uint8_t* at = p;
  std::size_t left = n;
  for (;;) {
    const auto state = slow.step(at, left, out, out.capacity() - kPadding);
    if (state == StreamInflater::State::more_room) {
      if (out.capacity() > std::min(n * 1040 + 4096, 2 * kLargestMember)) break;
      out.reserve(out.capacity() * 2);
      continue;
    }
    const bool whole = state == StreamInflater::State::more_input && slow.between_members() && out.size() > 0;
    std::memset(out.data() + out.size(), 0, kPadding);
    return whole;
  }
  std::memset(out.data() + out.size(), 0, kPadding);
  return false;
}

StreamInflater::StreamInflater() {
  if (inflateInit2(&z_, 15 + 32) != Z_OK) throw std::bad_alloc();
}
StreamInflater::~StreamInflater() { inflateEnd(&z_); }

StreamInflater::State StreamInflater::step(const std::uint8_t*& p, std::size_t& n, Bytes& out, std::size_t limit) {
  while (n > 0) {
    if (between_) {
      inflateReset(&z_);
      if (*p == 0) {  // zero padding between members, as tape-like writers leave it
        ++p;
        --n;
        continue;
      }
    }
    if (out.size() >= limit) return State::more_room;
    const auto in = static_cast<uInt>(std::min<std::size_t>(n, 1u << 30));
    const auto room = static_cast<uInt>(std::min<std::size_t>(limit - out.size(), 1u << 30));
    z_.next_in = const_cast<Bytef*>(p);
    z_.avail_in = in;
    z_.next_out = reinterpret_cast<Bytef*>(out.data() + out.size());
    z_.avail_out = room;
    const int rc = ::inflate(&z_, Z_NO_FLUSH);
    p += in - z_.avail_in;
    n -= in - z_.avail_in;
    out.resize_down(out.size() + (room - z_.avail_out));
    if (rc == Z_STREAM_END) {
      between_ = true;
      continue;
    }
    between_ = false;
    if (rc != Z_OK && rc != Z_BUF_ERROR) return State::damaged;
    if (z_.avail_out == 0) return State::more_room;
    if (rc == Z_BUF_ERROR && z_.avail_in == in) return State::more_input;
  }
  return State::more_input;
}

}  // namespace dft::load
