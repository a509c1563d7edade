// The tracer's own descriptors, in a program that relies on the low numbers: shells close one and expect to get it
// back, daemons close all they did not open.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <initializer_list>

#include "api.hpp"

namespace dft {

inline constexpr int kOutOfTheWay = 200;

// open(), away from the low numbers. Between any two of our calls, another thread of the program may put its own file
// under the low number that the kernel assigns first: then that file is left alone and ours is opened again.
int open_high_fd(const char* path, int flags, mode_t mode = 0);

// Whether threads can have a descriptor table of their own here.
bool can_have_own_descriptors();
// From here on, what the calling thread opens and closes is not seen by the program, and the program's descriptors are
// not seen by it, except for `kept`. False if that is impossible. Not for a thread that runs code of others, which
// would miss the program's descriptors.
bool take_own_descriptors(std::initializer_list<int> kept);
bool has_own_descriptors();

// One line on the program's standard error, whoever calls.
DFT_API void write_to_stderr(const iovec* pieces, int n);

// The numbers of one file: in the program's table and, for a thread with descriptors of its own, in that thread's.
class FileNumbers {
 public:
  int get() const { return at_[has_own_descriptors()].load(std::memory_order_relaxed); }
  void set(int fd) { at_[has_own_descriptors()].store(fd, std::memory_order_relaxed); }
  void forget() {
    for (auto& fd : at_) fd.store(-1, std::memory_order_relaxed);
  }

 private:
  std::atomic<int> at_[2] = {-1, -1};
};

}  // namespace dft
