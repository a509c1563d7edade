#include "module/loop.hpp"

#include "format/json.hpp"
#include "module/use.hpp"

namespace dft::py {
namespace {

struct Loop {
  PyObject_HEAD
  PyObject* iterator;
  Node* wait;  // null: not wanted
  Node* body;
  std::string* count_key;  // ,"count":
  Frame wait_frame;
  uint64_t wait_end;
  uint64_t count;
  uint32_t generation;  // the session the current item was got in
  bool count_as_string;
  bool in_body;
  bool waited;  // wait_frame holds the wait of the current item
};

PyTypeObject g_loop_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.LoopIterator", sizeof(Loop)};

// Two frames of one object need two keys.
const void* wait_key(Loop* l) { return &l->wait; }
const void* body_key(Loop* l) { return &l->body; }

size_t count_fragment(Loop* l, char* out) {
  char* p = put(out, *l->count_key);
  if (l->count_as_string) *p++ = '"';
  p = put_uint(p, l->count);
  if (l->count_as_string) *p++ = '"';
  return size_t(p - out);
}

// The body of the current item is over: both its events are written now, and only now.
void end_item(Loop* l, uint64_t now) {
  if (!l->in_body) return;
  l->in_body = false;
  ThreadState* t = thread_in_context();
  if (!t || t->generation != l->generation) return;
  Frame body;
  bool bodied = l->body && take_frame(t, body_key(l), 0, &body) && !(body.flags & kMuted);
  char count[96];
  size_t n = count_fragment(l, count);
  if (l->waited && !(l->wait_frame.flags & kMuted))
    emit_span(t, l->wait->name_id, l->wait_frame, l->wait_end, fragment_of(l->wait), {count, n});
  if (bodied) emit_span(t, l->body->name_id, body, now, fragment_of(l->body), {count, n});
  if (l->body) boundary(l->body->phase, false);
}

bool wanted(Loop* l) { return (l->wait && l->wait->on) || (l->body && l->body->on); }

void begin_wait(Loop* l) {
  end_item(l, ticks());
  l->waited = false;
  ThreadState* t = wanted(l) || recording_thread() ? thread_in_context() : nullptr;
  if (t && l->wait) {
    ++l->wait->uses;
    push_frame(t, wait_key(l), muted_unless(l->wait->on));
  }
}

// `error`: the exception type that came instead of an item; the one that ends a loop is no event.
void end_wait(Loop* l, bool got_item, PyObject* error) {
  l->wait_end = ticks();
  ThreadState* t = wanted(l) || recording_thread() ? thread_in_context() : nullptr;
  if (!t) return;
  Frame f;
  bool waited = l->wait && take_frame(t, wait_key(l), 0, &f);
  if (!got_item) {
    if (waited && error && !(f.flags & kMuted))
      emit_span(t, l->wait->name_id, f, l->wait_end, fragment_of(l->wait), error_fragment(error));
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
    push_frame(t, body_key(l), muted_unless(l->body->on));
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
    // The loop was left by break or by an exception: its block is nobody's parent any more.
    KeepError keep;
    Frame f;
    if (ThreadState* t = thread_in_context()) take_frame(t, body_key(l), 0, &f);
  }
  Py_XDECREF(l->iterator);
  Py_XDECREF(reinterpret_cast<PyObject*>(l->wait));
  Py_XDECREF(reinterpret_cast<PyObject*>(l->body));
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

// len() and friends of the iterable's own iterator are not ours to offer; its length hint is.
PyObject* loop_length_hint(PyObject* self, PyObject*) {
  PyObject* iterator = reinterpret_cast<Loop*>(self)->iterator;
  Py_ssize_t n = iterator ? PyObject_LengthHint(iterator, 0) : 0;
  return n < 0 ? nullptr : PyLong_FromSsize_t(n);
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

}  // namespace

PyObject* loop(PyObject*, PyObject* args) {
  PyObject *iterable, *wait, *body, *key;
  int as_string;
  if (!PyArg_ParseTuple(args, "OOOOp", &iterable, &wait, &body, &key, &as_string)) return nullptr;
  Ref iterator(iterable == Py_None ? nullptr : PyObject_GetIter(iterable));
  if (!iterator && iterable != Py_None) return nullptr;
  Loop* l = PyObject_GC_New(Loop, &g_loop_type);
  if (!l) return nullptr;
  l->iterator = iterator.release();
  l->wait = node_or_null(wait);
  l->body = node_or_null(body);
  l->count_key = new std::string("," + key_text(key));
  if (l->count_key->size() > 64) *l->count_key = ",\"count\":";
  l->count = 0;
  l->generation = 0;
  l->count_as_string = as_string;
  l->in_body = l->waited = false;
  PyObject_GC_Track(l);
  return reinterpret_cast<PyObject*>(l);
}

bool init_loops(PyObject* module) {
  PyTypeObject& t = g_loop_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  t.tp_iter = PyObject_SelfIter;
  t.tp_iternext = loop_next;
  t.tp_dealloc = loop_dealloc;
  t.tp_traverse = loop_traverse;
  t.tp_methods = g_loop_methods;
  return PyType_Ready(&t) == 0 && add_type(module, "LoopIterator", &t);
}

}  // namespace dft::py
