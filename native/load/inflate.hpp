// Getting text out of gzip members: whole members of known size, and streams of unknown ones.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "columns.hpp"
#include "whole_inflate.hpp"

namespace dft::load {

// A member with more text is read as a stream, a piece at a time; one whose index promised less is damaged.
inline constexpr size_t kLargestMember = size_t{64} << 20;

class MemberInflater {
 public:
  // The member's text, replacing `out`; false if it is damaged, and `out` then has what could be read.
  bool inflate(const uint8_t* p, size_t n, size_t text_size, Bytes& out);

 private:
  bool whole(const uint8_t* p, size_t n, size_t text_size, Bytes& out);

  WholeInflate decoder_;
};

// Inflates concatenated members piece by piece.
class StreamInflater {
 public:
  StreamInflater();
  ~StreamInflater();
  StreamInflater(const StreamInflater&) = delete;
  StreamInflater& operator=(const StreamInflater&) = delete;

  enum class State { more_input, more_room, damaged };
  // Takes from [p, p+n) (advancing both), appends to `out` up to its capacity less the padding.
  State step(const uint8_t*& p, size_t& n, Bytes& out, size_t limit);
  bool between_members() const noexcept { return between_; }
  // How much of the input belongs to the member that is being read.
  uint64_t member_bytes() const noexcept { return member_bytes_; }

 private:
  z_stream z_{};
  bool between_ = true;
  uint64_t member_bytes_ = 0;
};

}  // namespace dft::load
