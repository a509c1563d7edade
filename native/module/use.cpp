#include "module/use.hpp"

#include "module/activity.hpp"
#include "module/immediate.hpp"

namespace dft::py {
namespace {

PyObject* use_enter(PyObject* self, PyObject*) {
  auto* u = reinterpret_cast<Use*>(self);
  if (g_tracing && (u->on || recording_thread()))
    if (ThreadState* t = thread_in_context()) push_frame(t, u, muted_unless(u->on));
  return new_ref(self);
}

PyObject* use_exit(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  uint64_t end = ticks();
  auto* u = reinterpret_cast<Use*>(self);
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  Frame f;
  if (t && take_frame(t, u, 0, &f) && !(f.flags & kMuted))
    emit_merged(t, u->node, f, end, &u->args, error_fragment(nargs ? args[0] : Py_None));
  Py_RETURN_NONE;
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
    {"__enter__", use_enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(use_exit), METH_FASTCALL, nullptr},
    {"__aenter__", use_aenter, METH_NOARGS, nullptr},
    {"__aexit__", reinterpret_cast<PyCFunction>(use_aexit), METH_FASTCALL, nullptr},
    {"open", use_open, METH_NOARGS, nullptr},
    {},
};

PyGetSetDef g_use_getset[] = {{"node", get_node, nullptr, nullptr, nullptr}, {}};

}  // namespace

PyTypeObject g_use_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Use", sizeof(Use)};

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
  return PyType_Ready(&t) == 0 && add_type(module, "Use", &t);
}

}  // namespace dft::py
