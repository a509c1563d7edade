// The hot path: enter, exit, push. Everything here is inlined into its callers; the slow paths are in engine.cpp
// and, where they need the session, in session/full_ring.cpp and session/threads.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "api.hpp"
#include "record/clock.hpp"
#include "record/record.hpp"

#define DFT_LIKELY(x) __builtin_expect(!!(x), 1)
#define DFT_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace dft {

struct Frame {
  const void* key;    // what was opened
  const void* owner;  // who opened it, if several can have it open at the same time; null if the key is enough
  uint64_t start;
  uint64_t id;
  int64_t parent;
  uint32_t level;
  uint32_t flags;
};
enum FrameFlag : uint32_t {
  kMuted = 1,      // opened while disabled: matches its exit, but has no children
  kStarted = 2,    // opened by start(), closed by stop()
  kAnonymous = 4,  // opened by enter_event(), named by the next log_event()
  kNamed = 8,      // an anonymous frame that has its event
};

inline uint32_t muted_unless(bool on) { return on ? 0u : uint32_t(kMuted); }

// The open events of one flow of control: a thread, or one context (async task) within it.
struct Stack {
  Frame* frames;
  uint32_t size;
  uint32_t capacity;
  int64_t outer_id;  // parent of the bottom frame
  uint32_t outer_level;
  Frame spare;  // the only frame while there is no memory for more
};

struct ThreadState {
  std::atomic<uint32_t> busy;
  uint32_t generation;
  Stack* stack;
  RingHeader* ring;
  uint8_t* data;  // ring data, mapped twice in a row so that no record wraps
  uint64_t head;
  uint64_t limit;        // up to here there is room
  uint64_t quick_until;  // a record that ends before has room, and is no reason to wake the writer or to pause
  uint64_t mask;
  std::atomic<uint64_t>* next_id;  // of the process
  uint64_t id_at, id_end;          // ids that this thread has taken from there; no end: it takes them one by one
  bool patient;                    // may wait a long time for room: not on the path of a traced call
  bool large_stalled;              // the same for payloads on the heap
  bool stalled;                    // gave up waiting for room; drop at once until there is plenty
  void* context;                   // whatever owns `stack` for the embedding language; null for the thread's own
  Stack root;
  void* contexts;  // stacks of other contexts, managed by the embedding
  int64_t tid;
  bool is_writer;
  uint64_t ease_from;              // from here on there is little room left in the ring
  uint64_t eased_at, eased_since;  // the writer's progress when calls began to pause, and when that was
  ThreadState *next, *previous;    // in the list of the session
};

// 0 while no session records; otherwise differs for every session and every process.
extern DFT_API std::atomic<uint32_t> g_generation;
extern DFT_API std::atomic<uint32_t> g_doze;
// __thread, not thread_local: no wrapper call, and one pointer of the small static TLS reserve.
extern DFT_API __attribute__((tls_model("initial-exec"))) __thread ThreadState* tls_thread;

// What recording needs of the session. The session fills this in when the library is loaded, so this folder need not
// know it.
struct RecordingCalls {
  ThreadState* (*attach_thread)(bool for_io) = [](bool) -> ThreadState* { return nullptr; };
  bool (*make_room)(ThreadState* t, uint32_t size) = [](ThreadState*, uint32_t) { return false; };
  char* (*take_large_payload)(ThreadState* t, size_t size) = [](ThreadState*, size_t) -> char* { return nullptr; };
  void (*wake_writer)() = [] {};
  void (*count_dropped)(Drop why) = [](Drop) {};
};
extern RecordingCalls g_recording_calls;

// `for_io`: an event follows, so the trace file may be opened at once.
DFT_API ThreadState* attach_thread(bool for_io = false);
DFT_API bool make_room(ThreadState* t, uint32_t size);
DFT_API void wake_writer();
DFT_API void grow_stack(Stack* s);
DFT_API void free_stack(Stack* s);
// Counts an event that is not recorded, for the closing record.
DFT_API void count_lost(Drop why);
// Likewise an argument value that was too long for its event.
DFT_API void count_cut_value();
extern DFT_API std::atomic<uint64_t> g_cut_values;
// Interns (name, cat); the number stays valid for the life of the process and its forked children.
DFT_API uint32_t intern(std::string_view name, std::string_view cat);

inline ThreadState* current_thread() {
  ThreadState* t = tls_thread;
  if (DFT_LIKELY(t != nullptr && t->generation == g_generation.load(std::memory_order_relaxed))) return t;
  return attach_thread();
}

// Whether this thread has recorded anything yet; a disabled span is no reason to begin.
inline bool recording_thread() {
  return tls_thread && tls_thread->generation == g_generation.load(std::memory_order_relaxed);
}

// How many ids a thread takes at once. Threads that record at the same time would fight over one cache line at every
// event, so a build for Python without the interpreter lock sets it; with the lock it is 1, and ids have no gaps.
#ifndef DFTRACER_IDS_AT_ONCE
#define DFTRACER_IDS_AT_ONCE 1
#endif
inline constexpr uint32_t kIdsAtOnce = DFTRACER_IDS_AT_ONCE;
DFT_API uint64_t take_ids(ThreadState* t);

// Ids count up within the process.
inline uint64_t new_id(ThreadState* t) {
  if (kIdsAtOnce == 1 || DFT_UNLIKELY(!t->id_end)) return t->next_id->fetch_add(1, std::memory_order_relaxed);
  uint64_t id = 1;
  // One instruction, so that a signal handler that records does not get the same.
#if defined(__x86_64__)
  asm volatile("xaddq %0, %1" : "+r"(id), "+m"(t->id_at) : : "cc");
#else
  id = __atomic_fetch_add(&t->id_at, 1, __ATOMIC_RELAXED);
#endif
  return DFT_LIKELY(id < t->id_end) ? id : take_ids(t);
}

// How far the thread may write: the writer has emptied the ring up to its tail, and not all of a new ring has memory.
inline void refresh_limit(ThreadState* t) {
  uint64_t capacity = t->mask + 1;
  uint64_t emptied = t->ring->tail.load(std::memory_order_acquire) + capacity;
  uint64_t reserved = t->ring->reserved.load(std::memory_order_acquire);
  t->limit = emptied < reserved ? emptied : reserved;
  t->ease_from = emptied - capacity / 4;
  t->quick_until = 0;
}

// Until the next eighth of the ring, where the writer is woken.
inline void refresh_quick(ThreadState* t) {
  uint64_t eighth = (t->mask >> 3) + 1;
  uint64_t until = (t->head & ~(eighth - 1)) + eighth;
  if (t->limit < until) until = t->limit;
  if (t->ease_from < until) until = t->ease_from;
  t->quick_until = until;
}

// The cache lines for the next record were last used by the writer's core. Prefetched before the traced call, they
// are here when it returns.
inline __attribute__((always_inline)) void expect_record() {
#if defined(__x86_64__)
  if (const ThreadState* t = tls_thread) {
    const uint8_t* at = t->data + (t->head & t->mask);
    asm volatile("prefetchw 64(%0)\n\tprefetchw 128(%0)" : : "r"(at));
  }
#endif
}

inline Frame* push_frame(ThreadState* t, const void* key, uint32_t flags, const void* owner = nullptr) {
  Stack* s = t->stack;
  if (DFT_UNLIKELY(s->size == s->capacity)) grow_stack(s);
  Frame* f = &s->frames[s->size];
  int64_t parent = s->outer_id;
  uint32_t level = s->outer_level;
  if (s->size) {
    parent = int64_t(f[-1].id);
    level = f[-1].level;
  }
  ++s->size;
  f->key = key;
  f->owner = owner;
  f->parent = parent;
  f->flags = flags;
  if (DFT_UNLIKELY(flags & kMuted)) {
    f->id = uint64_t(parent);
    f->level = level;
  } else {
    f->id = new_id(t);
    f->level = level + 1;
  }
  f->start = ticks();
  return f;
}

// For an event that is not opened: below the currently open one.
inline Frame unopened_frame(ThreadState* t) {
  const Stack* s = t->stack;
  Frame f{};
  f.id = new_id(t);
  f.parent = s->size ? int64_t(s->frames[s->size - 1].id) : s->outer_id;
  f.level = (s->size ? s->frames[s->size - 1].level : s->outer_level) + 1;
  return f;
}

// Takes the newest frame that `wanted` accepts off the stack, wherever it is: flows that interleave on one thread
// (generators, greenlets) do not close in the order they opened.
template <typename Wanted>
inline bool pop_frame_if(Stack* s, Frame* out, Wanted wanted) {
  uint32_t n = s->size;
  if (DFT_LIKELY(n && wanted(s->frames[n - 1]))) {
    *out = s->frames[n - 1];
    s->size = n - 1;
    return true;
  }
  for (uint32_t i = n; i-- > 0;) {
    if (!wanted(s->frames[i])) continue;
    *out = s->frames[i];
    memmove(&s->frames[i], &s->frames[i + 1], (n - i - 1) * sizeof(Frame));
    s->size = n - 1;
    return true;
  }
  return false;
}

inline bool pop_frame(Stack* s, const void* key, uint32_t must_flags, Frame* out) {
  return pop_frame_if(s, out, [&](const Frame& f) { return f.key == key && (f.flags & must_flags) == must_flags; });
}

// Marks the thread as writing to its ring, so that finalize() in another thread waits for it.
class Writing {
 public:
  __attribute__((always_inline)) explicit Writing(ThreadState* t) : t_(t) {
    t->busy.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    live_ = t->generation == g_generation.load(std::memory_order_relaxed);
  }
  __attribute__((always_inline)) ~Writing() { t_->busy.store(0, std::memory_order_release); }
  bool live() const { return DFT_LIKELY(live_); }

 private:
  ThreadState* t_;
  bool live_;
};

inline Record* reserve(ThreadState* t, uint32_t size) {
  if (DFT_UNLIKELY(t->head + size > t->limit) && !make_room(t, size)) return nullptr;
  return reinterpret_cast<Record*>(t->data + (t->head & t->mask));
}

inline void publish(ThreadState* t, uint32_t size) {
  uint64_t before = t->head;
  uint64_t after = before + size;
  t->head = after;
  t->ring->head.store(after, std::memory_order_release);
  // Wake the writer at every eighth of the ring, or if it sleeps because there were no events.
  if (DFT_UNLIKELY((before ^ after) > (t->mask >> 3) || g_doze.load(std::memory_order_relaxed))) wake_writer();
}

inline uint16_t record_level(const Frame& f) { return f.level < 0xffff ? uint16_t(f.level) : 0xffff; }

// memcpy for texts that are nearly always short: the call would cost more than the copy.
inline void copy_text(char* to, std::string_view text) {
  const char* from = text.data();
  size_t n = text.size();
  if (DFT_UNLIKELY(n > 48)) {
    memcpy(to, from, n);
  } else if (n >= 16) {
    memcpy(to, from, 16);
    if (n > 32) memcpy(to + 16, from + 16, 16);
    memcpy(to + n - 16, from + n - 16, 16);
  } else if (n >= 8) {
    memcpy(to, from, 8);
    memcpy(to + n - 8, from + n - 8, 8);
  } else if (n >= 4) {
    memcpy(to, from, 4);
    memcpy(to + n - 4, from + n - 4, 4);
  } else if (n) {
    to[0] = from[0];
    to[n / 2] = from[n / 2];
    to[n - 1] = from[n - 1];
  }
}

// The common case: a short span, the session is recording and the ring has room. Returns false, and has done nothing,
// if anything is otherwise.
inline __attribute__((always_inline)) bool write_short_span(ThreadState* t, uint32_t name, const Frame& f, uint64_t end,
                                                            std::string_view args, std::string_view more) {
  constexpr size_t kShort = 1024;  // certainly no quarter of a ring
  size_t payload = args.size() + more.size();
  uint32_t size = round8(sizeof(Record) + payload);
  Writing writing(t);
  uint64_t head = t->head;
  if (DFT_UNLIKELY(!writing.live() || payload > kShort || head + size > t->limit)) return false;
  auto* r = reinterpret_cast<Record*>(t->data + (head & t->mask));
  r->size = size;
  r->kind = Kind::kSpan;
  r->flags = 0;
  r->level = record_level(f);
  r->id = f.id;
  r->parent = f.parent;
  r->start = f.start;
  r->end = end;
  r->name = name;
  r->payload_size = uint32_t(payload);
  copy_text(r->payload(), args);
  if (more.size()) copy_text(r->payload() + args.size(), more);
  publish(t, size);
  return true;
}

DFT_API void emit_any_span(ThreadState* t, uint32_t name, const Frame& f, uint64_t end, std::string_view args,
                           std::string_view more, std::string_view tail, uint8_t flags);

// A finished span. `args`, `more` and `tail` are JSON fragments. Times are epoch ns when flags say so.
inline void emit_span(ThreadState* t, uint32_t name, const Frame& f, uint64_t end, std::string_view args,
                      std::string_view more = "", std::string_view tail = "", uint8_t flags = 0) {
  if (DFT_LIKELY(tail.empty() && !flags && write_short_span(t, name, f, end, args, more))) return;
  emit_any_span(t, name, f, end, args, more, tail, flags);
}

// The same for the innermost frame, which then need not be copied: if it is the wanted one, and not muted.
template <typename Wanted>
inline bool close_innermost(ThreadState* t, Wanted wanted, uint32_t name, uint64_t end, std::string_view args,
                            std::string_view more = "") {
  Stack* s = t->stack;
  uint32_t open = s->size;
  if (DFT_UNLIKELY(!open)) return false;
  const Frame& f = s->frames[open - 1];
  if (DFT_UNLIKELY(!wanted(f) || f.flags & kMuted || !write_short_span(t, name, f, end, args, more))) return false;
  s->size = open - 1;
  return true;
}

// Anything with names of its own. Times are epoch ns when flags say so.
DFT_API void emit_strings(ThreadState* t, Kind kind, uint8_t flags, const Frame& f, uint64_t end, int64_t tid,
                          std::string_view first, std::string_view second, std::string_view rest);

}  // namespace dft
