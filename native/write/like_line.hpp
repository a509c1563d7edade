// How a line differs from an earlier one, told by whoever wrote both to whoever compresses them: neither has to compare
// them again.
#pragma once

#include <cstdint>

namespace dft {

struct LikeLine {
  static constexpr unsigned kMostRuns = 10;
  struct Run {
    uint16_t at;  // in the line
    uint8_t size;
    uint8_t was;  // its size in the earlier line
  };
  uint32_t begin = 0;  // in the text
  uint16_t size = 0;
  uint16_t back = 0;        // the earlier line begins this much before; 0 if there is none
  uint8_t runs = 0;         // bytes that differ, in order; all others are the same
  bool other_file = false;  // one of them is the hash of the file
  Run run[kMostRuns];
};

}  // namespace dft
