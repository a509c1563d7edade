#include "module/node_use.hpp"

#include "module/immediate.hpp"
#include "module/suspendable_span.hpp"

namespace dft::py {

PyTypeObject g_use_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.NodeUse", sizeof(NodeUse)};

namespace {

__attribute__((noinline)) void use_enter_otherwise(NodeUse* u) {
  const void* owner;
  if (!u->on && !recording_thread()) return;
  if (ThreadState* t = thread_in_context(&owner)) {
    ++u->node->uses;
    push_frame(t, u, muted_unless(u->on), owner);
  }
}

PyObject* use_enter(PyObject* self, PyObject*) {
  auto* u = reinterpret_cast<NodeUse*>(self);
  if (DFT_UNLIKELY(!g_tracing)) return new_ref(self);
  boundary(u->node->phase, true);
  const PyThreadState* python = PyThreadState_Get();
  ThreadState* t = tls_thread;
  if (DFT_LIKELY(t && u->on && t->generation == g_generation.load(std::memory_order_relaxed) &&
                 t->context == python->context && t->stack->size != t->stack->capacity)) {
    ++u->node->uses;
    push_frame(t, u, 0, running_frame(python));
  } else {
    use_enter_otherwise(u);
  }
  return new_ref(self);
}

bool replaces(const Args& extra, const Args& own) {
  if (DFT_LIKELY(!extra.may_share_keys(own))) return false;
  for (size_t i = 0; i < own.size(); ++i)
    if (extra.has(own.key(i))) return true;
  return false;
}

__attribute__((noinline)) void use_exit_otherwise(NodeUse* u, uint64_t end, PyObject* exception_type) {
  const void* owner;
  ThreadState* t = g_tracing ? thread_in_context(&owner) : nullptr;
  Frame f;
  if (t && take_own_frame(t, u, owner, &f) && !(f.flags & kMuted)) {
    Section section(reinterpret_cast<PyObject*>(u));
    emit_merged(t, u->node, f, end, &u->args, error_fragment(exception_type));
  }
  if (t) boundary(u->node->phase, false);
}

PyObject* use_exit(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  uint64_t end = ticks();
  auto* u = reinterpret_cast<NodeUse*>(self);
  PyObject* exception_type = nargs ? args[0] : Py_None;
  const PyThreadState* python = PyThreadState_Get();
  const void* owner = running_frame(python);
  ThreadState* t = tls_thread;
  bool closed = false;
  if (DFT_LIKELY(t && g_tracing && exception_type == Py_None && t->context == python->context)) {
    Section section(self);
    const Args& own = args_of(u->node);
    if (DFT_LIKELY(!replaces(u->args, own)))
      closed = close_innermost(
          t, [=](const Frame& f) { return f.key == u && f.owner == owner; }, u->node->name_id, end, own.text(),
          u->args.text());
  }
  if (DFT_LIKELY(closed)) {
    boundary(u->node->phase, false);
  } else {
    use_exit_otherwise(u, end, exception_type);
  }
  Py_RETURN_NONE;
}

// `use.__enter__` and `use.__exit__` of a `with` live for one call each: they come from a small free list.
// Without the interpreter lock there is none: every thread has its own allocator.
struct UseMethod {
  PyObject_HEAD
  vectorcallfunc call;
  NodeUse* use;
};

constexpr int kStock = 16;
UseMethod* g_stock[kStock];
int g_stocked = 0;

PyTypeObject g_use_method_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._UseMethod", sizeof(UseMethod)};

PyObject* enter_call(PyObject* self, PyObject* const*, size_t, PyObject*) {
  return use_enter(reinterpret_cast<PyObject*>(reinterpret_cast<UseMethod*>(self)->use), nullptr);
}

PyObject* exit_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject*) {
  return use_exit(reinterpret_cast<PyObject*>(reinterpret_cast<UseMethod*>(self)->use), args,
                  PyVectorcall_NARGS(nargsf));
}

PyObject* make_use_method(NodeUse* use, vectorcallfunc call) {
  UseMethod* b;
  if (!kFreeThreaded && g_stocked) {
    b = g_stock[--g_stocked];
    revive(reinterpret_cast<PyObject*>(b));
  } else {
    b = PyObject_New(UseMethod, &g_use_method_type);
    if (!b) return nullptr;
  }
  b->call = call;
  b->use = reinterpret_cast<NodeUse*>(new_ref(reinterpret_cast<PyObject*>(use)));
  return reinterpret_cast<PyObject*>(b);
}

void use_method_dealloc(PyObject* self) {
  auto* b = reinterpret_cast<UseMethod*>(self);
  Py_DECREF(reinterpret_cast<PyObject*>(b->use));
  if (!kFreeThreaded && g_stocked < kStock) {
    g_stock[g_stocked++] = b;
  } else {
    PyObject_Free(self);
  }
}

// The descriptor behind NodeUse.__enter__ and NodeUse.__exit__.
struct UseMethodDescriptor {
  PyObject_HEAD
  vectorcallfunc call;
};

PyObject* use_descriptor_get(PyObject* self, PyObject* object, PyObject*) {
  if (!object || object == Py_None) return new_ref(self);
  return make_use_method(reinterpret_cast<NodeUse*>(object), reinterpret_cast<UseMethodDescriptor*>(self)->call);
}

// NodeUse.__enter__(use), as contextlib.ExitStack calls it: through the type.
PyObject* use_descriptor_call(PyObject* self, PyObject* args, PyObject*) {
  if (PyTuple_GET_SIZE(args) < 1 || Py_TYPE(PyTuple_GET_ITEM(args, 0)) != &g_use_type) {
    PyErr_SetString(PyExc_TypeError, "expected a NodeUse");
    return nullptr;
  }
  Ref bound(use_descriptor_get(self, PyTuple_GET_ITEM(args, 0), nullptr));
  Ref rest(PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)));
  return bound && rest ? PyObject_Call(bound.get(), rest.get(), nullptr) : nullptr;
}

PyTypeObject g_use_descriptor_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._UseMethodDescriptor",
                                      sizeof(UseMethodDescriptor)};

bool add_use_method(const char* name, vectorcallfunc call) {
  UseMethodDescriptor* m = PyObject_New(UseMethodDescriptor, &g_use_descriptor_type);
  if (!m) return false;
  m->call = call;
  free_never(reinterpret_cast<PyObject*>(m));
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
  auto* u = reinterpret_cast<NodeUse*>(self);
  Section section(self);
  return make_suspendable_span(u->node, u->args, u->on);
}

// What a node does, with the arguments of the use ------------------------------------------------

Node* node_of(PyObject* self) { return reinterpret_cast<NodeUse*>(self)->node; }
PyObject* node_object(PyObject* self) { return reinterpret_cast<PyObject*>(node_of(self)); }

PyObject* use_update(PyObject* self, PyObject* args, PyObject* kwargs) {
  Args given;
  if (!parse_update(args, kwargs, &given)) return nullptr;
  Section section(self);
  Args& own = reinterpret_cast<NodeUse*>(self)->args;
  formatting([&] {
    for (size_t i = 0; i < given.size(); ++i) own.set_text(given.key(i), given.value(i));
  });
  return new_ref(self);
}

bool read_metadata_flag(PyObject* args, PyObject* kwargs, int* metadata) {
  static const char* keys[] = {"metadata", nullptr};
  *metadata = 0;
  return PyArg_ParseTupleAndKeywords(args, kwargs, "|p", const_cast<char**>(keys), metadata);
}

PyObject* use_start(PyObject* self, PyObject* args, PyObject* kwargs) {
  int metadata;
  if (!read_metadata_flag(args, kwargs, &metadata)) return nullptr;
  if (metadata) return PyObject_CallMethod(node_object(self), "start", "O", Py_True);
  start_span(node_of(self), reinterpret_cast<NodeUse*>(self), reinterpret_cast<NodeUse*>(self)->on);
  Py_RETURN_NONE;
}

PyObject* use_stop(PyObject* self, PyObject* args, PyObject* kwargs) {
  int metadata;
  if (!read_metadata_flag(args, kwargs, &metadata)) return nullptr;
  if (metadata) return PyObject_CallMethod(node_object(self), "stop", "O", Py_True);
  stop_span(node_of(self));
  Py_RETURN_NONE;
}

PyObject* use_enable(PyObject* self, PyObject*) {
  reinterpret_cast<NodeUse*>(self)->on = true;
  Py_RETURN_NONE;
}

PyObject* use_disable(PyObject* self, PyObject*) {
  reinterpret_cast<NodeUse*>(self)->on = false;
  Py_RETURN_NONE;
}

PyObject* use_reset(PyObject* self, PyObject*) { return new_ref(self); }

// The child inherits the arguments, as it does those of its node.
PyObject* use_of_child(PyObject* self, PyObject* child) {
  Ref owned(child);
  if (!child || !PyObject_TypeCheck(child, &g_node_type)) return owned.release();
  Ref made(make_use(reinterpret_cast<Node*>(child), {}));
  if (!made) return nullptr;
  auto* from = reinterpret_cast<NodeUse*>(self);
  auto* to = reinterpret_cast<NodeUse*>(made.get());
  Section section(self);
  formatting([&] { to->args = from->args; });
  to->on = bool(from->on);
  return made.release();
}

PyObject* use_derive(PyObject* self, PyObject* args, PyObject* kwargs) {
  Ref derive(PyObject_GetAttrString(node_object(self), "derive"));
  return derive ? use_of_child(self, PyObject_Call(derive.get(), args, kwargs)) : nullptr;
}

PyObject* get_init(PyObject* self, void*) {
  return use_of_child(self, PyObject_GetAttrString(node_object(self), "init"));
}

// Node classes written in Python have `_iter_as(use, ...)` in addition to `iter(...)`.
PyObject* use_iter(PyObject* self, PyObject* args, PyObject* kwargs) {
  Ref iter(PyObject_GetAttrString(node_object(self), "_iter_as"));
  Ref head(PyTuple_Pack(1, self));
  Ref all(iter && head ? PySequence_Concat(head.get(), args) : nullptr);
  return all ? PyObject_Call(iter.get(), all.get(), kwargs) : nullptr;
}

PyObject* get_node(PyObject* self, void*) { return new_ref(node_object(self)); }
PyObject* get_name(PyObject* self, void*) { return new_ref(node_of(self)->name); }
PyObject* get_cat(PyObject* self, void*) { return new_ref(node_of(self)->cat); }
PyObject* get_enabled(PyObject* self, void*) {
  return PyBool_FromLong(g_tracing && reinterpret_cast<NodeUse*>(self)->on);
}

// Whatever else the node has.
PyObject* use_getattro(PyObject* self, PyObject* name) {
  PyObject* own = PyObject_GenericGetAttr(self, name);
  if (own || !PyErr_ExceptionMatches(PyExc_AttributeError)) return own;
  PyErr_Clear();
  return PyObject_GetAttr(node_object(self), name);
}

PyObject* get_given(PyObject* self, void*) {
  PyObject* given = reinterpret_cast<NodeUse*>(self)->given;
  return new_ref(given ? given : Py_None);
}

// Uses of a `with` live for one block: as with the bound methods above, a few are kept.
NodeUse* g_used[kStock];
int g_kept = 0;

NodeUse* new_use() {
  NodeUse* u;
  if (!kFreeThreaded && g_kept) {
    u = g_used[--g_kept];
    revive(reinterpret_cast<PyObject*>(u));
  } else {
    u = PyObject_New(NodeUse, &g_use_type);
    if (u) new (&u->args) Args;
  }
  return u;
}

PyObject* use_repr(PyObject* self) { return PyUnicode_FromFormat("<use of %R>", node_object(self)); }

void use_dealloc(PyObject* self) {
  auto* u = reinterpret_cast<NodeUse*>(self);
  Py_XDECREF(reinterpret_cast<PyObject*>(u->node));
  Py_XDECREF(u->given);
  if (!kFreeThreaded && g_kept < kStock && u->args.is_small()) {
    u->args.clear();
    g_used[g_kept++] = u;
  } else {
    u->args.~Args();
    PyObject_Free(self);
  }
}

PyMethodDef g_use_methods[] = {
    {"__aenter__", use_aenter, METH_NOARGS, nullptr},
    {"__aexit__", reinterpret_cast<PyCFunction>(use_aexit), METH_FASTCALL, nullptr},
    {"open", use_open, METH_NOARGS, nullptr},
    {"update", reinterpret_cast<PyCFunction>(use_update), METH_VARARGS | METH_KEYWORDS,
     "update($self, /, epoch=None, step=None, image_idx=None, image_size=None, args=None)\n--\n\n"
     "Set arguments of this use."},
    {"start", reinterpret_cast<PyCFunction>(use_start), METH_VARARGS | METH_KEYWORDS,
     "start($self, /, metadata=False)\n--\n\nOpen an event that stop() closes."},
    {"stop", reinterpret_cast<PyCFunction>(use_stop), METH_VARARGS | METH_KEYWORDS,
     "stop($self, /, metadata=False)\n--\n\nClose what start() opened."},
    {"iter", reinterpret_cast<PyCFunction>(use_iter), METH_VARARGS | METH_KEYWORDS, "Loop as the node does."},
    {"derive", reinterpret_cast<PyCFunction>(use_derive), METH_VARARGS | METH_KEYWORDS,
     "derive($self, /, name)\n--\n\nA use of the child, with the same arguments."},
    {"enable", use_enable, METH_NOARGS, "enable($self, /)\n--\n\nRecord this use."},
    {"disable", use_disable, METH_NOARGS, "disable($self, /)\n--\n\nDo not record this use."},
    {"reset", use_reset, METH_NOARGS, "reset($self, /)\n--\n\nStart over; the arguments are kept."},
    {},
};

PyGetSetDef g_use_getset[] = {
    {"node", get_node, nullptr, nullptr, nullptr},
    {"name", get_name, nullptr, nullptr, nullptr},
    {"cat", get_cat, nullptr, nullptr, nullptr},
    {"init", get_init, nullptr, nullptr, nullptr},
    {"enabled", get_enabled, nullptr, nullptr, nullptr},
    {"_given", get_given, nullptr, nullptr, nullptr},
    {},
};

bool keep_given(NodeUse* u, const Keywords& given) {
  if (given.dict) u->given = new_ref(given.dict);
  if (!given.names) return true;
  u->given = PyDict_New();
  for (Py_ssize_t i = 0; u->given && i < PyTuple_GET_SIZE(given.names); ++i)
    if (PyDict_SetItem(u->given, PyTuple_GET_ITEM(given.names, i), given.values[i]) < 0) return false;
  return u->given != nullptr;
}

}  // namespace

PyObject* make_use(Node* node, const Keywords& given) {
  NodeUse* u = new_use();
  if (!u) return nullptr;
  Ref owned(reinterpret_cast<PyObject*>(u));
  u->node = reinterpret_cast<Node*>(new_ref(reinterpret_cast<PyObject*>(node)));
  u->given = nullptr;
  int enable = -1;
  if (!parse_options(given, &u->args, &enable)) return nullptr;
  u->on = enable < 0 ? bool(node->on) : enable != 0;
  if (DFT_UNLIKELY(!g_tracing) && !keep_given(u, given)) return nullptr;
  return owned.release();
}

bool span_of(PyObject* object, Span* out) {
  if (Py_TYPE(object) == &g_use_type) {
    auto* u = reinterpret_cast<NodeUse*>(object);
    *out = {u->node, &u->args, u, u->on};
    return true;
  }
  if (PyObject_TypeCheck(object, &g_node_type)) {
    auto* n = reinterpret_cast<Node*>(object);
    *out = {n, nullptr, n, n->on};
    return true;
  }
  PyErr_SetString(PyExc_TypeError, "expected a Node or a NodeUse");
  return false;
}

void emit_merged(ThreadState* t, Node* node, const Frame& f, uint64_t end, const Args* extra, std::string_view tail) {
  const Args& own = args_of(node);
  if (!extra || extra->empty()) {
    emit_span(t, node->name_id, f, end, own.text(), tail);
    return;
  }
  if (!replaces(*extra, own)) {
    emit_span(t, node->name_id, f, end, own.text(), extra->text(), tail);
    return;
  }
  recording([&] {
    Args kept;
    for (size_t i = 0; i < own.size(); ++i)
      if (!extra->has(own.key(i))) kept.set_text(own.key(i), own.value(i));
    emit_span(t, node->name_id, f, end, kept.text(), extra->text(), tail);
  });
}

bool init_uses(PyObject* module) {
  PyTypeObject& t = g_use_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_dealloc = use_dealloc;
  t.tp_call = use_call;
  t.tp_repr = use_repr;
  t.tp_getattro = use_getattro;
  t.tp_methods = g_use_methods;
  t.tp_getset = g_use_getset;
  g_use_method_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  g_use_method_type.tp_vectorcall_offset = offsetof(UseMethod, call);
  g_use_method_type.tp_call = PyVectorcall_Call;
  g_use_method_type.tp_dealloc = use_method_dealloc;
  g_use_descriptor_type.tp_flags = Py_TPFLAGS_DEFAULT;
  g_use_descriptor_type.tp_descr_get = use_descriptor_get;
  g_use_descriptor_type.tp_call = use_descriptor_call;
  if (PyType_Ready(&g_use_method_type) < 0 || PyType_Ready(&g_use_descriptor_type) < 0 || PyType_Ready(&t) < 0)
    return false;
  if (!add_use_method("__enter__", enter_call) || !add_use_method("__exit__", exit_call)) return false;
  PyType_Modified(&t);
  return add_type(module, "NodeUse", &t);
}

}  // namespace dft::py
