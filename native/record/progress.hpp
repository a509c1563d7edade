// What the process is doing besides its steps, and when the last of that ended: read by the hang watch, which needs no
// help from the program.
#pragma once

#include <atomic>
#include <cstdint>

#include "api.hpp"

namespace dft {

// At a barrier, ranks may be waiting on purpose for one that does something else.
enum class Busy : uint8_t { kCollective, kBarrier, kCheckpoint, kCompile, kGroup, kCount };

struct Progress {
  std::atomic<int64_t> since[int(Busy::kCount)]{};  // ns of the trace's clock, 0: not doing it
  std::atomic<int64_t> moved{0};                    // when one of them last ended
  std::atomic<int64_t> longest{0};                  // between two of them, since this was last set to 0
  // The only progress that a program annotated by hand shows: its records, as the writer's thread sees them.
  std::atomic<bool> by_records{false};
  std::atomic<int64_t> steps{0}, step{-1};  // how many have ended, and the number of the last
};
extern DFT_API Progress g_progress;

inline void busy_begins(Busy what, int64_t t) { g_progress.since[int(what)].store(t, std::memory_order_release); }

// The program has made progress.
inline void program_moved(int64_t t) {
  int64_t before = g_progress.moved.load(std::memory_order_relaxed);
  if (before && t - before > g_progress.longest.load(std::memory_order_relaxed))
    g_progress.longest.store(t - before, std::memory_order_relaxed);
  g_progress.moved.store(t, std::memory_order_release);
}

inline void busy_ends(Busy what, int64_t t) {
  g_progress.since[int(what)].store(0, std::memory_order_release);
  program_moved(t);
}

// The same, from records; those of several threads come in any order.
inline void record_moved(int64_t t) {
  if (t > g_progress.moved.load(std::memory_order_relaxed)) program_moved(t);
}

}  // namespace dft
