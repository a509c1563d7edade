#include "module/loop.hpp"

#include "format/json.hpp"
#include "module/node_use.hpp"

namespace dft::py {
namespace {

struct Loop {
  PyObject_HEAD
  PyObject* iterator;
  Node* wait;  // null: not wanted
  Node* body;
  NodeUse* use;                           // with its own arguments; null: none
  const Relaxed<bool>*wait_on, *body_on;  // a loop of a use follows the switch of the use
  std::string* count_key;                 // ,"count":
  Frame wait_frame;
  uint64_t wait_end;
  uint64_t start_up;  // ticks that iter() took; part of the wait for the first item
  uint64_t count;
  uint32_t generation;  // the session the current item was got in
  bool count_as_string;
  bool in_body;
  bool waited;   // wait_frame holds the wait of the current item
  bool ended;    // the iterator is exhausted
  bool started;  // wait_frame holds the start-up, which the first wait continues
};

PyTypeObject g_loop_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.LoopIterator", sizeof(Loop)};
// For iterators with a length: others must not appear to have one.
PyTypeObject g_sized_loop_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.SizedLoopIterator", sizeof(Loop)};

// Two frames of one object need two keys.
const void* wait_key(Loop* l) { return &l->wait; }
const void* body_key(Loop* l) { return &l->body; }

size_t count_fragment(Loop* l, char* out) {
  copy_text(out, *l->count_key);
  char* p = out + l->count_key->size();
  if (l->count_as_string) *p++ = '"';
  p = put_uint(p, l->count);
  if (l->count_as_string) *p++ = '"';
  return size_t(p - out);
}

inline __attribute__((always_inline)) void emit_part(ThreadState* t, Loop* l, Node* node, const Frame& f, uint64_t end,
                                                     std::string_view tail) {
  if (DFT_LIKELY(!l->use)) {
    emit_span(t, node->name_id, f, end, fragment_of(node), tail);
  } else {
    Section section(reinterpret_cast<PyObject*>(l->use));
    emit_merged(t, node, f, end, &l->use->args, tail);
  }
}

// The body of the current item is over: both its events are written now, and only now.
ThreadState* end_item(Loop* l) {
  uint64_t now = ticks();
  l->in_body = false;
  ThreadState* t = thread_in_context();
  if (!t || t->generation != l->generation) return t;
  Frame body;
  bool bodied = l->body && take_frame(t, body_key(l), 0, &body) && !(body.flags & kMuted);
  char count[96];
  size_t n = count_fragment(l, count);
  if (l->waited && !(l->wait_frame.flags & kMuted)) emit_part(t, l, l->wait, l->wait_frame, l->wait_end, {count, n});
  if (bodied) emit_part(t, l, l->body, body, now, {count, n});
  if (l->body) boundary(l->body->phase, false);
  return t;
}

bool wanted(Loop* l) { return *l->wait_on | *l->body_on; }

// Ticks that pass between iter() and the first item where nothing is done in between: some tens of microseconds.
constexpr uint64_t kMoment = 100'000;

// The event of the first wait was begun by iter(): the same id, and the time between the two left out. Where that is
// but a moment the event begins when iter() did, and so contains what happened there.
void resume_start_up(ThreadState* t, Loop* l) {
  l->started = false;
  if (t->generation != l->generation) return;
  Frame* f = push_frame(t, wait_key(l), kMuted);
  uint64_t now = f->start;
  *f = l->wait_frame;
  if (now - l->start_up - f->start > kMoment) f->start = now - l->start_up;
}

void begin_wait(Loop* l) {
  Section section(reinterpret_cast<PyObject*>(l));  // two threads may take turns at one loop
  ThreadState* t = nullptr;
  if (DFT_LIKELY(l->in_body)) {
    t = end_item(l);
  } else if (wanted(l) || recording_thread()) {
    t = thread_in_context();
  }
  l->waited = false;
  if (!t || !l->wait) return;
  ++l->wait->uses;
  if (DFT_UNLIKELY(l->started)) {
    resume_start_up(t, l);
  } else {
    push_frame(t, wait_key(l), muted_unless(*l->wait_on));
  }
}

// `error`: the exception type that came instead of an item; the one that ends a loop is no event.
void end_wait(Loop* l, bool got_item, PyObject* error) {
  Section section(reinterpret_cast<PyObject*>(l));
  l->wait_end = ticks();
  ThreadState* t = wanted(l) || recording_thread() ? thread_in_context() : nullptr;
  if (!t) return;
  Frame f;
  bool waited = l->wait && take_frame(t, wait_key(l), 0, &f);
  if (!got_item) {
    l->ended = true;
    if (waited && error && !(f.flags & kMuted)) emit_part(t, l, l->wait, f, l->wait_end, error_fragment(error));
    return;
  }
  if (waited) l->wait_frame = f;
  l->waited = waited;
  l->generation = t->generation;
  ++l->count;
  l->in_body = true;
  if (l->wait) boundary(l->wait->phase, false);
  if (l->body) {
    ++l->body->uses;
    push_frame(t, body_key(l), muted_unless(*l->body_on));
  }
}

bool ends_loop(PyObject* error) {
  return PyErr_GivenExceptionMatches(error, PyExc_StopIteration) ||
         PyErr_GivenExceptionMatches(error, PyExc_StopAsyncIteration);
}

PyObject* loop_next(PyObject* self) {
  auto* l = reinterpret_cast<Loop*>(self);
  if (!l->iterator) {
    PyErr_SetString(PyExc_TypeError, "this loop has no iterator");
    return nullptr;
  }
  begin_wait(l);
  PyObject* item = Py_TYPE(l->iterator)->tp_iternext(l->iterator);
  PyObject* error = item ? nullptr : PyErr_Occurred();
  end_wait(l, item != nullptr, error && !ends_loop(error) ? error : nullptr);
  return item;
}

// For loops driven from Python (async for).
PyObject* loop_before_wait(PyObject* self, PyObject*) {
  begin_wait(reinterpret_cast<Loop*>(self));
  Py_RETURN_NONE;
}

PyObject* loop_after_wait(PyObject* self, PyObject* error) {
  PyObject* type = error == Py_None ? nullptr : reinterpret_cast<PyObject*>(Py_TYPE(error));
  end_wait(reinterpret_cast<Loop*>(self), type == nullptr, type && !ends_loop(type) ? type : nullptr);
  Py_RETURN_NONE;
}

void loop_dealloc(PyObject* self) {
  auto* l = reinterpret_cast<Loop*>(self);
  PyObject_GC_UnTrack(self);
  if (l->in_body && l->body) {
    // The loop was left by break or an exception: its block is no longer a parent.
    KeepError keep;
    Frame f;
    if (ThreadState* t = thread_in_context()) take_frame(t, body_key(l), 0, &f);
  }
  Py_XDECREF(l->iterator);
  Py_XDECREF(reinterpret_cast<PyObject*>(l->wait));
  Py_XDECREF(reinterpret_cast<PyObject*>(l->body));
  Py_XDECREF(reinterpret_cast<PyObject*>(l->use));
  delete l->count_key;
  PyObject_GC_Del(self);
}

int loop_traverse(PyObject* self, visitproc visit, void* arg) {
  auto* l = reinterpret_cast<Loop*>(self);
  Py_VISIT(l->iterator);
  Py_VISIT(reinterpret_cast<PyObject*>(l->wait));
  Py_VISIT(reinterpret_cast<PyObject*>(l->body));
  return 0;
}

PyObject* loop_length_hint(PyObject* self, PyObject*) {
  PyObject* iterator = reinterpret_cast<Loop*>(self)->iterator;
  Py_ssize_t n = iterator ? PyObject_LengthHint(iterator, 0) : 0;
  return n < 0 ? nullptr : PyLong_FromSsize_t(n);
}

Py_ssize_t loop_length(PyObject* self) { return PyObject_Size(reinterpret_cast<Loop*>(self)->iterator); }

PySequenceMethods g_sized = {loop_length};

bool has_length(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return (t->tp_as_sequence && t->tp_as_sequence->sq_length) || (t->tp_as_mapping && t->tp_as_mapping->mp_length);
}

// Attributes are those of the iterator: close() and send() of a generator, anything a loader's iterator has.
PyObject* loop_getattro(PyObject* self, PyObject* name) {
  PyObject* own = PyObject_GenericGetAttr(self, name);
  PyObject* iterator = reinterpret_cast<Loop*>(self)->iterator;
  if (own || !iterator || !PyErr_ExceptionMatches(PyExc_AttributeError)) return own;
  PyErr_Clear();
  return PyObject_GetAttr(iterator, name);
}

int loop_setattro(PyObject* self, PyObject* name, PyObject* value) {
  PyObject* iterator = reinterpret_cast<Loop*>(self)->iterator;
  return iterator ? PyObject_SetAttr(iterator, name, value) : PyObject_GenericSetAttr(self, name, value);
}

PyMethodDef g_loop_methods[] = {
    {"__length_hint__", loop_length_hint, METH_NOARGS, nullptr},
    {"before_wait", loop_before_wait, METH_NOARGS, nullptr},
    {"after_wait", loop_after_wait, METH_O, nullptr},
    {},
};

Node* node_or_null(PyObject* o) {
  if (!PyObject_TypeCheck(o, &g_node_type)) return nullptr;
  return reinterpret_cast<Node*>(new_ref(o));
}

bool read_count_key(Loop* l, PyObject* key) {
  return possible([&] {
    l->count_key = new std::string("," + key_text(key));
    if (l->count_key->size() > 64) *l->count_key = ",\"count\":";
  });
}

// The start-up of a loader (its workers, its first prefetch) happens in iter(), and is waiting for the first item.
bool begin_iterator(Loop* l, PyObject* iterable) {
  ThreadState* t = l->wait && (wanted(l) || recording_thread()) ? thread_in_context() : nullptr;
  if (t) push_frame(t, wait_key(l), muted_unless(*l->wait_on));
  l->iterator = PyObject_GetIter(iterable);
  uint64_t now = ticks();
  KeepError keep;
  t = t ? thread_in_context() : nullptr;
  Frame f;
  if (t && take_frame(t, wait_key(l), 0, &f) && l->iterator) {
    l->wait_frame = f;
    l->start_up = now - f.start;
    l->generation = t->generation;
    l->started = true;
  }
  return l->iterator != nullptr;
}

}  // namespace

namespace {

Loop* make_loop(PyObject* iterator, PyObject* wait, PyObject* body, PyObject* use, bool count_as_string) {
  Loop* l = PyObject_GC_New(Loop, &g_loop_type);
  if (!l) return nullptr;
  l->iterator = iterator ? new_ref(iterator) : nullptr;
  l->wait = node_or_null(wait);
  l->body = node_or_null(body);
  l->use = use && Py_TYPE(use) == &g_use_type ? reinterpret_cast<NodeUse*>(new_ref(use)) : nullptr;
  static const Relaxed<bool> never = false;
  l->wait_on = !l->wait ? &never : l->use ? &l->use->on : &l->wait->on;
  l->body_on = !l->body ? &never : l->use ? &l->use->on : &l->body->on;
  l->count_key = nullptr;
  l->count = l->start_up = 0;
  l->generation = 0;
  l->count_as_string = count_as_string;
  l->in_body = l->waited = l->ended = l->started = false;
  PyObject_GC_Track(l);
  return l;
}

PyObject* sized_if_it_is(Loop* l) {
  if (l->iterator && has_length(l->iterator)) Py_SET_TYPE(l, &g_sized_loop_type);
  return reinterpret_cast<PyObject*>(l);
}

// What iter() does to the wrapped one: most iterators return themselves, some start over, some return another.
PyObject* loop_iter(PyObject* self) {
  auto* l = reinterpret_cast<Loop*>(self);
  if (!l->iterator || Py_TYPE(l->iterator)->tp_iter == PyObject_SelfIter) return new_ref(self);
  if (l->ended) {
    l->ended = false;
    l->count = 0;
  }
  auto object = [](auto* o) { return reinterpret_cast<PyObject*>(o); };
  Loop* next = make_loop(nullptr, l->wait ? object(l->wait) : Py_None, l->body ? object(l->body) : Py_None,
                         l->use ? object(l->use) : nullptr, l->count_as_string);
  Ref owned(object(next));
  if (!next || !possible([&] { next->count_key = new std::string(*l->count_key); })) return nullptr;
  if (!begin_iterator(next, l->iterator)) return nullptr;
  if (next->iterator != l->iterator) {
    owned.release();
    return sized_if_it_is(next);
  }
  if (next->started && !l->in_body) {
    l->wait_frame = next->wait_frame;
    l->wait_frame.key = wait_key(l);
    l->start_up = next->start_up;
    l->generation = next->generation;
    l->started = true;
  }
  return new_ref(self);
}

}  // namespace

PyObject* loop(PyObject*, PyObject* args) {
  PyObject *iterable, *wait, *body, *key, *use = Py_None;
  int as_string;
  if (!PyArg_ParseTuple(args, "OOOOp|O", &iterable, &wait, &body, &key, &as_string, &use)) return nullptr;
  bool driven_from_python = iterable == Py_None;
  bool is_iterator = !driven_from_python && PyIter_Check(iterable);
  Loop* l = make_loop(is_iterator ? iterable : nullptr, wait, body, use, as_string);
  Ref owned(reinterpret_cast<PyObject*>(l));
  if (!l || !read_count_key(l, key)) return nullptr;
  if (!l->iterator && !driven_from_python && !begin_iterator(l, iterable)) return nullptr;
  owned.release();
  return sized_if_it_is(l);
}

bool init_loops(PyObject* module) {
  PyTypeObject& t = g_loop_type;
  constexpr unsigned long flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  t.tp_flags = flags;
  t.tp_iter = loop_iter;
  t.tp_iternext = loop_next;
  t.tp_dealloc = loop_dealloc;
  t.tp_traverse = loop_traverse;
  t.tp_methods = g_loop_methods;
  t.tp_getattro = loop_getattro;
  t.tp_setattro = loop_setattro;
  if (PyType_Ready(&t) < 0) return false;
  PyTypeObject& sized = g_sized_loop_type;
  sized.tp_flags = flags;  // not those of `t`: it is ready, and this is not
  sized.tp_base = &t;
  sized.tp_as_sequence = &g_sized;
  sized.tp_iter = loop_iter;
  sized.tp_iternext = loop_next;
  sized.tp_dealloc = loop_dealloc;
  sized.tp_traverse = loop_traverse;
  sized.tp_getattro = loop_getattro;
  sized.tp_setattro = loop_setattro;
  return PyType_Ready(&sized) == 0 && add_type(module, "LoopIterator", &t);
}

}  // namespace dft::py
