#include "module/use.hpp"

#include "module/activity.hpp"
#include "module/immediate.hpp"

namespace dft::py {

PyTypeObject g_use_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Use", sizeof(Use)};

namespace {

PyObject* use_enter(PyObject* self, PyObject*) {
  auto* u = reinterpret_cast<Use*>(self);
  if (g_tracing) boundary(u->node->phase, true);
  if (g_tracing && (u->on || recording_thread()))
    if (ThreadState* t = thread_in_context()) {
      ++u->node->uses;
      push_frame(t, u, muted_unless(u->on));
    }
  return new_ref(self);
}

PyObject* use_exit(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  uint64_t end = ticks();
  auto* u = reinterpret_cast<Use*>(self);
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  Frame f;
  if (t && take_frame(t, u, 0, &f) && !(f.flags & kMuted))
    emit_merged(t, u->node, f, end, &u->args, error_fragment(nargs ? args[0] : Py_None));
  if (t) boundary(u->node->phase, false);
  Py_RETURN_NONE;
}

// `use.__enter__` and `use.__exit__` of a `with` live for one call each: they come from a small stock.
struct BoundUse {
  PyObject_HEAD
  vectorcallfunc call;
  Use* use;
};

constexpr int kStock = 16;
BoundUse* g_stock[kStock];
int g_stocked = 0;

PyTypeObject g_bound_use_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._BoundUse", sizeof(BoundUse)};

PyObject* enter_call(PyObject* self, PyObject* const*, size_t, PyObject*) {
  return use_enter(reinterpret_cast<PyObject*>(reinterpret_cast<BoundUse*>(self)->use), nullptr);
}

PyObject* exit_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject*) {
  return use_exit(reinterpret_cast<PyObject*>(reinterpret_cast<BoundUse*>(self)->use), args,
                  PyVectorcall_NARGS(nargsf));
}

PyObject* make_bound_use(Use* use, vectorcallfunc call) {
  BoundUse* b;
  if (g_stocked) {
    b = g_stock[--g_stocked];
    PyObject_Init(reinterpret_cast<PyObject*>(b), &g_bound_use_type);
  } else {
    b = PyObject_New(BoundUse, &g_bound_use_type);
    if (!b) return nullptr;
  }
  b->call = call;
  b->use = reinterpret_cast<Use*>(new_ref(reinterpret_cast<PyObject*>(use)));
  return reinterpret_cast<PyObject*>(b);
}

void bound_use_dealloc(PyObject* self) {
  auto* b = reinterpret_cast<BoundUse*>(self);
  Py_DECREF(reinterpret_cast<PyObject*>(b->use));
  if (g_stocked < kStock) {
    g_stock[g_stocked++] = b;
  } else {
    PyObject_Free(self);
  }
}

// The descriptor behind Use.__enter__ and Use.__exit__.
struct UseMethod {
  PyObject_HEAD
  vectorcallfunc call;
};

PyObject* use_method_get(PyObject* self, PyObject* object, PyObject*) {
  if (!object || object == Py_None) return new_ref(self);
  return make_bound_use(reinterpret_cast<Use*>(object), reinterpret_cast<UseMethod*>(self)->call);
}

// Use.__enter__(use), as contextlib.ExitStack calls it: through the type.
PyObject* use_method_call(PyObject* self, PyObject* args, PyObject*) {
  if (PyTuple_GET_SIZE(args) < 1 || Py_TYPE(PyTuple_GET_ITEM(args, 0)) != &g_use_type) {
    PyErr_SetString(PyExc_TypeError, "a Use is needed");
    return nullptr;
  }
  Ref bound(use_method_get(self, PyTuple_GET_ITEM(args, 0), nullptr));
  Ref rest(PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)));
  return bound && rest ? PyObject_Call(bound.get(), rest.get(), nullptr) : nullptr;
}

PyTypeObject g_use_method_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._UseMethod", sizeof(UseMethod)};

bool add_use_method(const char* name, vectorcallfunc call) {
  UseMethod* m = PyObject_New(UseMethod, &g_use_method_type);
  if (!m) return false;
  m->call = call;
  Ref owned(reinterpret_cast<PyObject*>(m));
  return PyDict_SetItemString(g_use_type.tp_dict, name, owned.get()) == 0;
}

PyObject* use_aenter(PyObject* self, PyObject*) { return immediate(use_enter(self, nullptr)); }

PyObject* use_aexit(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  return immediate(use_exit(self, args, nargs));
}

PyObject* use_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) == 0 && !(kwargs && PyDict_GET_SIZE(kwargs))) return new_ref(self);
  if (PyTuple_GET_SIZE(args) != 1 || (kwargs && PyDict_GET_SIZE(kwargs))) {
    PyErr_SetString(PyExc_TypeError, "expected one function to decorate");
    return nullptr;
  }
  return decorate(self, PyTuple_GET_ITEM(args, 0));
}

PyObject* use_open(PyObject* self, PyObject*) {
  auto* u = reinterpret_cast<Use*>(self);
  return make_activity(u->node, u->args, u->on);
}

PyObject* get_node(PyObject* self, void*) {
  return new_ref(reinterpret_cast<PyObject*>(reinterpret_cast<Use*>(self)->node));
}

void use_dealloc(PyObject* self) {
  auto* u = reinterpret_cast<Use*>(self);
  Py_XDECREF(reinterpret_cast<PyObject*>(u->node));
  u->args.~Args();
  PyObject_Free(self);
}

PyMethodDef g_use_methods[] = {
    {"__aenter__", use_aenter, METH_NOARGS, nullptr},
    {"__aexit__", reinterpret_cast<PyCFunction>(use_aexit), METH_FASTCALL, nullptr},
    {"open", use_open, METH_NOARGS, nullptr},
    {},
};

PyGetSetDef g_use_getset[] = {{"node", get_node, nullptr, nullptr, nullptr}, {}};

}  // namespace

PyObject* make_use(Node* node, PyObject* kwargs) {
  UseOptions options;
  if (!parse_options(kwargs, &options, true)) return nullptr;
  Use* u = PyObject_New(Use, &g_use_type);
  if (!u) return nullptr;
  u->node = reinterpret_cast<Node*>(new_ref(reinterpret_cast<PyObject*>(node)));
  new (&u->args) Args(std::move(options.args));
  u->on = options.enable < 0 ? node->on : options.enable != 0;
  return reinterpret_cast<PyObject*>(u);
}

bool span_of(PyObject* object, Span* out) {
  if (Py_TYPE(object) == &g_use_type) {
    auto* u = reinterpret_cast<Use*>(object);
    *out = {u->node, &u->args, u, u->on};
    return true;
  }
  if (PyObject_TypeCheck(object, &g_node_type)) {
    auto* n = reinterpret_cast<Node*>(object);
    *out = {n, nullptr, n, n->on};
    return true;
  }
  PyErr_SetString(PyExc_TypeError, "expected a Node or a Use");
  return false;
}

void emit_merged(ThreadState* t, Node* node, const Frame& f, uint64_t end, const Args* extra, std::string_view tail) {
  const Args& own = args_of(node);
  if (!extra || extra->empty()) {
    emit_span(t, node->name_id, f, end, own.text(), tail);
    return;
  }
  bool replaced = false;
  for (size_t i = 0; i < own.size(); ++i) replaced |= extra->has(own.key(i));
  if (!replaced) {
    emit_span(t, node->name_id, f, end, own.text(), extra->text(), tail);
    return;
  }
  Args kept;
  for (size_t i = 0; i < own.size(); ++i)
    if (!extra->has(own.key(i))) kept.set_text(own.key(i), own.value(i));
  emit_span(t, node->name_id, f, end, kept.text(), extra->text(), tail);
}

bool init_uses(PyObject* module) {
  PyTypeObject& t = g_use_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_dealloc = use_dealloc;
  t.tp_call = use_call;
  t.tp_methods = g_use_methods;
  t.tp_getset = g_use_getset;
  g_bound_use_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  g_bound_use_type.tp_vectorcall_offset = offsetof(BoundUse, call);
  g_bound_use_type.tp_call = PyVectorcall_Call;
  g_bound_use_type.tp_dealloc = bound_use_dealloc;
  g_use_method_type.tp_flags = Py_TPFLAGS_DEFAULT;
  g_use_method_type.tp_descr_get = use_method_get;
  g_use_method_type.tp_call = use_method_call;
  if (PyType_Ready(&g_bound_use_type) < 0 || PyType_Ready(&g_use_method_type) < 0 || PyType_Ready(&t) < 0) return false;
  if (!add_use_method("__enter__", enter_call) || !add_use_method("__exit__", exit_call)) return false;
  PyType_Modified(&t);
  return add_type(module, "Use", &t);
}

}  // namespace dft::py
