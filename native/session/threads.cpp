#include "session/threads.hpp"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

#include "session/begin.hpp"
#include "session/pages.hpp"

namespace dft {

namespace {

constexpr int kReleasedBeforeFlush = 16;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, missing in older headers

pthread_key_t g_thread_key;
pthread_once_t g_thread_key_once = PTHREAD_ONCE_INIT;

void on_thread_exit(void* p) {
  auto* t = static_cast<ThreadState*>(p);
  State& g = state();
  std::lock_guard lock(g.mutex);
  if (Session* s = g.session; s && t->generation == g_generation.load()) {
    (t->previous ? t->previous->next : s->threads) = t->next;
    if (t->next) t->next->previous = t->previous;
    for (RingSlot* slot : s->slots)
      if (slot->map.header == t->ring) slot->state.store(RingSlot::kReleased);
    if (++s->released >= kReleasedBeforeFlush) {
      // Many short threads: their rings are free again once their contents are on disk.
      s->released = 0;
      s->flush_wanted.fetch_add(1);
      wake_writer();
    }
  }
  if (t->contexts && g.free_contexts) g.free_contexts(t->contexts);
  free_stack(&t->root);
  tls_thread = nullptr;
  give_pages(t, sizeof *t);
}

// In the ring file if that is allowed and it has room, otherwise in private memory.
RingSlot* new_slot(Session* s, bool in_file) {
  constexpr uint64_t kPauseNs = 100'000'000;
  MappedRing map;
  bool room = s->slots.size() < s->slots.capacity();
  if (!room && !in_a_handler()) try {
      s->slots.reserve(2 * s->slots.size());
      room = true;
    } catch (const std::bad_alloc&) {
    }
  void* pages = room ? take_pages(sizeof(RingSlot)) : nullptr;
  bool shared = pages && in_file && s->rings.add_ring(&map);
  if (!pages || (!shared && !s->rings.add_private_ring(&map))) {
    if (pages) give_pages(pages, sizeof(RingSlot));
    s->no_ring.store(true);
    s->no_memory_until.store(monotonic_ns() + kPauseNs);
    return nullptr;
  }
  if (!shared && s->rings.in_file()) s->private_ring.store(true);
  auto* slot = new (pages) RingSlot;
  slot->map = map;
  s->slots.push_back(slot);
  return slot;
}

RingSlot* take_slot(Session* s) {
  for (RingSlot* slot : s->slots) {
    RingHeader* h = slot->map.header;
    bool drained = slot->state.load() == RingSlot::kReleased && h->tail.load() == h->head.load();
    if (drained || slot->state.load() == RingSlot::kFree) {
      slot->state.store(RingSlot::kUsed);
      return slot;
    }
  }
  return new_slot(s, s->rings.recoverable());
}

bool begin(Session* s, bool for_io) try { return begin_recording(s, for_io); } catch (const std::bad_alloc&) {
  warn_once("not enough memory to begin; nothing is recorded");
  s->failed = true;
  return false;
}

void use_ring(ThreadState* t, RingHeader* ring, const MappedRing& map) {
  t->ring = ring;
  t->data = map.data;
  t->mask = map.capacity - 1;
  t->head = ring->head.load();
  refresh_limit(t);
  t->stalled = false;
  ring->tid.store(t->tid);
}

}  // namespace

bool process_barrier() { return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0; }

void watch_thread_ends() {
  pthread_once(&g_thread_key_once, [] { pthread_key_create(&g_thread_key, on_thread_exit); });
}

void recycle_released(Session* s) {
  std::lock_guard lock(state().mutex);
  if (s->slots.capacity() - s->slots.size() < kSpareSlots) s->slots.reserve(2 * s->slots.size() + kSpareSlots);
  for (RingSlot* slot : s->slots) {
    RingHeader* h = slot->map.header;
    if (slot->state.load() != RingSlot::kReleased) continue;
    if (h->tail.load() != h->head.load()) continue;
    slot->state.store(RingSlot::kFree);
  }
}

void extend_rings(Session* s, const std::vector<RingSlot*>& slots) {
  for (RingSlot* slot : slots) {
    RingHeader* h = slot->map.header;
    for (;;) {
      uint64_t from = h->reserved.load(std::memory_order_relaxed);
      // A thread with few events keeps to its first piece; one that has half filled it will want the rest.
      if (from >= slot->map.capacity || h->head.load(std::memory_order_relaxed) < kFirstRingPiece / 2) break;
      uint64_t upto = std::min(from + 4 * kRingPiece, slot->map.capacity);
      if (!s->rings.extend(h, upto)) break;
      // Not only memory, but the pages of this process too; where the kernel cannot do that they come one by one.
      madvise(slot->map.data + from, upto - from, kPopulateWrite);
    }
  }
}

std::vector<RingSlot*> slots_now(Session* s) {
  std::lock_guard lock(state().mutex);
  return s->slots;
}

bool wait_for_producers(Session* s) {
  if (!process_barrier()) usleep(1000);  // no such barrier here: give their stores a moment
  bool all = true;
  for (ThreadState* t = s->threads; t; t = t->next) {
    for (int i = 0; i < 5000 && t->busy.load(std::memory_order_acquire); ++i) usleep(100);
    all = all && !t->busy.load(std::memory_order_acquire);
  }
  return all;
}

ThreadState* attach_to_session(bool for_io) {
  if (g_generation.load(std::memory_order_relaxed) == 0) return nullptr;
  State& g = state();
  std::lock_guard lock(g.mutex);
  Session* s = g.session;
  if (!s || s->failed || (!s->recording && !begin(s, for_io))) return nullptr;
  ThreadState* t = tls_thread;
  if (!t) {
    void* pages = take_pages(sizeof(ThreadState));
    if (!pages) return nullptr;
    t = new (pages) ThreadState{};
    t->root.outer_id = -1;
    t->stack = &t->root;
  } else {
    t->root.size = 0;  // events opened in an earlier session are not part of this one
    t->stack = &t->root;
    t->context = nullptr;
    if (t->contexts && g.free_contexts) g.free_contexts(t->contexts);
    t->contexts = nullptr;
  }
  t->generation = g_generation.load();
  t->tid = syscall(SYS_gettid);
  RingSlot* slot = take_slot(s);
  if (slot)
    use_ring(t, slot->map.header, slot->map);
  else
    use_ring(t, &s->blind, {nullptr, nullptr, s->header()->ring_capacity});
  t->next_id = &s->header()->next_id;
  t->id_at = t->id_end = kIdsAtOnce > 1 ? 1 : 0;  // none yet
  t->previous = nullptr;
  t->next = s->threads;
  if (t->next) t->next->previous = t;
  s->threads = t;
  pthread_setspecific(g_thread_key, t);
  tls_thread = t;
  return t;
}

bool move_to_private_ring(Session* s, ThreadState* t) {
  if (monotonic_ns() < s->no_memory_until.load(std::memory_order_relaxed)) return false;
  // Not waited for: finish_session() holds it while it waits for this thread.
  std::unique_lock lock(state().mutex, std::try_to_lock);
  if (!lock.owns_lock() || t->generation != g_generation.load()) return false;
  RingSlot* slot = new_slot(s, false);
  if (!slot) return false;
  for (RingSlot* before : s->slots)
    if (before->map.header == t->ring) before->state.store(RingSlot::kRetired);
  use_ring(t, slot->map.header, slot->map);
  return true;
}

}  // namespace dft
