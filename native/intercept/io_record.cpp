#include "intercept/io_record.hpp"

#include "intercept/intercept.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include <unwind.h>

#include "format/md5.hpp"
#include "intercept/session_calls.hpp"

namespace dft {

__thread uint32_t tls_io_off = 0;
uint32_t g_io_names[int(Call::kCount)];
bool g_io_on[int(Call::kCount)];

namespace {

extern "C" void* __libc_stack_end;

struct Walk {
  bool signal_frame = false;
  uintptr_t reached = 0;
};

_Unwind_Reason_Code look(_Unwind_Context* context, void* data) {
  auto* walk = static_cast<Walk*>(data);
  int inside = 0;
  _Unwind_GetIPInfo(context, &inside);
  walk->signal_frame |= inside != 0;
  walk->reached = uintptr_t(_Unwind_GetCFA(context));
  return walk->signal_frame ? _URC_END_OF_STACK : _URC_NO_REASON;
}

// A program that blocks a signal itself, as shells do around a fork, has no frame on its stack that the kernel has put
// there. Only the stack of the first thread can be seen to its end.
bool surely_in_no_handler() {
  constexpr uintptr_t kFirstFrames = 1024;
  Walk walk;
  _Unwind_Backtrace(look, &walk);
  auto end = reinterpret_cast<uintptr_t>(__libc_stack_end);
  return !walk.signal_frame && walk.reached + kFirstFrames >= end && walk.reached <= end + kFirstFrames;
}

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
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)
      ++handled;
  }
  return handled && others && !surely_in_no_handler();
}

void hide_io(bool hidden) { tls_io_off += hidden ? 1u : -1u; }

ThreadState* attach_for_io() {
  // The first record of a process opens files and starts a thread, which a handler must not do.
  if (!g_session_calls.recording() && in_a_handler()) {
    g_session_calls.count_signal_drop_before_begin();
    return nullptr;
  }
  return attach_thread(true);
}

void count_hidden_call(int fd) {
  // After vfork it may be the child's.
  if (tls_io_off % kLocked || g_generation.load(std::memory_order_relaxed) == 0 || !g_session_calls.in_process())
    return;
  if (file_of(fd)) g_session_calls.count_signal_drop();
}

__attribute__((noinline)) void wake_writer_quietly() {
  int saved = errno;
  wake_writer();
  errno = saved;
}

void emit_io(ThreadState* t, Call call, uint64_t file, uint64_t start, uint64_t end, bool has_ret, int64_t ret,
             int error, const Values& values) {
  if (DFT_UNLIKELY(t->busy.load(std::memory_order_relaxed))) {
    // A signal handler's call during the recording of another: the ring is in the middle of a record.
    g_session_calls.count_signal_drop();
    return;
  }
  if (DFT_UNLIKELY(t->head >= t->ease_from)) g_session_calls.ease_off(t);
  Writing writing(t);
  if (!writing.live()) return;
  uint32_t size = uint32_t(sizeof(Record) + sizeof(IoPayload) + values.n * 8);
  Record* r = reserve(t, size);
  if (DFT_UNLIKELY(!r)) return;
  fill_io(r, t->stack, call, file, start, end, has_ret, ret, error, values);
  publish(t, size);
  refresh_quick(t);
}

void record_file(Call call, const File& file, uint64_t start, const Finished& f, bool has_ret, int64_t ret, bool failed,
                 const Values& values) {
  if (!g_io_on[int(call)]) return;
  ThreadState* t = io_thread();
  if (DFT_UNLIKELY(!t)) return;
  if (Descriptor* d = file.descriptor)
    if (DFT_UNLIKELY(d->announced.load(std::memory_order_relaxed) != t->generation)) announce_descriptor(t, d);
  emit_io(t, call, file.hash, start, f.end(), has_ret, ret, failed ? f.error() : 0, values);
}

void record_path(Call call, const File& file, const PathText& text, uint64_t start, const Finished& f, bool has_ret,
                 int64_t ret, bool failed, const Values& values) {
  if (!g_io_on[int(call)]) return;
  ThreadState* t = io_thread();
  if (DFT_UNLIKELY(!t)) return;
  if (DFT_UNLIKELY(first_in_trace(file, t->generation))) announce(t, file.hash, text.view());
  emit_io(t, call, file.hash, start, f.end(), has_ret, ret, failed ? f.error() : 0, values);
}

void record_slowly(Call call, uint64_t file, Descriptor* d, uint64_t start, uint64_t end, int64_t ret, bool failed,
                   Values values) {
  Finished done(end);
  record_file(call, {file, d}, start, done, true, ret, failed, values);
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
