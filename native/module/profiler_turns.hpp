// Turns at the interpreter lock with a program that is busy: the work waits for moments when nobody wants the lock.
#pragma once

#include <time.h>

#include "clock.hpp"
#include "module/python.hpp"

namespace dft::py {

class Turns {
 public:
  // `hurry`: one byte that others set when they wait for this work.
  explicit Turns(const char* hurry) : hurry_(hurry) {}

  // Lets go of the lock for `work`, and takes it again when it has been free for a while: a thread that gives it up for
  // the length of one operator wants it back at once, one in a backward pass or a device's wait does not.
  template <typename Work>
  void give_way(Work work) {
    PyThreadState* state = PyEval_SaveThread();
    work();
    uint64_t begin = monotonic_ns();
    int free = 0;
    for (;;) {
      if (!hurrying()) nap();
      uint64_t asked = monotonic_ns();
      PyEval_RestoreThread(state);
      uint64_t now = monotonic_ns();
      if (hurrying()) return;
      uint64_t waited = now - asked;
      if (waited < kAtOnceNs) {
        if (++free >= (quiet_ ? 1 : kQuietLooks)) {
          quiet_ = true;
          return;
        }
      } else {
        quiet_ = false;
        free = 0;
        // Whoever holds it this long never lets go by itself; it was made to, so the turn may as well be used.
        if (waited >= kTakenByForceNs) return;
      }
      if (now - begin > kPatienceNs) return;
      state = PyEval_SaveThread();
    }
  }

 private:
  static constexpr uint64_t kAtOnceNs = 10'000;
  static constexpr uint64_t kTakenByForceNs = 4'000'000;
  static constexpr uint64_t kPatienceNs = 20'000'000;
  static constexpr int kQuietLooks = 5;

  bool hurrying() const { return *static_cast<const volatile char*>(hurry_) != 0; }
  static void nap() {
    timespec time{0, 20'000};
    nanosleep(&time, nullptr);
  }

  const char* hurry_;
  bool quiet_ = false;
};

}  // namespace dft::py
