// What a thread does when its ring is full, or when it has a payload too large for any ring.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "record/large_payloads.hpp"
#include "session/session_state.hpp"
#include "session/threads.hpp"

namespace dft {
namespace {

// Events passed in bulk (a profiler window) are not traced calls: they may wait for the writer.
constexpr uint64_t kPatienceUs = 10000000;

}  // namespace

// The ring is full. Wait a bounded time for the writer, then drop, and keep dropping without
// waiting until a good part of the ring is free: a stuck disk holds up a thread once, not at every event.
bool make_room_in_ring(ThreadState* t, uint32_t size) {
  Session* s = state().session;
  auto over = [&] { return t->generation != g_generation.load(std::memory_order_relaxed); };
  if (!s || over()) return false;
  FileHeader* h = s->header();
  auto room = [&] {
    refresh_limit(t);
    return t->head + size <= t->limit;
  };
  // A new ring gets its memory in pieces, from the writer if it gets there in time.
  if (uint64_t reserved = t->ring->reserved.load(std::memory_order_relaxed); t->head + size > reserved) {
    uint64_t pieces = (t->head + size + kRingPiece - 1) / kRingPiece;  // a record may be longer than one
    bool stuck =
        t->ring == &s->blind || !s->rings.extend(t->ring, std::max(reserved + kRingPiece, pieces * kRingPiece));
    if (stuck && !move_to_private_ring(s, t)) {
      h->dropped[int(Drop::kRingFull)].fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    wake_writer();
  }
  if (room() && (!t->stalled || t->head < t->ease_from)) {
    t->stalled = false;
    return true;
  }
  bool disk = h->refusing.load(std::memory_order_relaxed);
  uint64_t patience_us = t->patient ? kPatienceUs : s->settings.max_stall_us;
  if (!t->stalled && !disk && patience_us) {
    uint64_t deadline = monotonic_ns() + patience_us * 1000;
    do {
      wake_writer();
      timespec nap{0, 20000};
      nanosleep(&nap, nullptr);
      if (over()) return false;  // finish_session() waits for us
      if (room()) return true;
    } while (monotonic_ns() < deadline && !h->refusing.load(std::memory_order_relaxed));
    disk = h->refusing.load(std::memory_order_relaxed);
  }
  t->stalled = true;
  t->limit = t->quick_until = 0;
  h->dropped[int(disk ? Drop::kDisk : Drop::kRingFull)].fetch_add(1, std::memory_order_relaxed);
  return false;
}

char* wait_for_large_payload(ThreadState* t, size_t size) {
  Session* s = state().session;
  if (!s) return nullptr;
  FileHeader* h = s->header();
  auto refusing = [&] { return h->refusing.load(std::memory_order_relaxed) != 0; };
  auto fits = [&] { return g_waiting_payloads.load(std::memory_order_relaxed) + size <= kMaxWaiting; };
  uint64_t patience_us = t->patient ? kPatienceUs : s->settings.max_stall_us;
  uint64_t deadline = monotonic_ns() + patience_us * 1000;
  while (!fits() && !refusing() && !t->large_stalled && monotonic_ns() < deadline) {
    wake_writer();
    timespec nap{0, 20000};
    nanosleep(&nap, nullptr);
    if (t->generation != g_generation.load(std::memory_order_relaxed)) return nullptr;
  }
  if (!fits()) {
    t->large_stalled = true;  // as in make_room_in_ring(): the next ones do not wait for the same disk
    count_dropped(refusing() ? Drop::kDisk : Drop::kRingFull);
    return nullptr;
  }
  t->large_stalled = false;
  auto* data = static_cast<char*>(malloc(size));
  if (!data) {
    count_dropped(Drop::kMemory);
    return nullptr;
  }
  g_waiting_payloads.fetch_add(size, std::memory_order_relaxed);
  return data;
}

void ease_off(ThreadState* t) {
  {
    Writing writing(t);  // so that neither session nor ring goes away meanwhile
    Session* s = state().session;
    if (!s || !writing.live()) return;
    refresh_limit(t);
    if (t->head < t->ease_from || s->settings.max_stall_us == 0) return;
    if (s->header()->refusing.load(std::memory_order_relaxed)) return;
    // As long as it helps: a disk that hangs must not slow down every call.
    constexpr uint64_t kHopeNs = 100'000'000;
    uint64_t now = monotonic_ns();
    if (uint64_t commits = s->writer.commits(); commits != t->eased_at) {
      t->eased_at = commits;
      t->eased_since = now;
    }
    if (now - t->eased_since > kHopeNs) return;
    wake_writer();
  }
  timespec nap{0, 50000};
  syscall(SYS_nanosleep, &nap, nullptr);
}

void count_dropped(Drop why) {
  Session* s = state().session;
  if (s && s->recording) s->header()->dropped[int(why)].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace dft
