// DFTRACER_BIND_SIGNALS: on a fatal signal, write everything recorded to the file, then let the signal proceed.
#include <signal.h>
#include <time.h>

#include "session/session_state.hpp"

namespace dft {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kMaxSignal = 64;
struct sigaction g_previous[kMaxSignal];

// Only async-signal-safe steps: two atomics and nanosleep; the writer thread does the work.
void request_flush_and_wait() {
  Session* s = state().session;
  if (!in_session_process() || !s->recording || !s->thread_running.load() || pthread_equal(pthread_self(), s->thread))
    return;
  uint32_t wanted = s->flush_wanted.fetch_add(1) + 1;
  wake_writer();
  for (int i = 0; i < 1000 && int32_t(s->flush_done.load() - wanted) < 0; ++i) {
    timespec nap{0, 1000000};
    nanosleep(&nap, nullptr);
  }
}

void on_signal(int number, siginfo_t* info, void* context) {
  request_flush_and_wait();
  const struct sigaction& before = g_previous[number];
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler == SIG_DFL) {
    sigaction(number, &before, nullptr);
    raise(number);
  } else if (before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  }
}

}  // namespace

void install_signal_hooks() {
  static bool once = [] {
    for (int number : kSignals) {
      sigaction(number, nullptr, &g_previous[number]);
      struct sigaction action{};
      action.sa_sigaction = on_signal;
      // Whether blocking calls are interrupted stays as the program had it.
      action.sa_flags = SA_SIGINFO | SA_ONSTACK | (g_previous[number].sa_flags & SA_RESTART);
      action.sa_mask = g_previous[number].sa_mask;
      sigaction(number, &action, nullptr);
    }
    return true;
  }();
  (void)once;
}

}  // namespace dft
