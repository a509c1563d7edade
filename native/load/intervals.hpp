// Sets of time as sorted, disjoint intervals. Places are looked for from the last one on, so that times in order, as
// nearly all are, cost a step each; any other order is right, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dft::load {

struct IntervalSet {
  const int64_t* start;
  const int64_t* end;
  size_t n;
};

struct IntervalVectors {
  std::vector<int64_t> start, end;
};

// The disjoint intervals that cover the same time as the given ones, which may come in any order. With keys, only those
// that `wanted` marks.
IntervalVectors union_of_intervals(IntervalSet a, const uint8_t* key, const uint8_t* wanted);

// How much of `a` lies before each time.
void covered_until(IntervalSet a, const int64_t* t, size_t n, int64_t* out);

// The parts of `a` in the windows, and which interval each comes from.
struct Pieces {
  std::vector<int64_t> start, end, which;
};
Pieces pieces_in_windows(IntervalSet windows, IntervalSet a);

// How much of each key lies in each window, as [window][key], for windows in the order of their start.
void account_by_key(IntervalSet a, const uint8_t* key, size_t keys, IntervalSet windows, int64_t* out);

// Intervals in a few bytes each: the distance from the end of the last one, and the length.
std::string pack_intervals(IntervalSet a);
// False if the text is not n of them.
bool unpack_intervals(std::string_view packed, size_t n, IntervalVectors& out);

}  // namespace dft::load
