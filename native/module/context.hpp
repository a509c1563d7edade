// Open events per contextvars.Context, so that tasks interleaving on one thread keep their own nesting.
#pragma once

#include "module/python.hpp"
#include "record/engine.hpp"

namespace dft::py {

void switch_context(ThreadState* t, PyObject* context);
// Takes the newest frame of `key` from another flow of this thread: a block may be left in a
// different context than it was entered in.
bool pop_elsewhere(ThreadState* t, const void* key, uint32_t must_flags, Frame* out);
bool init_contexts();

inline ThreadState* thread_in_context() {
  ThreadState* t = current_thread();
  if (DFT_UNLIKELY(!t)) return nullptr;
  PyObject* context = PyThreadState_Get()->context;
  if (DFT_UNLIKELY(context != t->context)) switch_context(t, context);
  return t;
}

inline bool take_frame(ThreadState* t, const void* key, uint32_t must_flags, Frame* out) {
  if (DFT_LIKELY(pop_frame(t->stack, key, must_flags, out))) return true;
  return t->contexts && pop_elsewhere(t, key, must_flags, out);
}

}  // namespace dft::py
