#include "session/begin.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "intercept/intercept.hpp"
#include "record/names.hpp"
#include "record/ring_place.hpp"
#include "session/prelude.hpp"
#include "session/threads.hpp"
#include "session/writer_thread.hpp"

namespace dft {
namespace {

void append_closing_facts(std::string* args) {
  append_interception_facts(args);
  append_process_facts(args);
  append_missing_counters(args);
}

}  // namespace

bool begin_recording(Session* s, bool for_io) {
  uint64_t spool = s->settings.member_size + (256 << 10) + prelude_bound(s);
  std::string name = "dftracer-" + std::to_string(geteuid()) + "-" + s->hex + ".ring";
  std::string requested = s->settings.ring_dir.empty() ? "" : absolute_path(s->settings.ring_dir);
  if (!s->rings.create(ring_directories(requested, directory_of(s->requested_path)), name, s->settings.ring_size,
                       spool)) {
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
  s->writer.set_closing_facts(append_closing_facts);
  h->dropped[int(Drop::kInSignal)].store(s->dropped_before_begin.load());
  memcpy(h->magic, FileHeader::kMagic, 8);
  // By the program's own thread, not by the writer: the writer could open the file while a shell rearranges its
  // low descriptors, and briefly occupy one of them.
  if (for_io) s->writer.ensure_open();
  if (!start_writer_thread(s)) {
    warn_once("cannot start the writer thread; nothing is recorded");
    s->rings.unlink_file();
    s->failed = true;
    return false;
  }
  s->slots.reserve(kSpareSlots);
  s->recording = true;
  return true;
}

}  // namespace dft
