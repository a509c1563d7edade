#include "module/observe.hpp"

#include <array>
#include <utility>

#include "session/session.hpp"

namespace dft::py {
namespace {

// One for each method that was ever watched; never freed, since a call may be on its way through it.
struct Watched {
  PyMethodDescrObject* descriptor;
  PyMethodDef* original;
  PyMethodDef ours;
  Relaxed<PyObject*> observer;
  Relaxed<PyObject*> plain;  // kept, like the descriptor: a call may be looking at it
  Relaxed<PyTypeObject*> uninteresting;
};
constexpr size_t kMax = 8;
std::array<Watched, kMax> g_watched{};

bool is_plain(const Watched& watched, PyObject* object) {
  PyObject* plain = watched.plain;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain); ++i)
    if (PyTuple_GET_ITEM(plain, i) == reinterpret_cast<PyObject*>(Py_TYPE(object))) return true;
  return false;
}

void call_observer(const Watched& watched, PyObject* self, PyObject* result, uint64_t start) {
  KeepError keep;
  Ref observer;
  {
    Section section(module_state());
    observer = Ref(Py_XNewRef(watched.observer));
  }
  if (!observer) return;
  Ref when(PyLong_FromUnsignedLongLong(start));
  Ref done(when ? PyObject_CallFunctionObjArgs(observer.get(), self, result, when.get(), nullptr) : nullptr);
  if (!done) PyErr_WriteUnraisable(observer.get());
}

template <size_t kIndex>
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const Watched& watched = g_watched[kIndex];
  auto original = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(watched.original->ml_meth));
  bool interesting = watched.observer && is_plain(watched, self) &&
                     !(PyTuple_GET_SIZE(args) > 0 && Py_TYPE(PyTuple_GET_ITEM(args, 0)) == watched.uninteresting);
  uint64_t start = interesting ? now_epoch_ns() : 0;
  PyObject* result = original(self, args, kwargs);
  if (interesting && result && result != self && watched.observer && is_plain(watched, result))
    call_observer(watched, self, result, start);
  return result;
}

template <size_t... kIndices>
constexpr std::array<PyCFunctionWithKeywords, kMax> calls(std::index_sequence<kIndices...>) {
  return {&call<kIndices>...};
}
constexpr auto g_calls = calls(std::make_index_sequence<kMax>{});

Watched* place_of(PyMethodDescrObject* descriptor) {
  for (Watched& each : g_watched)
    if (each.descriptor == descriptor || !each.descriptor) return &each;
  return nullptr;
}

}  // namespace

PyObject* exchange_code(PyObject*, PyObject* args) {
  PyObject *function, *code, *closure;
  if (!PyArg_ParseTuple(args, "O!O!O", &PyFunction_Type, &function, &PyCode_Type, &code, &closure)) return nullptr;
  // Both at once: Python compares the number of variables when it is given the code.
  Ref before(PyObject_GetAttrString(function, "__closure__"));
  if (!before || PyFunction_SetClosure(function, closure) < 0) return nullptr;
  if (PyObject_SetAttrString(function, "__code__", code) < 0) {
    KeepError keep;
    PyFunction_SetClosure(function, before.get());
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* watch_method(PyObject*, PyObject* args) {
  PyObject *object, *observer, *plain, *uninteresting;
  if (!PyArg_ParseTuple(args, "O!OO!O!", &PyMethodDescr_Type, &object, &observer, &PyTuple_Type, &plain, &PyType_Type,
                        &uninteresting))
    return nullptr;
  Section section(module_state());
  auto* descriptor = reinterpret_cast<PyMethodDescrObject*>(object);
  Watched* watched = place_of(descriptor);
  if (!watched) Py_RETURN_FALSE;
  if (!watched->descriptor) {
    if (descriptor->d_method->ml_flags != (METH_VARARGS | METH_KEYWORDS)) Py_RETURN_FALSE;
    watched->descriptor = reinterpret_cast<PyMethodDescrObject*>(new_ref(object));
    watched->original = descriptor->d_method;
    watched->ours = *descriptor->d_method;
    PyCFunctionWithKeywords ours = g_calls[size_t(watched - g_watched.data())];
    watched->ours.ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ours));
  }
  Ref old(watched->observer);
  watched->plain = new_ref(plain);
  watched->uninteresting = reinterpret_cast<PyTypeObject*>(new_ref(uninteresting));
  watched->observer = new_ref(observer);
  descriptor->d_method = &watched->ours;
  Py_RETURN_TRUE;
}

PyObject* unwatch_method(PyObject*, PyObject* object) {
  Section section(module_state());
  for (Watched& each : g_watched) {
    if (reinterpret_cast<PyObject*>(each.descriptor) != object || !object) continue;
    if (each.descriptor->d_method == &each.ours) each.descriptor->d_method = each.original;
    Ref observer(each.observer);
    each.observer = nullptr;
  }
  Py_RETURN_NONE;
}

}  // namespace dft::py
