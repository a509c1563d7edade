// LD_PRELOAD: begins the session of a program that knows nothing of us. The engine is in the shared core, so that
// a Python program which also imports the package finds this session and joins it.
#include <cstdlib>
#include <cstring>
#include <string>

#include "session/session.hpp"

namespace dft {
namespace {

bool is_one_of(const char* text, std::initializer_list<const char*> words) {
  for (const char* w : words)
    if (strcasecmp(text, w) == 0) return true;
  return false;
}

// As in the table of settings (_config.py); what cannot be read counts as not given.
bool truth(const char* name, bool fallback) {
  const char* v = getenv(name);
  if (!v) return fallback;
  if (is_one_of(v, {"1", "true", "on", "yes", "y", "t"})) return true;
  return is_one_of(v, {"0", "false", "off", "no", "n", "f"}) ? false : fallback;
}

uint64_t size(const char* name, uint64_t fallback) {
  const char* v = getenv(name);
  if (!v || *v < '0' || *v > '9') return fallback;
  char* end;
  uint64_t n = strtoull(v, &end, 10);
  while (*end == ' ') ++end;
  switch (*end | 0x20) {
    case 'k': return n << 10;
    case 'm': return n << 20;
    case 'g': return n << 30;
    case 't': return n << 40;
  }
  return n;
}

uint64_t number(const char* name, uint64_t low, uint64_t high, uint64_t fallback) {
  uint64_t n = size(name, fallback);
  return n < low || n > high ? fallback : n;
}

std::string text(const char* name, const char* fallback) {
  const char* v = getenv(name);
  return v && *v ? v : fallback;
}

Settings settings_from_environment() {
  Settings s;
  s.compress = truth("DFTRACER_TRACE_COMPRESSION", s.compress);
  s.inc_metadata = truth("DFTRACER_INC_METADATA", s.inc_metadata);
  s.disable_tids = truth("DFTRACER_DISABLE_TIDS", s.disable_tids);
  s.bind_signals = truth("DFTRACER_BIND_SIGNALS", s.bind_signals);
  s.record_affinity = truth("DFTRACER_SET_CORE_AFFINITY", s.record_affinity);
  uint64_t ring = number("DFTRACER_RING_SIZE", 1 << 16, 1 << 30, s.ring_size);
  if ((ring & (ring - 1)) == 0) s.ring_size = ring;
  s.max_stall_us = number("DFTRACER_MAX_STALL_US", 0, 60000000, s.max_stall_us);
  if (uint64_t n = size("DFTRACER_WRITE_BUFFER_SIZE", 0)) s.member_size = n;
  s.flush_ms = number("DFTRACER_FLUSH_MS", 10, 1000, s.flush_ms);
  s.rotate_size = size("DFTRACER_ROTATE_SIZE", 0);
  s.rotate_keep = size("DFTRACER_ROTATE_KEEP", 0);
  s.max_size = size("DFTRACER_MAX_SIZE", 0);
  s.ring_dir = text("DFTRACER_RING_DIR", "");
  s.prefix = text("DFTRACER_LOG_FILE", "./trace");
  s.version = DFTRACER_VERSION;
  s.data_dir = text("DFTRACER_DATA_DIR", "all");
  bool io = !truth("DFTRACER_DISABLE_IO", false);
  s.trace_posix = io && !truth("DFTRACER_DISABLE_POSIX", false);
  s.trace_stdio = io && !truth("DFTRACER_DISABLE_STDIO", false);
  for (auto [name, key] : {std::pair{"RANK", "rank"}, {"LOCAL_RANK", "local_rank"}, {"WORLD_SIZE", "world_size"}})
    if (const char* v = getenv(name)) s.facts.emplace_back(key, v);
  return s;
}

__attribute__((constructor)) void begin() {
  // Asked for by both variables, it needs no third one; an explicit 0 still keeps it off.
  const char* init = getenv("DFTRACER_INIT");
  if (!init || !is_one_of(init, {"PRELOAD", "HYBRID"}) || !truth("DFTRACER_ENABLE", true)) return;
  configure(settings_from_environment());
  start_session("", "preload");
}

}  // namespace
}  // namespace dft
