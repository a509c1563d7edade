// Tells Python callables what a training program does, where somebody wants to know: otherwise a boundary costs one
// load and a branch.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "module/cpython_util.hpp"
#include "record/engine.hpp"

namespace dft::py {

// The numbers are known to dftracer/torch/device.py.
enum Phase : uint8_t { kNoPhase, kFetch, kStep, kTransfer, kForward, kBackward, kOptimizer, kCheckpoint };

// The number of boundaries, of phases or not, before the hook is called; without a hook free threads only read it,
// since those that share nothing else would all write it. A hook that only waits for something to appear need not be
// called for each.
extern Relaxed<int64_t> g_boundaries_unsaid;
inline constexpr int64_t kNobodyIsTold = std::numeric_limits<int64_t>::max();

Phase phase_of(std::string_view cat, std::string_view name);
void tell_boundary(Phase phase, bool begins);

// What `dftracer.torch.boundaries` passes on to its subscribers; it knows the numbers. `what` is the optimizer,
// the number of the step that is over, or how many bytes were copied.
enum class Boundary : uint8_t { kBatch, kModel, kBackward, kOptimizer, kStep, kTransfer };
inline constexpr size_t kBoundaries = 6;
extern Relaxed<PyObject*> g_subscribers[kBoundaries];
void tell_subscriber(Boundary boundary, bool begins, PyObject* what);

inline void tell(Boundary boundary, bool begins, PyObject* what = Py_None) {
  if (DFT_UNLIKELY(g_subscribers[size_t(boundary)] != nullptr)) tell_subscriber(boundary, begins, what);
}

// subscribe(boundary, callable): `callable(begins, what)`, or None for nobody.
PyObject* subscribe(PyObject*, PyObject* args);

// One callable is told when a phase begins or ends, recorded by hand or not; it is set only if a device is in use.
inline void boundary(Phase phase, bool begins) {
  if (kFreeThreaded && DFT_LIKELY(g_boundaries_unsaid == kNobodyIsTold)) return;
  if (DFT_UNLIKELY((g_boundaries_unsaid = g_boundaries_unsaid - 1) < 0)) tell_boundary(phase, begins);
}

PyObject* set_boundary_hook(PyObject*, PyObject* args);
// tell_boundaries(codes): from now on the hook is called only for these, a bit each.
PyObject* tell_boundaries(PyObject*, PyObject* codes);

// The object is never destroyed, not even when the interpreter ends.
PyObject* keep_forever(PyObject*, PyObject* object);

}  // namespace dft::py
