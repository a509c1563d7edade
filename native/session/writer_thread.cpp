#include "session/writer_thread.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <new>

#include "intercept/intercept.hpp"
#include "intercept/io_record.hpp"
#include "intercept/patcher.hpp"
#include "record/sanitizer.hpp"
#include "session/futex.hpp"
#include "session/threads.hpp"

namespace dft {
namespace {

constexpr uint64_t kShutdownSeconds = 30;
constexpr uint64_t kFirstFlushMs = 2;
constexpr uint64_t kCalibrationNs = 1000000;
constexpr int kIdleRoundsBeforeDoze = 3;

uint64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

void answer_flush(Session* s, uint32_t wanted) {
  if (s->flush_done.load() == wanted) return;
  s->flush_done.store(wanted);
  futex_wake(&s->flush_done, INT32_MAX);
}

bool anything_recorded(Session* s) {
  for (RingSlot* slot : slots_now(s))
    if (slot->map.header->head.load(std::memory_order_acquire) != slot->read) return true;
  return false;
}

// Sleeps like futex_wait(); a fork that needs the writer paused may happen now.
void rest(Session* s, uint32_t seen, uint64_t ms) {
  state().writer_at_work.unlock();
  futex_wait(&s->wake, seen, ms);
  state().writer_at_work.lock();
}

void add_counters(Session* s, bool last) {
  uint64_t now = monotonic_ns();
  if (!s->counters || (!last && !s->counters->due(now))) return;
  FileHeader* h = s->header();
  auto samples = s->counters->take(now, last);
  if (samples.empty() || !s->writer.ensure_open()) return;
  for (const Counters::Sample& sample : samples) {
    uint64_t ts = (sample.at_ns + s->clock.epoch_offset()) / 1000;
    for (const Counter& c : sample.counters)
      s->writer.add_line(s->lines.counter_line(h->next_id.fetch_add(1), c.name, ts, c.args), ts);
  }
}

// Sleeps until the next record, or the next sample of the counters. The barrier closes the race with a producer that
// looked before the flag was set.
void doze(Session* s) {
  uint32_t seen = s->wake.load();
  g_doze.store(1);
  bool certain = process_barrier();
  if (!anything_recorded(s) && !s->stop.load() && s->flush_wanted.load() == s->flush_done.load()) {
    s->sleeping.store(1);
    uint64_t sample_ms = s->counters ? s->counters->wait_ms(monotonic_ns()) : 0;
    rest(s, seen, certain ? sample_ms : s->settings.flush_ms);
    s->sleeping.store(0);
  }
  g_doze.store(0);
}

// Writes the contents of the rings to the file; false while the file system rejects writes.
bool write_round(Session* s, bool force) {
  auto slots = slots_now(s);  // before the writer's lock: rename_session() takes the two in this order
  extend_rings(s, slots);
  std::lock_guard lock(s->writer_mutex);
  s->clock.add(take_anchor());
  s->header()->last_anchor = s->clock.last();
  bool written = false;
  try {
    add_counters(s, false);
    written = s->writer.pump(slots, force);
  } catch (const std::bad_alloc&) {
    // The next round tries again.
  }
  show(s);
  return written;
}

void warn_of_missing_rings(Session* s) {
  if (s->private_ring.load())
    warn_once("no room for more rings in " + directory_of(s->rings.path()) +
              "; new ones are in private memory, and their last events are lost if the process is killed");
  if (s->no_ring.load()) warn_once("no memory for another thread's events; they are dropped and counted");
}

// The last records, and the end of the trace.
void write_end(Session* s) {
  auto slots = slots_now(s);
  std::lock_guard lock(s->writer_mutex);
  s->clock.add(take_anchor());
  try {
    add_counters(s, true);
    s->writer.finish(slots, thread_cpu_ns());
  } catch (const std::bad_alloc&) {
    // Whatever is missing stays in the ring for the next reader.
  }
  show(s);
  s->written.store(s->writer.complete());
}

bool make_counters(Session* s) {
  bool forked = s->role == "fork";
  std::string local_rank;
  for (auto& [key, value] : s->settings.facts)
    if (key == "local_rank") local_rank = value;
  bool first = !forked && (local_rank.empty() || local_rank == "0");
  Counters::Options options{s->settings.counter_ms, s->run.id, s->host, s->hex, forked, first};
  if (options.interval_ms) s->counters.emplace(std::move(options), monotonic_ns());
  return s->counters.has_value();
}

void* writer_main(void* p) {
  auto* s = static_cast<Session*>(p);
  pthread_setname_np(pthread_self(), "dftracer");
  tls_io_off = 1;
  // The rate of the CPU's counter is known only after a moment of both clocks.
  while (monotonic_ns() - s->clock.first().mono_ns < kCalibrationNs) usleep(200);
  std::lock_guard at_work(state().writer_at_work);
  s->writer_begun.store(true);
  bool counting = make_counters(s);
  uint64_t interval = kFirstFlushMs;
  int idle = 0;
  bool resting = false;  // nothing was recorded since the last doze, which the counters ended
  while (!s->stop.load()) {
    uint32_t seen = s->wake.load();
    uint32_t wanted = s->flush_wanted.load();
    if (interception_on()) patch_new_objects();
    bool flushing = wanted != s->flush_done.load();
    bool news = anything_recorded(s);
    bool written = write_round(s, flushing || !s->woken_early);
    s->written.store(written);
    warn_of_missing_rings(s);
    recycle_released(s);
    answer_flush(s, wanted);
    resting = resting && !news && written;
    idle = news || (s->writer.has_open_tail() && !resting) || !written ? 0 : idle + 1;
    if (idle >= kIdleRoundsBeforeDoze || resting) {
      doze(s);
      interval = kFirstFlushMs;
      idle = 0;
      resting = counting;
      continue;
    }
    s->sleeping.store(1);
    uint64_t nap = counting ? std::min(interval, s->counters->wait_ms(monotonic_ns())) : interval;
    if (s->wake.load() == seen && !s->stop.load()) rest(s, seen, nap);
    s->sleeping.store(0);
    s->woken_early = s->wake.load() != seen;
    if (!s->woken_early) interval = std::min(interval * 2, s->settings.flush_ms);
  }
  write_end(s);
  answer_flush(s, s->flush_wanted.load());
  return nullptr;
}

bool wait_for_flush(Session* s, uint64_t timeout_ms) {
  uint32_t wanted = s->flush_wanted.fetch_add(1) + 1;
  s->wake.fetch_add(1);
  futex_wake(&s->wake, 1);
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

void show(Session* s) {
  std::lock_guard lock(s->shown_mutex);
  s->shown.opened = s->writer.opened();
  if (s->shown.path != s->writer.path()) s->shown.path = s->writer.path();
  s->shown.bytes = s->writer.bytes();
  s->shown.members = s->writer.members();
}

std::string shown_path(Session* s) {
  std::lock_guard lock(s->shown_mutex);
  return s->shown.opened ? s->shown.path : s->requested_path;
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
  // The start of a thread allocates, and a fork in the middle of it leaves the child a locked allocator.
  while (any_sanitizer() && rc == 0 && !s->writer_begun.load()) usleep(100);
  return rc == 0;
}

void stop_writer(Session* s) {
  s->stop.store(1);
  s->wake.fetch_add(1);
  futex_wake(&s->wake, 1);
  timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += kShutdownSeconds;
  if (pthread_timedjoin_np(s->thread, nullptr, &deadline) != 0) {
    warn_once("the trace could not be finished in time; the next reader completes it from " + s->rings.path());
    s->abandoned = true;
  }
}

void wake_writer() {
  Session* s = state().session;
  if (!s) return;
  s->wake.fetch_add(1, std::memory_order_seq_cst);
  if (s->sleeping.load(std::memory_order_seq_cst)) futex_wake(&s->wake, 1);
}

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

}  // namespace dft
