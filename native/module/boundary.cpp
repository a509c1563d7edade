#include "module/boundary.hpp"

namespace dft::py {

PyObject* g_boundary_hook = nullptr;

Phase phase_of(std::string_view cat, std::string_view name) {
  if (cat == "compute") {
    if (name.starts_with("forward")) return kForward;
    if (name.starts_with("backward")) return kBackward;
    return name.starts_with("step") ? kOptimizer : kNoPhase;
  }
  if (cat == "device") return kTransfer;
  if (cat == "checkpoint") return kCheckpoint;
  if (cat != "dataloader" || !name.starts_with("fetch")) return kNoPhase;
  if (name.ends_with(".init")) return kNoPhase;
  return name.ends_with(".block") ? kStep : kFetch;
}

void tell_boundary(Phase phase, bool begins) {
  KeepError keep;
  Ref hook(new_ref(g_boundary_hook));
  Ref code(PyLong_FromLong(2 * long(phase) + (begins ? 0 : 1)));
  Ref done(code ? PyObject_CallOneArg(hook.get(), code.get()) : nullptr);
  if (done) return;
  // The hook handles its own errors; what still gets here must not reach the program again and again.
  PyErr_WriteUnraisable(hook.get());
  Py_CLEAR(g_boundary_hook);
}

PyObject* boundary_passed(PyObject*, PyObject* code) {
  if (!g_boundary_hook) Py_RETURN_NONE;
  long number = PyLong_AsLong(code);
  if (number < 0) PyErr_Clear();
  if (number >= 2 * kFetch && number < 2 * (kCheckpoint + 1)) tell_boundary(Phase(number / 2), number % 2 == 0);
  Py_RETURN_NONE;
}

PyObject* set_boundary_hook(PyObject*, PyObject* callable) {
  PyObject* old = g_boundary_hook;
  g_boundary_hook = callable == Py_None ? nullptr : new_ref(callable);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

}  // namespace dft::py
