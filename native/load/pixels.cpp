#include "pixels.hpp"

#include <algorithm>
#include <vector>

namespace dft::load {

namespace {

// The time of each class up to `t`; `upto` is the number of spans that begin before it.
void sum_until(const PixelRow& row, std::int64_t t, std::size_t upto, const std::vector<std::uint16_t>& place,
               std::int64_t* out) {
  const std::size_t block = upto / row.block;
  std::copy_n(row.sums + block * row.class_count, row.class_count, out);
  for (std::size_t i = block * row.block; i < upto; ++i) out[place[row.class_of(i)]] += row.end[i] - row.start[i];
  if (upto > 0 && row.end[upto - 1] > t) out[place[row.class_of(upto - 1)]] -= row.end[upto - 1] - t;
}

}  // namespace

void fill_pixels(const PixelRow& row, const std::uint8_t* visible, std::int64_t t0, std::int64_t t1, std::size_t width,
                 unsigned steps, std::uint8_t* cls, std::uint8_t* fill) {
  std::vector<std::uint16_t> place(256, 0);
  for (std::size_t k = 0; k < row.class_count; ++k) place[row.classes[k]] = static_cast<std::uint16_t>(k);
  std::vector<std::int64_t> before(row.class_count), after(row.class_count);
  const double pixel = static_cast<double>(t1 - t0) / static_cast<double>(width);
  std::size_t upto = static_cast<std::size_t>(std::lower_bound(row.start, row.start + row.n, t0) - row.start);
  std::int64_t from = t0;
  sum_until(row, from, upto, place, before.data());
  for (std::size_t x = 0; x < width; ++x) {
    const std::int64_t to = t0 + static_cast<std::int64_t>(pixel * static_cast<double>(x + 1));
    const auto next = static_cast<std::size_t>(std::lower_bound(row.start + upto, row.start + row.n, to) - row.start);
    sum_until(row, to, next, place, after.data());
    std::int64_t best = 0, busy = 0;
    for (std::size_t k = 0; k < row.class_count; ++k) {
      if (!visible[row.classes[k]]) continue;
      const std::int64_t mine = after[k] - before[k];
      busy += mine;
      if (mine > best) {
        best = mine;
        cls[x] = row.classes[k];
      }
    }
    const double part = static_cast<double>(busy) / static_cast<double>(std::max<std::int64_t>(to - from, 1));
    fill[x] = best == 0 ? 0 : static_cast<std::uint8_t>(std::clamp(part * steps + 0.999, 1.0, 1.0 * steps));
    for (std::size_t i = upto; best == 0 && i < std::min(next, upto + row.block); ++i) {
      const std::uint8_t lone = row.class_of(i);
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
