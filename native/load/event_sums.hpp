// What the analysis sums up of every event: by kind and duration, by file, over time; and the rows that it keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dft::load {

// Sums by a key of two numbers, in the order in which keys first came.
template <class Value>
class SumsByKey {
 public:
  struct Entry {
    int64_t a;
    int32_t b;
    Value value;
  };

  Value& of(int64_t a, int32_t b) {
    if (!entries_.empty() && entries_[last_].a == a && entries_[last_].b == b) return entries_[last_].value;
    if ((entries_.size() + 1) * 2 > slots_.size()) grow();
    uint32_t& slot = slot_of(a, b);
    if (slot == 0) {
      entries_.push_back({a, b, {}});
      slot = uint32_t(entries_.size());
    }
    last_ = slot - 1;
    return entries_[last_].value;
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  uint32_t& slot_of(int64_t a, int32_t b) {
    const uint64_t h = (uint64_t(a) ^ (uint64_t(uint32_t(b)) << 40)) * 0x9E3779B97F4A7C15ull;
    for (size_t i = h >> shift_;; i = (i + 1) & (slots_.size() - 1)) {
      uint32_t& slot = slots_[i];
      if (slot == 0 || (entries_[slot - 1].a == a && entries_[slot - 1].b == b)) return slot;
    }
  }
  void grow() {
    --shift_;
    slots_.assign(slots_.size() * 2, 0);
    for (size_t i = 0; i < entries_.size(); ++i) slot_of(entries_[i].a, entries_[i].b) = uint32_t(i + 1);
  }

  std::vector<Entry> entries_;
  unsigned shift_ = 64 - 10;
  std::vector<uint32_t> slots_ = std::vector<uint32_t>(1024);
  size_t last_ = 0;
};

// Events and their self time by kind and duration.
struct DurationSum {
  uint32_t n = 0;
  int64_t self = 0;
};
using DurationSums = SumsByKey<DurationSum>;

// The calls of a chunk by file, kind and size, and over time.
struct CallSum {
  uint32_t n = 0;
  int64_t bytes = 0, us = 0, extent = 0;
};
struct CallColumns {
  const int32_t* file;
  const uint8_t* kind;
  const int64_t *moved, *extent, *ts, *dur;
  size_t n;
};
struct CallSums {
  SumsByKey<CallSum> files;  // by file and (kind << 8 | size)
  SumsByKey<CallSum> times;  // by time and kind
};
void sum_calls(const CallColumns& c, unsigned time_shift, CallSums& out);

// The rows of a chunk that a process keeps; those of a kind that is skipped are only counted.
struct EventColumns {
  const int32_t* pair;
  const int64_t *tid, *ts, *dur;
  size_t n;
  const int64_t* flagged;  // some of the rows, in order
  size_t flagged_n;
};
struct KeptEvents {
  std::vector<int64_t> tid, ts, dur;
  std::vector<int32_t> code;  // twice the pair, plus one for the flagged rows
  std::vector<int32_t> skipped_pair;
  std::vector<int64_t> skipped_dur;
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  int64_t marked_first = std::numeric_limits<int64_t>::max(), marked_last = 0;  // of the kinds that are marked
};
KeptEvents keep_events(const EventColumns& c, const uint8_t* class_of_pair, const uint8_t* marked, uint8_t skip);

}  // namespace dft::load
