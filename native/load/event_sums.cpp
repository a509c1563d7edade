#include "event_sums.hpp"

#include <algorithm>
#include <bit>

namespace dft::load {

void sum_calls(const CallColumns& c, unsigned time_shift, CallSums& out) {
  for (size_t i = 0; i < c.n; ++i) {
    const int64_t moved = c.moved[i];
    const auto size = int32_t(moved > 0 ? std::bit_width(uint64_t(moved)) : 0);
    for (CallSum* sum :
         {&out.files.of(c.file[i], int32_t(c.kind[i]) << 8 | size), &out.times.of(c.ts[i] >> time_shift, c.kind[i])}) {
      ++sum->n;
      sum->bytes += moved;
      sum->us += c.dur[i];
      sum->extent = std::max(sum->extent, c.extent[i]);
    }
  }
}

KeptEvents keep_events(const EventColumns& c, const uint8_t* class_of_pair, const uint8_t* marked, uint8_t skip) {
  KeptEvents out;
  size_t skipped = 0;
  for (size_t i = 0; i < c.n; ++i) {
    const auto pair = size_t(c.pair[i]);
    const int64_t ts = c.ts[i], end = ts + c.dur[i];
    out.first = std::min(out.first, ts);
    out.last = std::max(out.last, end);
    if (marked[pair]) {
      out.marked_first = std::min(out.marked_first, ts);
      out.marked_last = std::max(out.marked_last, end);
    }
    skipped += class_of_pair[pair] == skip ? 1 : 0;
  }
  const size_t kept = c.n - skipped;
  out.tid.reserve(kept);
  out.ts.reserve(kept);
  out.dur.reserve(kept);
  out.code.reserve(kept);
  out.skipped_pair.reserve(skipped);
  out.skipped_dur.reserve(skipped);
  const int64_t* flagged = c.flagged;
  const int64_t* const flagged_end = flagged + c.flagged_n;
  for (size_t i = 0; i < c.n; ++i) {
    const bool flag = flagged != flagged_end && size_t(*flagged) == i;
    if (flag) ++flagged;
    if (class_of_pair[size_t(c.pair[i])] == skip) {
      out.skipped_pair.push_back(c.pair[i]);
      out.skipped_dur.push_back(c.dur[i]);
      continue;
    }
    out.tid.push_back(c.tid[i]);
    out.ts.push_back(c.ts[i]);
    out.dur.push_back(c.dur[i]);
    out.code.push_back(c.pair[i] << 1 | int32_t(flag));
  }
  return out;
}

}  // namespace dft::load
