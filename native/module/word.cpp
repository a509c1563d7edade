#include "module/word.hpp"

#include "module/node.hpp"
#include "module/session_api.hpp"
#include "session/session.hpp"

namespace dft::py {

PyTypeObject g_word_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Word", sizeof(Word)};

std::string_view view_of(PyObject* text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
  return data ? std::string_view(data, size_t(size)) : std::string_view();
}

bool ask_twins(Word* w) {
  Section section(reinterpret_cast<PyObject*>(w));
  uint64_t begun = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(w->twins); ++i)
    begun += reinterpret_cast<Node*>(PyTuple_GET_ITEM(w->twins, i))->uses;
  w->silent = begun != w->seen;
  w->seen = begun;
  return w->silent;
}

void emit(Word* w, uint64_t start, uint64_t end, std::string_view args) {
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  if (!t) return;
  Frame f = frame_for_event(t, false);
  f.start = start;
  emit_span(t, w->name_id, f, end < start ? start : end, args, "", "", kAbsoluteTime);
}

void emit(std::string_view name, std::string_view cat, uint64_t start, uint64_t end, std::string_view args) {
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  if (!t) return;
  Frame f = frame_for_event(t, false);
  f.start = start;
  emit_strings(t, Kind::kEvent, kAbsoluteTime, f, end < start ? start : end, 0, name, cat, args);
}

namespace {

Word* word_of(PyObject* self) { return reinterpret_cast<Word*>(self); }

// log(start, end, key, value, ...): one event, unless the program writes its own. An end of 0 is now; gives the end.
PyObject* word_log(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  if (n < 2 || n % 2) {
    PyErr_SetString(PyExc_TypeError, "log() takes start, end and pairs of key and value");
    return nullptr;
  }
  Word* w = word_of(self);
  uint64_t start = clamp_ns(values[0]), end = clamp_ns(values[1]);
  bool is_now = !end;
  if (is_now) end = now_epoch_ns();
  if (!ask_twins(w)) {
    recording([&] {
      Pairs pairs;
      for (Py_ssize_t i = 2; i < n; i += 2) pairs.add(view_of(values[i]), values[i + 1]);
      emit(w, start, end, pairs.text());
    });
    if (DFT_UNLIKELY(PyErr_Occurred() != nullptr)) PyErr_Clear();
    if (raise_kept()) return nullptr;
  }
  return is_now ? PyLong_FromUnsignedLongLong(end) : new_ref(values[1]);
}

// write(start, end, args): the same with a dict.
PyObject* word_write(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  if (n != 3) {
    PyErr_SetString(PyExc_TypeError, "write() takes start, end and a dict");
    return nullptr;
  }
  Word* w = word_of(self);
  uint64_t start = clamp_ns(values[0]), end = clamp_ns(values[1]);
  if (ask_twins(w)) Py_RETURN_NONE;
  recording([&] {
    Args pairs;
    pairs.set_all(values[2]);
    pairs.set_text("\"auto\":", "1");
    emit(w, start, end, pairs.text());
  });
  PyErr_Clear();
  if (raise_kept()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* say_begins(PyObject* self, PyObject*) {
  word_begins(word_of(self));
  Py_RETURN_NONE;
}

PyObject* say_ends(PyObject* self, PyObject*) {
  word_ends(word_of(self));
  Py_RETURN_NONE;
}

PyObject* word_by_hand(PyObject* self, PyObject*) { return PyBool_FromLong(ask_twins(word_of(self))); }

PyObject* word_begin_anew(PyObject* self, PyObject*) {
  ask_twins(word_of(self));
  word_of(self)->silent = false;
  Py_RETURN_NONE;
}

bool all_nodes(PyObject* twins) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(twins); ++i) {
    if (PyObject_TypeCheck(PyTuple_GET_ITEM(twins, i), &g_node_type)) continue;
    PyErr_SetString(PyExc_TypeError, "a twin is a node");
    return false;
  }
  return true;
}

PyObject* word_twins(PyObject* self, void*) {
  Section section(self);
  return new_ref(word_of(self)->twins);
}

int word_set_twins(PyObject* self, PyObject* twins, void*) {
  if (!twins || !PyTuple_Check(twins)) {
    PyErr_SetString(PyExc_TypeError, "twins are a tuple of nodes");
    return -1;
  }
  if (!all_nodes(twins)) return -1;
  Section section(self);
  Py_SETREF(word_of(self)->twins, new_ref(twins));
  return 0;
}

PyObject* word_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *name, *cat, *twins;
  int phase = kNoPhase;
  static const char* names[] = {"name", "cat", "twins", "phase", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UUO!|i", const_cast<char**>(names), &name, &cat, &PyTuple_Type,
                                   &twins, &phase))
    return nullptr;
  if (!all_nodes(twins)) return nullptr;
  if (phase < kNoPhase || phase > kCheckpoint) {
    PyErr_SetString(PyExc_ValueError, "no such phase");
    return nullptr;
  }
  uint32_t name_id;
  if (!possible([&] { name_id = intern(view_of(name), view_of(cat)); })) return nullptr;
  auto* w = reinterpret_cast<Word*>(type->tp_alloc(type, 0));
  if (!w) return nullptr;
  w->name_id = name_id;
  w->twins = new_ref(twins);
  w->phase = Phase(phase);
  return reinterpret_cast<PyObject*>(w);
}

void word_dealloc(PyObject* self) {
  Word* w = word_of(self);
  Py_XDECREF(w->twins);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef g_word_methods[] = {
    {"log", reinterpret_cast<PyCFunction>(word_log), METH_FASTCALL, nullptr},
    {"write", reinterpret_cast<PyCFunction>(word_write), METH_FASTCALL, nullptr},
    {"begins", say_begins, METH_NOARGS, nullptr},
    {"ends", say_ends, METH_NOARGS, nullptr},
    {"by_hand", word_by_hand, METH_NOARGS, nullptr},
    {"begin_anew", word_begin_anew, METH_NOARGS, nullptr},
    {},
};

PyGetSetDef g_word_properties[] = {
    {"twins", word_twins, word_set_twins, nullptr, nullptr},
    {},
};

}  // namespace

bool init_words(PyObject* module) {
  PyTypeObject& t = g_word_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_new = word_new;
  t.tp_dealloc = word_dealloc;
  t.tp_methods = g_word_methods;
  t.tp_getset = g_word_properties;
  return PyType_Ready(&t) == 0 && add_type(module, "Word", &t);
}

}  // namespace dft::py
