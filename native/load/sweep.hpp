// Interval sweeps that an analysis needs per event: self time, nesting, rows for drawing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace dft::load {

// Self time from parent ids, in file order: a parent is written after its children, so one pass over the
// chunks of a file is enough and only open parents are remembered.
class SelfTime {
 public:
  void update(const int64_t* id, const int64_t* parent, const int64_t* dur, size_t n, int64_t* self);

 private:
  // The time of an event's children so far, which is no longer pending then.
  int64_t take(int64_t id);
  void add(int64_t parent, int64_t sum);

  struct Pending {
    int64_t id, sum;
  };
  std::vector<Pending> few_;  // searched from end to end: usually a handful of events is open
  std::unordered_map<int64_t, int64_t> more_;
};

// Self time and level by time alone (dialects without p_idx). Any order of rows.
void nest(const int64_t* tid, const int64_t* ts, const int64_t* dur, size_t n, int64_t* parent_row, int64_t* self);

// For each span the row of its lane on which it is drawn: below its enclosing spans, with no overlap on any row.
// Spans come lane by lane in the order of their start, an outer one first. Overlaps of up to `slack` count as none: the
// ends of neighbours may differ by the unit of the clock.
void stack(const int64_t* lane, const int64_t* start, const int64_t* end, size_t n, int64_t slack, int32_t* row);

}  // namespace dft::load
