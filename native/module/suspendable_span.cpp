#include "module/suspendable_span.hpp"

#include "module/node_use.hpp"
#include "session/session.hpp"

namespace dft::py {
namespace {

struct SuspendableSpan {
  PyObject_HEAD
  Node* node;
  Args args;
  Frame frame;
  uint64_t resumed_at;
  uint64_t active;      // ticks
  uint32_t generation;  // the session it began in
  bool begun, running, done, on;
};

PyTypeObject g_suspendable_span_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.SuspendableSpan",
                                        sizeof(SuspendableSpan)};

void begin(ThreadState* t, SuspendableSpan* span) {
  ++span->node->uses;
  Frame* f = push_frame(t, span, muted_unless(span->on));
  span->frame = *f;
  span->generation = t->generation;
  span->begun = true;
}

PyObject* span_resume(PyObject* self, PyObject*) {
  Section section(self);
  auto* span = reinterpret_cast<SuspendableSpan*>(self);
  ThreadState* t = span->on || recording_thread() ? thread_in_context() : nullptr;
  if (!t || span->done || span->running || (span->begun && span->generation != t->generation)) Py_RETURN_NONE;
  if (!span->begun) {
    begin(t, span);
  } else {
    // The same event, so the same id; only its place on the stack is new.
    Stack* s = t->stack;
    if (s->size == s->capacity) grow_stack(s);
    s->frames[s->size++] = span->frame;
  }
  span->running = true;
  span->resumed_at = ticks();
  Py_RETURN_NONE;
}

void pause(SuspendableSpan* span, uint64_t now) {
  if (!span->running) return;
  span->running = false;
  span->active += now - span->resumed_at;
  Frame f;
  if (ThreadState* t = thread_in_context()) take_frame(t, span, 0, &f);
}

PyObject* span_suspend(PyObject* self, PyObject*) {
  Section section(self);
  pause(reinterpret_cast<SuspendableSpan*>(self), ticks());
  Py_RETURN_NONE;
}

PyObject* span_finish(PyObject* self, PyObject* args) {
  PyObject* error = Py_None;
  if (!PyArg_ParseTuple(args, "|O", &error)) return nullptr;
  uint64_t end = ticks();
  Section section(self);
  auto* span = reinterpret_cast<SuspendableSpan*>(self);
  pause(span, end);
  ThreadState* t = thread_in_context();
  if (!t || span->done || !span->begun || !span->on || span->generation != t->generation) Py_RETURN_NONE;
  span->done = true;
  recording([&] {
    std::string tail = ",\"active\":" + std::to_string(ticks_to_us(span->active));
    if (error != Py_None) tail += error_fragment(reinterpret_cast<PyObject*>(Py_TYPE(error)));
    emit_merged(t, span->node, span->frame, end, &span->args, tail);
  });
  Py_RETURN_NONE;
}

void span_dealloc(PyObject* self) {
  auto* span = reinterpret_cast<SuspendableSpan*>(self);
  Py_XDECREF(reinterpret_cast<PyObject*>(span->node));
  span->args.~Args();
  PyObject_Free(self);
}

PyMethodDef g_span_methods[] = {
    {"resume", span_resume, METH_NOARGS, nullptr},
    {"suspend", span_suspend, METH_NOARGS, nullptr},
    {"finish", span_finish, METH_VARARGS, nullptr},
    {},
};

}  // namespace

PyObject* make_suspendable_span(Node* node, Args args, bool on) {
  SuspendableSpan* span = PyObject_New(SuspendableSpan, &g_suspendable_span_type);
  if (!span) return nullptr;
  span->node = reinterpret_cast<Node*>(new_ref(reinterpret_cast<PyObject*>(node)));
  new (&span->args) Args(std::move(args));
  span->frame = {};
  span->resumed_at = span->active = 0;
  span->generation = 0;
  span->begun = span->running = span->done = false;
  span->on = on;
  return reinterpret_cast<PyObject*>(span);
}

bool init_suspendable_spans(PyObject* module) {
  PyTypeObject& t = g_suspendable_span_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_dealloc = span_dealloc;
  t.tp_methods = g_span_methods;
  return PyType_Ready(&t) == 0 && add_type(module, "SuspendableSpan", &t);
}

}  // namespace dft::py
