#include "module/auto_event.hpp"

#include "module/node.hpp"
#include "module/session_api.hpp"
#include "session/session.hpp"

namespace dft::py {

PyTypeObject g_auto_event_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.AutoEvent", sizeof(AutoEvent)};

std::string_view view_of(PyObject* text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
  return data ? std::string_view(data, size_t(size)) : std::string_view();
}

bool annotated_by_hand(AutoEvent* e) {
  Section section(reinterpret_cast<PyObject*>(e));
  uint64_t begun = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(e->manual_nodes); ++i)
    begun += reinterpret_cast<Node*>(PyTuple_GET_ITEM(e->manual_nodes, i))->uses;
  e->silent = begun != e->seen;
  e->seen = begun;
  return e->silent;
}

void emit(AutoEvent* e, uint64_t start, uint64_t end, std::string_view args) {
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  if (!t) return;
  Frame f = frame_for_event(t, false);
  f.start = start;
  emit_span(t, e->name_id, f, end < start ? start : end, args, "", "", kAbsoluteTime);
}

void emit(std::string_view name, std::string_view cat, uint64_t start, uint64_t end, std::string_view args) {
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  if (!t) return;
  Frame f = frame_for_event(t, false);
  f.start = start;
  emit_strings(t, Kind::kEvent, kAbsoluteTime, f, end < start ? start : end, 0, name, cat, args);
}

namespace {

AutoEvent* event_of(PyObject* self) { return reinterpret_cast<AutoEvent*>(self); }

// log(start, end, key, value, ...): one event, unless the program writes its own. An end of 0 is now. Returns the end.
PyObject* event_log(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  if (n < 2 || n % 2) {
    PyErr_SetString(PyExc_TypeError, "log() takes start, end and pairs of key and value");
    return nullptr;
  }
  AutoEvent* e = event_of(self);
  uint64_t start = clamp_ns(values[0]), end = clamp_ns(values[1]);
  bool is_now = !end;
  if (is_now) end = now_epoch_ns();
  if (!annotated_by_hand(e)) {
    recording([&] {
      Pairs pairs;
      for (Py_ssize_t i = 2; i < n; i += 2) pairs.add(view_of(values[i]), values[i + 1]);
      emit(e, start, end, pairs.text());
    });
    if (DFT_UNLIKELY(PyErr_Occurred() != nullptr)) PyErr_Clear();
    if (raise_kept()) return nullptr;
  }
  return is_now ? PyLong_FromUnsignedLongLong(end) : new_ref(values[1]);
}

// write(start, end, args): the same with a dict.
PyObject* event_write(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  if (n != 3) {
    PyErr_SetString(PyExc_TypeError, "write() takes start, end and a dict");
    return nullptr;
  }
  AutoEvent* e = event_of(self);
  uint64_t start = clamp_ns(values[0]), end = clamp_ns(values[1]);
  if (annotated_by_hand(e)) Py_RETURN_NONE;
  recording([&] {
    Args pairs;
    pairs.set_all(values[2]);
    pairs.set_text("\"auto\":", "1");
    emit(e, start, end, pairs.text());
  });
  PyErr_Clear();
  if (raise_kept()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_event_begins(PyObject* self, PyObject*) {
  event_begins(event_of(self));
  Py_RETURN_NONE;
}

PyObject* py_event_ends(PyObject* self, PyObject*) {
  event_ends(event_of(self));
  Py_RETURN_NONE;
}

PyObject* event_by_hand(PyObject* self, PyObject*) { return PyBool_FromLong(annotated_by_hand(event_of(self))); }

PyObject* event_forget_annotations(PyObject* self, PyObject*) {
  annotated_by_hand(event_of(self));
  event_of(self)->silent = false;
  Py_RETURN_NONE;
}

bool all_nodes(PyObject* manual_nodes) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(manual_nodes); ++i) {
    if (PyObject_TypeCheck(PyTuple_GET_ITEM(manual_nodes, i), &g_node_type)) continue;
    PyErr_SetString(PyExc_TypeError, "manual_nodes are nodes");
    return false;
  }
  return true;
}

PyObject* get_manual_nodes(PyObject* self, void*) {
  Section section(self);
  return new_ref(event_of(self)->manual_nodes);
}

int set_manual_nodes(PyObject* self, PyObject* manual_nodes, void*) {
  if (!manual_nodes || !PyTuple_Check(manual_nodes)) {
    PyErr_SetString(PyExc_TypeError, "manual_nodes are a tuple of nodes");
    return -1;
  }
  if (!all_nodes(manual_nodes)) return -1;
  Section section(self);
  Py_SETREF(event_of(self)->manual_nodes, new_ref(manual_nodes));
  return 0;
}

PyObject* event_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *name, *cat, *manual_nodes;
  int phase = kNoPhase;
  static const char* names[] = {"name", "cat", "manual_nodes", "phase", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UUO!|i", const_cast<char**>(names), &name, &cat, &PyTuple_Type,
                                   &manual_nodes, &phase))
    return nullptr;
  if (!all_nodes(manual_nodes)) return nullptr;
  if (phase < kNoPhase || phase > kCheckpoint) {
    PyErr_SetString(PyExc_ValueError, "no such phase");
    return nullptr;
  }
  uint32_t name_id;
  if (!possible([&] { name_id = intern(view_of(name), view_of(cat)); })) return nullptr;
  auto* e = reinterpret_cast<AutoEvent*>(type->tp_alloc(type, 0));
  if (!e) return nullptr;
  e->name_id = name_id;
  e->manual_nodes = new_ref(manual_nodes);
  e->phase = Phase(phase);
  return reinterpret_cast<PyObject*>(e);
}

void event_dealloc(PyObject* self) {
  AutoEvent* e = event_of(self);
  Py_XDECREF(e->manual_nodes);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef g_event_methods[] = {
    {"log", reinterpret_cast<PyCFunction>(event_log), METH_FASTCALL, nullptr},
    {"write", reinterpret_cast<PyCFunction>(event_write), METH_FASTCALL, nullptr},
    {"begins", py_event_begins, METH_NOARGS, nullptr},
    {"ends", py_event_ends, METH_NOARGS, nullptr},
    {"by_hand", event_by_hand, METH_NOARGS, nullptr},
    {"forget_annotations", event_forget_annotations, METH_NOARGS, nullptr},
    {},
};

PyGetSetDef g_event_properties[] = {
    {"manual_nodes", get_manual_nodes, set_manual_nodes, nullptr, nullptr},
    {},
};

}  // namespace

bool init_auto_events(PyObject* module) {
  PyTypeObject& t = g_auto_event_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_new = event_new;
  t.tp_dealloc = event_dealloc;
  t.tp_methods = g_event_methods;
  t.tp_getset = g_event_properties;
  return PyType_Ready(&t) == 0 && add_type(module, "AutoEvent", &t);
}

}  // namespace dft::py
