#include "format/member.hpp"

#include <algorithm>
#include <cstring>

#include "format/crc32.hpp"

namespace dft {
namespace {

constexpr size_t kFixedSize = 10;  // of every gzip header
constexpr size_t kLengthSize = 2;  // of all extra fields together
constexpr size_t kFieldHead = 4;   // two letters and a length
constexpr size_t kIndexSize = 32;
static_assert(kFixedSize + kLengthSize + kFieldHead + kIndexSize == kMemberHeaderSize);

constexpr char kFieldName[] = {'D', 'F'};
constexpr uint8_t kFixed[kFixedSize] = {0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255};
constexpr uint8_t kHeaderCrc = 2, kExtra = 4, kName = 8, kComment = 16;

// The index, by offset; four bytes after the lines are left for later.
constexpr size_t kMemberSize = 0, kTextSize = 4, kLines = 8, kFirstTs = 16, kLastTs = 24;

template <typename T>
void store(uint8_t* p, T v) {
  memcpy(p, &v, sizeof v);
}

template <typename T>
T load(const char* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}

bool is_gzip(std::string_view bytes) { return bytes.size() >= kFixedSize && memcmp(bytes.data(), kFixed, 3) == 0; }

}  // namespace

bool begins_as_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

bool is_member_header(std::string_view bytes) {
  if (!is_gzip(bytes)) return false;
  constexpr uint8_t kReserved = 0xe0, kLastSystem = 13, kUnknownSystem = 255;
  const auto flags = uint8_t(bytes[3]), effort = uint8_t(bytes[8]), system = uint8_t(bytes[9]);
  return !(flags & kReserved) && (effort == 0 || effort == 2 || effort == 4) &&
         (system <= kLastSystem || system == kUnknownSystem);
}

void write_member_header(uint8_t* out, size_t member_size, size_t text_size, const MemberFacts& facts) {
  memcpy(out, kFixed, sizeof kFixed);
  store(out + kFixedSize, uint16_t(kFieldHead + kIndexSize));
  uint8_t* field = out + kFixedSize + kLengthSize;
  memcpy(field, kFieldName, sizeof kFieldName);
  store(field + 2, uint16_t(kIndexSize));
  uint8_t* index = field + kFieldHead;
  memset(index, 0, kIndexSize);
  store(index + kMemberSize, uint32_t(member_size));
  store(index + kTextSize, uint32_t(text_size));
  store(index + kLines, facts.lines);
  store(index + kFirstTs, facts.first_ts);
  store(index + kLastTs, facts.last_ts);
}

void write_member_trailer(uint8_t* out, std::string_view text) {
  store(out, gzip_crc32(text.data(), text.size()));
  store(out + 4, uint32_t(text.size()));
}

bool trailer_matches(const uint8_t* trailer, std::string_view text) {
  uint8_t right[kMemberTrailerSize];
  write_member_trailer(right, text);
  return memcmp(trailer, right, sizeof right) == 0;
}

bool begins_as_member(std::string_view bytes) {
  uint8_t ours[kMemberHeaderSize];
  write_member_header(ours, 0, 0, {});
  return memcmp(bytes.data(), ours, std::min(bytes.size(), kMemberHeaderSize - kIndexSize)) == 0;
}

std::optional<MemberIndex> read_member_index(std::string_view bytes) {
  constexpr size_t kFields = kFixedSize + kLengthSize;
  if (!is_gzip(bytes) || bytes.size() < kFields || !(uint8_t(bytes[3]) & kExtra)) return std::nullopt;
  const size_t end = kFields + load<uint16_t>(bytes.data() + kFixedSize);
  if (bytes.size() < end) return std::nullopt;
  for (size_t at = kFields; at + kFieldHead <= end;) {
    const char* field = bytes.data() + at;
    const size_t size = load<uint16_t>(field + 2);
    if (at + kFieldHead + size > end) break;
    if (memcmp(field, kFieldName, sizeof kFieldName) == 0 && size >= kIndexSize) {
      const char* index = field + kFieldHead;
      MemberIndex out{load<uint32_t>(index + kMemberSize), load<uint32_t>(index + kTextSize), {}};
      out.facts = {load<uint32_t>(index + kLines), load<uint64_t>(index + kFirstTs), load<uint64_t>(index + kLastTs)};
      // With a size too small for a header and a trailer, a walk over members would never advance.
      if (out.member_size < end + kMemberTrailerSize) return std::nullopt;
      return out;
    }
    at += kFieldHead + size;
  }
  return std::nullopt;
}

size_t deflate_begins(std::string_view bytes) {
  if (!is_gzip(bytes)) return 0;
  const uint8_t flags = uint8_t(bytes[3]);
  size_t at = kFixedSize;
  if (flags & kExtra) {
    if (bytes.size() < at + kLengthSize) return 0;
    at += kLengthSize + load<uint16_t>(bytes.data() + at);
  }
  for (const uint8_t text : {kName, kComment}) {
    if (!(flags & text)) continue;
    while (at < bytes.size() && bytes[at] != 0) ++at;
    ++at;
  }
  if (flags & kHeaderCrc) at += 2;
  return at < bytes.size() ? at : 0;
}

}  // namespace dft
