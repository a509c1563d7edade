#include "session/writer_thread.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <new>

#include "format/stage.hpp"
#include "intercept/intercept.hpp"
#include "intercept/io_record.hpp"
#include "intercept/patcher.hpp"
#include "record/descriptors.hpp"
#include "record/sanitizer.hpp"
#include "session/futex.hpp"
#include "session/quiet_thread.hpp"
#include "session/threads.hpp"
#include "write/line.hpp"

namespace dft {
namespace {

constexpr uint64_t kShutdownSeconds = 30;
constexpr uint64_t kFirstFlushMs = 2;
constexpr uint64_t kCalibrationNs = 1000000;
constexpr uint64_t kShortCalibrationNs = 200000;  // enough for the few events of a short process
enum Stop : uint32_t { kGoOn, kEnd, kPause };
constexpr int kIdleRoundsBeforeDoze = 3;

bool is_lookup(const Record& r) {
  switch (Call(reinterpret_cast<const IoPayload*>(r.payload())->call)) {
    case Call::stat_:
    case Call::lstat_:
    case Call::fstat_:
    case Call::fstatat_:
    case Call::statx_:
    case Call::access_:
    case Call::faccessat_:
    case Call::readlink_:
    case Call::readlinkat_:
    case Call::lseek_:
    case Call::close_:
    case Call::dup_:
    case Call::dup2_:
    case Call::dup3_:
    case Call::fcntl_:
    case Call::fork_:
    case Call::vfork_:
    case Call::posix_spawn_:
    case Call::posix_spawnp_:
    case Call::execve_:
    case Call::wait_:
    case Call::waitpid_:
    case Call::wait3_:
    case Call::wait4_:
    case Call::waitid_: return true;
    default: return false;
  }
}

bool names_a_file(const Record& r) {
  return r.kind == Kind::kMetadata && !(r.flags & kOnHeap) && payload_of(r).substr(sizeof(Strings)).starts_with("FH");
}

void answer_flush(Session* s, uint32_t wanted) {
  if (s->flush_done.load() == wanted) return;
  s->flush_done.store(wanted);
  futex_wake(&s->flush_done, INT32_MAX);
}

bool anything_recorded(Session* s) {
  std::lock_guard lock(state().mutex);  // without a copy of the list, so that it works without memory
  for (RingSlot* slot : s->slots)
    if (slot->map.header->head.load(std::memory_order_acquire) != slot->read) return true;
  return false;
}

// The rate of the CPU's counter is known only after a moment of both clocks.
void calibrate(Session* s, uint64_t moment_ns) {
  while (monotonic_ns() - s->clock.first().mono_ns < moment_ns) usleep(50);
}

// Sleeps like futex_wait(); a fork that needs the writer paused may happen now.
void rest(Session* s, uint32_t seen, uint64_t ms) {
  state().writer_at_work.unlock();
  futex_wait(&s->wake, seen, ms);
  state().writer_at_work.lock();
}

bool make_counters(Session* s) try {
  if (s->counters) return true;
  bool forked = s->role == "fork";
  std::string local_rank;
  for (auto& [key, value] : s->settings.facts)
    if (key == "local_rank") local_rank = value;
  bool first = !forked && (local_rank.empty() || local_rank == "0");
  Counters::Options options{s->settings.counter_ms, s->run.id, s->host, s->hex, forked, first};
  if (options.interval_ms) s->counters.emplace(std::move(options), monotonic_ns());
  return s->counters.has_value();
} catch (const std::bad_alloc&) {
  return false;
}

// A process that records nothing leaves no file; so it is not sampled, and does not speak for its host.
void add_counters(Session* s, bool last) {
  bool anything_begun = s->writer.opened() || s->header()->next_id.load(std::memory_order_relaxed) != s->first_id;
  if (!anything_begun || !make_counters(s)) return;
  uint64_t now = monotonic_ns();
  if (!last && !s->counters->due(now)) return;
  FileHeader* h = s->header();
  auto samples = s->counters->take(now, s->gpus, last);
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
    uint64_t sample_ms = s->counters ? s->counters->wait_ms(monotonic_ns()) : s->settings.counter_ms;
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
  Anchor now = take_anchor();
  s->clock.add(now);
  s->header()->last_anchor = now;
  add_counters(s, false);
  bool written = s->writer.pump(slots, force);
  s->clock.fix(ticks());
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
  try {
    auto slots = slots_now(s);
    std::lock_guard lock(s->writer_mutex);
    if (!is_worth_a_trace(s, slots)) return;
    s->clock.add(take_anchor());
    if (s->counters) add_counters(s, true);
    s->writer.finish(slots, thread_cpu_ns());
    show(s);
  } catch (const std::bad_alloc&) {
    // Whatever is missing stays in the ring for the next reader.
  }
  s->written.store(s->writer.complete());
}

// What the rings hold goes to the file, and whoever waits for that is answered; false if not all of it is written.
bool serve(Session* s, uint32_t wanted, bool force) try {
  if (interception_on()) patch_new_objects();
  bool written = write_round(s, force);
  s->written.store(written);
  warn_of_missing_rings(s);
  recycle_released(s);
  answer_flush(s, wanted);
  return written;
} catch (const std::bad_alloc&) {
  // The next round tries again.
  s->written.store(false);
  answer_flush(s, wanted);
  return false;
}

// What the writer opens must never stand, even for a moment, where the program expects its own.
void take_descriptors(Session* s) {
  std::lock_guard lock(s->writer_mutex);
  s->writer.take_descriptors();
}

void* writer_main(void* p) {
  auto* s = static_cast<Session*>(p);
  pthread_setname_np(pthread_self(), "dftracer");
  s->thread_id.store(pid_t(syscall(SYS_gettid)));
  tls_io_off = 1;
  take_descriptors(s);
  calibrate(s, kCalibrationNs);
  std::lock_guard at_work(state().writer_at_work);
  s->writer_begun.store(true);
  g_doze.store(0);
  uint64_t interval = kFirstFlushMs;
  int idle = 0;
  bool resting = false;  // nothing was recorded since the last doze, which the counters ended
  while (!s->stop.load()) {
    uint32_t seen = s->wake.load();
    uint32_t wanted = s->flush_wanted.load();
    bool flushing = wanted != s->flush_done.load();
    bool news = anything_recorded(s);
    bool written = serve(s, wanted, flushing || !s->woken_early);
    resting = resting && !news && written;
    g_doze.store(s->gpus.wanted());  // the program's next record starts that thread
    idle = news || (s->writer.has_open_tail() && !resting) || !written ? 0 : idle + 1;
    if (idle >= kIdleRoundsBeforeDoze || resting) {
      doze(s);
      interval = kFirstFlushMs;
      idle = 0;
      resting = s->settings.counter_ms > 0;
      continue;
    }
    s->sleeping.store(1);
    uint64_t nap = s->counters ? std::min(interval, s->counters->wait_ms(monotonic_ns())) : interval;
    if (s->wake.load() == seen && !s->stop.load()) rest(s, seen, nap);
    s->sleeping.store(0);
    s->woken_early = s->wake.load() != seen;
    if (!s->woken_early) interval = std::min(interval * 2, s->settings.flush_ms);
  }
  if (s->stop.load() == kPause) return nullptr;
  write_end(s);
  answer_flush(s, s->flush_wanted.load());
  return nullptr;
}

bool join_writer(Session* s, uint64_t ms) { return join_within(s->thread, ms); }

void start_if_due(Session* s) {
  constexpr uint64_t kAloneBytes = 32 << 10;
  ThreadState* t = tls_thread;
  bool filling = t && t->generation == g_generation.load() && t->head - s->written_at_pause.load() >= kAloneBytes;
  if (!filling && monotonic_ns() < s->thread_due_ns.load(std::memory_order_relaxed)) return;
  if (in_a_handler()) return;
  // Not waited for: finish_session() holds it while it waits for this thread.
  std::unique_lock lock(state().mutex, std::try_to_lock);
  if (!lock.owns_lock() || state().session != s || s->thread_running.load()) return;
  try {
    start_writer_thread(s);
  } catch (const std::bad_alloc&) {
    s->thread_due_ns.store(monotonic_ns() + kAloneNs);  // until then the ring has room
  }
}

void start_gpu_thread(Session* s) {
  if (in_a_handler()) return;
  std::unique_lock lock(state().mutex, std::try_to_lock);
  if (!lock.owns_lock() || state().session != s || !s->thread_running.load() || !s->gpus.wanted()) return;
  try {
    s->gpus.start();
  } catch (const std::bad_alloc&) {
    // The writer will ask for it again.
  }
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

bool is_worth_a_trace(Session* s, const std::vector<RingSlot*>& slots) {
  constexpr int kFew = 64;
  bool chosen = s->settings.data_dir != "all" || s->requested_path != s->fallback_path;
  if (s->had_thread || s->writer.opened() || chosen) return true;
  for (auto& dropped : s->header()->dropped)
    if (dropped.load()) return true;
  int lookups = 0;
  for (RingSlot* slot : slots) {
    uint64_t head = slot->map.header->head.load(std::memory_order_acquire);
    for (uint64_t at = slot->read; at < head;) {
      const auto& r = *reinterpret_cast<const Record*>(slot->map.data + (at & (slot->map.capacity - 1)));
      if (r.kind == Kind::kIo ? !is_lookup(r) || ++lookups > kFew : !names_a_file(r)) return true;
      at += r.size;
    }
  }
  return false;
}

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
  if (s->thread_leaving && !join_writer(s, 0)) return false;
  s->thread_leaving = false;
  s->stop.store(0);
  // By the program's own thread, not by a writer that shares its descriptors: the writer could open the file while a
  // shell rearranges its low descriptors, and briefly occupy one of them.
  if (s->begun_for_io && !can_have_own_descriptors()) s->writer.ensure_open();
  s->rings.reserve_rest();
  // What the writer would make on first use is made before there is one: a fork while it makes them would leave the
  // child waiting forever for a thread that it does not have.
  make_line_tables();
  stage_rules(false);
  can_have_own_descriptors();
  constexpr size_t kStack = 512 * 1024;
  int rc = start_quiet_thread(writer_main, s, Joined::kLater, &s->thread, kStack);
  if (rc != 0) {
    warn_once("cannot start the writer thread; events are kept in memory while they fit");
    s->thread_due_ns.store(monotonic_ns() + kAloneNs);
    return false;
  }
  static const bool once = (atexit(exit_begins), true);  // again, for a session that began before the program
  (void)once;
  s->had_thread = true;
  s->thread_running.store(true);
  // The start of a thread allocates, and a fork in the middle of it leaves the child a locked allocator.
  while (any_sanitizer() && !s->writer_begun.load()) usleep(100);
  return true;
}

void delay_writer(Session* s, uint64_t for_ns) { s->thread_due_ns.store(monotonic_ns() + for_ns); }

void pause_writer(Session* s, uint64_t for_ns) {
  constexpr uint64_t kPatienceMs = 200;  // for a disk that hangs
  if (!s->thread_running.load()) return;
  s->stop.store(kPause);
  s->wake.fetch_add(1);
  futex_wake(&s->wake, 1);
  s->thread_leaving = !join_within(s->thread, kPatienceMs, &s->thread_id);
  if (!s->thread_leaving) s->gpus.stop();
  ThreadState* t = tls_thread;
  s->written_at_pause.store(t && t->generation == g_generation.load() ? t->head : 0);
  delay_writer(s, for_ns);
  g_doze.store(1);
  s->thread_running.store(false);
}

void rest_writer() {
  constexpr uint64_t kMomentNs = 2'000'000;
  if (in_session_process()) pause_writer(state().session, kMomentNs);
}

void stop_writer(Session* s) {
  if (!s->thread_running.load()) {
    if (s->thread_leaving && !join_writer(s, kShutdownSeconds * 1000)) {
      s->abandoned = true;
      return;
    }
    ++tls_io_off;
    calibrate(s, kShortCalibrationNs);
    // A few records need no more than what it has.
    constexpr uint64_t kFewBytes = 4 << 10;
    for (RingSlot* slot : slots_now(s))
      if (slot->map.header->head.load() > kFewBytes) s->rings.reserve_rest();
    write_end(s);
    --tls_io_off;
    return;
  }
  s->stop.store(kEnd);
  s->wake.fetch_add(1);
  futex_wake(&s->wake, 1);
  if (join_writer(s, kShutdownSeconds * 1000)) {
    s->gpus.stop();
  } else {
    warn_once("the trace could not be finished in time; the next reader completes it from " + s->rings.path());
    s->abandoned = true;
  }
}

void wake_writer_thread() {
  Session* s = state().session;
  if (!s || !s->recording.load(std::memory_order_relaxed)) return;
  if (!s->thread_running.load(std::memory_order_acquire)) {
    start_if_due(s);
    return;
  }
  if (s->gpus.wanted()) start_gpu_thread(s);
  s->wake.fetch_add(1, std::memory_order_seq_cst);
  if (s->sleeping.load(std::memory_order_seq_cst)) futex_wake(&s->wake, 1);
}

bool flush_session(uint64_t timeout_ms) {
  Session* s;
  {
    std::lock_guard lock(state().mutex);
    s = state().session;
    if (!s || !s->recording) return s != nullptr;
    if (!s->thread_running.load() && !start_writer_thread(s)) return false;
    s->waiting.fetch_add(1);
  }
  bool flushed = wait_for_flush(s, timeout_ms);
  s->waiting.fetch_sub(1);
  return flushed;
}

}  // namespace dft
