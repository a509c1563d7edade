#include "event_sums.hpp"

#include <fcntl.h>

#include <algorithm>
#include <bit>

#include "columns.hpp"

namespace dft::load {

namespace {

int64_t at(const int64_t* column, size_t row) { return column ? column[row] : kMissing; }

// What a call moved: what it returned, otherwise what was requested.
int64_t bytes_moved(const CallColumns& c, size_t row, bool counts_items) {
  const int64_t ret = at(c.ret, row), size = at(c.size, row), count = at(c.count, row);
  // As unsigned numbers: the product of damaged ones may not fit.
  if (counts_items && ret > 0 && size > 0 && count > 0)
    return std::max<int64_t>(int64_t(uint64_t(ret) * uint64_t(size)), 0);
  return std::max<int64_t>(ret != kMissing ? ret : size != kMissing ? size : count, 0);
}

// Whether the flags of an open call are for writing.
bool is_to_write(std::string_view args) {
  constexpr std::string_view kKey = "\"flags\":";
  for (size_t p = args.find(kKey); p != args.npos; p = args.find(kKey, p)) {
    p += kKey.size();
    const auto next = [&](char c) { return p < args.size() && args[p] == c && ++p; };
    next(' ');
    next('"');
    const bool negative = next('-');
    int64_t flags = 0;
    const size_t digits = p;
    while (p < args.size() && p - digits < 18 && args[p] >= '0' && args[p] <= '9')
      flags = flags * 10 + (args[p++] - '0');
    if (p == digits) continue;
    if (negative) flags = -flags;
    const int64_t mode = flags & O_ACCMODE;
    return mode == O_WRONLY || (mode == O_RDWR && (flags & (O_CREAT | O_TRUNC)) != 0);
  }
  return false;
}

}  // namespace

DigestedCalls digest_calls(const CallColumns& c, const uint8_t* kinds, const uint8_t* counts_items,
                           unsigned time_shift) {
  DigestedCalls out;
  size_t moving = 0;
  for (size_t i = 0; i < c.n; ++i) {
    const uint8_t kind = kinds[size_t(c.pair[i])];
    moving += kind == reads || kind == writes ? 1 : 0;
  }
  out.data_file.reserve(moving);
  out.data_ts.reserve(moving);
  out.data_dur.reserve(moving);
  for (size_t i = 0; i < c.n; ++i) {
    const auto pair = size_t(c.pair[i]);
    uint8_t kind = kinds[pair];
    if (kind == not_io) continue;
    const size_t row = c.rows ? size_t(c.rows[i]) : i;
    const int32_t file = c.file ? c.file[row] : kNoCode;
    if (kind == opens) {
      const auto from = size_t(row == 0 ? 0 : c.args_end[row - 1]), to = size_t(c.args_end[row]);
      if (from < to && to <= c.args_text.size() && is_to_write(c.args_text.substr(from, to - from)))
        kind = opens_to_write;
    }
    if (kind == opens_to_write) out.to_write.push_back(int64_t(i));
    const bool data = kind == reads || kind == writes;
    const int64_t moved = data ? bytes_moved(c, row, counts_items[pair] != 0) : 0;
    const auto offset = uint64_t(c.offset ? std::max<int64_t>(c.offset[row], 0) : 0);
    const auto extent = int64_t(offset + uint64_t(moved));
    const CallSum one{1, moved, c.dur[i], extent};
    out.sums.files.of(file, int32_t(kind) << 8 | int32_t(std::bit_width(uint64_t(moved)))).add(one);
    out.sums.times.of(c.ts[i] >> time_shift, kind).add(one);
    if (data) {
      out.data_file.push_back(file);
      out.data_ts.push_back(c.ts[i]);
      out.data_dur.push_back(c.dur[i]);
    }
  }
  return out;
}

std::vector<int64_t> bytes_of_calls(const CallColumns& c, const uint8_t* kinds, const uint8_t* counts_items) {
  std::vector<int64_t> out(c.n);
  for (size_t i = 0; i < c.n; ++i) {
    const auto pair = size_t(c.pair[i]);
    if (kinds[pair] == reads || kinds[pair] == writes)
      out[i] = bytes_moved(c, c.rows ? size_t(c.rows[i]) : i, counts_items[pair] != 0);
  }
  return out;
}

std::vector<int64_t> pair_numbers(const int32_t* category, const int32_t* name, size_t n, const int32_t* table,
                                  size_t table_size, size_t width, int32_t* out) {
  std::vector<int64_t> unknown;
  for (size_t i = 0; i < n; ++i) {
    const size_t place = size_t(category[i] + 1) * width + size_t(name[i] + 1);
    out[i] = place < table_size ? table[place] : -1;
    if (out[i] < 0) [[unlikely]]
      unknown.push_back(int64_t(place));
  }
  std::sort(unknown.begin(), unknown.end());
  unknown.erase(std::unique(unknown.begin(), unknown.end()), unknown.end());
  return unknown;
}

std::vector<int64_t> rows_of_pairs(const int32_t* pair, size_t n, const uint8_t* wanted, const int64_t* dur,
                                   int64_t at_least) {
  size_t found = 0;
  const auto is_wanted = [&](size_t i) { return wanted[size_t(pair[i])] != 0 && (!dur || dur[i] >= at_least); };
  for (size_t i = 0; i < n; ++i) found += is_wanted(i) ? 1 : 0;
  std::vector<int64_t> out;
  out.reserve(found);
  if (found == 0) return out;
  for (size_t i = 0; i < n; ++i)
    if (is_wanted(i)) out.push_back(int64_t(i));
  return out;
}

KeptEvents keep_events(const EventColumns& c, const uint8_t* class_of_pair, const uint8_t* marked, uint8_t skip,
                       uint8_t class_of_flagged) {
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
  const int64_t* flagged = c.flagged;
  const int64_t* const flagged_end = flagged + c.flagged_n;
  if (skipped == 0) {
    out.tid.assign(c.tid, c.tid + c.n);
    out.ts.assign(c.ts, c.ts + c.n);
    out.dur.assign(c.dur, c.dur + c.n);
    out.code.resize(c.n);
    out.cls.resize(c.n);
    for (size_t i = 0; i < c.n; ++i) {
      out.code[i] = c.pair[i] << 1;
      out.cls[i] = class_of_pair[size_t(c.pair[i])];
    }
    for (; flagged != flagged_end; ++flagged) {
      if (size_t(*flagged) >= c.n) continue;
      out.code[size_t(*flagged)] |= 1;
      out.cls[size_t(*flagged)] = class_of_flagged;
    }
    return out;
  }
  const size_t kept = c.n - skipped;
  out.tid.reserve(kept);
  out.ts.reserve(kept);
  out.dur.reserve(kept);
  out.code.reserve(kept);
  out.cls.reserve(kept);
  out.skipped_pair.reserve(skipped);
  out.skipped_dur.reserve(skipped);
  for (size_t i = 0; i < c.n; ++i) {
    const bool flag = flagged != flagged_end && size_t(*flagged) == i;
    if (flag) ++flagged;
    const uint8_t cls = class_of_pair[size_t(c.pair[i])];
    if (cls == skip) {
      out.skipped_pair.push_back(c.pair[i]);
      out.skipped_dur.push_back(c.dur[i]);
      continue;
    }
    out.tid.push_back(c.tid[i]);
    out.ts.push_back(c.ts[i]);
    out.dur.push_back(c.dur[i]);
    out.code.push_back(c.pair[i] << 1 | int32_t(flag));
    out.cls.push_back(flag ? class_of_flagged : cls);
  }
  return out;
}

}  // namespace dft::load
