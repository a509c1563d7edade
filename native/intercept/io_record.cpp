#include "intercept/io_record.hpp"

#include "intercept/intercept.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

#include "md5.hpp"
#include "session_state.hpp"

namespace dft {

__thread uint32_t tls_io_off = 0;
uint32_t g_io_names[int(Call::kCount)];
bool g_io_on[int(Call::kCount)];

namespace {

class Off {
 public:
  Off() { ++tls_io_off; }
  ~Off() { --tls_io_off; }
};

}  // namespace

void hide_io(bool hidden) { tls_io_off += hidden ? 1u : -1u; }

ThreadState* attach_for_io() {
  // A signal handler that interrupts us here must not come back here: attaching takes a lock.
  Off off;
  return attach_thread();
}

void count_signal_drop(ThreadState*) {
  Session* s = state().session;
  if (s && s->recording) s->header()->dropped[int(Drop::kInSignal)].fetch_add(1, std::memory_order_relaxed);
}

void ease_off(ThreadState* t) {
  Session* s = state().session;
  if (!s) return;
  uint64_t capacity = t->mask + 1;
  t->limit = t->ring->tail.load(std::memory_order_acquire) + capacity;
  if (t->limit - t->head >= capacity / 4 || s->settings.max_stall_us == 0) return;
  // Only as long as it helps: a disk that hangs must not slow every call down.
  constexpr uint32_t kMostPauses = 20;
  if (t->limit != t->eased_at) {
    t->eased_at = t->limit;
    t->eased = 0;
  }
  if (++t->eased > kMostPauses || s->header()->refusing.load(std::memory_order_relaxed)) return;
  wake_writer();
  timespec nap{0, 50000};
  syscall(SYS_nanosleep, &nap, nullptr);
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
