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
  // `cpu_ticks`: what the times are that it maps; those of a ring may be of a process with another clock.
  void start(Anchor first, uint64_t epoch_ns_at_first, bool cpu_ticks = g_cpu_ticks);
  void add(Anchor anchor);
  // What was mapped up to this moment has been written: later anchors leave it as it is, or a span that ends later
  // would begin after what happened inside it.
  void fix(uint64_t until_ticks) { fixed_ = until_ticks; }
  Anchor first() const { return base_; }
  Anchor last() const { return last_; }
  uint64_t epoch_offset() const { return epoch_offset_; }
  uint64_t to_epoch_ns(uint64_t t) const;
  // What maps the times between two anchors to microseconds: with whole numbers, in a few instructions.
  struct Stretch {
    uint64_t from, size;  // of the times, in ticks
    uint64_t epoch_us;    // of the first, and...
    uint64_t part;        // ...of this in units of 1 / (1 << 64), as...
    uint64_t rate;        // ...us a tick
    bool has(uint64_t t) const { return t - from < size; }
    uint64_t to_epoch_us(uint64_t t) const {
      __extension__ using Wide = unsigned __int128;
      return epoch_us + uint64_t((Wide(t - from) * rate + part) >> 64);
    }
  };
  Stretch stretch_of(uint64_t t) const;
  // What the recorder timed itself has its times from here: a child never extends beyond its parent.
  uint64_t to_epoch_us(uint64_t t) const { return stretch_of(t).to_epoch_us(t); }
  double ns_per_tick() const { return slopes_[n_ - 1]; }

 private:
  int knot_before(uint64_t t) const;
  void thin_out();
  static constexpr int kKnots = 512;
  Anchor base_{};
  Anchor last_{};
  Anchor knots_[kKnots]{};
  double slopes_[kKnots]{};  // from each of them to the next; of the last one, from it on
  int n_ = 0;
  uint64_t fixed_ = 0;
  uint64_t epoch_offset_ = 0;  // epoch ns - monotonic ns
  bool cpu_ticks_ = false;
};

}  // namespace dft
