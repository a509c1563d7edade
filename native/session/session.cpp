#include "session/session.hpp"

#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "format/md5.hpp"
#include "intercept/intercept.hpp"
#include "record/large_payloads.hpp"
#include "record/names.hpp"
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
// middle of a first use would leave a child that waits for ever for the initialisation to end.
State* const g_state = new State;

std::atomic<uint32_t> g_generations_made{0};

std::string unique_hex(const std::string& host) {
  static std::atomic<uint32_t> count{0};
  std::string seed = host + ":" + std::to_string(getpid()) + ":" + std::to_string(realtime_ns()) + ":" +
                     std::to_string(count.fetch_add(1));
  return short_hash(seed);
}

void finish_at_exit() { finish_session(); }

}  // namespace

State& state() { return *g_state; }

void set_context_cleanup(void (*cleanup)(void*)) { state().free_contexts = cleanup; }

void configure(Settings settings) { state().settings = std::move(settings); }
const Settings& settings() { return state().settings; }

bool session_armed() { return state().session != nullptr; }

bool session_recording() {
  Session* s = state().session;
  return s && s->recording;
}

bool in_session_process() { return state().session_pid.load() == getpid(); }

void arm(const std::string& requested_path, const std::string& fallback_path, const std::string& hex,
         const std::string& host) {
  State& g = state();
  auto* s = new Session(g.settings);
  s->pid = getpid();
  s->hex = hex;
  s->requested_path = requested_path;
  s->fallback_path = fallback_path;
  s->host = host;
  s->host_hash = short_hash(host);
  Anchor now = take_anchor();
  uint64_t wall = realtime_ns();
  s->clock.start(now, wall - (monotonic_ns() - now.mono_ns));
  note_session_clock(now, s->clock.epoch_offset());
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
  watch_thread_ends();
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
  std::string stem = without_suffix(parent->root_stem.empty() ? parent->requested_path : parent->root_stem);
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
    recover_at_exit(directory_of(s->writer.opened() ? s->writer.path() : s->requested_path));
    for (int i = 0; i < 10000 && s->waiting.load(); ++i) usleep(100);  // all of them have their answer
    if (!quiet || s->waiting.load()) return;                           // someone may still look at all of it
    std::vector<MappedRing> maps;
    for (RingSlot* slot : s->slots) {
      maps.push_back(slot->map);
      give_pages(slot, sizeof *slot);
    }
    s->rings.unmap(maps);
  }
  delete s;
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
  s->requested_path = target;
  if (!s->recording) return;
  if (!s->writer.opened()) {
    s->writer.set_target(target, s->fallback_path);
  } else if (!s->writer.rename_to(target)) {
    s->requested_path = s->writer.path();
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

}  // namespace dft
