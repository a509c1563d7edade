// Taking turns at the interpreter lock with a busy program: the work waits for moments when no thread wants the lock.
#pragma once

#include <sys/prctl.h>
#include <time.h>

#include <exception>

#include "module/cpython_util.hpp"
#include "record/clock.hpp"

namespace dft::py {

// A thread that releases the lock for one operator wants it back at once; one in a backward pass, waiting for a
// device or in a read does not. Whether the lock stays free for a while shows which it is.
class Turns {
 public:
  // `hurry`: one byte that others set while they wait for this work.
  explicit Turns(const char* hurry) : hurry_(hurry) {
    // Otherwise sleeping for microseconds takes fifty more.
    if (!hurrying()) prctl(PR_SET_TIMERSLACK, 1000);
  }

  bool hurrying() const { return *static_cast<const volatile char*>(hurry_) != 0; }
  // Whether the turn that began with the last `give_way` has lasted long enough.
  bool over() const { return !hurrying() && monotonic_ns() - began_ > kTurnNs; }

  // Releases the lock for `work`, and takes it again when no other thread wants it, or after waiting too long.
  template <typename Work>
  void give_way(Work work) {
    PyThreadState* state = PyEval_SaveThread();
    try {
      work();
    } catch (const std::exception&) {
      PyEval_RestoreThread(state);
      throw;
    }
    uint64_t begin = monotonic_ns();
    int looks = quiet_ ? kLooksWhileQuiet : kLooks;
    int64_t length = kShortNapNs;
    for (;;) {
      if (!hurrying()) nap(length);
      uint64_t asked = monotonic_ns();
      PyEval_RestoreThread(state);
      began_ = monotonic_ns();
      if (hurrying()) return;
      uint64_t waited = began_ - asked;
      if (waited < kAtOnceNs) {
        length = kShortNapNs;
        if (--looks == 0) {
          quiet_ = true;
          return;
        }
      } else {
        quiet_ = false;
        looks = kLooks;
        // Checking has a cost: while another thread waits for the lock, releasing it is a system call.
        length = length == kShortNapNs ? kLongNapNs : 2 * kLongNapNs;
        // A thread that holds it this long never releases it by itself; it was forced to, so the turn may as well be
        // used.
        if (waited > kTakenByForceNs) return;
      }
      if (began_ - begin > kPatienceNs) return;
      state = PyEval_SaveThread();
    }
  }

 private:
  static constexpr uint64_t kTurnNs = 50'000;
  static constexpr uint64_t kAtOnceNs = 8'000;
  static constexpr uint64_t kTakenByForceNs = 4'000'000;
  static constexpr uint64_t kPatienceNs = 10'000'000;
  static constexpr int64_t kShortNapNs = 20'000, kLongNapNs = 1'000'000;
  static constexpr int kLooks = 12, kLooksWhileQuiet = 2;

  static void nap(int64_t ns) {
    timespec time{0, ns};
    nanosleep(&time, nullptr);
  }

  const char* hurry_;
  bool quiet_ = false;
  uint64_t began_ = monotonic_ns();
};

}  // namespace dft::py
