// Tells Python callables what a training program does. Without a subscriber a boundary costs one load and a branch.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "module/cpython_util.hpp"
#include "record/engine.hpp"

namespace dft::py {

// The numbers are known to dftracer/torch/device.py.
enum Phase : uint8_t { kNoPhase, kFetch, kStep, kTransfer, kForward, kBackward, kOptimizer, kCheckpoint };

// How many boundaries, of phases or not, pass before the hook is called: a hook that only waits for something to appear
// need not be called for each. Without a hook, free threads only read this: they would all write it, and share nothing
// else.
extern Relaxed<int64_t> g_boundaries_until_hook;
inline constexpr int64_t kNoHook = std::numeric_limits<int64_t>::max();

Phase phase_of(std::string_view cat, std::string_view name);
void call_hook(Phase phase, bool begins);

// What `dftracer.torch.boundaries` passes on to its subscribers; the numbers are known there. `what` is the optimizer,
// the number of the step that is over, or how many bytes were copied.
enum class Boundary : uint8_t { kBatch, kModel, kBackward, kOptimizer, kStep, kTransfer };
inline constexpr size_t kBoundaries = 6;
extern Relaxed<PyObject*> g_subscribers[kBoundaries];
void notify_subscriber(Boundary boundary, bool begins, PyObject* what);

inline void notify(Boundary boundary, bool begins, PyObject* what = Py_None) {
  if (DFT_UNLIKELY(g_subscribers[size_t(boundary)] != nullptr)) notify_subscriber(boundary, begins, what);
}

// subscribe(boundary, callable): `callable(begins, what)`, or None for no subscriber.
PyObject* subscribe(PyObject*, PyObject* args);

// The hook is called when a phase begins or ends, annotated by hand or not; it is set only if a device is in use.
inline void boundary(Phase phase, bool begins) {
  if (kFreeThreaded && DFT_LIKELY(g_boundaries_until_hook == kNoHook)) return;
  if (DFT_UNLIKELY((g_boundaries_until_hook = g_boundaries_until_hook - 1) < 0)) call_hook(phase, begins);
}

PyObject* set_boundary_hook(PyObject*, PyObject* args);
// set_hook_mask(codes): call the hook only for these, a bit each.
PyObject* set_hook_mask(PyObject*, PyObject* codes);

// Never destroys the object, not even when the interpreter ends.
PyObject* keep_forever(PyObject*, PyObject* object);

}  // namespace dft::py
