#include "intercept/io_record.hpp"

#include "intercept/intercept.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "format/md5.hpp"
#include "record/session_calls.hpp"

namespace dft {

__thread uint32_t tls_io_off = 0;
uint32_t g_io_names[int(Call::kCount)];
bool g_io_on[int(Call::kCount)];

namespace {

#if defined(__x86_64__)
extern "C" void* __libc_stack_end;

// The kernel puts the address to return to below everything else of a handler. A program that blocks a signal itself,
// as shells do around a fork, has none of them on its stack.
__attribute__((no_sanitize("address", "thread"))) bool returns_from_signal(int number) {
  struct {
    void* handler;
    unsigned long flags;
    void* restorer;
    unsigned long mask;
  } action{};
  if (syscall(SYS_rt_sigaction, number, nullptr, &action, sizeof action.mask) != 0 || !action.restorer) return true;
  stack_t alternate{};
  if (sigaltstack(nullptr, &alternate) != 0 || (alternate.ss_flags & SS_ONSTACK)) return true;
  constexpr size_t kMostWords = 8 << 20;
  auto* at = static_cast<void**>(__builtin_frame_address(0));
  auto* end = static_cast<void**>(__libc_stack_end);
  if (at >= end || size_t(end - at) > kMostWords) return true;  // of another thread, or a stack of the program's own
  for (; at < end; ++at)
    if (*at == action.restorer) return true;
  return false;
}
#else
bool returns_from_signal(int) { return true; }
#endif

}  // namespace

// A signal that has a handler is blocked; but a thread that blocks all signals is a helper thread.
bool in_a_handler() {
  sigset_t blocked;
  if (pthread_sigmask(SIG_BLOCK, nullptr, &blocked) != 0) return false;
  int handled = 0, others = 0;
  for (int number = 1; number < 32; ++number) {
    if (number == SIGKILL || number == SIGSTOP) continue;
    if (sigismember(&blocked, number) != 1) {
      ++others;
      continue;
    }
    struct sigaction action;
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN &&
        returns_from_signal(number))
      ++handled;
  }
  return handled && others;
}

void hide_io(bool hidden) { tls_io_off += hidden ? 1u : -1u; }

ThreadState* attach_for_io() {
  // The first record of a process opens files and starts a thread, which a handler must not do.
  if (!session_recording() && in_a_handler()) {
    count_signal_drop_before_begin();
    return nullptr;
  }
  return attach_thread(true);
}

void count_hidden_call(int fd) {
  // After vfork it may be the child's.
  if (tls_io_off % kLocked || g_generation.load(std::memory_order_relaxed) == 0 || !in_session_process()) return;
  if (file_of(fd)) count_signal_drop();
}

void announce(ThreadState* t, uint64_t hash, std::string_view path) {
  if (t->busy.load(std::memory_order_relaxed)) {
    not_in_trace(path);
    return;
  }
  char hex[16];
  for (int i = 0; i < 16; ++i) hex[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
  Frame f{};
  f.id = new_id(t);
  uint64_t before = t->head;
  emit_strings(t, Kind::kMetadata, 0, f, 0, 0, "FH", path, {hex, 16});
  if (t->head == before) not_in_trace(path);
}

void announce_descriptor(ThreadState* t, Descriptor* d) {
  char* text = d->text.load(std::memory_order_relaxed);
  uint32_t n = d->length.load(std::memory_order_relaxed);
  if (!text || n == 0) return;
  d->announced.store(t->generation, std::memory_order_relaxed);
  uint64_t hash = d->hash.load(std::memory_order_relaxed);
  if (first_in_trace(hash, {text, n}, t->generation)) announce(t, hash, {text, n});
}

}  // namespace dft
