#include "record/engine.hpp"

#include <cstdlib>
#include <cstring>

#include "record/large_payloads.hpp"
#include "record/progress.hpp"

namespace dft {

std::atomic<uint32_t> g_generation{0};
std::atomic<uint32_t> g_doze{0};
Progress g_progress;
__thread ThreadState* tls_thread = nullptr;
constinit RecordingCalls g_recording_calls;  // filled in by another file's initialisation

ThreadState* attach_thread(bool for_io) { return g_recording_calls.attach_thread(for_io); }
bool make_room(ThreadState* t, uint32_t size) { return g_recording_calls.make_room(t, size); }
void wake_writer() { g_recording_calls.wake_writer(); }
void count_lost(Drop why) { g_recording_calls.count_dropped(why); }

std::atomic<uint64_t> g_cut_values{0};
void count_cut_value() { g_cut_values.fetch_add(1, std::memory_order_relaxed); }

uint64_t take_ids(ThreadState* t) {
  uint64_t first = t->next_id->fetch_add(kIdsAtOnce, std::memory_order_relaxed);
  // In this order a signal handler in between takes one by one.
  t->id_end = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  t->id_at = first + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  t->id_end = first + kIdsAtOnce;
  return first;
}

void grow_stack(Stack* s) {
  uint32_t capacity = s->frames == &s->spare || !s->capacity ? 32 : s->capacity * 2;
  auto* frames = static_cast<Frame*>(malloc(capacity * sizeof(Frame)));
  if (!frames && s->capacity) {
    // No memory: the innermost open event gives way to the new one.
    --s->size;
    count_lost(Drop::kMemory);
    return;
  }
  if (!frames) {
    frames = &s->spare;
    capacity = 1;
  }
  // In this order a call in a signal handler never reads frames that are gone.
  Frame* old = s->frames;
  if (s->size) memcpy(frames, s->frames, s->size * sizeof(Frame));
  s->frames = frames;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  s->capacity = capacity;
  if (old != &s->spare) free(old);
}

void free_stack(Stack* s) {
  if (s->frames != &s->spare) free(s->frames);
  s->frames = nullptr;
}

// Payloads that are too large for a ring.

std::atomic<uint64_t> g_waiting_payloads{0};

char* take_large_payload(ThreadState* t, size_t size) { return g_recording_calls.take_large_payload(t, size); }

void release_large_payload(char* data, size_t size) {
  free(data);
  g_waiting_payloads.fetch_sub(size, std::memory_order_relaxed);
}

namespace {

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

}  // namespace dft
