#include "session/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <new>

#include "format/arguments.hpp"
#include "format/md5.hpp"
#include "intercept/intercept.hpp"
#include "intercept/patcher.hpp"
#include "intercept/session_calls.hpp"
#include "record/large_payloads.hpp"
#include "record/names.hpp"
#include "record/sanitizer.hpp"
#include "session/pages.hpp"
#include "session/session_clock.hpp"
#include "session/session_hooks.hpp"
#include "session/session_state.hpp"
#include "session/threads.hpp"
#include "session/warm_up.hpp"
#include "session/writer_thread.hpp"
#include "write/trace_file.hpp"

namespace dft {
namespace {

// Leaked: threads may still record while static destructors run. Made when the library is loaded: a fork in the
// middle of a first use would leave a child that waits forever for the initialisation to end.
State* const g_state = new State;

std::atomic<uint32_t> g_generations_made{0};

std::string unique_hex(const std::string& host) {
  static std::atomic<uint32_t> count{0};
  std::string seed = host + ":" + std::to_string(getpid()) + ":" + std::to_string(realtime_ns()) + ":" +
                     std::to_string(count.fetch_add(1));
  return short_hash(seed);
}

// Call with the state's mutex held.
const Run& own_run(const std::string& stem) {
  Run& run = state().run;
  bool is_given = getenv(kRunVariable) != nullptr;
  if (run.id.empty() || is_given) run = identify_run(stem);
  return run;
}

struct Paths {
  std::string requested, fallback;
};

constexpr size_t kLongestEnding = 60;  // identity, role, number of a part, suffix

// `given`: exactly this name is requested, and granted unless another process of the run has given it before.
Paths paths_for(const std::string& stem, bool given, const Session& s) {
  // A name that is just short enough for the file system must leave room for what is added to it.
  size_t shortened = std::min(stem.size(), stem.rfind('/') + 1 + NAME_MAX - kLongestEnding);
  std::string own = with_suffix(stem.substr(0, shortened) + "-" + s.hex + "-" + s.role, s.settings.compress);
  bool wanted = given && !is_given_by_another(s.run.id, stem);
  return {wanted ? with_suffix(stem, s.settings.compress) : own, own};
}

// The C library knows the exit status; handlers of atexit() do not get it.
void finish_at_exit(int status, void*) {
  note_exit_status(status);
  exit_begins();
  finish_session();
}

// What the folders to the left ask of a session. Filled in when the library is loaded, before there are threads.
const bool g_calls_filled_in = [] {
  g_recording_calls = {
      .attach_thread = attach_to_session,
      .make_room = make_room_in_ring,
      .take_large_payload = wait_for_large_payload,
      .wake_writer = wake_writer_thread,
      .count_dropped = count_dropped,
  };
  g_session_calls = {
      .in_process = in_session_process,
      .recording = session_recording,
      .note_exit_status = note_exit_status,
      .finish = finish_session,
      .before_exec = before_exec,
      .after_failed_exec = after_failed_exec,
      .rest_writer = rest_writer,
      .count_signal_drop = [] { count_lost(Drop::kInSignal); },
      .count_signal_drop_before_begin =
          [] {
            if (Session* s = state().session) s->dropped_before_begin.fetch_add(1, std::memory_order_relaxed);
          },
      .ease_off = ease_off,
  };
  return true;
}();

}  // namespace

State& state() { return *g_state; }

void exit_begins() {
  static std::atomic<bool> once{false};
  // A sanitizer is not torn down like other libraries, and must keep seeing our calls.
  if (any_sanitizer() || !in_session_process() || once.exchange(true)) return;
  constexpr int kTries = 1000;
  Session* s = state().session;
  // Not while the writer is inside such a call.
  bool alone = false;
  for (int i = 0; i < kTries && !(alone = s->writer_mutex.try_lock()); ++i) usleep(1000);
  call_libc_directly();
  if (alone) s->writer_mutex.unlock();
}

void set_context_cleanup(void (*cleanup)(void*)) { state().free_contexts = cleanup; }

void note_exit_status(int status) { state().exit_status.store(status & 0xff); }

void append_ending(std::string* args) {
  if (int status = state().exit_status.load(); status >= 0) append_arg(*args, "exit_code", status);
}

bool session_armed() { return state().session != nullptr; }

bool session_recording() {
  Session* s = state().session;
  return s && s->recording;
}

bool in_session_process() {
  // Without a session no system call either: there may be a filter by now.
  pid_t pid = state().session_pid.load();
  return pid != 0 && pid == getpid();
}

// A session that waits for its first record.
Session* new_session(const std::string& host, const std::string& role, const Run& run) {
  auto* s = new Session(settings());
  s->pid = getpid();
  s->host = host;
  s->host_hash = short_hash(host);
  s->role = role;
  s->run = run;
  s->hex = unique_hex(host);
  if (!run.rank.empty()) s->hex = rank_digits(run) + s->hex.substr(8);
  return s;
}

void arm(Session* s) {
  State& g = state();
  Anchor now = take_anchor();
  uint64_t wall = realtime_ns();
  s->clock.start(now, wall - (monotonic_ns() - now.mono_ns));
  note_session_clock(now, s->clock.epoch_offset());
  g_waiting_payloads.store(0);  // a forked child's belong to the parent; none is left of an earlier session
  g_cut_values.store(0);
  g.session_pid.store(s->pid);
  g.session = s;
  g_doze.store(0);
  g_generation.store(g_generations_made.fetch_add(1) + 1);
}

std::string run_id() {
  State& g = state();
  std::lock_guard lock(g.mutex);
  return g.session ? g.session.load()->run.id : own_run("").id;
}

bool start_session(const std::string& path, const char* role) try {
  State& g = state();
  std::lock_guard lock(g.mutex);
  if (g.session) return false;
  init_clock();
  warm_up(false);
  watch_thread_ends();
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  std::string stem = trace_stem(path.empty() ? settings().prefix : path);
  Session* s = new_session(host, role, own_run(stem));
  Paths paths = paths_for(stem, !path.empty(), *s);
  s->requested_path = paths.requested;
  s->fallback_path = paths.fallback;
  arm(s);
  static bool once = [] {
    on_exit(finish_at_exit, nullptr);
    install_fork_handlers();
    install_exit_hooks();
    return true;
  }();
  (void)once;
  if (settings().bind_signals) install_signal_hooks();
  start_interception(settings());
  return true;
} catch (const std::bad_alloc&) {
  warn_once("not enough memory to begin; not everything is recorded");
  return session_armed();
}

void rearm_in_child() try {
  // The parent's session, its threads and its rings belong to the parent: leave them alone.
  State& g = state();
  Session* parent = g.session;
  tls_thread = nullptr;
  if (!parent) return;
  unpublish_names();
  std::string stem = without_suffix(parent->root_stem.empty() ? parent->requested_path : parent->root_stem);
  Session* s = new_session(parent->host, "fork", parent->run);
  s->root_stem = stem;
  s->requested_path = s->fallback_path = paths_for(stem, false, *s).fallback;
  parent->writer.abandon();
  parent->rings.abandon();
  warm_up(true);
  arm(s);
} catch (const std::bad_alloc&) {
  leave_session_in_child();  // it could not even have a name
}

void leave_session_in_child() {
  State& g = state();
  Session* parent = g.session.exchange(nullptr);
  tls_thread = nullptr;
  if (!parent) return;
  parent->writer.abandon();
  parent->rings.abandon();
}

void finish_session() try {
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
    forget_session_clock();
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
    } else if (!s->writer.warned()) {
      warn_once("the trace " + s->requested_path + " could not be finished; its last events wait in " +
                s->rings.path() + " for the next reader");
    }
    // A short process leaves this to longer ones.
    if (s->had_thread) recover_at_exit(directory_of(s->writer.opened() ? s->writer.path() : s->requested_path));
    for (int i = 0; i < 10000 && s->waiting.load(); ++i) usleep(100);  // all of them have their answer
    if (!quiet || s->waiting.load()) return;                           // another thread may still use all of it
    std::vector<MappedRing> maps;
    for (RingSlot* slot : s->slots) {
      maps.push_back(slot->map);
      give_pages(slot, sizeof *slot);
    }
    s->rings.unmap(maps);
  }
  delete s;
} catch (const std::bad_alloc&) {
  // What is not written stays in the ring for the next reader.
}

std::string session_path() {
  State& g = state();
  std::lock_guard lock(g.mutex);
  Session* s = g.session;
  if (!s) return g.last_path;
  return shown_path(s);
}

bool session_facts(SessionFacts* out) {
  constexpr int kTries = 200;
  State& g = state();
  std::unique_lock lock(g.mutex, std::defer_lock);
  // Not waited for: the program may hang where it holds it.
  for (int i = 0; i < kTries && !lock.try_lock(); ++i) usleep(1000);
  Session* s = lock.owns_lock() ? g.session.load() : nullptr;
  if (!s || s->pid != getpid()) return false;
  *out = {shown_path(s), s->run.id, s->host, s->run.rank, s->run.world_size, s->run.attempt, {}};
  if (out->rank.empty())
    for (auto& [key, value] : s->settings.facts) {
      if (key == "rank") out->rank = value;
      if (key == "world_size") out->world_size = value;
    }
  if (s->recording) out->events = s->writer.recent();
  return true;
}

bool open_events(int64_t tid, Stack* out) {
  State& g = state();
  std::unique_lock lock(g.mutex, std::try_to_lock);  // the program may hang where it holds it
  Session* s = lock.owns_lock() ? g.session.load() : nullptr;
  if (!s || s->pid != getpid()) return false;
  for (const ThreadState* t = s->threads; t; t = t->next)
    if (t->tid == tid && t->stack) {
      *out = *t->stack;
      return true;
    }
  return false;
}

void rename_session(const std::string& path) {
  State& g = state();
  std::lock_guard lock(g.mutex);
  Session* s = g.session;
  if (!s) return;
  Paths paths = paths_for(trace_stem(path), true, *s);
  std::lock_guard writing(s->writer_mutex);
  s->requested_path = paths.requested;
  s->fallback_path = paths.fallback;
  if (!s->recording) return;
  if (!s->writer.opened()) {
    s->writer.set_target(paths.requested, paths.fallback, {s->run.id, recover_trace});
  } else if (!s->writer.rename_to(paths.requested) && !s->writer.rename_to(paths.fallback)) {
    s->requested_path = s->writer.path();
  }
  show(s);
}

std::optional<RowSums> session_rows() {
  std::lock_guard lock(state().mutex);
  Session* s = state().session;
  if (!s || !s->recording) return std::nullopt;
  return s->writer.rows_known();
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

}  // namespace dft
