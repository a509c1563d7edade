// A write of ours must not end the traced program: not at a limit on file sizes, not at a closed pipe.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace dft {

// While it lives, SIGXFSZ and SIGPIPE of this thread are held back, and those that came meanwhile are swallowed.
class QuietWrites {
 public:
  QuietWrites() {
    sigemptyset(&ours_);
    sigaddset(&ours_, SIGXFSZ);
    sigaddset(&ours_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &ours_, &before_);
    sigset_t pending;
    if (sigpending(&pending) != 0) sigemptyset(&pending);
    // One that waited already is the program's business.
    for (int number : {SIGXFSZ, SIGPIPE})
      if (sigismember(&pending, number)) sigdelset(&ours_, number);
  }
  ~QuietWrites() {
    timespec now{0, 0};
    while (sigtimedwait(&ours_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  QuietWrites(const QuietWrites&) = delete;
  QuietWrites& operator=(const QuietWrites&) = delete;

 private:
  sigset_t ours_, before_;
};

}  // namespace dft
