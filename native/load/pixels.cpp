#include "pixels.hpp"

#include <algorithm>
#include <vector>

namespace dft::load {

namespace {

// The time of each class up to `t`; `upto` is the number of spans that begin before it.
void sum_until(const PixelRow& row, int64_t t, size_t upto, const std::vector<uint16_t>& place, int64_t* out) {
  const size_t block = upto / row.block;
  std::copy_n(row.sums + block * row.class_count, row.class_count, out);
  for (size_t i = block * row.block; i < upto; ++i) out[place[row.class_of(i)]] += row.end[i] - row.start[i];
  if (upto > 0 && row.end[upto - 1] > t) out[place[row.class_of(upto - 1)]] -= row.end[upto - 1] - t;
}

}  // namespace

void fill_pixels(const PixelRow& row, const uint8_t* visible, int64_t t0, int64_t t1, size_t width, unsigned steps,
                 uint8_t* cls, uint8_t* fill) {
  std::vector<uint16_t> place(256, 0);
  for (size_t k = 0; k < row.class_count; ++k) place[row.classes[k]] = uint16_t(k);
  std::vector<int64_t> before(row.class_count), after(row.class_count);
  const double pixel = double(t1 - t0) / double(width);
  size_t upto = size_t(std::lower_bound(row.start, row.start + row.n, t0) - row.start);
  int64_t from = t0;
  sum_until(row, from, upto, place, before.data());
  for (size_t x = 0; x < width; ++x) {
    const int64_t to = t0 + int64_t(pixel * double(x + 1));
    const auto next = size_t(std::lower_bound(row.start + upto, row.start + row.n, to) - row.start);
    sum_until(row, to, next, place, after.data());
    int64_t best = 0, busy = 0;
    for (size_t k = 0; k < row.class_count; ++k) {
      if (!visible[row.classes[k]]) continue;
      const int64_t mine = after[k] - before[k];
      busy += mine;
      if (mine > best) {
        best = mine;
        cls[x] = row.classes[k];
      }
    }
    const double part = double(busy) / double(std::max<int64_t>(to - from, 1));
    fill[x] = best == 0 ? 0 : uint8_t(std::clamp(part * steps + 0.999, 1.0, 1.0 * steps));
    for (size_t i = upto; best == 0 && i < std::min(next, upto + row.block); ++i) {
      const uint8_t lone = row.class_of(i);
      if (visible[lone] && row.end[i] == row.start[i]) {
        cls[x] = lone;
        fill[x] = 1;
        break;
      }
    }
    before.swap(after);
    upto = next;
    from = to;
  }
}

}  // namespace dft::load
