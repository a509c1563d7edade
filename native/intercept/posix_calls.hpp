// The forms that most POSIX calls have. Every wrapper calls the real function exactly once, with the program's own
// arguments, and returns its result and errno; paths are read only afterwards, when the kernel has found them
// readable.
#pragma once

#include "intercept/io_record.hpp"

namespace dft {

template <typename R, typename... P, typename... A>
inline __attribute__((always_inline)) R on_descriptor(Call call, int fd, const Values& values, R (*function)(P...),
                                                      A... args) {
  if (!io_active()) {
    not_recorded(fd);
    return function(args...);
  }
  FileOf file(fd);
  if (!file.hash) return function(args...);
  uint64_t start = call_starts();
  R ret = function(args...);
  record_call(call, file.hash, file.descriptor, start, ticks(), int64_t(ret), ret == R(-1), values);
  return ret;
}

template <typename R, typename... P, typename... A>
inline R on_path(Call call, int dirfd, const char* path, const Values& values, R (*function)(P...), A... args) {
  if (!io_active()) return function(args...);
  uint64_t start = call_starts();
  R ret = function(args...);
  Finished done;
  if (ret == R(-1) && done.error() == EFAULT) return ret;
  PathText text;
  if (File file = file_of_path(dirfd, path, &text))
    record_path(call, file, text, start, done, true, int64_t(ret), ret == R(-1), values);
  return ret;
}

inline void opened(Call call, int dirfd, const char* path, uint64_t start, int fd, const Values& values) {
  Finished done;
  if (fd == -1 && done.error() == EFAULT) return;
  PathText text;
  File file = file_of_path(dirfd, path, &text);
  uint32_t generation = g_generation.load(std::memory_order_relaxed);
  bool known = file && fd >= 0 && file.announced->load(std::memory_order_relaxed) == file.key + generation;
  bool recorded = known && g_io_on[int(call)] && emit_quickly(call, file.hash, start, done.end(), fd, values);
  if (file && !recorded) record_path(call, file, text, start, done, true, fd, fd == -1, values);
  if (fd >= 0) set_descriptor(fd, file, text.view(), file ? generation : 0);
}

}  // namespace dft
