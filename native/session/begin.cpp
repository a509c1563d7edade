#include "session/begin.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "intercept/intercept.hpp"
#include "record/names.hpp"
#include "record/ring_place.hpp"
#include "session/environment.hpp"
#include "session/prelude.hpp"
#include "session/run.hpp"
#include "session/threads.hpp"
#include "session/writer_thread.hpp"

namespace dft {
namespace {

void append_closing_facts(std::string* args) {
  append_ending(args);
  append_interception_facts(args);
  append_process_facts(args);
  append_missing_counters(args);
}

}  // namespace

bool begin_recording(Session* s, bool for_io) {
  uint64_t prelude = prelude_bound(s);
  uint64_t spool = s->settings.member_size + (256 << 10) + prelude;
  std::string name = "dftracer-" + std::to_string(geteuid()) + "-" + s->hex + ".ring";
  std::string requested = s->settings.ring_dir.empty() ? "" : absolute_path(s->settings.ring_dir);
  if (!s->rings.create(ring_directories(requested, directory_of(s->requested_path)), name, s->settings.ring_size, spool,
                       (64 << 10) + prelude)) {
    warn_once("cannot get memory for the event rings; nothing is recorded");
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
  // Until the file has claimed it, the requested name must not be treated as ours: another process may have it.
  snprintf(h->path[0], sizeof h->path[0], "%s", s->fallback_path.c_str());
  s->lines.setup(h->pid, s->host_hash, s->settings.inc_metadata, s->settings.disable_tids, name_of);
  publish_names(h);
  s->writer.set_target(s->requested_path, s->fallback_path, {s->run.id, recover_trace});
  s->writer.set_prelude(make_prelude(s));
  s->first_id = s->header()->next_id.load();
  s->writer.set_closing_facts(append_closing_facts);
  h->dropped[int(Drop::kInSignal)].store(s->dropped_before_begin.load());
  memcpy(h->magic, FileHeader::kMagic, 8);
  s->slots.reserve(kSpareSlots);
  s->begun_for_io = for_io;
  s->recording = true;
  // Handlers run in reverse order: this one before libraries are torn down, unless the program has not begun yet.
  static const bool once = (atexit(exit_begins), true);
  (void)once;
  s->thread_due_ns.store(s->clock.first().mono_ns + kAloneNs);
  // Until the thread runs, every record asks for it.
  g_doze.store(1);
  // Annotated programs are no short commands, and their readers expect the file soon. And only a thread can write when
  // a signal comes, or before a ring in private memory is lost.
  if (!for_io || s->settings.bind_signals || !s->rings.in_file()) start_writer_thread(s);
  return true;
}

void begin_preloaded(const char* version) {
  SettingValues values = settings_in_environment();
  const char* enable = getenv("DFTRACER_ENABLE");
  // Requested by both variables, it needs no third one; an explicit 0 still keeps it off.
  bool off = enable && *enable && values["enable"].number == 0;
  if (off || values["init"].text == "FUNCTION") return;
  Settings settings = settings_from(values);
  settings.version = version;
  for (auto& fact : rank_facts(rank_in_environment())) settings.facts.push_back(std::move(fact));
  // Next to the trace of the process that announced it, as for a Python program.
  if (const char* session = getenv("DFTRACER_SESSION"); session && *session) settings.prefix = session;
  configure(settings);
  start_session("", "preload");
  // Before main() nobody else looks at the environment.
  setenv(kRunVariable, run_id().c_str(), 1);
}

}  // namespace dft
