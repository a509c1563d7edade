#include "intervals.hpp"

#include <algorithm>
#include <utility>

namespace dft::load {
namespace {

// The first place whose value is above t (or not below it), near the place where the last search ended.
template <bool kAbove>
class PlaceFinder {
 public:
  PlaceFinder(const int64_t* values, size_t n) : values_(values), n_(n) {}

  size_t operator()(int64_t t) {
    const auto before = [&](size_t i) { return kAbove ? values_[i] <= t : values_[i] < t; };
    size_t low, high;  // everything below `low` is before, nothing from `high` on is
    if (at_ < n_ && before(at_)) {
      size_t step = 1;
      for (low = at_ + 1; low + step <= n_ && before(low + step - 1); step *= 2) low += step;
      high = std::min(n_, low + step);
    } else {
      size_t step = 1;
      for (high = at_; high >= step && !before(high - step); step *= 2) high -= step;
      low = high >= step ? high - step + 1 : 0;
    }
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (before(middle))
        low = middle + 1;
      else
        high = middle;
    }
    return at_ = low;
  }

 private:
  const int64_t* values_;
  size_t n_, at_ = 0;
};

uint64_t zigzag(int64_t v) { return (uint64_t(v) << 1) ^ uint64_t(v >> 63); }
int64_t unzigzag(uint64_t v) { return int64_t(v >> 1) ^ -int64_t(v & 1); }

constexpr size_t kLongestVarint = 10;

// There must be room for the longest one.
char* put_varint(char* to, uint64_t v) {
  for (; v >= 0x80; v >>= 7) *to++ = char(v | 0x80);
  *to++ = char(v);
  return to;
}

bool take_varint(const char*& p, const char* end, uint64_t& out) {
  out = 0;
  for (unsigned shift = 0; p < end && shift < 64; shift += 7) {
    const auto byte = uint8_t(*p++);
    out |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

}  // namespace

IntervalVectors union_of_intervals(IntervalSet a, const uint8_t* key, const uint8_t* wanted) {
  IntervalVectors out;
  auto& [start, end] = out;
  std::vector<std::pair<int64_t, int64_t>> early;  // before the last interval, where others may lie between
  // Events come in the order in which they ended: one that encloses others swallows the last intervals.
  const auto add = [&](int64_t from, int64_t to) {
    if (start.empty() || from > end.back()) {
      start.push_back(from);
      end.push_back(to);
      return true;
    }
    if (to < start.back()) return false;
    size_t n = start.size() - 1;
    while (n > 0 && end[n - 1] >= from) --n;
    start[n] = std::min(from, start[n]);
    end[n] = std::max(to, end.back());
    start.resize(n + 1);
    end.resize(n + 1);
    return true;
  };
  for (size_t i = 0; i < a.n; ++i) {
    if (a.end[i] <= a.start[i] || (key && !wanted[key[i]])) continue;
    if (!add(a.start[i], a.end[i])) early.emplace_back(a.start[i], a.end[i]);
  }
  if (early.empty()) return out;
  std::sort(early.begin(), early.end());
  const IntervalVectors late = std::exchange(out, {});
  for (size_t i = 0, j = 0; i < early.size() || j < late.start.size();) {
    if (j == late.start.size() || (i < early.size() && early[i].first < late.start[j])) {
      add(early[i].first, early[i].second);
      ++i;
    } else {
      add(late.start[j], late.end[j]);
      ++j;
    }
  }
  return out;
}

void covered_until(IntervalSet a, const int64_t* t, size_t n, int64_t* out) {
  std::vector<int64_t> before(a.n);
  for (size_t i = 1; i < a.n; ++i) before[i] = before[i - 1] + a.end[i - 1] - a.start[i - 1];
  PlaceFinder<true> place(a.start, a.n);
  for (size_t k = 0; k < n; ++k) {
    const size_t i = place(t[k]);
    out[k] = i == 0 ? 0 : before[i - 1] + std::min(t[k], a.end[i - 1]) - a.start[i - 1];
  }
}

Pieces pieces_in_windows(IntervalSet windows, IntervalSet a) {
  Pieces out;
  PlaceFinder<true> first(a.end, a.n);
  PlaceFinder<false> last(a.start, a.n);
  for (size_t w = 0; w < windows.n; ++w) {
    const size_t from = first(windows.start[w]), to = last(windows.end[w]);
    for (size_t i = from; i < to; ++i) {
      out.start.push_back(std::max(windows.start[w], a.start[i]));
      out.end.push_back(std::min(windows.end[w], a.end[i]));
      out.which.push_back(int64_t(i));
    }
  }
  return out;
}

void account_by_key(IntervalSet a, const uint8_t* key, size_t keys, IntervalSet windows, int64_t* out) {
  PlaceFinder<true> first(a.end, a.n);
  for (size_t w = 0; w < windows.n; ++w) {
    const int64_t from = windows.start[w], to = windows.end[w];
    int64_t* const row = out + w * keys;
    for (size_t i = first(from); i < a.n && a.start[i] < to; ++i)
      row[key[i]] += std::min(to, a.end[i]) - std::max(from, a.start[i]);
  }
}

std::string pack_intervals(IntervalSet a) {
  // In pieces: all of it at once could need seven times as much as it takes.
  constexpr size_t kPiece = 4096;
  std::string out;
  out.reserve(a.n * 3 + 16);
  char piece[kPiece * 2 * kLongestVarint];
  int64_t last = 0;
  for (size_t i = 0; i < a.n;) {
    char* to = piece;
    for (const size_t until = std::min(a.n, i + kPiece); i < until; ++i) {
      to = put_varint(to, zigzag(a.start[i] - last));
      to = put_varint(to, zigzag(a.end[i] - a.start[i]));
      last = a.end[i];
    }
    out.append(piece, size_t(to - piece));
  }
  return out;
}

bool unpack_intervals(std::string_view packed, size_t n, IntervalVectors& out) {
  if (packed.size() < 2 * n) return false;
  out.start.resize(n);
  out.end.resize(n);
  const char* p = packed.data();
  const char* const stop = p + packed.size();
  int64_t last = 0;
  for (size_t i = 0; i < n; ++i) {
    uint64_t gap, length;
    if (!take_varint(p, stop, gap) || !take_varint(p, stop, length)) return false;
    out.start[i] = last + unzigzag(gap);
    out.end[i] = last = out.start[i] + unzigzag(length);
  }
  return p == stop;
}

}  // namespace dft::load
