// Our writes must not end the traced program, neither at a file size limit nor at a closed pipe.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace dft {

// While it exists, this thread's SIGXFSZ and SIGPIPE are blocked, and those that arrived meanwhile are discarded.
class QuietWrites {
 public:
  QuietWrites() {
    sigemptyset(&ours_);
    sigaddset(&ours_, SIGXFSZ);
    sigaddset(&ours_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &ours_, &before_);
    sigset_t pending;
    if (sigpending(&pending) != 0) sigemptyset(&pending);
    // A signal that was already pending belongs to the program.
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
