#include "module/node.hpp"

#include <structmember.h>

#include <array>
#include <atomic>
#include <charconv>
#include <memory>
#include <utility>

#include "module/enter_exit.hpp"
#include "module/immediate.hpp"
#include "module/node_options.hpp"
#include "module/node_use.hpp"
#include "module/suspendable_span.hpp"
#include "module/training.hpp"

namespace dft::py {

Relaxed<uint64_t> g_args_version = 1;
Relaxed<bool> g_tracing = false;

namespace {

PyObject* g_decorator = nullptr;
PyObject* g_waiting = nullptr;  // called for what is decorated while tracing is off
uint64_t g_args_clock = 0;
std::atomic<uint64_t> g_numbers{0};
// As many nodes are never freed (see free_never): enough for a program's annotations, too few to matter.
constexpr uint64_t kImmortals = 1024;

// The use whose start() opened the frame, if it was one.
NodeUse* take_started(Node* n, const Frame& f) {
  if (!(f.flags & kStarted) || f.flags & kMuted) return nullptr;
  Section section(reinterpret_cast<PyObject*>(n));
  if (!n->started) return nullptr;
  auto& all = n->started->all;
  for (auto it = all.begin(); it != all.end(); ++it) {
    if (it->first != f.id) continue;
    NodeUse* use = it->second;
    all.erase(it);
    return use;
  }
  return nullptr;
}

// Ends the newest open event of the node, whoever opened it.
bool close_span(Node* n, uint32_t must_flags) {
  uint64_t end = ticks();
  ThreadState* t = thread_in_context();
  Frame f;
  if (!t || !take_frame(t, n, must_flags, &f)) return false;
  Ref use(reinterpret_cast<PyObject*>(take_started(n, f)));
  if (f.flags & kMuted) return true;
  {
    Section section(use ? use.get() : reinterpret_cast<PyObject*>(n));
    emit_merged(t, n, f, end, use ? &reinterpret_cast<NodeUse*>(use.get())->args : nullptr, {});
  }
  boundary(n->phase, false);
  return true;
}

PyObject* node_call(PyObject* self, PyObject* args, PyObject* kwargs);
PyObject* node_vectorcall(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names);

#if PY_VERSION_HEX < 0x030C0000
// Before 3.12 a class written in Python does not inherit vectorcall, nor lose it when its __call__ is set later:
// that one is asked then.
void allow_vectorcall(PyTypeObject* type) {
  if (type->tp_flags & Py_TPFLAGS_HAVE_VECTORCALL || type->tp_call != node_call) return;
  type->tp_vectorcall_offset = offsetof(Node, call);
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
}

PyObject* call_slot(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* names) {
  Ref positional(PyTuple_New(given)), keywords(PyDict_New());
  if (!positional || !keywords) return nullptr;
  for (Py_ssize_t i = 0; i < given; ++i) PyTuple_SET_ITEM(positional.get(), i, new_ref(args[i]));
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i)
    if (PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(names, i), args[given + i]) < 0) return nullptr;
  return Py_TYPE(self)->tp_call(self, positional.get(), keywords.get());
}
#endif

// Life ----------------------------------------------------------------------------------------

PyObject* node_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* n = reinterpret_cast<Node*>(type->tp_alloc(type, 0));
  if (!n) return nullptr;
  if (!possible([&] {
        n->children = new std::vector<Node*>;
        n->args = new NodeArgs;
      })) {
    Py_DECREF(n);
    return nullptr;
  }
#if PY_VERSION_HEX < 0x030C0000
  allow_vectorcall(type);
#endif
  n->call = node_vectorcall;
  n->on = true;
  n->number = ++g_numbers;
  n->enter = make_enter(n);
  n->exit = make_exit(n);
  if (!n->enter || !n->exit) {
    Py_DECREF(n);
    return nullptr;
  }
  if (n->number <= kImmortals) {
    free_never(reinterpret_cast<PyObject*>(n->enter));
    free_never(reinterpret_cast<PyObject*>(n->exit));
    free_never(reinterpret_cast<PyObject*>(n));
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
  std::string name_text, cat_text;
  if (!possible([&] {
        name_text = text_of(name);
        cat_text = text_of(cat);
        n->name_id = intern(name_text, cat_text);
      }))
    return -1;
  Section section(self);
  PyObject* old_name = n->name;
  PyObject* old_cat = n->cat;
  n->name = PyUnicode_DecodeUTF8(name_text.data(), Py_ssize_t(name_text.size()), "replace");
  n->cat = PyUnicode_DecodeUTF8(cat_text.data(), Py_ssize_t(cat_text.size()), "replace");
  Py_XDECREF(old_name);
  Py_XDECREF(old_cat);
  n->phase = phase_of(cat_text, name_text);
  if (parent != Py_None && !n->parent) {
    auto* above = reinterpret_cast<Node*>(parent);
    const TreeLock lock;
    if (!possible([&] { above->children->push_back(n); })) return -1;
    n->place = above->children->size() - 1;
    n->parent = reinterpret_cast<Node*>(new_ref(parent));
    n->on = bool(n->parent->on);
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
  Node* p = n->parent;
  // The last one takes its place: exiting with a million derived nodes must not move the rest for each of them.
  {
    const TreeLock lock;
    auto& siblings = *p->children;
    siblings[n->place] = siblings.back();
    siblings[n->place]->place = n->place;
    siblings.pop_back();
    n->parent = nullptr;
  }
  Py_DECREF(reinterpret_cast<PyObject*>(p));
}

int node_clear(PyObject* self) {
  auto* n = reinterpret_cast<Node*>(self);
  leave_parent(n);
  NodeMethod *enter = n->enter, *exit = n->exit;
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
  if (n->started)
    for (auto& [id, use] : n->started->all) Py_DECREF(reinterpret_cast<PyObject*>(use));
  delete n->started;
  delete n->children;
  delete n->args;
  Py_TYPE(self)->tp_free(self);
}

// Args ----------------------------------------------------------------------------------------

void set_args(Node* n, const Args& args) {
  if (args.empty()) return;
  const TreeLock lock;
  for (size_t i = 0; i < args.size(); ++i) {
    bool known = false;
    for (OwnArg& own : n->args->own) {
      if (own.key != args.key(i)) continue;
      own.value = args.value(i);
      own.when = ++g_args_clock;
      known = true;
      break;
    }
    if (!known) n->args->own.push_back({std::string(args.key(i)), std::string(args.value(i)), ++g_args_clock});
  }
  ++g_args_version;
}

// -1 if it is not given, or not a number of anything.
int64_t number_in(const Args& args, std::string_view key) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args.key(i) != key) continue;
    std::string_view text = args.value(i);
    int64_t number = -1;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() ? number : -1;
  }
  return -1;
}

PyObject* node_update(PyObject* self, PyObject* args, PyObject* kwargs) {
  Args given;
  if (!parse_update(args, kwargs, &given)) return nullptr;
  auto* n = reinterpret_cast<Node*>(self);
  formatting([&] { set_args(n, given); });
  // The root of the tree speaks for the whole program; a `dft_fn` is a root, too, but only of its own functions.
  if (g_tracing && follows_training() && !n->parent && PyUnicode_CompareWithASCIIString(n->name, "ai_root") == 0)
    program_counts(number_in(given, "\"step\":"), number_in(given, "\"epoch\":"));
  return new_ref(self);
}

PyObject* node_set_args(PyObject* self, PyObject* mapping) {
  if (g_tracing) {
    formatting([&] {
      Args args;
      args.set_all(mapping);
      set_args(reinterpret_cast<Node*>(self), args);
    });
  }
  if (raise_kept()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* node_forget_args(PyObject* self, PyObject* names) {
  Ref given(PySequence_Fast(names, "forget_args() takes a list of names"));
  Ref all(given ? PySequence_Tuple(given.get()) : nullptr);
  if (!all) return nullptr;
  auto& own = reinterpret_cast<Node*>(self)->args->own;
  formatting([&] {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
      std::string key = key_text(PyTuple_GET_ITEM(all.get(), i));
      const TreeLock lock;
      std::erase_if(own, [&](const OwnArg& arg) { return arg.key == key; });
      ++g_args_version;
    }
  });
  if (raise_kept()) return nullptr;
  Py_RETURN_NONE;
}

// A past event, with the node's current args.
PyObject* node_write_past(PyObject* self, PyObject* args) {
  unsigned long long start, duration;
  if (!PyArg_ParseTuple(args, "KK", &start, &duration)) return nullptr;
  auto* n = reinterpret_cast<Node*>(self);
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  const char* name = PyUnicode_AsUTF8(n->name);
  const char* cat = PyUnicode_AsUTF8(n->cat);
  if (t && name && cat) {
    Frame f = unopened_frame(t);
    f.start = start;
    emit_strings(t, Kind::kEvent, kAbsoluteTime, f, start + duration, 0, name, cat, fragment_of(n));
  }
  PyErr_Clear();
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
  const TreeLock lock;
  set_enabled(reinterpret_cast<Node*>(self), on);
  Py_RETURN_NONE;
}

PyObject* node_start(PyObject* self, PyObject*) {
  auto* n = reinterpret_cast<Node*>(self);
  start_span(n, nullptr, n->on);
  Py_RETURN_NONE;
}

PyObject* node_stop(PyObject* self, PyObject*) {
  stop_span(reinterpret_cast<Node*>(self));
  Py_RETURN_NONE;
}

PyObject* node_aenter(PyObject* self, PyObject*) {
  return immediate(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(reinterpret_cast<Node*>(self)->enter)));
}

PyObject* node_aexit(PyObject* self, PyObject* args) {
  return immediate(PyObject_Call(reinterpret_cast<PyObject*>(reinterpret_cast<Node*>(self)->exit), args, nullptr));
}

PyObject* node_close(PyObject* self, PyObject*) {
  return PyBool_FromLong(g_tracing && close_span(reinterpret_cast<Node*>(self), 0));
}

PyObject* node_open(PyObject* self, PyObject* args) {
  PyObject* mapping = Py_None;
  if (!PyArg_ParseTuple(args, "|O", &mapping)) return nullptr;
  Args own;
  if (g_tracing) formatting([&] { own.set_all(mapping); });
  if (raise_kept()) return nullptr;
  auto* n = reinterpret_cast<Node*>(self);
  return make_suspendable_span(n, std::move(own), n->on);
}

// node(fn): decorate. node(args=..., enable=...): one use.
PyObject* call_node(Node* n, PyObject* const* args, Py_ssize_t given, const Keywords& keywords, bool options_given) {
  auto* self = reinterpret_cast<PyObject*>(n);
  if (given == 1 && args[0] != Py_None) {
    if (!options_given) return decorate(self, args[0]);
    Ref use(make_use(n, keywords));
    return use ? decorate(use.get(), args[0]) : nullptr;
  }
  if (given > 1) {
    PyErr_SetString(PyExc_TypeError, "expected one function to decorate, or keyword arguments");
    return nullptr;
  }
  return make_use(n, keywords);
}

PyObject* node_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  return call_node(reinterpret_cast<Node*>(self), &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args), {kwargs},
                   kwargs && PyDict_GET_SIZE(kwargs));
}

// The same without a dictionary of the keywords, which would cost as much as the event.
PyObject* node_vectorcall(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  Py_ssize_t given = PyVectorcall_NARGS(nargsf);
#if PY_VERSION_HEX < 0x030C0000
  if (DFT_UNLIKELY(Py_TYPE(self)->tp_call != node_call)) return call_slot(self, args, given, names);
#endif
  return call_node(reinterpret_cast<Node*>(self), args, given, {nullptr, names, args + given},
                   names && PyTuple_GET_SIZE(names));
}

PyObject* get_enabled(PyObject* self, void*) { return PyBool_FromLong(g_tracing && reinterpret_cast<Node*>(self)->on); }

PyObject* node_repr(PyObject* self) {
  auto* n = reinterpret_cast<Node*>(self);
  return PyUnicode_FromFormat("<%s %R of %R>", Py_TYPE(self)->tp_name, n->name, n->cat);
}

PyMethodDef g_node_methods[] = {
    {"update", reinterpret_cast<PyCFunction>(node_update), METH_VARARGS | METH_KEYWORDS,
     "update($self, /, epoch=None, step=None, image_idx=None, image_size=None, args=None)\n--\n\n"
     "Set the current args of this node and everything below it."},
    {"set_args", node_set_args, METH_O, "set_args($self, args, /)\n--\n\nSet current args."},
    {"forget_args", node_forget_args, METH_O, "forget_args($self, names, /)\n--\n\nForget args set here."},
    {"write_past", node_write_past, METH_VARARGS,
     "write_past($self, start_ns, duration_ns, /)\n--\n\nWrite one past event."},
    {"set_enabled", node_set_enabled, METH_O,
     "set_enabled($self, on, /)\n--\n\nSwitch this node and everything below it."},
    {"start", node_start, METH_NOARGS, "start($self, /)\n--\n\nOpen an event that stop() closes."},
    {"stop", node_stop, METH_NOARGS, "stop($self, /)\n--\n\nClose what start() opened."},
    {"__aenter__", node_aenter, METH_NOARGS, nullptr},
    {"__aexit__", node_aexit, METH_VARARGS, nullptr},
    {"close", node_close, METH_NOARGS,
     "close($self, /)\n--\n\nEnd the newest open event of this node now; False if there is none."},
    {"open", node_open, METH_VARARGS, nullptr},
    {},
};

PyMemberDef g_node_members[] = {
    {"name", T_OBJECT_EX, offsetof(Node, name), READONLY, nullptr},
    {"cat", T_OBJECT_EX, offsetof(Node, cat), READONLY, nullptr},
    {"begun", T_ULONGLONG, offsetof(Node, uses), READONLY, "How often an event of this node was begun."},
    {},
};

PyGetSetDef g_node_getset[] = {{"enabled", get_enabled, nullptr, nullptr, nullptr}, {}};

}  // namespace

PyTypeObject g_node_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Node", sizeof(Node)};

void start_span(Node* n, NodeUse* use, bool on) {
  if (!g_tracing || !(on || recording_thread())) return;
  boundary(n->phase, true);
  ThreadState* t = thread_in_context();
  if (!t) return;
  Frame forgotten;
  // A start() without stop() is simply restarted.
  if (pop_frame(t->stack, n, kStarted, &forgotten)) Ref(reinterpret_cast<PyObject*>(take_started(n, forgotten)));
  ++n->uses;
  Frame* f = push_frame(t, n, kStarted | muted_unless(on));
  if (!use || !on) return;
  Section section(reinterpret_cast<PyObject*>(n));
  formatting([&] {
    if (!n->started) n->started = new StartedUses;
    n->started->all.push_back({f->id, use});
    Py_INCREF(reinterpret_cast<PyObject*>(use));
  });
}

void stop_span(Node* n) {
  if (g_tracing) close_span(n, kStarted);
}

namespace {

// Among the settings of a key on the path to the root, the latest counts; outermost keys come first.
Args merged_args(Node* n) {
  constexpr size_t kDeepest = 32;
  Node* path[kDeepest];
  size_t depth = 0;
  for (Node* p = n; p && depth < kDeepest; p = p->parent) path[depth++] = p;
  Args merged;
  for (size_t i = depth; i-- > 0;) {
    for (const OwnArg& own : path[i]->args->own) {
      const OwnArg* latest = &own;
      for (size_t k = 0; k < depth; ++k)
        for (const OwnArg& other : path[k]->args->own)
          if (other.when > latest->when && other.key == own.key) latest = &other;
      if (!merged.has(own.key)) merged.set_text(own.key, latest->value);
    }
  }
  return merged;
}

}  // namespace

#ifdef Py_GIL_DISABLED
std::mutex TreeLock::mutex;

namespace {

// The args of nodes as a thread last saw them: what is read for every event is not shared.
struct ArgsCopy {
  uint64_t number = 0;  // of the node
  uint64_t version = 0;
  Args merged;
};
constexpr size_t kArgsCopies = 256;
thread_local std::unique_ptr<std::array<ArgsCopy, kArgsCopies>> t_args_copies;

}  // namespace

const Args& args_of(Node* n) {
  static const Args none{};
  if (DFT_UNLIKELY(!t_args_copies)) {
    formatting([] { t_args_copies = std::make_unique<std::array<ArgsCopy, kArgsCopies>>(); });
    if (!t_args_copies) return none;
  }
  ArgsCopy& copy = (*t_args_copies)[n->number % kArgsCopies];
  if (DFT_LIKELY(copy.number == n->number && copy.version == g_args_version)) return copy.merged;
  const TreeLock lock;
  formatting([&] {
    copy.merged = merged_args(n);
    copy.number = n->number;
    copy.version = g_args_version;
  });
  return copy.number == n->number ? copy.merged : none;
}
#else
void rebuild_args(Node* n) {
  formatting([&] {
    n->args->merged = merged_args(n);
    n->args->version = g_args_version;
  });
}
#endif

PyObject* set_decorator(PyObject*, PyObject* callable) {
  Section section(module_state());
  Py_XSETREF(g_decorator, new_ref(callable));
  Py_RETURN_NONE;
}

PyObject* set_waiting(PyObject*, PyObject* callable) {
  Section section(module_state());
  Py_XSETREF(g_waiting, new_ref(callable));
  Py_RETURN_NONE;
}

PyObject* decorate(PyObject* span, PyObject* target) {
  if (!g_tracing) {
    Ref waiting = shared(g_waiting);
    if (waiting && !Ref(PyObject_CallFunctionObjArgs(waiting.get(), span, target, nullptr))) PyErr_Clear();
    return new_ref(target);
  }
  Ref decorator = shared(g_decorator);
  if (!decorator) {
    PyErr_SetString(PyExc_RuntimeError, "dftracer.python is not imported");
    return nullptr;
  }
  return PyObject_CallFunctionObjArgs(decorator.get(), span, target, nullptr);
}

bool init_nodes(PyObject* module) {
  init_options();
#ifdef Py_GIL_DISABLED
  // A child of fork() must not find it held by a thread that it does not have.
  auto lock = [] { TreeLock::mutex.lock(); };
  auto unlock = [] { TreeLock::mutex.unlock(); };
  if (pthread_atfork(lock, unlock, unlock) != 0) return PyErr_NoMemory() != nullptr;
#endif
  PyTypeObject& t = g_node_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  t.tp_doc = "A named span: context manager and decorator.";
  t.tp_new = node_new;
  t.tp_init = node_init;
  t.tp_traverse = node_traverse;
  t.tp_clear = node_clear;
  t.tp_dealloc = node_dealloc;
  t.tp_call = node_call;
  t.tp_vectorcall_offset = offsetof(Node, call);
  t.tp_repr = node_repr;
  t.tp_methods = g_node_methods;
  t.tp_members = g_node_members;
  t.tp_getset = g_node_getset;
  t.tp_weaklistoffset = offsetof(Node, weakrefs);
  if (PyType_Ready(&t) < 0) return false;
  if (!add_enter_and_exit(t.tp_dict)) return false;
  PyType_Modified(&t);
  return add_type(module, "Node", &t);
}

}  // namespace dft::py
