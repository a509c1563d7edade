#include "module/activity.hpp"

#include "module/node_use.hpp"
#include "session/session.hpp"

namespace dft::py {
namespace {

struct Activity {
  PyObject_HEAD
  Node* node;
  Args args;
  Frame frame;
  uint64_t resumed_at;
  uint64_t active;      // ticks
  uint32_t generation;  // the session it began in
  bool begun, running, done, on;
};

PyTypeObject g_activity_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Activity", sizeof(Activity)};

void begin(ThreadState* t, Activity* a) {
  ++a->node->uses;
  Frame* f = push_frame(t, a, muted_unless(a->on));
  a->frame = *f;
  a->generation = t->generation;
  a->begun = true;
}

PyObject* activity_resume(PyObject* self, PyObject*) {
  Section section(self);
  auto* a = reinterpret_cast<Activity*>(self);
  ThreadState* t = a->on || recording_thread() ? thread_in_context() : nullptr;
  if (!t || a->done || a->running || (a->begun && a->generation != t->generation)) Py_RETURN_NONE;
  if (!a->begun) {
    begin(t, a);
  } else {
    // The same event, so the same id; only its place on the stack is new.
    Stack* s = t->stack;
    if (s->size == s->capacity) grow_stack(s);
    s->frames[s->size++] = a->frame;
  }
  a->running = true;
  a->resumed_at = ticks();
  Py_RETURN_NONE;
}

void pause(Activity* a, uint64_t now) {
  if (!a->running) return;
  a->running = false;
  a->active += now - a->resumed_at;
  Frame f;
  if (ThreadState* t = thread_in_context()) take_frame(t, a, 0, &f);
}

PyObject* activity_suspend(PyObject* self, PyObject*) {
  Section section(self);
  pause(reinterpret_cast<Activity*>(self), ticks());
  Py_RETURN_NONE;
}

PyObject* activity_finish(PyObject* self, PyObject* args) {
  PyObject* error = Py_None;
  if (!PyArg_ParseTuple(args, "|O", &error)) return nullptr;
  uint64_t end = ticks();
  Section section(self);
  auto* a = reinterpret_cast<Activity*>(self);
  pause(a, end);
  ThreadState* t = thread_in_context();
  if (!t || a->done || !a->begun || !a->on || a->generation != t->generation) Py_RETURN_NONE;
  a->done = true;
  recording([&] {
    std::string tail = ",\"active\":" + std::to_string(ticks_to_us(a->active));
    if (error != Py_None) tail += error_fragment(reinterpret_cast<PyObject*>(Py_TYPE(error)));
    emit_merged(t, a->node, a->frame, end, &a->args, tail);
  });
  Py_RETURN_NONE;
}

void activity_dealloc(PyObject* self) {
  auto* a = reinterpret_cast<Activity*>(self);
  Py_XDECREF(reinterpret_cast<PyObject*>(a->node));
  a->args.~Args();
  PyObject_Free(self);
}

PyMethodDef g_activity_methods[] = {
    {"resume", activity_resume, METH_NOARGS, nullptr},
    {"suspend", activity_suspend, METH_NOARGS, nullptr},
    {"finish", activity_finish, METH_VARARGS, nullptr},
    {},
};

}  // namespace

PyObject* make_activity(Node* node, Args args, bool on) {
  Activity* a = PyObject_New(Activity, &g_activity_type);
  if (!a) return nullptr;
  a->node = reinterpret_cast<Node*>(new_ref(reinterpret_cast<PyObject*>(node)));
  new (&a->args) Args(std::move(args));
  a->frame = {};
  a->resumed_at = a->active = 0;
  a->generation = 0;
  a->begun = a->running = a->done = false;
  a->on = on;
  return reinterpret_cast<PyObject*>(a);
}

bool init_activities(PyObject* module) {
  PyTypeObject& t = g_activity_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_dealloc = activity_dealloc;
  t.tp_methods = g_activity_methods;
  return PyType_Ready(&t) == 0 && add_type(module, "Activity", &t);
}

}  // namespace dft::py
