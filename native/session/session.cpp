#include "session/session.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <new>

#include "intercept/intercept.hpp"
#include "intercept/io_record.hpp"
#include "intercept/patcher.hpp"
#include "format/md5.hpp"
#include "record/large_payloads.hpp"
#include "record/names.hpp"
#include "session/prelude.hpp"
#include "record/ring_file.hpp"
#include "session/session_hooks.hpp"
#include "session/session_state.hpp"
#include "session/warm_up.hpp"
#include "write/trace_file.hpp"

// There in a program with a leak checker, which looks for pointers to heap blocks in no other pages.
extern "C" __attribute__((weak)) void __lsan_register_root_region(const void*, size_t);
extern "C" __attribute__((weak)) void __lsan_unregister_root_region(const void*, size_t);

namespace dft {

std::atomic<uint32_t> g_generation{0};
std::atomic<uint32_t> g_doze{0};
__thread ThreadState* tls_thread = nullptr;

namespace {

constexpr uint64_t kShutdownSeconds = 30;
constexpr uint64_t kFirstFlushMs = 2;
// Events handed over in bulk (a profiler's window) are no traced call: they may wait for the writer.
constexpr uint64_t kPatienceUs = 10000000;
constexpr uint64_t kCalibrationNs = 1000000;
constexpr int kReleasedBeforeFlush = 16;
constexpr int kIdleRoundsBeforeDoze = 3;
constexpr size_t kSpareSlots = 256;

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, missing in older headers

std::atomic<uint32_t> g_generations_made{0};
// For questions about time from any thread, session or not.
std::atomic<uint64_t> g_epoch_offset{0};
std::atomic<uint64_t> g_some_ticks{0}, g_some_mono{0};
pthread_key_t g_thread_key;
pthread_once_t g_thread_key_once = PTHREAD_ONCE_INIT;

int futex(std::atomic<uint32_t>* word, int op, uint32_t value, const timespec* timeout) {
  return int(syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), op | FUTEX_PRIVATE_FLAG, value, timeout, nullptr, 0));
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t value, uint64_t timeout_ms) {
  timespec t{time_t(timeout_ms / 1000), long(timeout_ms % 1000) * 1000000};
  futex(word, FUTEX_WAIT, value, timeout_ms ? &t : nullptr);
}

// Makes every running thread of the process pass a full barrier: the hot path then needs none.
bool process_barrier() { return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0; }

uint64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

// Not from the heap: a thread's first event may come in a signal handler that has interrupted malloc.
void* take_pages(size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (__lsan_register_root_region) __lsan_register_root_region(p, size);
  return p;
}

void give_pages(void* p, size_t size) {
  if (__lsan_unregister_root_region) __lsan_unregister_root_region(p, size);
  munmap(p, size);
}

void free_stack(Stack* s) {
  free(s->frames);
  s->frames = nullptr;
}

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
      // Many short threads: their rings are free again once what they hold is on disk.
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

std::string unique_hex(const std::string& host) {
  static std::atomic<uint32_t> count{0};
  std::string seed = host + ":" + std::to_string(getpid()) + ":" + std::to_string(realtime_ns()) + ":" +
                     std::to_string(count.fetch_add(1));
  return short_hash(seed);
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

// Ahead of the threads that fill their rings for the first time.
void extend_rings(Session* s, const std::vector<RingSlot*>& slots) {
  for (RingSlot* slot : slots) {
    RingHeader* h = slot->map.header;
    for (;;) {
      uint64_t from = h->reserved.load(std::memory_order_relaxed);
      // A thread with few events keeps to its first piece; one that has half filled it will want the rest.
      if (from >= slot->map.capacity || h->head.load(std::memory_order_relaxed) < kRingPiece / 2) break;
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

// Call with writer_mutex held.
void show(Session* s) {
  std::lock_guard lock(s->shown_mutex);
  s->shown.opened = s->writer.opened();
  if (s->shown.path != s->writer.path()) s->shown.path = s->writer.path();
  s->shown.bytes = s->writer.bytes();
  s->shown.members = s->writer.members();
}

std::string shown_path(Session* s) {
  std::lock_guard lock(s->shown_mutex);
  return s->shown.opened ? s->shown.path : s->wished;
}

void answer_flush(Session* s, uint32_t wanted) {
  if (s->flush_done.load() == wanted) return;
  s->flush_done.store(wanted);
  futex(&s->flush_done, FUTEX_WAKE, INT32_MAX, nullptr);
}

bool anything_recorded(Session* s) {
  for (RingSlot* slot : slots_now(s))
    if (slot->map.header->head.load(std::memory_order_acquire) != slot->read) return true;
  return false;
}

// Sleeps as futex_wait() does; a fork that needs the writer at rest may happen now.
void rest(Session* s, uint32_t seen, uint64_t ms) {
  state().writer_at_work.unlock();
  futex_wait(&s->wake, seen, ms);
  state().writer_at_work.lock();
}

// Sleeps until the next record. The barrier closes the race with a producer that looked before the flag was set.
void doze(Session* s) {
  uint32_t seen = s->wake.load();
  g_doze.store(1);
  bool certain = process_barrier();
  if (!anything_recorded(s) && !s->stop.load() && s->flush_wanted.load() == s->flush_done.load()) {
    s->sleeping.store(1);
    rest(s, seen, certain ? 0 : s->settings.flush_ms);
    s->sleeping.store(0);
  }
  g_doze.store(0);
}

void* writer_main(void* p) {
  auto* s = static_cast<Session*>(p);
  pthread_setname_np(pthread_self(), "dftracer");
  tls_io_off = 1;
  // The rate of the CPU's counter is known only after a moment of both clocks.
  while (monotonic_ns() - s->clock.first().mono_ns < kCalibrationNs) usleep(200);
  std::lock_guard at_work(state().writer_at_work);
  drop_lost_rings();
  uint64_t interval = kFirstFlushMs;
  int idle = 0;
  while (!s->stop.load()) {
    uint32_t seen = s->wake.load();
    uint32_t wanted = s->flush_wanted.load();
    if (interception_on()) patch_new_objects();
    bool flushing = wanted != s->flush_done.load();
    bool news = anything_recorded(s);
    bool timed_out = !s->woken_early;
    bool written;
    {
      auto slots = slots_now(s);  // before the writer's lock: rename_session() takes the two in this order
      extend_rings(s, slots);
      std::lock_guard lock(s->writer_mutex);
      s->clock.add(take_anchor());
      s->header()->last_anchor = s->clock.last();
      try {
        written = s->writer.pump(slots, flushing || timed_out);
      } catch (const std::bad_alloc&) {
        written = false;  // the next round tries again
      }
      show(s);
    }
    s->written.store(written);
    if (s->no_ring.load()) complain("no memory for another thread's events; they are not recorded");
    recycle_released(s);
    answer_flush(s, wanted);
    idle = news || s->writer.has_open_tail() || !written ? 0 : idle + 1;
    if (idle >= kIdleRoundsBeforeDoze) {
      doze(s);
      interval = kFirstFlushMs;
      idle = 0;
      continue;
    }
    s->sleeping.store(1);
    if (s->wake.load() == seen && !s->stop.load()) rest(s, seen, interval);
    s->sleeping.store(0);
    s->woken_early = s->wake.load() != seen;
    if (!s->woken_early) interval = std::min(interval * 2, s->settings.flush_ms);
  }
  {
    auto slots = slots_now(s);
    std::lock_guard lock(s->writer_mutex);
    s->clock.add(take_anchor());
    try {
      s->writer.finish(slots, thread_cpu_ns());
    } catch (const std::bad_alloc&) {
      // What is missing waits in the ring for the next reader.
    }
    show(s);
    s->written.store(s->writer.complete());
  }
  answer_flush(s, s->flush_wanted.load());
  return nullptr;
}

bool start_writer_thread(Session* s) {
  // No signal of the program is ever delivered to our thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 512 * 1024);
  int rc = pthread_create(&s->thread, &attr, writer_main, s);
  pthread_attr_destroy(&attr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  s->thread_running = rc == 0;
  return rc == 0;
}

// The first record of the session: ring file, prelude, writer thread.
bool begin_recording(Session* s, bool for_io) {
  uint64_t spool = s->settings.member_size + (256 << 10) + prelude_bound(s);
  std::string name = "dftracer-" + std::to_string(getuid()) + "-" + s->hex + ".ring";
  if (!s->rings.create(ring_directories(s->settings.ring_dir, directory_of(s->wished)), name, s->settings.ring_size,
                       spool)) {
    complain("cannot get memory for the event rings; nothing is recorded");
    s->failed = true;
    return false;
  }
  FileHeader* h = s->header();
  h->compress = s->settings.compress;
  h->cpu_ticks = g_cpu_ticks;
  h->inc_metadata = s->settings.inc_metadata;
  h->disable_tids = s->settings.disable_tids;
  h->first_anchor = h->last_anchor = s->clock.first();
  h->epoch_offset = s->clock.epoch_offset();
  snprintf(h->host_hash, sizeof h->host_hash, "%s", s->host_hash.c_str());
  // Until the file is open nobody may take the wished name for ours: another process may have it.
  snprintf(h->path[0], sizeof h->path[0], "%s", s->otherwise.c_str());
  s->lines.setup(h->pid, s->host_hash, s->settings.inc_metadata, s->settings.disable_tids, name_of);
  publish_names(h);
  s->writer.set_target(s->wished, s->otherwise);
  s->writer.set_prelude(make_prelude(s));
  h->dropped[int(Drop::kInSignal)].store(s->dropped_before_begin.load());
  memcpy(h->magic, FileHeader::kMagic, 8);
  // By the program's own thread, not by the writer: it would open the file in the middle of what a shell does with its
  // low descriptors, and stand in their place for a moment.
  if (for_io) s->writer.ensure_open();
  if (!start_writer_thread(s)) {
    complain("cannot start the writer thread; nothing is recorded");
    s->rings.unlink_file();
    s->failed = true;
    return false;
  }
  s->slots.reserve(kSpareSlots);
  s->recording = true;
  return true;
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
  MappedRing map;
  bool room = s->slots.size() < s->slots.capacity();
  if (!room && !in_a_handler()) {
    s->slots.reserve(2 * s->slots.size());
    room = true;
  }
  void* pages = room ? take_pages(sizeof(RingSlot)) : nullptr;
  if (!pages || !s->rings.add_ring(&map)) {
    if (pages) give_pages(pages, sizeof(RingSlot));
    s->no_ring.store(true);
    s->header()->dropped[int(Drop::kRingFull)].fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  auto* slot = new (pages) RingSlot;
  slot->map = map;
  s->slots.push_back(slot);
  return slot;
}

// False when some thread does not come back from writing its record: it has no CPU, or a debugger holds it.
bool wait_for_producers(Session* s) {
  if (!process_barrier()) usleep(1000);  // no such barrier here: give their stores a moment
  bool all = true;
  for (ThreadState* t = s->threads; t; t = t->next) {
    for (int i = 0; i < 5000 && t->busy.load(std::memory_order_acquire); ++i) usleep(100);
    all = all && !t->busy.load(std::memory_order_acquire);
  }
  return all;
}

void stop_writer(Session* s) {
  s->stop.store(1);
  s->wake.fetch_add(1);
  futex(&s->wake, FUTEX_WAKE, 1, nullptr);
  timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += kShutdownSeconds;
  if (pthread_timedjoin_np(s->thread, nullptr, &deadline) != 0) {
    complain("the trace could not be finished in time; the next reader completes it from " + s->rings.path());
    s->abandoned = true;
  }
}

void finish_at_exit() { finish_session(); }

}  // namespace

namespace {
// Leaked: threads may still record while static destructors run. Made when the library is loaded: a fork in the
// middle of a first use would leave a child that waits for ever for the initialisation to end.
State* const g_state = new State;
}  // namespace

State& state() { return *g_state; }

void complain(const std::string& text) {
  State& g = state();
  std::lock_guard lock(g.complaints_mutex);
  if (!g.complaints.insert(text).second) return;
  std::string line = "dftracer: " + text + "\n";
  ssize_t ignored = write(2, line.data(), line.size());
  (void)ignored;
}

void set_context_cleanup(void (*cleanup)(void*)) { state().free_contexts = cleanup; }

void configure(Settings settings) { state().settings = std::move(settings); }
const Settings& settings() { return state().settings; }

bool session_armed() { return state().session != nullptr; }

bool in_session_process() { return state().session_pid.load() == getpid(); }

void arm(const std::string& wished, const std::string& otherwise, const std::string& hex, const std::string& host) {
  State& g = state();
  auto* s = new Session(g.settings);
  s->pid = getpid();
  s->hex = hex;
  s->wished = wished;
  s->otherwise = otherwise;
  s->host = host;
  s->host_hash = short_hash(host);
  Anchor now = take_anchor();
  uint64_t wall = realtime_ns();
  s->clock.start(now, wall - (monotonic_ns() - now.mono_ns));
  uint64_t unset = 0;
  if (g_some_mono.compare_exchange_strong(unset, now.mono_ns)) g_some_ticks.store(now.ticks);
  g_epoch_offset.store(s->clock.epoch_offset());
  g_waiting_payloads.store(0);  // a forked child's are the parent's; of an earlier session none is left
  g_cut_values.store(0);
  g.session_pid.store(s->pid);
  g.session = s;
  g_doze.store(0);
  g_generation.store(g_generations_made.fetch_add(1) + 1);
}

bool start_session(const std::string& path, const char* role) {
  State& g = state();
  std::lock_guard lock(g.mutex);
  if (g.session) return false;
  init_clock();
  warm_up(false);
  pthread_once(&g_thread_key_once, [] { pthread_key_create(&g_thread_key, on_thread_exit); });
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  std::string hex = unique_hex(host);
  bool compress = g.settings.compress;
  std::string stem = absolute_path(without_suffix(path.empty() ? g.settings.prefix : path));
  std::string made_up = with_suffix(stem + "-" + hex + "-" + role, compress);
  arm(path.empty() ? made_up : with_suffix(stem, compress), made_up, hex, host);
  static bool once = [] {
    atexit(finish_at_exit);
    install_fork_handlers();
    install_exit_hooks();
    return true;
  }();
  (void)once;
  if (g.settings.bind_signals) install_signal_hooks();
  start_interception(g.settings);
  return true;
}

void rearm_in_child() {
  // The parent's session, its threads and its rings belong to the parent: leave them be.
  State& g = state();
  Session* parent = g.session;
  tls_thread = nullptr;
  if (!parent) return;
  unpublish_names();
  std::string hex = unique_hex(parent->host);
  std::string stem = without_suffix(parent->root_stem.empty() ? parent->wished : parent->root_stem);
  std::string path = with_suffix(stem + "-" + hex + "-fork", g.settings.compress);
  parent->writer.abandon();
  parent->rings.abandon();
  warm_up(true);
  arm(path, path, hex, parent->host);
  g.session.load()->root_stem = stem;
}

void leave_session_in_child() {
  State& g = state();
  Session* parent = g.session.exchange(nullptr);
  tls_thread = nullptr;
  if (!parent) return;
  parent->writer.abandon();
  parent->rings.abandon();
}

ThreadState* attach_thread(bool for_io) {
  if (g_generation.load(std::memory_order_relaxed) == 0) return nullptr;
  State& g = state();
  std::lock_guard lock(g.mutex);
  Session* s = g.session;
  if (!s || s->failed || (!s->recording && !begin_recording(s, for_io))) return nullptr;
  RingSlot* slot = take_slot(s);
  if (!slot) return nullptr;
  ThreadState* t = tls_thread;
  if (!t) {
    void* pages = take_pages(sizeof(ThreadState));
    if (!pages) {
      slot->state.store(RingSlot::kReleased);
      return nullptr;
    }
    t = new (pages) ThreadState{};
    t->root.outer_id = -1;
    t->stack = &t->root;
  } else {
    t->root.size = 0;  // what was open in an earlier session is not part of this one
    t->stack = &t->root;
    t->context = nullptr;
    if (t->contexts && g.free_contexts) g.free_contexts(t->contexts);
    t->contexts = nullptr;
  }
  t->generation = g_generation.load();
  t->tid = syscall(SYS_gettid);
  t->ring = slot->map.header;
  t->data = slot->map.data;
  t->mask = slot->map.capacity - 1;
  t->head = t->ring->head.load();
  refresh_limit(t);
  t->next_id = &s->header()->next_id;
  t->stalled = false;
  t->ring->tid.store(t->tid);
  t->previous = nullptr;
  t->next = s->threads;
  if (t->next) t->next->previous = t;
  s->threads = t;
  pthread_setspecific(g_thread_key, t);
  tls_thread = t;
  return t;
}

void grow_stack(Stack* s) {
  uint32_t capacity = s->capacity ? s->capacity * 2 : 32;
  auto* frames = static_cast<Frame*>(realloc(s->frames, capacity * sizeof(Frame)));
  if (!frames && s->capacity) {
    // No memory: the innermost open event gives way to the new one.
    --s->size;
    count_lost(Drop::kMemory);
    return;
  }
  s->frames = frames;
  s->capacity = capacity;
}

void count_lost(Drop why) {
  Session* s = state().session;
  if (s && s->recording) s->header()->dropped[int(why)].fetch_add(1, std::memory_order_relaxed);
}

std::atomic<uint64_t> g_cut_values{0};
void count_cut_value() { g_cut_values.fetch_add(1, std::memory_order_relaxed); }

void wake_writer() {
  Session* s = state().session;
  if (!s) return;
  s->wake.fetch_add(1, std::memory_order_seq_cst);
  if (s->sleeping.load(std::memory_order_seq_cst)) futex(&s->wake, FUTEX_WAKE, 1, nullptr);
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

// The ring is full. Wait a bounded time for the writer, then drop, and go on dropping without
// waiting until a good part of the ring is free: a stuck disk holds a thread up once, not at every event.
bool make_room(ThreadState* t, uint32_t size) {
  Session* s = state().session;
  auto over = [&] { return t->generation != g_generation.load(std::memory_order_relaxed); };
  if (!s || over()) return false;
  FileHeader* h = s->header();
  auto room = [&] {
    refresh_limit(t);
    return t->head + size <= t->limit;
  };
  // A new ring gets its memory by the piece, from the writer if that comes in time.
  if (uint64_t reserved = t->ring->reserved.load(std::memory_order_relaxed); t->head + size > reserved) {
    uint64_t pieces = (t->head + size + kRingPiece - 1) / kRingPiece;  // a record may be longer than one
    s->rings.extend(t->ring, std::max(reserved + kRingPiece, pieces * kRingPiece));
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

}  // namespace

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

namespace {

bool wait_for_flush(Session* s, uint64_t timeout_ms) {
  uint32_t wanted = s->flush_wanted.fetch_add(1) + 1;
  s->wake.fetch_add(1);
  futex(&s->wake, FUTEX_WAKE, 1, nullptr);
  uint64_t deadline = monotonic_ns() + timeout_ms * 1000000;
  for (;;) {
    uint32_t done = s->flush_done.load();
    if (int32_t(done - wanted) >= 0) return s->written.load();
    uint64_t now = monotonic_ns();
    if (now >= deadline) return false;
    futex_wait(&s->flush_done, done, std::min<uint64_t>((deadline - now) / 1000000 + 1, 50));
  }
}

}  // namespace

bool flush_session(uint64_t timeout_ms) {
  Session* s;
  {
    std::lock_guard lock(state().mutex);
    s = state().session;
    if (!s || !s->recording) return s != nullptr;
    s->waiting.fetch_add(1);
  }
  bool flushed = wait_for_flush(s, timeout_ms);
  s->waiting.fetch_sub(1);
  return flushed;
}

void finish_session() {
  State& g = state();
  Session* s;
  bool quiet;
  {
    std::lock_guard lock(g.mutex);
    s = g.session;
    if (!s || s->pid != getpid()) return;
    g_generation.store(0);
    quiet = wait_for_producers(s);
    g.session = nullptr;
    g.session_pid.store(0);
    g_epoch_offset.store(0);
    g.last_path = shown_path(s);
  }
  unpublish_names();
  if (s->recording) {
    stop_writer(s);
    {
      std::lock_guard lock(g.mutex);
      g.last_path = shown_path(s);
    }
    if (s->abandoned) return;  // the thread still uses all of it
    if (s->writer.complete() || !s->writer.opened()) {
      s->rings.unlink_file();
    } else if (!s->writer.complained()) {
      complain("the trace " + s->wished + " could not be finished; its last events wait in " + s->rings.path() +
               " for the next reader");
    }
    recover_directory(directory_of(s->writer.opened() ? s->writer.path() : s->wished));
    for (int i = 0; i < 10000 && s->waiting.load(); ++i) usleep(100);  // all of them have their answer
    if (!quiet || s->waiting.load()) return;  // someone may still look at all of it
    std::vector<MappedRing> maps;
    for (RingSlot* slot : s->slots) {
      maps.push_back(slot->map);
      give_pages(slot, sizeof *slot);
    }
    s->rings.unmap(maps);
  }
  delete s;
}

void before_exec() {
  Session* s = state().session;
  if (!in_session_process() || !s->recording) return;
  flush_session(5000);
  auto slots = slots_now(s);
  std::lock_guard lock(s->writer_mutex);
  s->writer.finish(slots, 0);
  if (s->writer.complete()) s->rings.unlink_file();
}

void after_failed_exec() {
  Session* s = state().session;
  if (!in_session_process() || !s->recording) return;
  std::lock_guard lock(s->writer_mutex);
  s->writer.reopen();
}

std::string session_path() {
  State& g = state();
  std::lock_guard lock(g.mutex);
  Session* s = g.session;
  if (!s) return g.last_path;
  return shown_path(s);
}

void rename_session(const std::string& path) {
  State& g = state();
  std::lock_guard lock(g.mutex);
  Session* s = g.session;
  if (!s) return;
  std::string target = with_suffix(absolute_path(path), s->settings.compress);
  std::lock_guard writing(s->writer_mutex);
  s->wished = target;
  if (!s->recording) return;
  if (!s->writer.opened()) {
    s->writer.set_target(target, s->otherwise);
  } else if (!s->writer.rename_to(target)) {
    s->wished = s->writer.path();
  }
  show(s);
}

Stats session_stats() {
  State& g = state();
  std::lock_guard lock(g.mutex);
  Stats out{};
  Session* s = g.session;
  if (!s || !s->recording) return out;
  out.events = s->header()->events.load();
  for (int i = 0; i < int(Drop::kCount); ++i) out.dropped[i] = s->header()->dropped[i].load();
  out.rings = s->slots.size();
  std::lock_guard shown(s->shown_mutex);
  out.bytes = s->shown.bytes;
  out.members = s->shown.members;
  return out;
}

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
