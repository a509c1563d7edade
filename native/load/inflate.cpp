#include "inflate.hpp"

#include <algorithm>

#include "format/member.hpp"
#include "line.hpp"

namespace dft::load {

// A member in one go, if it matches its index and is undamaged.
bool MemberInflater::whole(const uint8_t* p, size_t n, size_t text_size, Bytes& out) {
  const size_t head = deflate_begins({reinterpret_cast<const char*>(p), n});
  if (head == 0 || n < head + kMemberTrailerSize) return false;
  auto* text = reinterpret_cast<uint8_t*>(out.data());
  const size_t used = decoder_.decode(p + head, n - head - kMemberTrailerSize, text, text_size);
  if (used == 0 || head + used + kMemberTrailerSize != n) return false;
  if (!trailer_matches(p + n - kMemberTrailerSize, {out.data(), text_size})) return false;
  out.resize_down(text_size);
  std::memset(out.data() + text_size, 0, kPadding);
  return true;
}

bool MemberInflater::inflate(const uint8_t* p, size_t n, size_t text_size, Bytes& out) {
  out.clear();
  // A damaged index must not make us allocate gigabytes: deflate cannot expand more than about 1032 times.
  text_size = std::min({text_size, n * 1040 + 1024, kLargestMember});
  out.reserve(text_size + kPadding);
  if (whole(p, n, text_size, out)) return true;
  out.clear();
  StreamInflater slow;
  const uint8_t* at = p;
  size_t left = n;
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

StreamInflater::State StreamInflater::step(const uint8_t*& p, size_t& n, Bytes& out, size_t limit) {
  while (n > 0) {
    if (between_) {
      inflateReset(&z_);
      member_bytes_ = 0;
      if (*p == 0) {  // zero padding between members, as tape-like writers leave it
        ++p;
        --n;
        continue;
      }
    }
    if (out.size() >= limit) return State::more_room;
    const auto in = static_cast<uInt>(std::min<size_t>(n, 1u << 30));
    const auto room = static_cast<uInt>(std::min<size_t>(limit - out.size(), 1u << 30));
    z_.next_in = const_cast<Bytef*>(p);
    z_.avail_in = in;
    z_.next_out = reinterpret_cast<Bytef*>(out.data() + out.size());
    z_.avail_out = room;
    const int rc = ::inflate(&z_, Z_NO_FLUSH);
    p += in - z_.avail_in;
    n -= in - z_.avail_in;
    member_bytes_ += in - z_.avail_in;
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
