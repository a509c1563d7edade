// A gzip member of a trace: its header carries an index of its contents (docs/format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dft {

// The contents of a member, counted while it is made.
struct MemberFacts {
  uint32_t lines = 0;
  uint64_t first_ts = 0;  // us; 0 when the member holds no timed record
  uint64_t last_ts = 0;

  void count(uint64_t ts) {
    ++lines;
    if (ts == 0) return;
    if (first_ts == 0 || ts < first_ts) first_ts = ts;
    if (ts > last_ts) last_ts = ts;
  }
  void merge(const MemberFacts& o) {
    lines += o.lines;
    if (o.first_ts && (first_ts == 0 || o.first_ts < first_ts)) first_ts = o.first_ts;
    if (o.last_ts > last_ts) last_ts = o.last_ts;
  }
};

// What the header says about its member.
struct MemberIndex {
  uint32_t member_size, text_size;
  MemberFacts facts;
};

inline constexpr size_t kMemberHeaderSize = 48;
inline constexpr size_t kMemberTrailerSize = 8;

// Writes kMemberHeaderSize bytes.
void write_member_header(uint8_t* out, size_t member_size, size_t text_size, const MemberFacts& facts);
// Writes kMemberTrailerSize bytes.
void write_member_trailer(uint8_t* out, std::string_view text);

// Whether these bytes begin a gzip file, ours or another.
bool begins_as_gzip(std::string_view bytes);
// Whether these bytes are the header of a gzip member, ours or another: strict enough to find one in damaged data.
bool is_member_header(std::string_view bytes);
// Whether these bytes, perhaps incomplete, are the beginning of one of our members.
bool begins_as_member(std::string_view bytes);
// The index of the member that begins with these bytes; none if another program made it.
std::optional<MemberIndex> read_member_index(std::string_view bytes);
// Where the deflate stream of any gzip member begins; 0 if these bytes are not a gzip header.
size_t deflate_begins(std::string_view bytes);
// Whether the text matches the trailer.
bool trailer_matches(const uint8_t* trailer, std::string_view text);

}  // namespace dft
