// What an existing file says about itself: is it a trace, of which run, and is it finished?
#pragma once

#include <cstdint>
#include <string>

namespace dft {

struct ExistingTrace {
  enum Kind { kMissing, kForeign, kTrace } kind = kMissing;
  uint64_t device = 0, inode = 0;
  int64_t modified_s = 0;
  std::string run;    // empty: it does not say
  std::string owner;  // see record/process_owner.hpp
  std::string rank;
  int64_t attempt = 0;
  bool closed = false;     // its last line is `]`...
  bool continues = false;  // ...of a part, with more parts to follow

  bool is_same_file(const ExistingTrace& other) const { return device == other.device && inode == other.inode; }
  // As far as can be known, nothing will write to it any more.
  bool has_ended() const;
};

ExistingTrace look_at(const std::string& path);

}  // namespace dft
