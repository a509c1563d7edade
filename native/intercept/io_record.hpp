// From a traced call to a record in the ring.
#pragma once

#include <cerrno>
#include <type_traits>

#include "format/io_calls.hpp"
#include "intercept/files.hpp"
#include "intercept/session_calls.hpp"
#include "record/engine.hpp"

namespace dft {

// Not 0: calls of this thread are ignored. Set while the tracer itself works, and between vfork and exec,
// when a child runs in our memory.
extern __attribute__((tls_model("initial-exec"))) __thread uint32_t tls_io_off;
// Added by a thread that holds one of our locks, or waits for the child of a vfork: its own calls are then those of a
// signal handler.
inline constexpr uint32_t kLocked = 1 << 16;
extern uint32_t g_io_names[];  // interned, by Call
extern bool g_io_on[];         // by Call: is its category recorded

inline bool io_active() { return DFT_LIKELY(tls_io_off == 0) && g_generation.load(std::memory_order_relaxed) != 0; }

void count_hidden_call(int fd);
// For calls that are not recorded: a handler's call on a traced file counts as dropped.
inline void not_recorded(int fd) {
  if (DFT_UNLIKELY(tls_io_off >= kLocked)) count_hidden_call(fd);
}

inline uint64_t call_starts() {
  expect_record();
  return ticks();
}

struct Values {
  int64_t v[4];
  uint32_t n;
  Values() : n(0) {}
  template <typename... T>
  explicit Values(T... t) : v{int64_t(t)...}, n(sizeof...(t)) {}
};

// Nothing below may change the program's errno: callers preserve it.
void announce(ThreadState* t, uint64_t hash, std::string_view path);
void announce_descriptor(ThreadState* t, Descriptor* d);
ThreadState* attach_for_io();
// Whether this looks like a signal handler of the program.
bool in_a_handler();

inline ThreadState* io_thread() {
  ThreadState* t = tls_thread;
  if (DFT_LIKELY(t != nullptr && t->generation == g_generation.load(std::memory_order_relaxed))) return t;
  return attach_for_io();
}

inline void emit_io(ThreadState* t, Call call, uint64_t file, uint64_t start, uint64_t end, bool has_ret, int64_t ret,
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
  const Stack* s = t->stack;
  int64_t parent = s->outer_id;
  uint32_t level = s->outer_level;
  if (s->size) {
    const Frame& f = s->frames[s->size - 1];
    parent = int64_t(f.id);
    level = f.level;
  }
  r->size = size;
  r->kind = Kind::kIo;
  r->flags = 0;
  r->level = uint16_t(level < 0xffff ? level + 1 : 0xffff);
  r->id = kNumberedLater;
  r->parent = parent;
  r->start = start;
  r->end = end;
  r->name = g_io_names[int(call)];
  r->payload_size = uint32_t(sizeof(IoPayload) + values.n * 8);
  auto* p = reinterpret_cast<IoPayload*>(r->payload());
  p->file = file;
  p->ret = ret;
  p->error = error;
  p->call = uint16_t(call);
  p->values = uint8_t(values.n);
  p->has_ret = has_ret;
  auto* v = reinterpret_cast<int64_t*>(p + 1);
  for (uint32_t i = 0; i < values.n; ++i) v[i] = values.v[i];
  publish(t, size);
}

// What a call returned, with the program's errno saved until restore().
class Finished {
 public:
  Finished() : saved_(errno), end_(ticks()) {}
  ~Finished() { errno = saved_; }
  int error() const { return saved_; }
  uint64_t end() const { return end_; }

 private:
  int saved_;
  uint64_t end_;
};

inline void record_file(Call call, const File& file, uint64_t start, const Finished& f, bool has_ret, int64_t ret,
                        bool failed, const Values& values) {
  if (!g_io_on[int(call)]) return;
  ThreadState* t = io_thread();
  if (DFT_UNLIKELY(!t)) return;
  if (Descriptor* d = file.descriptor)
    if (DFT_UNLIKELY(d->announced.load(std::memory_order_relaxed) != t->generation)) announce_descriptor(t, d);
  emit_io(t, call, file.hash, start, f.end(), has_ret, ret, failed ? f.error() : 0, values);
}

inline void record_path(Call call, const File& file, const PathText& text, uint64_t start, const Finished& f,
                        bool has_ret, int64_t ret, bool failed, const Values& values) {
  if (!g_io_on[int(call)]) return;
  ThreadState* t = io_thread();
  if (DFT_UNLIKELY(!t)) return;
  if (DFT_UNLIKELY(first_in_trace(file, t->generation))) announce(t, file.hash, text.view());
  emit_io(t, call, file.hash, start, f.end(), has_ret, ret, failed ? f.error() : 0, values);
}

}  // namespace dft
