// fork(): the child records into its own files and never touches what belongs to the parent.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "intercept/patcher.hpp"
#include "record/names.hpp"
#include "record/nvml.hpp"
#include "record/sanitizer.hpp"
#include "session/session_state.hpp"
#include "session/writer_thread.hpp"

namespace dft {
namespace {

// glibc and the common allocators put their locks in order around a fork. Those of the sanitizers' older runtimes do
// not: a thread inside malloc() leaves the child an allocator that is locked forever. Our own writer can be paused at
// that moment; if the program has other threads, we must not allocate in its child. And a child
// that starts a thread, such as our writer, is ended by ThreadSanitizer.
const bool g_careful = any_sanitizer();
bool g_writer_paused = false;
bool g_child_records = true;
bool g_not_counted = false;                     // our thread has ended, so that nothing counts it
constexpr uint64_t kUntilCounted = 20'000'000;  // ns, on a busy machine

bool other_threads() {
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  char text[1024];
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  text[n < 0 ? 0 : n] = 0;
  const char* field = strrchr(text, ')');
  // Field 20, the number of threads, is the 18th after the name.
  for (int i = 0; field && i < 18; ++i) field = strchr(field + 1, ' ');
  int threads = field ? atoi(field) : INT_MAX;
  Session* s = state().session;
  bool writing = s && s->thread_running;
  // ThreadSanitizer has its own thread besides the program's first, and counts our writer like any other.
  if (thread_sanitizer()) return writing || threads > 2;
  return threads > 1 + int(writing) + int(writing && s->gpus.running());
}

// Locks the state's mutex, and if needed also the writer's. The writer takes the first while it holds the second, so
// neither is waited for while the other is held.
void lock_state(bool pause_writer) {
  constexpr int kTries = 50'000;
  for (int i = 0; pause_writer && i < kTries; ++i) {
    state().mutex.lock();
    g_writer_paused = state().writer_at_work.try_lock();
    if (g_writer_paused) return;
    state().mutex.unlock();
    usleep(100);
  }
  state().mutex.lock();
}

void unlock_state() {
  if (g_writer_paused) state().writer_at_work.unlock();
  g_writer_paused = false;
  state().mutex.unlock();
}

// CPython warns of fork() in a program with threads since 3.12, and counts those of the operating system. Where ours is
// the only one besides the program's, it ends for that moment.
bool python_counts_threads() {
  static const bool counts = [] {
    auto* version = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "Py_GetVersion"));
    int minor = 0;
    return version && sscanf(version(), "3.%d", &minor) == 1 && minor >= 12;
  }();
  return counts;
}

void before_fork() {
  Session* s = state().session;
  g_not_counted = s && s->pid == getpid() && s->thread_running.load() && python_counts_threads() && !other_threads();
  if (g_not_counted) pause_writer(s, kUntilCounted);
  bool hopeless = g_careful && other_threads();
  lock_state(g_careful && !hopeless);
  if (g_careful) {
    g_child_records = g_writer_paused;
    if (!g_child_records && session_armed())
      warn_once(
          "children of a program with threads and a sanitizer are not recorded: its allocator may be locked there");
  }
  names_mutex().lock();
  warnings_mutex().lock();
  driver_mutex().lock();
  lock_patcher();
}

void in_parent() {
  // A large process takes its time to fork, and only then Python counts.
  if (g_not_counted && state().session) delay_writer(state().session, kUntilCounted);
  unlock_patcher();
  driver_mutex().unlock();
  warnings_mutex().unlock();
  names_mutex().unlock();
  unlock_state();
}

void in_child() {
  // These were locked by the thread that continues here, so they can be unlocked.
  unlock_patcher();
  driver_mutex().unlock();
  warnings_mutex().unlock();
  names_mutex().unlock();
  // The parent's writer, which may hold this one, does not exist here.
  if (g_writer_paused)
    state().writer_at_work.unlock();
  else
    new (&state().writer_at_work) std::mutex;
  g_writer_paused = false;
  g_generation.store(0);
  if (g_child_records)
    rearm_in_child();
  else
    leave_session_in_child();
  state().mutex.unlock();
}

}  // namespace

void install_fork_handlers() { pthread_atfork(before_fork, in_parent, in_child); }

}  // namespace dft
