// The slow paths of recording: a full ring, a payload too large for any ring.
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

void fill(Record* r, uint32_t size, Kind kind, uint8_t flags, const Frame& f, uint64_t end, uint32_t name,
          uint32_t payload) {
  *r = {size, kind, flags, record_level(f), f.id, f.parent, f.start, end, name, payload};
}

void emit_on_heap(ThreadState* t, Kind kind, uint8_t flags, const Frame& f, uint64_t end, uint32_t name, char* data,
                  size_t size) {
  HeapPayload heap{data, size};
  uint32_t whole = round8(sizeof(Record) + sizeof heap);
  Record* r = reserve(t, whole);
  if (!r) {
    release_large_payload(data, size);
    return;
  }
  fill(r, whole, kind, uint8_t(flags | kOnHeap), f, end, name, sizeof heap);
  memcpy(r->payload(), &heap, sizeof heap);
  publish(t, whole);
}

}  // namespace

// The ring is full. Wait a bounded time for the writer, then drop, and keep dropping without
// waiting until a good part of the ring is free: a stuck disk holds up a thread once, not at every event.
bool make_room(ThreadState* t, uint32_t size) {
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
  t->limit = 0;
  h->dropped[int(disk ? Drop::kDisk : Drop::kRingFull)].fetch_add(1, std::memory_order_relaxed);
  return false;
}

std::atomic<uint64_t> g_waiting_payloads{0};

char* take_large_payload(ThreadState* t, size_t size) {
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
    t->large_stalled = true;  // as in make_room(): the next ones do not wait for the same disk
    count_lost(refusing() ? Drop::kDisk : Drop::kRingFull);
    return nullptr;
  }
  t->large_stalled = false;
  auto* data = static_cast<char*>(malloc(size));
  if (!data) {
    count_lost(Drop::kMemory);
    return nullptr;
  }
  g_waiting_payloads.fetch_add(size, std::memory_order_relaxed);
  return data;
}

void release_large_payload(char* data, size_t size) {
  free(data);
  g_waiting_payloads.fetch_sub(size, std::memory_order_relaxed);
}

namespace {

void emit_large(ThreadState* t, Kind kind, uint8_t flags, const Frame& f, uint64_t end, uint32_t name,
                std::string_view a, std::string_view b, std::string_view c) {
  size_t size = a.size() + b.size() + c.size();
  char* data = take_large_payload(t, size);
  if (!data) return;
  memcpy(data, a.data(), a.size());
  memcpy(data + a.size(), b.data(), b.size());
  memcpy(data + a.size() + b.size(), c.data(), c.size());
  emit_on_heap(t, kind, flags, f, end, name, data, size);
}

}  // namespace

void emit_any_span(ThreadState* t, uint32_t name, const Frame& f, uint64_t end, std::string_view args,
                   std::string_view more, std::string_view tail, uint8_t flags) {
  size_t payload = args.size() + more.size() + tail.size();
  Writing writing(t);
  if (!writing.live()) return;
  if (payload > (t->mask >> 2)) {
    emit_large(t, Kind::kSpan, flags, f, end, name, args, more, tail);
    return;
  }
  uint32_t size = round8(sizeof(Record) + payload);
  Record* r = reserve(t, size);
  if (!r) return;
  fill(r, size, Kind::kSpan, flags, f, end, name, uint32_t(payload));
  char* p = r->payload();
  for (std::string_view part : {args, more, tail}) {
    memcpy(p, part.data(), part.size());
    p += part.size();
  }
  publish(t, size);
}

void emit_strings(ThreadState* t, Kind kind, uint8_t flags, const Frame& f, uint64_t end, int64_t tid,
                  std::string_view first, std::string_view second, std::string_view rest) {
  Strings s{tid, uint32_t(first.size()), uint32_t(second.size())};
  size_t payload = sizeof s + first.size() + second.size() + rest.size();
  Writing writing(t);
  if (!writing.live()) return;
  t->patient = (flags & kOtherLane) != 0;
  auto copy = [&](char* p) {
    memcpy(p, &s, sizeof s);
    p += sizeof s;
    for (std::string_view part : {first, second, rest}) {
      memcpy(p, part.data(), part.size());
      p += part.size();
    }
  };
  if (payload > (t->mask >> 2)) {
    if (char* data = take_large_payload(t, payload)) {
      copy(data);
      emit_on_heap(t, kind, flags, f, end, 0, data, payload);
    }
    t->patient = false;
    return;
  }
  uint32_t size = round8(sizeof(Record) + payload);
  Record* r = reserve(t, size);
  t->patient = false;
  if (!r) return;
  fill(r, size, kind, flags, f, end, 0, uint32_t(payload));
  copy(r->payload());
  publish(t, size);
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

void count_lost(Drop why) {
  Session* s = state().session;
  if (s && s->recording) s->header()->dropped[int(why)].fetch_add(1, std::memory_order_relaxed);
}

std::atomic<uint64_t> g_cut_values{0};
void count_cut_value() { g_cut_values.fetch_add(1, std::memory_order_relaxed); }

}  // namespace dft
