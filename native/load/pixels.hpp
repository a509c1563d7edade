// How full each pixel of a timeline row is, and of what: exact at every zoom, at the cost of one block of spans per
// pixel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dft::load {

struct PixelRow {
  // Disjoint spans in the order of time, and the class of each (by its pair).
  const int64_t* start;
  const int64_t* end;
  const int32_t* pair;
  size_t n;
  const uint8_t* class_of_pair;
  size_t pairs;
  // The classes that occur, and the time of each up to every `block` spans: sums[(i / block) * classes + k].
  const uint8_t* classes;
  size_t class_count;
  const int64_t* sums;
  size_t block;

  uint8_t class_of(size_t i) const {
    const auto p = size_t(pair[i]);
    return p < pairs ? class_of_pair[p] : 0;
  }
};

// For each pixel the class with most time (of those with `visible[class]`) and how full it is, 0 to `steps`. Spans
// without length count as the least.
void fill_pixels(const PixelRow& row, const uint8_t* visible, int64_t t0, int64_t t1, size_t width, unsigned steps,
                 uint8_t* cls, uint8_t* fill);

}  // namespace dft::load
