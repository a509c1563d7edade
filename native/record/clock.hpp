// One monotonic clock for all events: raw ticks on the hot path, nanoseconds since the epoch in the file.
#pragma once

#include "api.hpp"

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace dft {

// 1 when ticks come from a CPU counter the kernel itself trusts, 0 when they are CLOCK_MONOTONIC ns.
extern DFT_API bool g_cpu_ticks;

inline uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

// The calling thread's.
inline uint64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

__attribute__((always_inline)) inline uint64_t ticks() {
#if defined(__x86_64__)
  if (__builtin_expect(g_cpu_ticks, 1)) return __rdtsc();
#elif defined(__aarch64__)
  if (__builtin_expect(g_cpu_ticks, 1)) {
    uint64_t v;
    asm volatile("mrs %0, cntvct_el0" : "=r"(v));
    return v;
  }
#endif
  return monotonic_ns();
}

// A moment read on both clocks.
struct Anchor {
  uint64_t ticks;
  uint64_t mono_ns;
};

DFT_API Anchor take_anchor();
uint64_t realtime_ns();

// Detects the tick source once per process; cheap to call again.
DFT_API void init_clock();
DFT_API const char* clock_source();

// Maps ticks to epoch nanoseconds, piecewise between anchors, so that neither a wrong first estimate
// of the counter's rate nor NTP slewing of the kernel's clock shifts events against each other.
class ClockMap {
 public:
  void start(Anchor first, uint64_t epoch_ns_at_first);
  void add(Anchor anchor);
  // What was mapped up to this moment has been written: later anchors leave it as it is, or a span that ends later
  // would begin after what happened inside it.
  void fix(uint64_t until_ticks) { fixed_ = until_ticks; }
  Anchor first() const { return base_; }
  Anchor last() const { return last_; }
  uint64_t epoch_offset() const { return epoch_offset_; }
  uint64_t to_epoch_ns(uint64_t t) const { return g_cpu_ticks ? to_mono_ns(t) + epoch_offset_ : t + epoch_offset_; }
  double ns_per_tick() const { return slopes_[n_ - 1]; }

 private:
  uint64_t to_mono_ns(uint64_t t) const {
    int i = n_ - 1;
    while (i > 0 && t < knots_[i].ticks) --i;
    const Anchor& a = knots_[i];
    return uint64_t(int64_t(a.mono_ns) + int64_t(double(int64_t(t - a.ticks)) * slopes_[i]));
  }
  void thin_out();
  static constexpr int kKnots = 512;
  Anchor base_{};
  Anchor last_{};
  Anchor knots_[kKnots]{};
  double slopes_[kKnots]{};  // from each of them to the next; of the last one, from it on
  int n_ = 0;
  uint64_t fixed_ = 0;
  uint64_t epoch_offset_ = 0;  // epoch ns - monotonic ns
};

}  // namespace dft
