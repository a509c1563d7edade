// Tells one Python callable when a phase of training begins or ends. Without it a boundary costs one load and a
// branch; it is set only if a device is in use.
#pragma once

#include <cstdint>
#include <string_view>

#include "module/seam.hpp"
#include "record/engine.hpp"

namespace dft::py {

// The numbers are known to dftracer/torch/device.py.
enum Phase : uint8_t { kNoPhase, kFetch, kStep, kTransfer, kForward, kBackward, kOptimizer, kCheckpoint };

// The number of boundaries, of phases or not, before the hook is called: without a hook, more than there will ever
// be. A hook that only waits for something to appear need not be called for each.
extern int64_t g_boundaries_unsaid;

Phase phase_of(std::string_view cat, std::string_view name);
void tell_boundary(Phase phase, bool begins);

inline void boundary(Phase phase, bool begins) {
  if (DFT_LIKELY(--g_boundaries_unsaid >= 0)) return;
  tell_boundary(phase, begins);
}

PyObject* set_boundary_hook(PyObject*, PyObject* args);

// The object is never destroyed, not even when the interpreter ends.
PyObject* keep_forever(PyObject*, PyObject* object);

}  // namespace dft::py
