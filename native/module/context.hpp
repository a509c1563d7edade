// Open events per contextvars.Context, so that tasks interleaving on one thread keep their own nesting.
#pragma once

#include "module/cpython_util.hpp"
#include "record/engine.hpp"

namespace dft::py {

void switch_context(ThreadState* t, PyObject* context);
// Takes the newest frame of `key` from another flow of this thread: a block may be left in a
// different context than it was entered in.
bool pop_elsewhere(ThreadState* t, const void* key, uint32_t must_flags, Frame* out);
// The rare paths of take_own_frame() and take_opened_frame().
bool take_strayed_frame(ThreadState* t, const void* key, const void* owner, Frame* out);
bool take_opened_elsewhere(ThreadState* t, const void* key, uint64_t id, Frame* out);
bool init_contexts();

// `owner`: where to put the running Python frame.
inline ThreadState* thread_in_context(const void** owner = nullptr) {
  ThreadState* t = current_thread();
  if (DFT_UNLIKELY(!t)) return nullptr;
  PyThreadState* python = PyThreadState_Get();
  if (owner) *owner = running_frame(python);
  if (DFT_UNLIKELY(python->context != t->context)) switch_context(t, python->context);
  return t;
}

inline bool take_frame(ThreadState* t, const void* key, uint32_t must_flags, Frame* out) {
  if (DFT_LIKELY(pop_frame(t->stack, key, must_flags, out))) return true;
  return t->contexts && pop_elsewhere(t, key, must_flags, out);
}

// What a `with` closes: the newest frame that its own function or generator has opened. If two generators on one node
// interleave, each gets its own. Only if there is none (`__enter__` and `__exit__` called directly, in different
// functions), the newest of the key.
inline bool take_own_frame(ThreadState* t, const void* key, const void* owner, Frame* out) {
  if (DFT_LIKELY(pop_frame_if(t->stack, out, [&](const Frame& f) { return f.key == key && f.owner == owner; })))
    return true;
  return take_strayed_frame(t, key, owner, out);
}

// What a call closes if it knows the number of the frame it has opened.
inline bool take_opened_frame(ThreadState* t, const void* key, uint64_t id, Frame* out) {
  if (DFT_LIKELY(pop_frame_if(t->stack, out, [&](const Frame& f) { return f.key == key && f.id == id; }))) return true;
  return t->contexts && take_opened_elsewhere(t, key, id, out);
}

}  // namespace dft::py
