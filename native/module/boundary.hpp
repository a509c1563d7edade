// Tells one Python callable when a phase of training begins or ends. Without it a boundary costs one load and a
// branch; it is there only where a device is in use.
#pragma once

#include <cstdint>
#include <string_view>

#include "module/python.hpp"
#include "record/engine.hpp"

namespace dft::py {

// The numbers are known to dftracer/_device_events.py.
enum Phase : uint8_t { kNoPhase, kFetch, kStep, kTransfer, kForward, kBackward, kOptimizer, kCheckpoint };

extern PyObject* g_boundary_hook;

Phase phase_of(std::string_view cat, std::string_view name);
void tell_boundary(Phase phase, bool begins);

inline void boundary(Phase phase, bool begins) {
  if (DFT_UNLIKELY(g_boundary_hook) && phase != kNoPhase) tell_boundary(phase, begins);
}

// The same from Python: automatic tracing knows boundaries that no node stands at.
PyObject* boundary_passed(PyObject*, PyObject* code);
PyObject* set_boundary_hook(PyObject*, PyObject* callable);

}  // namespace dft::py
