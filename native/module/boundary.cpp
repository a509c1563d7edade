#include "module/boundary.hpp"

namespace dft::py {

namespace {

constexpr uint32_t kEvery = ~uint32_t(0);
PyObject* g_hook = nullptr;
Relaxed<uint32_t> g_hook_mask = kEvery;  // a bit for each boundary that the hook is called for

}  // namespace

Relaxed<int64_t> g_boundaries_until_hook = kNoHook;
Relaxed<PyObject*> g_subscribers[kBoundaries];

void notify_subscriber(Boundary boundary, bool begins, PyObject* what) {
  KeepError keep;
  Ref subscriber;
  {
    Section section(module_state());
    subscriber = Ref(Py_XNewRef(g_subscribers[size_t(boundary)]));
  }
  if (!subscriber) return;
  Ref done(PyObject_CallFunctionObjArgs(subscriber.get(), begins ? Py_True : Py_False, what, nullptr));
  if (!done) PyErr_WriteUnraisable(subscriber.get());  // subscribers handle their own errors
}

PyObject* subscribe(PyObject*, PyObject* args) {
  unsigned what;
  PyObject* subscriber;
  if (!PyArg_ParseTuple(args, "IO", &what, &subscriber)) return nullptr;
  if (what >= kBoundaries) {
    PyErr_SetString(PyExc_ValueError, "no such boundary");
    return nullptr;
  }
  Section section(module_state());
  Ref old(g_subscribers[what]);
  g_subscribers[what] = subscriber == Py_None ? nullptr : new_ref(subscriber);
  Py_RETURN_NONE;
}

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

void call_hook(Phase phase, bool begins) {
  unsigned number = 2 * unsigned(phase) + (begins ? 0 : 1);
  if (phase == kNoPhase || !(g_hook_mask >> number & 1)) {
    g_boundaries_until_hook = 0;
    return;
  }
  KeepError keep;
  Ref hook = shared(g_hook);
  g_boundaries_until_hook = hook ? 0 : kNoHook;
  if (!hook) return;
  Ref code(PyLong_FromUnsignedLong(number));
  Ref done(code ? PyObject_CallOneArg(hook.get(), code.get()) : nullptr);
  if (done) return;
  // The hook handles its own errors; anything that still gets here must not reach the program repeatedly.
  PyErr_WriteUnraisable(hook.get());
  Section section(module_state());
  Py_CLEAR(g_hook);
}

PyObject* set_boundary_hook(PyObject*, PyObject* args) {
  PyObject* callable;
  unsigned skip = 0;
  if (!PyArg_ParseTuple(args, "O|I", &callable, &skip)) return nullptr;
  Section section(module_state());
  Ref old(g_hook);
  g_hook = callable == Py_None ? nullptr : new_ref(callable);
  g_boundaries_until_hook = g_hook ? skip : kNoHook;
  g_hook_mask = kEvery;
  Py_RETURN_NONE;
}

PyObject* set_hook_mask(PyObject*, PyObject* codes) {
  unsigned long wanted = PyLong_AsUnsignedLongMask(codes);
  if (PyErr_Occurred()) return nullptr;
  g_hook_mask = uint32_t(wanted);
  Py_RETURN_NONE;
}

PyObject* keep_forever(PyObject*, PyObject* object) {
  Py_INCREF(object);
  Py_RETURN_NONE;
}

}  // namespace dft::py
