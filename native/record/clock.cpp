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

double slope_between(const Anchor& a, const Anchor& b, double fallback) {
  // Below 100 us the reading noise of the two clocks dominates the estimate.
  if (b.mono_ns < a.mono_ns + 100000 || b.ticks <= a.ticks) return fallback;
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

void ClockMap::start(Anchor first, uint64_t epoch_ns_at_first) {
  base_ = first;
  seg_[0] = first;
  n_ = 1;
  slope_ = slopes_[0] = 1.0;
  epoch_offset_ = epoch_ns_at_first - first.mono_ns;
}

// Once for each anchor, not for each event: it divides.
void ClockMap::set_slope(int i) { slopes_[i] = i + 1 < n_ ? slope_between(seg_[i], seg_[i + 1], slope_) : slope_; }

void ClockMap::add(Anchor anchor) {
  Anchor& last = seg_[n_ - 1];
  if (anchor.ticks <= last.ticks) return;
  slope_ = slope_between(n_ > 1 ? seg_[n_ - 2] : base_, anchor, slope_);
  if (n_ > 1 && anchor.mono_ns - seg_[n_ - 2].mono_ns < 500000000u) {
    last = anchor;  // refine the newest segment until it is long enough to keep
    set_slope(n_ - 2);
    set_slope(n_ - 1);
    return;
  }
  if (n_ == kSegments) {
    // Thin out: events older than the kept segments are interpolated over longer ones.
    for (int i = 1; i < kSegments / 2; ++i) seg_[i] = seg_[2 * i];
    n_ = kSegments / 2;
    for (int i = 0; i < n_; ++i) set_slope(i);
  }
  seg_[n_++] = anchor;
  set_slope(n_ - 2);
  set_slope(n_ - 1);
}

}  // namespace dft
