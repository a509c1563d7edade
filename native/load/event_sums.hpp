// What the analysis sums up of every event: by kind and duration, by file, over time; and the rows that it keeps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
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

// What a call is to the accounts of files; the same numbers as in dftracer/analyze/map/digest.py.
enum CallKind : uint8_t { not_io, reads, writes, opens, closes, queries, opens_to_write };

// The calls of a chunk by file, kind and size, and over time.
struct CallSum {
  uint32_t n = 0;
  int64_t bytes = 0, us = 0, extent = 0;

  void add(const CallSum& more) {
    n += more.n;
    bytes += more.bytes;
    us += more.us;
    extent = std::max(extent, more.extent);
  }
};
struct CallSums {
  SumsByKey<CallSum> files;  // by file and (kind << 8 | size)
  SumsByKey<CallSum> times;  // by time and kind
};

// Complete events of a chunk, and all of its rows' columns; a column that no row has is null.
struct CallColumns {
  const int32_t* pair;
  const int64_t *ts, *dur;
  size_t n;
  const int64_t* rows;  // of the events among the chunk's rows; null: all of them
  size_t chunk_rows;
  const int32_t* file;
  const int64_t *ret, *size, *count, *offset;
  const int32_t* args_end;
  std::string_view args_text;
};
struct DigestedCalls {
  CallSums sums;
  std::vector<int64_t> to_write;   // events that open a file for writing
  std::vector<int32_t> data_file;  // of reads and writes
  std::vector<int64_t> data_ts, data_dur;
};
// `kinds`: CallKind by pair; `counts_items`: whether `ret` counts items of `size` bytes, by pair.
DigestedCalls digest_calls(const CallColumns& c, const uint8_t* kinds, const uint8_t* counts_items,
                           unsigned time_shift);

// The bytes that each call moved, 0 for all others; needs no times, files and arguments.
std::vector<int64_t> bytes_of_calls(const CallColumns& c, const uint8_t* kinds, const uint8_t* counts_items);

// The number of each row's category and name, from a table of `width` names per category; both begin with none.
// Rows whose number the table does not have get -1, and their places in it are returned, each once.
std::vector<int64_t> pair_numbers(const int32_t* category, const int32_t* name, size_t n, const int32_t* table,
                                  size_t table_size, size_t width, int32_t* out);

// The events whose pair is wanted and that take at least so long; `dur` may be null.
std::vector<int64_t> rows_of_pairs(const int32_t* pair, size_t n, const uint8_t* wanted, const int64_t* dur,
                                   int64_t at_least);

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
  std::vector<uint8_t> cls;   // of the pair, or that of flagged rows
  std::vector<int32_t> skipped_pair;
  std::vector<int64_t> skipped_dur;
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  int64_t marked_first = std::numeric_limits<int64_t>::max(), marked_last = 0;  // of the kinds that are marked
};
KeptEvents keep_events(const EventColumns& c, const uint8_t* class_of_pair, const uint8_t* marked, uint8_t skip,
                       uint8_t class_of_flagged);

}  // namespace dft::load
