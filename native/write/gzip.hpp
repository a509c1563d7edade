// Text in, gzip members out.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "format/member.hpp"
#include "write/like_line.hpp"

namespace dft {

// The text of the member at the start of `bytes`, at most `limit` bytes, as far as available.
std::string first_member_text(std::string_view bytes, size_t limit);

class Gzip {
 public:
  Gzip();
  ~Gzip();
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  // The whole member; the view is valid until the next call.
  // `hints`: what is known about some of the lines; their positions count from `base` before the text.
  std::string_view member(std::string_view text, const MemberFacts& facts, const LikeLines* hints = nullptr,
                          uint64_t base = 0);
  static const char* backend();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace dft
