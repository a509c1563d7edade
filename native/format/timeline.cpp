#include "format/timeline.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace dft {
namespace {

constexpr size_t kNear = 16;
constexpr size_t kMoves = 64;  // per event: where more are needed, sorting is faster

// The events by their start, of those that start together the longest first. They come in the order in which they
// ended, so each is inserted near the end, before those that it encloses.
std::vector<uint32_t> outer_first(const int64_t* ts, const int64_t* dur, size_t n) {
  const auto before = [&](uint32_t a, uint32_t b) {
    if (ts[a] != ts[b]) return ts[a] < ts[b];
    if (dur[a] != dur[b]) return dur[a] > dur[b];
    return a > b;  // parents are written after their children
  };
  std::vector<uint32_t> order(n);
  size_t moved = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto event = uint32_t(i);
    size_t place = i;
    if (place == 0 || !before(event, order[place - 1])) {  // nearly all: the next one begins later
      order[i] = event;
      continue;
    }
    while (place > 0 && i - place < kNear && before(event, order[place - 1])) --place;
    if (i - place == kNear) {
      const auto from = order.begin(), to = from + ptrdiff_t(place);
      place = size_t(std::upper_bound(from, to, event, before) - from);
    }
    std::memmove(order.data() + place + 1, order.data() + place, (i - place) * sizeof event);
    order[place] = event;
    moved += i - place;
    if (moved / kMoves > n) {
      std::iota(order.begin(), order.end(), 0u);
      std::sort(order.begin(), order.end(), before);
      break;
    }
  }
  return order;
}

}  // namespace

Segments timeline(const int64_t* ts, const int64_t* dur, const uint8_t* cls, size_t n, const uint8_t* rule,
                  size_t stages, uint8_t none) {
  const std::vector<uint32_t> order = outer_first(ts, dur, n);
  Segments out;
  out.from.reserve(n);
  out.to.reserve(n);
  out.stage.reserve(n);
  int64_t last_to = std::numeric_limits<int64_t>::min();
  uint8_t last_stage = none;
  const auto emit = [&](int64_t from, int64_t to, uint8_t stage) {
    if (to <= from) return;
    if (last_to == from && last_stage == stage && !out.to.empty()) {
      out.to.back() = last_to = to;
      return;
    }
    out.from.push_back(from);
    out.to.push_back(to);
    out.stage.push_back(stage);
    last_to = to;
    last_stage = stage;
  };
  struct Open {
    int64_t end;
    uint8_t stage;
  };
  std::vector<Open> stack;
  int64_t now = 0;
  const auto close_until = [&](int64_t t) {
    while (!stack.empty() && stack.back().end <= t) {
      emit(now, stack.back().end, stack.back().stage);
      now = std::max(now, stack.back().end);
      stack.pop_back();
    }
  };
  for (const uint32_t i : order) {
    close_until(ts[i]);
    if (!stack.empty()) emit(now, ts[i], stack.back().stage);
    now = std::max(now, ts[i]);
    const uint8_t above = stack.empty() ? none : stack.back().stage;
    stack.push_back({ts[i] + dur[i], rule[cls[i] * stages + above]});
  }
  close_until(std::numeric_limits<int64_t>::max());
  return out;
}

}  // namespace dft
