// How full each pixel of a timeline row is, and of what: exact at every zoom, at the cost of one block of spans a
// pixel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dft::load {

struct PixelRow {
  // Disjoint spans in the order of time, and the class of each (by its pair).
  const std::int64_t* start;
  const std::int64_t* end;
  const std::int32_t* pair;
  std::size_t n;
  const std::uint8_t* class_of_pair;
  std::size_t pairs;
  // The classes that occur, and the time of each up to every `block` spans: sums[(i / block) * classes + k].
  const std::uint8_t* classes;
  std::size_t class_count;
  const std::int64_t* sums;
  std::size_t block;

  std::uint8_t class_of(std::size_t i) const {
    const auto p = static_cast<std::size_t>(pair[i]);
    return p < pairs ? class_of_pair[p] : 0;
  }
};

// For each pixel the class with most time (of those with `visible[class]`) and how full it is, 0 to `steps`. Spans
// without length count as the least.
void fill_pixels(const PixelRow& row, const std::uint8_t* visible, std::int64_t t0, std::int64_t t1, std::size_t width,
                 unsigned steps, std::uint8_t* cls, std::uint8_t* fill);

}  // namespace dft::load
