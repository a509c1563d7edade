// Threads of ours in the program: no signal of the program is ever delivered to one.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "format/json.hpp"
#include "session/futex.hpp"

namespace dft {

enum class Joined { kNever, kLater };

// The error of pthread_create(). A stack of 0 has the usual size; `thread` may be null if it is never joined.
inline int start_quiet_thread(void* (*run)(void*), void* with, Joined joined, pthread_t* thread = nullptr,
                              size_t stack = 0) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (joined == Joined::kNever) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (stack) pthread_attr_setstacksize(&attributes, stack);
  pthread_t own;
  int error = pthread_create(thread ? thread : &own, &attributes, run, with);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

// The C library says that a thread is over before the kernel has taken it out of the process: it still closes the
// thread's descriptors. Until then whoever counts threads (unshare(), Python before a fork) counts this one.
inline void wait_until_gone(pid_t tid) {
  constexpr int kTries = 2000;
  char path[48] = "/proc/self/task/";
  *put_int(path + strlen(path), tid) = 0;
  struct stat status;
  timespec moment{0, 20'000};
  for (int i = 0; i < kTries && syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0; ++i)
    nanosleep(&moment, nullptr);
}

// `tid`: where the thread says its number in the kernel, if it has to be gone there as well.
inline bool join_within(pthread_t thread, uint64_t ms, const std::atomic<pid_t>* tid = nullptr) {
  timespec deadline;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &deadline);  // the kernel's, even if the program's clock is faked
  uint64_t ns = uint64_t(deadline.tv_nsec) + ms % 1000 * 1000000;
  deadline.tv_sec += time_t(ms / 1000 + ns / 1000000000);
  deadline.tv_nsec = long(ns % 1000000000);
  if (pthread_timedjoin_np(thread, nullptr, &deadline) != 0) return false;
  if (tid) wait_until_gone(tid->load());
  return true;
}

// A thread that ends while paused, so that nothing that counts threads counts it, and is then started again.
class PausableThread {
 public:
  // Only the first call in each process counts.
  void start(void* (*run)(void*), size_t stack = 0) {
    pid_t me = getpid();
    if (of_.exchange(me) == me) return;
    run_ = run;
    stack_ = stack;
    begin();
  }

  // Called by the thread itself; false: return at once.
  bool sleep(int64_t ns) {
    tid_.store(int(syscall(SYS_gettid)), std::memory_order_relaxed);
    timespec timeout{time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)};
    futex(&state_, FUTEX_WAIT, kRuns, &timeout);
    uint32_t asked = kAsked;  // nobody gave up waiting for this thread meanwhile
    return !state_.compare_exchange_strong(asked, kLeft);
  }

  // Gives up if the thread is in the middle of something.
  void pause() {
    uint32_t runs = kRuns;
    if (of_.load() != getpid() || !state_.compare_exchange_strong(runs, kAsked)) return;
    futex_wake(&state_, 1);
    constexpr int kTries = 1000;
    timespec moment{0, 20'000};
    for (int i = 0; i < kTries && state_.load() == kAsked; ++i) nanosleep(&moment, nullptr);
    if (state_.load() == kLeft) wait_until_gone(tid_.load());
  }

  void resume() {
    if (of_.load() == getpid() && state_.exchange(kRuns) == kLeft) begin();
  }

 private:
  enum : uint32_t { kRuns, kAsked, kLeft };

  void begin() {
    state_.store(kRuns);
    if (start_quiet_thread(run_, nullptr, Joined::kNever, nullptr, stack_) != 0) of_.store(0);
  }

  void* (*run_)(void*) = nullptr;
  size_t stack_ = 0;
  std::atomic<pid_t> of_{0}, tid_{0};  // the process that has it; its number in the kernel
  std::atomic<uint32_t> state_{kRuns};
};

}  // namespace dft
