#include "module/immediate.hpp"

namespace dft::py {
namespace {

struct Immediate {
  PyObject_HEAD
  PyObject* value;
};

PyTypeObject g_immediate_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._Immediate", sizeof(Immediate)};

PyObject* immediate_next(PyObject* self) {
  PyErr_SetObject(PyExc_StopIteration, reinterpret_cast<Immediate*>(self)->value);
  return nullptr;
}

void immediate_dealloc(PyObject* self) {
  Py_DECREF(reinterpret_cast<Immediate*>(self)->value);
  PyObject_Free(self);
}

PyAsyncMethods g_async = {PyObject_SelfIter, nullptr, nullptr, nullptr};

}  // namespace

PyObject* immediate(PyObject* owned_value) {
  if (!owned_value) return nullptr;
  Immediate* i = PyObject_New(Immediate, &g_immediate_type);
  if (!i) {
    Py_DECREF(owned_value);
    return nullptr;
  }
  i->value = owned_value;
  return reinterpret_cast<PyObject*>(i);
}

bool init_immediate() {
  g_immediate_type.tp_flags = Py_TPFLAGS_DEFAULT;
  g_immediate_type.tp_as_async = &g_async;
  g_immediate_type.tp_iter = PyObject_SelfIter;
  g_immediate_type.tp_iternext = immediate_next;
  g_immediate_type.tp_dealloc = immediate_dealloc;
  return PyType_Ready(&g_immediate_type) == 0;
}

}  // namespace dft::py
