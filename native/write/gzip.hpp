// Independent gzip members with an index of their own in the header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dft {

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

// What a member's header says of it.
struct MemberIndex {
  uint32_t member_size, text_size, lines;
};
inline constexpr size_t kMemberHeader = 48;
// Whether `bytes`, perhaps cut, are those that every member of ours begins with.
bool begins_as_member(std::string_view bytes);
bool read_member_index(std::string_view header, MemberIndex* out);
// The text of the member at the start of `bytes`, at most `limit` of it, as far as it is there.
std::string first_member_text(std::string_view bytes, size_t limit);

class Gzip {
 public:
  Gzip();
  ~Gzip();
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  // The whole member; the view is good until the next call.
  std::string_view member(std::string_view text, const MemberFacts& facts);
  static const char* backend();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace dft
