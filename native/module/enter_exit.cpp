#include "module/enter_exit.hpp"

#include "format/json.hpp"

namespace dft::py {
namespace {

// What is not the common case stays out of the functions below, which would otherwise save registers for it.
__attribute__((noinline)) void enter_otherwise(Node* n) {
  const void* owner;
  if (!n->on && !recording_thread()) return;
  if (ThreadState* t = thread_in_context(&owner)) {
    ++n->uses;
    push_frame(t, n, muted_unless(n->on), owner);
  }
}

PyObject* enter_call(PyObject* self, PyObject* const*, size_t, PyObject*) {
  Node* n = reinterpret_cast<NodeMethod*>(self)->node;
  boundary(n->phase, true);
  const PyThreadState* python = PyThreadState_Get();
  ThreadState* t = tls_thread;
  if (DFT_LIKELY(t && n->on && t->generation == g_generation.load(std::memory_order_relaxed) &&
                 t->context == python->context && t->stack->size != t->stack->capacity)) {
    ++n->uses;
    push_frame(t, n, 0, running_frame(python));
  } else {
    enter_otherwise(n);
  }
  return new_ref(reinterpret_cast<PyObject*>(n));
}

__attribute__((noinline)) void exit_otherwise(Node* n, uint64_t end, PyObject* exception_type) {
  const void* owner;
  ThreadState* t = thread_in_context(&owner);
  Frame f;
  if (!t || !take_own_frame(t, n, owner, &f) || f.flags & kMuted) return;
  emit_span(t, n->name_id, f, end, fragment_of(n), error_fragment(exception_type));
  boundary(n->phase, false);
}

PyObject* exit_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject*) {
  uint64_t end = ticks();
  Node* n = reinterpret_cast<NodeMethod*>(self)->node;
  PyObject* exception_type = PyVectorcall_NARGS(nargsf) ? args[0] : Py_None;
  const PyThreadState* python = PyThreadState_Get();
  const void* owner = running_frame(python);
  ThreadState* t = tls_thread;
  if (DFT_LIKELY(
          t && exception_type == Py_None && t->context == python->context &&
          close_innermost(
              t, [=](const Frame& f) { return f.key == n && f.owner == owner; }, n->name_id, end, fragment_of(n)))) {
    boundary(n->phase, false);
  } else {
    exit_otherwise(n, end, exception_type);
  }
  Py_RETURN_NONE;
}

// Nodes created while tracing was off stay that cheap until it is switched on.
PyObject* off_enter_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  auto* b = reinterpret_cast<NodeMethod*>(self);
  if (DFT_LIKELY(!g_tracing)) return new_ref(reinterpret_cast<PyObject*>(b->node));
  b->call = enter_call;
  return enter_call(self, args, nargsf, names);
}

PyObject* off_exit_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  if (DFT_LIKELY(!g_tracing)) Py_RETURN_NONE;
  reinterpret_cast<NodeMethod*>(self)->call = exit_call;
  return exit_call(self, args, nargsf, names);
}

int node_method_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(reinterpret_cast<NodeMethod*>(self)->node));
  return 0;
}

int node_method_clear(PyObject* self) {
  // A call after this finds no node; only the collector gets here, when nothing can call it any more.
  auto* b = reinterpret_cast<NodeMethod*>(self);
  Node* n = b->node;
  b->node = nullptr;
  Py_XDECREF(reinterpret_cast<PyObject*>(n));
  return 0;
}

void node_method_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  node_method_clear(self);
  PyObject_GC_Del(self);
}

PyTypeObject g_node_method_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._NodeMethod", sizeof(NodeMethod)};

NodeMethod* make_node_method(Node* n, vectorcallfunc call) {
  NodeMethod* b = PyObject_GC_New(NodeMethod, &g_node_method_type);
  if (!b) return nullptr;
  b->call = call;
  b->node = n;
  Py_INCREF(reinterpret_cast<PyObject*>(n));
  PyObject_GC_Track(b);
  return b;
}

// The descriptor behind Node.__enter__ and Node.__exit__.
struct NodeMethodDescriptor {
  PyObject_HEAD
  bool is_enter;
};

PyObject* node_descriptor_get(PyObject* self, PyObject* object, PyObject*) {
  if (!object || object == Py_None) return new_ref(self);
  auto* n = reinterpret_cast<Node*>(object);
  return new_ref(
      reinterpret_cast<PyObject*>(reinterpret_cast<NodeMethodDescriptor*>(self)->is_enter ? n->enter : n->exit));
}

// Node.__enter__(node), as contextlib.ExitStack calls it: through the type.
PyObject* node_descriptor_call(PyObject* self, PyObject* args, PyObject*) {
  if (PyTuple_GET_SIZE(args) < 1 || !PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), &g_node_type)) {
    PyErr_SetString(PyExc_TypeError, "expected a Node");
    return nullptr;
  }
  auto* n = reinterpret_cast<Node*>(PyTuple_GET_ITEM(args, 0));
  auto* b = reinterpret_cast<NodeMethodDescriptor*>(self)->is_enter ? n->enter : n->exit;
  Ref rest(PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)));
  return rest ? PyObject_Call(reinterpret_cast<PyObject*>(b), rest.get(), nullptr) : nullptr;
}

PyTypeObject g_node_descriptor_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._NodeMethodDescriptor",
                                       sizeof(NodeMethodDescriptor)};

PyObject* make_node_descriptor(bool is_enter) {
  NodeMethodDescriptor* p = PyObject_New(NodeMethodDescriptor, &g_node_descriptor_type);
  if (!p) return nullptr;
  p->is_enter = is_enter;
  free_never(reinterpret_cast<PyObject*>(p));
  return reinterpret_cast<PyObject*>(p);
}

}  // namespace

NodeMethod* make_enter(Node* n) { return make_node_method(n, g_tracing ? enter_call : off_enter_call); }
NodeMethod* make_exit(Node* n) { return make_node_method(n, g_tracing ? exit_call : off_exit_call); }

std::string error_fragment(PyObject* exception_type) {
  std::string out;
  if (!exception_type || exception_type == Py_None) return out;
  formatting([&] {
    out = ",\"error\":";
    if (PyExceptionClass_Check(exception_type)) {
      const char* name = PyExceptionClass_Name(exception_type);
      const char* dot = strrchr(name, '.');
      append_json_string(out, dot ? dot + 1 : name);
    } else {
      out += "\"exception\"";
    }
  });
  return out;
}

bool add_enter_and_exit(PyObject* type_dict) {
  g_node_method_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  g_node_method_type.tp_vectorcall_offset = offsetof(NodeMethod, call);
  g_node_method_type.tp_call = PyVectorcall_Call;
  g_node_method_type.tp_traverse = node_method_traverse;
  g_node_method_type.tp_clear = node_method_clear;
  g_node_method_type.tp_dealloc = node_method_dealloc;
  g_node_descriptor_type.tp_flags = Py_TPFLAGS_DEFAULT;
  g_node_descriptor_type.tp_descr_get = node_descriptor_get;
  g_node_descriptor_type.tp_call = node_descriptor_call;
  if (PyType_Ready(&g_node_method_type) < 0 || PyType_Ready(&g_node_descriptor_type) < 0) return false;
  Ref enter(make_node_descriptor(true)), exit(make_node_descriptor(false));
  return enter && exit && PyDict_SetItemString(type_dict, "__enter__", enter.get()) == 0 &&
         PyDict_SetItemString(type_dict, "__exit__", exit.get()) == 0;
}

}  // namespace dft::py
