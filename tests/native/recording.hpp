// Short ways to record, for the tests.
#pragma once

#include <string>

#include "session/session.hpp"
#include "trace_reader.hpp"

inline dft::Settings small_settings(const Scratch& where, bool compress = true) {
  dft::Settings s;
  s.compress = compress;
  s.ring_size = 64 << 10;
  s.max_stall_us = 60'000'000;  // tests of dropping set their own
  s.flush_ms = 20;
  s.ring_dir = where.path();
  return s;
}

// One finished span with the argument `n`; false when nothing records.
inline bool record(uint32_t name, int64_t n, const std::string& more = "") {
  dft::ThreadState* t = dft::current_thread();
  if (!t) return false;
  static const char key = 0;
  dft::push_frame(t, &key, 0);
  dft::Frame f;
  dft::pop_frame(t->stack, &key, 0, &f);
  dft::emit_span(t, name, f, dft::ticks(), ",\"n\":" + std::to_string(n), more);
  return true;
}

inline bool counts_up(const std::vector<int64_t>& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] != int64_t(i)) return false;
  return true;
}
