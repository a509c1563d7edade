// What the whole process is in the middle of besides its steps, and when the last of it ended: for the hang watch,
// which looks at this without the program's help.
#pragma once

#include <atomic>
#include <cstdint>

#include "api.hpp"

namespace dft {

// A barrier is where ranks wait for one that does something else on purpose.
enum class Busy : uint8_t { kCollective, kBarrier, kCheckpoint, kCompile, kGroup, kCount };

struct Progress {
  std::atomic<int64_t> since[int(Busy::kCount)]{};  // ns of the trace's clock, 0: not in it
  std::atomic<int64_t> moved{0};                    // when one of them last ended
  std::atomic<int64_t> longest{0};                  // between two of them, since somebody set this to 0
  // Of a program that is annotated by hand nothing else tells: what its records say, from the writer's thread.
  std::atomic<bool> by_records{false};
  std::atomic<int64_t> steps{0}, step{-1};  // how many have ended, and the number of the last
};
extern DFT_API Progress g_progress;

inline void busy_begins(Busy what, int64_t t) { g_progress.since[int(what)].store(t, std::memory_order_release); }

// Something that the program does again and again has ended.
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
