#include "module/wrapped.hpp"

#include "module/node_use.hpp"

// Private, but exported by every supported CPython: a lookup that neither runs __getattr__ nor builds an error. Not all
// of them declare it.
// NOLINTNEXTLINE(readability-redundant-declaration)
extern "C" PyObject* _PyObject_GenericGetAttrWithDict(PyObject*, PyObject*, PyObject*, int);

namespace dft::py {
namespace {

// One of epoch, step, image_idx, image_size as a parameter of the function.
struct Parameter {
  PyObject* name;      // interned
  Py_ssize_t index;    // -1: keyword only
  PyObject* fallback;  // default, null when there is none
  std::string key;
};

struct Wrapped {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* function;
  PyObject* span;  // null: `body` does the tracing (generators, coroutines)
  PyObject* body;
  PyObject* dict;
  PyObject* weakrefs;
  std::vector<Parameter>* parameters;
  bool self_attributes;
};

PyTypeObject g_wrapped_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Wrapped", sizeof(Wrapped)};
PyObject* g_special_names[4];
std::string g_special_keys[4];

PyObject* actual_argument(const Parameter& p, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (p.index >= 0 && p.index < nargs) return args[p.index];
  if (kwnames) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); ++i) {
      PyObject* key = PyTuple_GET_ITEM(kwnames, i);
      if (key == p.name || PyUnicode_Compare(key, p.name) == 0) return args[nargs + i];
    }
  }
  return p.fallback;
}

void add_attributes_of(PyObject* self, Args& out) {
  for (int i = 0; i < 4; ++i) {
    Ref value(_PyObject_GenericGetAttrWithDict(self, g_special_names[i], nullptr, 1));
    if (!value) {
      forgive();
    } else if (value.get() != Py_None && !PyCallable_Check(value.get())) {
      out.set(g_special_keys[i], value.get());
    }
  }
}

Args call_args(Wrapped* w, const Span& span, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Args out;
  KeepError keep;
  formatting([&] {
    if (w->self_attributes && nargs) add_attributes_of(args[0], out);
    if (w->parameters) {
      for (const Parameter& p : *w->parameters) {
        PyObject* value = actual_argument(p, args, nargs, kwnames);
        if (value && value != Py_None && !PyCallable_Check(value)) out.set(p.key, value);
      }
    }
    if (!span.extra) return;
    Section section(w->span);
    for (size_t i = 0; i < span.extra->size(); ++i) out.set_text(span.extra->key(i), span.extra->value(i));
  });
  return out;
}

PyObject* wrapped_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* w = reinterpret_cast<Wrapped*>(self);
  Span span;
  span_of(w->span, &span);
  ThreadState* t = DFT_LIKELY(span.on || recording_thread()) ? thread_in_context() : nullptr;
  if (!t) return PyObject_Vectorcall(w->function, args, nargsf, kwnames);
  bool plain = !w->parameters && !w->self_attributes;
  Args own;
  if (!plain && span.on) {
    own = call_args(w, span, args, PyVectorcall_NARGS(nargsf), kwnames);
    if (raise_kept()) return nullptr;
  }
  ++span.node->uses;
  boundary(span.node->phase, true);
  uint64_t id = push_frame(t, span.key, muted_unless(span.on))->id;
  PyObject* result = PyObject_Vectorcall(w->function, args, nargsf, kwnames);
  uint64_t end = ticks();
  t = thread_in_context();  // the call may have ended the session, or begun another
  Frame f;
  if (t) boundary(span.node->phase, false);
  if (DFT_UNLIKELY(!t || !take_opened_frame(t, span.key, id, &f) || f.flags & kMuted)) return result;
  if (DFT_LIKELY(plain && result && !span.extra)) {
    emit_span(t, span.node->name_id, f, end, fragment_of(span.node));
  } else {
    Section section(w->span);
    emit_merged(t, span.node, f, end, plain ? span.extra : &own,
                result ? std::string() : error_fragment(PyErr_Occurred()));
  }
  return result;
}

PyObject* forward_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  return PyObject_Vectorcall(reinterpret_cast<Wrapped*>(self)->body, args, nargsf, kwnames);
}

PyObject* wrapped_get(PyObject* self, PyObject* object, PyObject*) {
  if (!object || object == Py_None) return new_ref(self);
  return PyMethod_New(self, object);
}

PyObject* wrapped_getattro(PyObject* self, PyObject* name) {
  PyObject* found = _PyObject_GenericGetAttrWithDict(self, name, nullptr, 1);
  if (found || PyErr_Occurred()) return found;
  // __code__, __defaults__, __globals__, and whatever else was set on the function.
  return PyObject_GetAttr(reinterpret_cast<Wrapped*>(self)->function, name);
}

PyObject* get_class(PyObject* self, void*) {
  return new_ref(reinterpret_cast<PyObject*>(Py_TYPE(reinterpret_cast<Wrapped*>(self)->function)));
}

// Pickled by name, as functions are.
PyObject* wrapped_reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

PyObject* wrapped_repr(PyObject* self) { return PyObject_Repr(reinterpret_cast<Wrapped*>(self)->function); }

int wrapped_traverse(PyObject* self, visitproc visit, void* arg) {
  auto* w = reinterpret_cast<Wrapped*>(self);
  Py_VISIT(w->function);
  Py_VISIT(w->span);
  Py_VISIT(w->body);
  Py_VISIT(w->dict);
  return 0;
}

int wrapped_clear(PyObject* self) {
  auto* w = reinterpret_cast<Wrapped*>(self);
  Py_CLEAR(w->dict);
  return 0;
}

void wrapped_dealloc(PyObject* self) {
  auto* w = reinterpret_cast<Wrapped*>(self);
  PyObject_GC_UnTrack(self);
  if (w->weakrefs) PyObject_ClearWeakRefs(self);
  Py_CLEAR(w->dict);
  Py_CLEAR(w->function);
  Py_CLEAR(w->span);
  Py_CLEAR(w->body);
  if (w->parameters) {
    for (Parameter& p : *w->parameters) {
      Py_XDECREF(p.name);
      Py_XDECREF(p.fallback);
    }
    delete w->parameters;
  }
  PyObject_GC_Del(self);
}

PyMethodDef g_wrapped_methods[] = {
    {"__reduce__", wrapped_reduce, METH_NOARGS, nullptr},
    {},
};

PyGetSetDef g_wrapped_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {"__class__", get_class, nullptr, nullptr, nullptr},
    {},
};

// ((name, index, default, has_default), ...)
bool read_parameters(PyObject* spec, std::vector<Parameter>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(spec); ++i) {
    PyObject *name, *fallback;
    Py_ssize_t index;
    int has_default;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(spec, i), "OnOp", &name, &index, &fallback, &has_default)) return false;
    out->push_back({new_ref(name), index, has_default ? new_ref(fallback) : nullptr, key_text(name)});
  }
  return true;
}

Wrapped* make_wrapped(PyObject* function, PyObject* attributes, vectorcallfunc call) {
  Wrapped* w = PyObject_GC_New(Wrapped, &g_wrapped_type);
  if (!w) return nullptr;
  w->call = call;
  w->function = new_ref(function);
  w->span = w->body = nullptr;
  w->dict = PyDict_Copy(attributes);
  w->weakrefs = nullptr;
  w->parameters = nullptr;
  w->self_attributes = false;
  PyObject_GC_Track(w);
  return w;
}

}  // namespace

PyObject* disguise(PyObject*, PyObject* args) {
  PyObject *function, *body, *attributes;
  if (!PyArg_ParseTuple(args, "OOO!", &function, &body, &PyDict_Type, &attributes)) return nullptr;
  Wrapped* w = make_wrapped(function, attributes, forward_call);
  if (w) w->body = new_ref(body);
  return reinterpret_cast<PyObject*>(w);
}

PyObject* wrap(PyObject*, PyObject* args) {
  PyObject *span, *function, *spec, *attributes;
  int self_attributes;
  if (!PyArg_ParseTuple(args, "OOOpO!", &span, &function, &spec, &self_attributes, &PyDict_Type, &attributes))
    return nullptr;
  Span checked;
  if (!span_of(span, &checked)) return nullptr;
  Wrapped* w = make_wrapped(function, attributes, wrapped_call);
  if (!w) return nullptr;
  w->span = new_ref(span);
  w->self_attributes = self_attributes;
  if (PyTuple_Check(spec) && PyTuple_GET_SIZE(spec)) {
    bool read = false;
    if (!possible([&] {
          w->parameters = new std::vector<Parameter>;
          read = read_parameters(spec, w->parameters);
        }) ||
        !read) {
      Py_DECREF(w);
      return nullptr;
    }
  }
  return reinterpret_cast<PyObject*>(w);
}

PyObject* set_traceable_call(PyObject*, PyObject* function) {
  if (PyDict_SetItemString(g_wrapped_type.tp_dict, "__call__", function) < 0) return nullptr;
  PyType_Modified(&g_wrapped_type);
  Py_RETURN_NONE;
}

bool init_wrapped(PyObject* module) {
  static const char* names[] = {"epoch", "step", "image_idx", "image_size"};
  for (int i = 0; i < 4; ++i) {
    g_special_names[i] = PyUnicode_InternFromString(names[i]);
    g_special_keys[i] = key_text(g_special_names[i]);
  }
  PyTypeObject& t = g_wrapped_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  t.tp_vectorcall_offset = offsetof(Wrapped, call);
  t.tp_call = PyVectorcall_Call;
  t.tp_dictoffset = offsetof(Wrapped, dict);
  t.tp_weaklistoffset = offsetof(Wrapped, weakrefs);
  t.tp_getattro = wrapped_getattro;
  t.tp_setattro = PyObject_GenericSetAttr;
  t.tp_descr_get = wrapped_get;
  t.tp_traverse = wrapped_traverse;
  t.tp_clear = wrapped_clear;
  t.tp_dealloc = wrapped_dealloc;
  t.tp_repr = wrapped_repr;
  t.tp_methods = g_wrapped_methods;
  t.tp_getset = g_wrapped_getset;
  return PyType_Ready(&t) == 0 && add_type(module, "Wrapped", &t);
}

}  // namespace dft::py
