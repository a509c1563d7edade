// Interval sweeps that an analysis needs per event: self time, and who owns each instant of a thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace dft::load {

// Self time from parent ids, in file order: a parent is written after its children, so one pass over the
// chunks of a file is enough and only open parents are remembered.
class SelfTime {
 public:
  void update(const std::int64_t* id, const std::int64_t* parent, const std::int64_t* dur, std::size_t n,
              std::int64_t* self);

 private:
  std::unordered_map<std::int64_t, std::int64_t> pending_;
};

// Self time and level by time alone (dialects without p_idx). Any order of rows.
void nest(const std::int64_t* tid, const std::int64_t* ts, const std::int64_t* dur, std::size_t n,
          std::int64_t* parent_row, std::int64_t* self);

// For each span the row of its lane on which it is drawn: below the spans that hold it, and on no row two that overlap.
// Spans come lane by lane in the order of their start, an outer one first. Overlaps of up to `slack` count as none: the
// ends of neighbours may differ by the unit of the clock.
void stack(const std::int64_t* lane, const std::int64_t* start, const std::int64_t* end, std::size_t n,
           std::int64_t slack, std::int32_t* row);

struct Segments {
  std::vector<std::int64_t> from, to;
  std::vector<std::uint8_t> stage;
};

// The exclusive timeline of one thread: at each instant the innermost open event decides.
// `rule[class * stages + stage of the parent]` gives an event's stage; `none` is the stage outside of all.
Segments timeline(const std::int64_t* ts, const std::int64_t* dur, const std::uint8_t* cls, std::size_t n,
                  const std::uint8_t* rule, std::size_t stages, std::uint8_t none);

}  // namespace dft::load
