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

inline __attribute__((always_inline)) uint64_t call_starts() {
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

// The record as it is in the ring: its fields in as few stores as there are words.
inline __attribute__((always_inline)) void fill_io(Record* r, const Stack* s, Call call, uint64_t file, uint64_t start,
                                                   uint64_t end, bool has_ret, int64_t ret, int error,
                                                   const Values& values) {
  int64_t parent = s->outer_id;
  uint32_t level = s->outer_level;
  if (s->size) {
    const Frame& f = s->frames[s->size - 1];
    parent = int64_t(f.id);
    level = f.level;
  }
  uint32_t payload = uint32_t(sizeof(IoPayload) + values.n * 8);
  Record head{uint32_t(sizeof(Record) + payload),
              Kind::kIo,
              0,
              uint16_t(level < 0xffff ? level + 1 : 0xffff),
              kNumberedLater,
              parent,
              start,
              end,
              g_io_names[int(call)],
              payload};
  *r = head;
  auto* p = reinterpret_cast<IoPayload*>(r->payload());
  *p = {file, ret, error, uint16_t(call), uint8_t(values.n), has_ret};
  auto* v = reinterpret_cast<int64_t*>(p + 1);
  for (uint32_t i = 0; i < values.n; ++i) v[i] = values.v[i];
}

void wake_writer_quietly();  // keeps errno

// The common case: the session is recording and the ring has room. Returns false, and has done nothing, if
// anything is otherwise.
inline __attribute__((always_inline)) bool emit_quickly(Call call, uint64_t file, uint64_t start, uint64_t end,
                                                        int64_t ret, const Values& values) {
  ThreadState* t = tls_thread;
  if (DFT_UNLIKELY(!t || t->busy.load(std::memory_order_relaxed))) return false;
  Writing writing(t);
  uint64_t before = t->head, after = before + sizeof(Record) + sizeof(IoPayload) + values.n * 8;
  if (DFT_UNLIKELY(!writing.live() || after >= t->quick_until)) return false;
  fill_io(reinterpret_cast<Record*>(t->data + (before & t->mask)), t->stack, call, file, start, end, true, ret, 0,
          values);
  t->head = after;
  t->ring->head.store(after, std::memory_order_release);
  // Only now: a writer that falls asleep looks at the rings once more after it has announced that.
  if (DFT_UNLIKELY(g_doze.load(std::memory_order_relaxed))) wake_writer_quietly();
  return true;
}

void emit_io(ThreadState* t, Call call, uint64_t file, uint64_t start, uint64_t end, bool has_ret, int64_t ret,
             int error, const Values& values);

// What a call returned, with the program's errno restored at the end.
class Finished {
 public:
  Finished() : Finished(ticks()) {}
  explicit Finished(uint64_t end) : saved_(errno), end_(end) {}
  ~Finished() { errno = saved_; }
  int error() const { return saved_; }
  uint64_t end() const { return end_; }

 private:
  int saved_;
  uint64_t end_;
};

void record_file(Call call, const File& file, uint64_t start, const Finished& f, bool has_ret, int64_t ret, bool failed,
                 const Values& values);
void record_path(Call call, const File& file, const PathText& text, uint64_t start, const Finished& f, bool has_ret,
                 int64_t ret, bool failed, const Values& values);
// record_file() for a call that has just ended; by value, so that nothing of it is in memory before it is in the ring.
void record_slowly(Call call, uint64_t file, Descriptor* d, uint64_t start, uint64_t end, int64_t ret, bool failed,
                   Values values);

inline __attribute__((always_inline)) void record_call(Call call, uint64_t file, Descriptor* d, uint64_t start,
                                                       uint64_t end, int64_t ret, bool failed, const Values& values) {
  bool announced = !d || d->announced.load(std::memory_order_relaxed) == g_generation.load(std::memory_order_relaxed);
  if (DFT_LIKELY(announced && !failed && g_io_on[int(call)] && emit_quickly(call, file, start, end, ret, values)))
    return;
  record_slowly(call, file, d, start, end, ret, failed, values);
}

}  // namespace dft
