#include "record/clock.hpp"

#include <cstdio>
#include <cstring>

namespace dft {

bool g_cpu_ticks = false;

namespace {

bool g_clock_ready = false;

bool kernel_trusts_cpu_counter() {
#if defined(__aarch64__)
  return true;  // the architected timer is what CLOCK_MONOTONIC itself reads
#elif defined(__x86_64__)
  FILE* f = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
  if (!f) return false;
  char name[32] = {};
  bool tsc = fgets(name, sizeof name, f) && strncmp(name, "tsc", 3) == 0;
  fclose(f);
  return tsc;
#else
  return false;
#endif
}

constexpr uint64_t kNoiseNs = 100000;       // below it the reading noise of the two clocks dominates a slope
constexpr uint64_t kLongestNs = 500000000;  // between two anchors while events come

double slope_between(const Anchor& a, const Anchor& b) {
  return double(b.mono_ns - a.mono_ns) / double(b.ticks - a.ticks);
}

}  // namespace

void init_clock() {
  if (g_clock_ready) return;
  g_cpu_ticks = kernel_trusts_cpu_counter();
  g_clock_ready = true;
}

namespace {
// While the library is loaded: later, another thread might be reading the clock.
const bool g_at_load = (init_clock(), true);
}  // namespace

const char* clock_source() {
#if defined(__aarch64__)
  return g_cpu_ticks ? "cntvct" : "clock_monotonic";
#else
  return g_cpu_ticks ? "tsc" : "clock_monotonic";
#endif
}

uint64_t realtime_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

Anchor take_anchor() {
  if (!g_cpu_ticks) {
    uint64_t now = monotonic_ns();
    return {now, now};
  }
  // The tightest of a few readings: an interrupt between the two reads would skew the map.
  Anchor best{};
  uint64_t best_gap = UINT64_MAX;
  for (int i = 0; i < 4; ++i) {
    uint64_t before = ticks();
    uint64_t mono = monotonic_ns();
    uint64_t after = ticks();
    if (after - before < best_gap) {
      best_gap = after - before;
      best = {before + (after - before) / 2, mono};
    }
  }
  return best;
}

void ClockMap::start(Anchor first, uint64_t epoch_ns_at_first, bool cpu_ticks) {
  cpu_ticks_ = cpu_ticks;
  base_ = last_ = knots_[0] = first;
  n_ = 1;
  slopes_[0] = 1.0;
  fixed_ = 0;
  epoch_offset_ = epoch_ns_at_first - first.mono_ns;
}

int ClockMap::knot_before(uint64_t t) const {
  int i = n_ - 1;
  while (i > 0 && t < knots_[i].ticks) --i;
  return i;
}

uint64_t ClockMap::to_epoch_ns(uint64_t t) const {
  if (!cpu_ticks_) return t + epoch_offset_;
  int i = knot_before(t);
  const Anchor& a = knots_[i];
  return uint64_t(int64_t(a.mono_ns) + int64_t(double(int64_t(t - a.ticks)) * slopes_[i])) + epoch_offset_;
}

ClockMap::Stretch ClockMap::stretch_of(uint64_t t) const {
  // Rounded up, so that a whole number of microseconds is one.
  constexpr uint64_t kNs = UINT64_MAX / 1000 + 1;
  uint64_t from = t, size = 1, rate = kNs;
  if (!cpu_ticks_) {
    size = uint64_t(1) << 32;
    from = t & ~(size - 1);
  } else {
    int i = knot_before(t);
    // A microsecond and more in a tick: its rate would not fit, nor is there anything to save.
    constexpr double kFastest = 999;
    if (slopes_[i] > kFastest) return {t, 1, to_epoch_ns(t) / 1000, 0, 0};
    if (t >= knots_[i].ticks) from = knots_[i].ticks;
    size = (i + 1 < n_ ? knots_[i + 1].ticks : UINT64_MAX) - from;
    if (from < knots_[0].ticks) size = knots_[0].ticks - from;
    rate = uint64_t(slopes_[i] * double(kNs)) + 1;
  }
  uint64_t epoch_ns = to_epoch_ns(from);
  return {from, size, epoch_ns / 1000, epoch_ns % 1000 * kNs, rate};
}

// As long apart as the map is old, at first: an estimate is good for as long as it took.
void ClockMap::add(Anchor anchor) {
  if (anchor.ticks <= last_.ticks) return;
  uint64_t since = anchor.mono_ns - last_.mono_ns;
  uint64_t age = last_.mono_ns - base_.mono_ns;
  if (since < (age > kLongestNs ? kLongestNs : age) || since < kNoiseNs) return;
  double slope = slope_between(last_, anchor);
  if (n_ == 1) {
    slopes_[0] = slope;
  } else {
    Anchor joint{fixed_, to_epoch_ns(fixed_) - epoch_offset_};
    if (fixed_ < last_.ticks) joint = last_;
    if (joint.ticks >= anchor.ticks || joint.mono_ns >= anchor.mono_ns) return;
    double to_anchor = slope_between(joint, anchor);
    // Too little time to make up for the error since the last one: another anchor will do.
    if (to_anchor < 0.99 * slope || to_anchor > 1.01 * slope) return;
    if (n_ + 2 > kKnots) thin_out();
    if (joint.ticks > knots_[n_ - 1].ticks) knots_[n_++] = joint;
    slopes_[n_ - 1] = to_anchor;
  }
  last_ = knots_[n_] = anchor;
  slopes_[n_++] = slope;
}

// What began before the kept knots is interpolated over longer pieces.
void ClockMap::thin_out() {
  double newest = slopes_[n_ - 1];
  int kept = 1;
  for (int i = 1; i < n_; ++i)
    if (i % 2 == 0 || i > n_ / 2) knots_[kept++] = knots_[i];
  n_ = kept;
  for (int i = 0; i + 1 < n_; ++i) slopes_[i] = slope_between(knots_[i], knots_[i + 1]);
  slopes_[n_ - 1] = newest;
}

}  // namespace dft
