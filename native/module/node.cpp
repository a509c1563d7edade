#include "module/node.hpp"

#include <structmember.h>

#include "module/activity.hpp"
#include "module/use.hpp"

namespace dft::py {

uint64_t g_args_version = 1;
bool g_tracing = false;

namespace {

PyObject* g_decorator = nullptr;
uint64_t g_args_clock = 0;

// Enter and exit ------------------------------------------------------------------------------

PyObject* enter_call(PyObject* self, PyObject* const*, size_t, PyObject*) {
  Node* n = reinterpret_cast<Bound*>(self)->node;
  if (DFT_LIKELY(n->on || recording_thread()))
    if (ThreadState* t = thread_in_context()) push_frame(t, n, muted_unless(n->on));
  return new_ref(reinterpret_cast<PyObject*>(n));
}

bool close_span(Node* n, uint32_t must_flags, PyObject* exception_type) {
  uint64_t end = ticks();
  ThreadState* t = thread_in_context();
  if (!t) return false;
  Frame f;
  if (DFT_UNLIKELY(!take_frame(t, n, must_flags, &f))) return false;
  if (DFT_UNLIKELY(f.flags & kMuted)) return true;
  if (DFT_LIKELY(exception_type == Py_None)) {
    emit_span(t, n->name_id, f, end, fragment_of(n));
  } else {
    emit_span(t, n->name_id, f, end, fragment_of(n), error_fragment(exception_type));
  }
  return true;
}

PyObject* exit_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject*) {
  close_span(reinterpret_cast<Bound*>(self)->node, 0, PyVectorcall_NARGS(nargsf) ? args[0] : Py_None);
  Py_RETURN_NONE;
}

PyObject* off_enter_call(PyObject* self, PyObject* const*, size_t, PyObject*) {
  return new_ref(reinterpret_cast<PyObject*>(reinterpret_cast<Bound*>(self)->node));
}

PyObject* off_exit_call(PyObject*, PyObject* const*, size_t, PyObject*) { Py_RETURN_NONE; }

int bound_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(reinterpret_cast<Bound*>(self)->node));
  return 0;
}

int bound_clear(PyObject* self) {
  // A call after this finds no node; only the collector gets here, when nobody can call any more.
  auto* b = reinterpret_cast<Bound*>(self);
  Node* n = b->node;
  b->node = nullptr;
  Py_XDECREF(reinterpret_cast<PyObject*>(n));
  return 0;
}

void bound_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  bound_clear(self);
  PyObject_GC_Del(self);
}

PyTypeObject g_bound_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._Bound", sizeof(Bound)};

Bound* make_bound(Node* n, vectorcallfunc call) {
  Bound* b = PyObject_GC_New(Bound, &g_bound_type);
  if (!b) return nullptr;
  b->call = call;
  b->node = n;
  Py_INCREF(reinterpret_cast<PyObject*>(n));
  PyObject_GC_Track(b);
  return b;
}

// The descriptor behind Node.__enter__ and Node.__exit__.
struct Prebound {
  PyObject_HEAD
  bool is_enter;
};

PyObject* prebound_get(PyObject* self, PyObject* object, PyObject*) {
  if (!object || object == Py_None) return new_ref(self);
  auto* n = reinterpret_cast<Node*>(object);
  return new_ref(reinterpret_cast<PyObject*>(reinterpret_cast<Prebound*>(self)->is_enter ? n->enter : n->exit));
}

// Node.__enter__(node), as contextlib.ExitStack calls it: through the type.
PyObject* prebound_call(PyObject* self, PyObject* args, PyObject*) {
  if (PyTuple_GET_SIZE(args) < 1 || !PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), &g_node_type)) {
    PyErr_SetString(PyExc_TypeError, "a Node is needed");
    return nullptr;
  }
  auto* n = reinterpret_cast<Node*>(PyTuple_GET_ITEM(args, 0));
  auto* b = reinterpret_cast<Prebound*>(self)->is_enter ? n->enter : n->exit;
  Ref rest(PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)));
  return rest ? PyObject_Call(reinterpret_cast<PyObject*>(b), rest.get(), nullptr) : nullptr;
}

PyTypeObject g_prebound_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._Prebound", sizeof(Prebound)};

PyObject* make_prebound(bool is_enter) {
  Prebound* p = PyObject_New(Prebound, &g_prebound_type);
  if (p) p->is_enter = is_enter;
  return reinterpret_cast<PyObject*>(p);
}

// Life ----------------------------------------------------------------------------------------

PyObject* node_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* n = reinterpret_cast<Node*>(type->tp_alloc(type, 0));
  if (!n) return nullptr;
  n->children = new std::vector<Node*>;
  n->args = new NodeArgs;
  n->on = true;
  n->enter = make_bound(n, g_tracing ? enter_call : off_enter_call);
  n->exit = make_bound(n, g_tracing ? exit_call : off_exit_call);
  if (!n->enter || !n->exit) {
    Py_DECREF(n);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(n);
}

int node_init(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* keys[] = {"name", "cat", "parent", nullptr};
  PyObject *name, *cat, *parent = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O", const_cast<char**>(keys), &name, &cat, &parent)) return -1;
  if (parent != Py_None && !PyObject_TypeCheck(parent, &g_node_type)) {
    PyErr_SetString(PyExc_TypeError, "parent must be a Node or None");
    return -1;
  }
  auto* n = reinterpret_cast<Node*>(self);
  std::string name_text = text_of(name), cat_text = text_of(cat);
  PyObject* old_name = n->name;
  PyObject* old_cat = n->cat;
  n->name = PyUnicode_DecodeUTF8(name_text.data(), Py_ssize_t(name_text.size()), "replace");
  n->cat = PyUnicode_DecodeUTF8(cat_text.data(), Py_ssize_t(cat_text.size()), "replace");
  Py_XDECREF(old_name);
  Py_XDECREF(old_cat);
  n->name_id = intern(name_text, cat_text);
  if (parent != Py_None && !n->parent) {
    n->parent = reinterpret_cast<Node*>(new_ref(parent));
    n->parent->children->push_back(n);
    n->on = n->parent->on;
  }
  return n->name && n->cat ? 0 : -1;
}

int node_traverse(PyObject* self, visitproc visit, void* arg) {
  auto* n = reinterpret_cast<Node*>(self);
  Py_VISIT(reinterpret_cast<PyObject*>(n->parent));
  Py_VISIT(reinterpret_cast<PyObject*>(n->enter));
  Py_VISIT(reinterpret_cast<PyObject*>(n->exit));
  return 0;
}

void leave_parent(Node* n) {
  if (!n->parent) return;
  std::erase(*n->parent->children, n);
  Node* p = n->parent;
  n->parent = nullptr;
  Py_DECREF(reinterpret_cast<PyObject*>(p));
}

int node_clear(PyObject* self) {
  auto* n = reinterpret_cast<Node*>(self);
  leave_parent(n);
  Bound *enter = n->enter, *exit = n->exit;
  n->enter = n->exit = nullptr;
  Py_XDECREF(reinterpret_cast<PyObject*>(enter));
  Py_XDECREF(reinterpret_cast<PyObject*>(exit));
  return 0;
}

void node_dealloc(PyObject* self) {
  auto* n = reinterpret_cast<Node*>(self);
  PyObject_GC_UnTrack(self);
  if (n->weakrefs) PyObject_ClearWeakRefs(self);
  node_clear(self);
  Py_XDECREF(n->name);
  Py_XDECREF(n->cat);
  delete n->children;
  delete n->args;
  Py_TYPE(self)->tp_free(self);
}

// Args ----------------------------------------------------------------------------------------

void set_args(Node* n, std::vector<Arg> args) {
  if (args.empty()) return;
  for (Arg& a : args) {
    bool known = false;
    for (OwnArg& own : n->args->own) {
      if (own.arg.key != a.key) continue;
      own.arg.value = std::move(a.value);
      own.when = ++g_args_clock;
      known = true;
      break;
    }
    if (!known) n->args->own.push_back({std::move(a), ++g_args_clock});
  }
  ++g_args_version;
}

PyObject* node_update(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"epoch", "step", "image_idx", "image_size", "args"};
  if (!g_tracing) return new_ref(self);
  Py_ssize_t given = PyTuple_GET_SIZE(args);
  if (given > 5) {
    PyErr_SetString(PyExc_TypeError, "update() takes epoch, step, image_idx, image_size and args");
    return nullptr;
  }
  Ref all(kwargs ? PyDict_Copy(kwargs) : PyDict_New());
  if (!all) return nullptr;
  for (Py_ssize_t i = 0; i < given; ++i) PyDict_SetItemString(all.get(), names[i], PyTuple_GET_ITEM(args, i));
  UseOptions options;
  if (!parse_options(all.get(), &options, false)) return nullptr;
  set_args(reinterpret_cast<Node*>(self), std::move(options.args));
  return new_ref(self);
}

PyObject* node_set_args(PyObject* self, PyObject* mapping) {
  std::vector<Arg> args;
  collect_args(args, mapping);
  set_args(reinterpret_cast<Node*>(self), std::move(args));
  Py_RETURN_NONE;
}

PyObject* node_clear_args(PyObject* self, PyObject*) {
  reinterpret_cast<Node*>(self)->args->own.clear();
  ++g_args_version;
  Py_RETURN_NONE;
}

// Switches, start/stop, uses --------------------------------------------------------------------

void set_enabled(Node* n, bool on) {
  n->on = on;
  for (Node* child : *n->children) set_enabled(child, on);
}

PyObject* node_set_enabled(PyObject* self, PyObject* flag) {
  int on = PyObject_IsTrue(flag);
  if (on < 0) return nullptr;
  set_enabled(reinterpret_cast<Node*>(self), on);
  Py_RETURN_NONE;
}

PyObject* node_start(PyObject* self, PyObject*) {
  auto* n = reinterpret_cast<Node*>(self);
  if (!g_tracing || !(n->on || recording_thread())) Py_RETURN_NONE;
  if (ThreadState* t = thread_in_context()) {
    Frame forgotten;
    take_frame(t, n, kStarted, &forgotten);  // a start() without stop() is simply restarted
    push_frame(t, n, kStarted | muted_unless(n->on));
  }
  Py_RETURN_NONE;
}

PyObject* node_stop(PyObject* self, PyObject*) {
  if (g_tracing) close_span(reinterpret_cast<Node*>(self), kStarted, Py_None);
  Py_RETURN_NONE;
}

PyObject* node_close(PyObject* self, PyObject*) {
  return PyBool_FromLong(g_tracing && close_span(reinterpret_cast<Node*>(self), 0, Py_None));
}

PyObject* node_open(PyObject* self, PyObject* args) {
  PyObject* mapping = Py_None;
  if (!PyArg_ParseTuple(args, "|O", &mapping)) return nullptr;
  UseOptions options;
  collect_args(options.args, mapping);
  auto* n = reinterpret_cast<Node*>(self);
  return make_activity(n, std::move(options.args), n->on);
}

// node(fn): decorate. node(args=..., enable=...): one use.
PyObject* node_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  Py_ssize_t given = PyTuple_GET_SIZE(args);
  bool options_given = kwargs && PyDict_GET_SIZE(kwargs);
  if (given == 1 && PyTuple_GET_ITEM(args, 0) != Py_None) {
    if (!options_given) return decorate(self, PyTuple_GET_ITEM(args, 0));
    Ref use(make_use(reinterpret_cast<Node*>(self), kwargs));
    return use ? decorate(use.get(), PyTuple_GET_ITEM(args, 0)) : nullptr;
  }
  if (given > 1) {
    PyErr_SetString(PyExc_TypeError, "expected one function to decorate, or keyword arguments");
    return nullptr;
  }
  return make_use(reinterpret_cast<Node*>(self), kwargs);
}

PyObject* get_enabled(PyObject* self, void*) {
  return PyBool_FromLong(g_tracing && reinterpret_cast<Node*>(self)->on);
}

PyObject* node_repr(PyObject* self) {
  auto* n = reinterpret_cast<Node*>(self);
  return PyUnicode_FromFormat("<%s %R of %R>", Py_TYPE(self)->tp_name, n->name, n->cat);
}

PyMethodDef g_node_methods[] = {
    {"update", reinterpret_cast<PyCFunction>(node_update), METH_VARARGS | METH_KEYWORDS,
     "Set the current args of this node and all below it."},
    {"set_args", node_set_args, METH_O, nullptr},
    {"clear_args", node_clear_args, METH_NOARGS, nullptr},
    {"set_enabled", node_set_enabled, METH_O, nullptr},
    {"start", node_start, METH_NOARGS, nullptr},
    {"stop", node_stop, METH_NOARGS, nullptr},
    {"close", node_close, METH_NOARGS, "End the newest open event of this node now; False if there is none."},
    {"open", node_open, METH_VARARGS, nullptr},
    {},
};

PyMemberDef g_node_members[] = {
    {"name", T_OBJECT_EX, offsetof(Node, name), READONLY, nullptr},
    {"cat", T_OBJECT_EX, offsetof(Node, cat), READONLY, nullptr},
    {},
};

PyGetSetDef g_node_getset[] = {{"enabled", get_enabled, nullptr, nullptr, nullptr}, {}};

}  // namespace

PyTypeObject g_node_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Node", sizeof(Node)};

void rebuild_args(Node* n) {
  NodeArgs& a = *n->args;
  a.merged.clear();
  // From the root down; a key set further down wins only if it was set later.
  std::vector<Node*> path;
  for (Node* p = n; p; p = p->parent) path.push_back(p);
  std::vector<uint64_t> when;
  for (size_t i = path.size(); i-- > 0;) {
    for (const OwnArg& own : path[i]->args->own) {
      size_t k = 0;
      while (k < a.merged.size() && a.merged[k].key != own.arg.key) ++k;
      if (k == a.merged.size()) {
        a.merged.push_back(own.arg);
        when.push_back(own.when);
      } else if (own.when > when[k]) {
        a.merged[k].value = own.arg.value;
        when[k] = own.when;
      }
    }
  }
  a.fragment.clear();
  append_fragment(a.fragment, a.merged);
  a.version = g_args_version;
}

std::string error_fragment(PyObject* exception_type) {
  if (!exception_type || exception_type == Py_None) return {};
  std::string out = ",\"error\":";
  if (PyExceptionClass_Check(exception_type)) {
    const char* name = PyExceptionClass_Name(exception_type);
    const char* dot = strrchr(name, '.');
    append_value(out, Ref(PyUnicode_FromString(dot ? dot + 1 : name)).get());
  } else {
    out += "\"exception\"";
  }
  return out;
}

bool parse_options(PyObject* kwargs, UseOptions* out, bool allow_enable) {
  if (!kwargs) return true;
  PyObject *key, *value;
  Py_ssize_t at = 0;
  PyObject* args = nullptr;
  while (PyDict_Next(kwargs, &at, &key, &value)) {
    if (PyUnicode_CompareWithASCIIString(key, "args") == 0) {
      args = value;
    } else if (allow_enable && PyUnicode_CompareWithASCIIString(key, "enable") == 0) {
      if (value != Py_None) out->enable = PyObject_IsTrue(value) > 0;
      PyErr_Clear();
    } else if (PyUnicode_CompareWithASCIIString(key, "epoch") == 0 ||
               PyUnicode_CompareWithASCIIString(key, "step") == 0 ||
               PyUnicode_CompareWithASCIIString(key, "image_idx") == 0 ||
               PyUnicode_CompareWithASCIIString(key, "image_size") == 0) {
      if (value == Py_None) continue;
      std::string text;
      Py_INCREF(value);
      append_value(text, value);
      Py_DECREF(value);
      put_arg(out->args, key_text(key), std::move(text));
    } else {
      PyErr_Format(PyExc_TypeError, "unexpected keyword argument %R", key);
      return false;
    }
  }
  if (args) {
    Py_INCREF(args);
    collect_args(out->args, args);
    Py_DECREF(args);
  }
  return true;
}

PyObject* set_decorator(PyObject*, PyObject* callable) {
  PyObject* old = g_decorator;
  g_decorator = new_ref(callable);
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

PyObject* decorate(PyObject* span, PyObject* target) {
  if (!g_tracing) return new_ref(target);
  if (!g_decorator) {
    PyErr_SetString(PyExc_RuntimeError, "dftracer.python is not imported");
    return nullptr;
  }
  return PyObject_CallFunctionObjArgs(g_decorator, span, target, nullptr);
}

bool init_nodes(PyObject* module) {
  g_bound_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  g_bound_type.tp_vectorcall_offset = offsetof(Bound, call);
  g_bound_type.tp_call = PyVectorcall_Call;
  g_bound_type.tp_traverse = bound_traverse;
  g_bound_type.tp_clear = bound_clear;
  g_bound_type.tp_dealloc = bound_dealloc;
  g_prebound_type.tp_flags = Py_TPFLAGS_DEFAULT;
  g_prebound_type.tp_descr_get = prebound_get;
  g_prebound_type.tp_call = prebound_call;
  if (PyType_Ready(&g_bound_type) < 0 || PyType_Ready(&g_prebound_type) < 0) return false;

  PyTypeObject& t = g_node_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
  t.tp_doc = "A named span: context manager and decorator.";
  t.tp_new = node_new;
  t.tp_init = node_init;
  t.tp_traverse = node_traverse;
  t.tp_clear = node_clear;
  t.tp_dealloc = node_dealloc;
  t.tp_call = node_call;
  t.tp_repr = node_repr;
  t.tp_methods = g_node_methods;
  t.tp_members = g_node_members;
  t.tp_getset = g_node_getset;
  t.tp_weaklistoffset = offsetof(Node, weakrefs);
  if (PyType_Ready(&t) < 0) return false;
  Ref enter(make_prebound(true)), exit(make_prebound(false));
  if (!enter || !exit || PyDict_SetItemString(t.tp_dict, "__enter__", enter.get()) < 0 ||
      PyDict_SetItemString(t.tp_dict, "__exit__", exit.get()) < 0)
    return false;
  PyType_Modified(&t);
  return add_type(module, "Node", &t);
}

}  // namespace dft::py
