#include "session/session_clock.hpp"

#include <atomic>

#include "session/session.hpp"

namespace dft {
namespace {

std::atomic<uint64_t> g_epoch_offset{0};
std::atomic<uint64_t> g_some_ticks{0}, g_some_mono{0};

}  // namespace

void note_session_clock(const Anchor& start, uint64_t epoch_offset) {
  uint64_t unset = 0;
  if (g_some_mono.compare_exchange_strong(unset, start.mono_ns)) g_some_ticks.store(start.ticks);
  g_epoch_offset.store(epoch_offset);
}

void forget_session_clock() { g_epoch_offset.store(0); }

uint64_t ticks_to_us(uint64_t ticks) {
  uint64_t some = g_some_ticks.load();
  if (!g_cpu_ticks || !some) return ticks / 1000;
  Anchor now = take_anchor();
  if (now.ticks <= some) return ticks / 1000;
  double slope = double(now.mono_ns - g_some_mono.load()) / double(now.ticks - some);
  return uint64_t(double(ticks) * slope / 1000);
}

uint64_t now_epoch_ns() {
  uint64_t offset = g_epoch_offset.load();
  return offset ? monotonic_ns() + offset : realtime_ns();
}

}  // namespace dft
