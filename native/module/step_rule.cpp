// Both sides share the state of the rule: structs here, attributes there. Every method first decides whether this is
// the common case. If not, it changes nothing and returns False, and the Python rule takes over.
#include "module/step_rule.hpp"

#include <structmember.h>

#include <cstddef>

#include "module/word.hpp"
#include "session/session.hpp"

namespace dft::py {
namespace {

// Absent objects are null here and None there.
struct Pass {
  PyObject_HEAD
  PyObject* iterator;  // a weak reference
  PyObject* workers;
  int64_t fetches;
  int64_t died;
  bool trains;
};

struct Step {
  PyObject_HEAD
  PyObject* passes;
  PyObject* stepped_by;
  PyObject* next_fetch;
  int64_t start, body, last_end;
  bool backward, stepped;
};

struct State {
  PyObject_HEAD
  PyObject *step, *epoch, *epoch_pass, *evaluation, *loaders, *leftover, *marked_forward, *optimizers, *scaling, *batch,
      *latest, *facts;
  int64_t number, free, last, first, step_end, epoch_start, backwards, depth, backward_start, backward_end,
      forward_done, fetch_end, optimizer, optimizer_start;
  bool counts, framework_steps, framework_evaluates, fetching, scaled;
};

PyTypeObject g_pass_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.PassFields", sizeof(Pass)};
PyTypeObject g_step_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.StepFields", sizeof(Step)};
PyTypeObject g_state_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.StateFields", sizeof(State)};

struct Words {
  Word *block, *fetch, *forward, *backward, *step;
};
Words g_words{};
PyTypeObject* g_tensor = nullptr;

State* state_of(PyObject* self) { return reinterpret_cast<State*>(self); }
bool absent(PyObject* o) { return !o || o == Py_None; }
int64_t now() { return int64_t(now_epoch_ns()); }

void set(PyObject*& field, PyObject* owned) {
  PyObject* old = field;
  field = owned;
  Py_XDECREF(old);
}

Pass* pass_of(PyObject* o) { return o && PyObject_TypeCheck(o, &g_pass_type) ? reinterpret_cast<Pass*>(o) : nullptr; }

Step* step_of(State* s) {
  return s->step && PyObject_TypeCheck(s->step, &g_step_type) ? reinterpret_cast<Step*>(s->step) : nullptr;
}

// The open step, if it has begun with a batch and its number and epoch are known.
Step* numbered_step(State* s) {
  Step* step = step_of(s);
  bool known = step && absent(s->evaluation) && !absent(s->epoch) && step->passes && PyList_CheckExact(step->passes) &&
               PyList_GET_SIZE(step->passes) > 0;
  return known ? step : nullptr;
}

Pass* opener_of(Step* step) { return pass_of(PyList_GET_ITEM(step->passes, 0)); }

void log_in_step(Word* w, State* s, int64_t start, int64_t end, PyObject* facts = nullptr, int64_t batch = -1) {
  if (ask_twins(w)) return;
  recording([&] {
    Pairs pairs;
    if (batch >= 0) pairs.add("batch", batch);
    for (Py_ssize_t i = 0; facts && i + 1 < PyTuple_GET_SIZE(facts); i += 2)
      pairs.add(view_of(PyTuple_GET_ITEM(facts, i)), PyTuple_GET_ITEM(facts, i + 1));
    pairs.add("step", s->number);
    pairs.add("epoch", s->epoch);
    emit(w, uint64_t(start), uint64_t(end), pairs.text());
  });
  if (DFT_UNLIKELY(PyErr_Occurred() != nullptr)) PyErr_Clear();
}

bool refers_to(PyObject* reference, PyObject* object) {
  if (!reference || !PyWeakref_Check(reference)) return false;
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(reference, &found) < 0) PyErr_Clear();
  Ref owned(found);
  return found == object;
#else
  return PyWeakref_GetObject(reference) == object;
#endif
}

// The ids of a batch's tensors where it is one or a flat collection of them; null, no error, where it is more.
PyObject* ids_of(PyObject* batch) {
  if (Py_TYPE(batch) == g_tensor) {
    Ref id(PyLong_FromVoidPtr(batch));
    return id ? PyTuple_Pack(1, id.get()) : nullptr;
  }
  bool list = PyList_CheckExact(batch);
  if (!list && !PyTuple_CheckExact(batch)) return nullptr;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(batch);
  if (n > 16) return nullptr;
  for (Py_ssize_t i = 0; i < n; ++i)
    if (Py_TYPE(PySequence_Fast_GET_ITEM(batch, i)) != g_tensor) return nullptr;
  Ref ids(PyTuple_New(n));
  for (Py_ssize_t i = 0; ids && i < n; ++i) {
    PyObject* id = PyLong_FromVoidPtr(PySequence_Fast_GET_ITEM(batch, i));
    if (!id) return nullptr;
    PyTuple_SET_ITEM(ids.get(), i, id);
  }
  return ids.release();
}

// A batch is requested; returns when.
PyObject* asks(PyObject* self, PyObject*) {
  State* s = state_of(self);
  Step* step = step_of(s);
  if (step && step->stepped) word_ends(g_words.block);
  word_begins(g_words.fetch);
  s->fetching = true;
  return PyLong_FromLongLong(now());
}

// got(iterator, batch, start): the next batch of the pass that trains has arrived. The step is over, and the next
// one begins.
PyObject* got(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  State* s = state_of(self);
  s->fetching = false;
  word_ends(g_words.fetch);
  int64_t end = s->fetch_end = now();
  if (n != 3) Py_RETURN_FALSE;
  set(s->batch, ids_of(values[1]));
  if (PyErr_Occurred()) PyErr_Clear();
  Pass* of = pass_of(s->latest);
  if (!of || s->latest != s->epoch_pass || !of->trains || of->died || !refers_to(of->iterator, values[0]))
    Py_RETURN_FALSE;
  Step* step = numbered_step(s);
  bool usual = step && step->stepped && opener_of(step) == of && !s->framework_steps && !s->framework_evaluates;
  bool made_here = absent(of->workers);
  if (!usual || (!made_here && absent(s->facts))) Py_RETURN_FALSE;
  int64_t start = PyLong_AsLongLong(values[2]);
  if (start == -1 && PyErr_Occurred()) return nullptr;
  log_in_step(g_words.block, s, step->body, start > step->body ? start : step->body);
  ++s->number;
  s->step_end = start;
  step->start = start;
  step->body = end;
  if (PyList_GET_SIZE(step->passes) > 1 && PyList_SetSlice(step->passes, 1, PyList_GET_SIZE(step->passes), nullptr) < 0)
    PyErr_Clear();
  step->backward = step->stepped = false;
  if (step->stepped_by) PyDict_Clear(step->stepped_by);
  step->last_end = 0;
  set(step->next_fetch, nullptr);
  word_begins(g_words.block);
  set(s->leftover, nullptr);
  set(s->marked_forward, nullptr);
  s->free = s->last = end;
  if (made_here) {
    log_in_step(g_words.fetch, s, start, end, nullptr, of->fetches);
  } else {
    Ref facts(s->facts);
    s->facts = nullptr;
    log_in_step(g_words.fetch, s, start, end, PyTuple_CheckExact(facts.get()) ? facts.get() : nullptr);
  }
  ++of->fetches;
  word_begins(g_words.forward);
  if (raise_kept()) return nullptr;
  Py_RETURN_TRUE;
}

// The outermost backward of a step whose batches are known to train begins: forward is over.
PyObject* backward_began(PyObject* self, PyObject*) {
  State* s = state_of(self);
  Step* step = s->depth == 0 ? numbered_step(s) : nullptr;
  if (!step || !absent(step->next_fetch)) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(step->passes); ++i) {
    Pass* of = pass_of(PyList_GET_ITEM(step->passes, i));
    if (!of || !of->trains) Py_RETURN_FALSE;
  }
  int64_t begun = s->free;
  if (!absent(s->marked_forward)) {
    begun = PyLong_AsLongLong(s->marked_forward);
    if (begun == -1 && PyErr_Occurred()) return nullptr;
  }
  int64_t start = now();
  s->depth = 1;
  s->counts = true;
  ++s->backwards;
  s->backward_start = start;
  step->backward = true;
  word_ends(g_words.forward);
  word_begins(g_words.backward);
  if (begun && start > begun && s->forward_done < begun) {
    log_in_step(g_words.forward, s, begun, start);
    if (start > s->last) s->last = start;
  }
  set(s->marked_forward, nullptr);
  Py_RETURN_TRUE;
}

// And ends, without an exception.
PyObject* backward_ended(PyObject* self, PyObject*) {
  State* s = state_of(self);
  Step* step = s->depth == 1 ? numbered_step(s) : nullptr;
  if (!step) Py_RETURN_FALSE;
  int64_t end = now();
  s->depth = 0;
  word_ends(g_words.backward);
  log_in_step(g_words.backward, s, s->backward_start, end);
  s->last = s->free = s->backward_end = end;
  if (step->last_end > s->backward_start) step->last_end = end;  // an optimizer in backward
  Py_RETURN_TRUE;
}

bool no_others(State* s) { return !s->optimizers || PyList_GET_SIZE(s->optimizers) == 0; }

// An optimizer's step, not inside that of another or of a gradient scaler, after a batch of a loader that lives.
PyObject* optimizer_began(PyObject* self, PyObject* optimizer) {
  State* s = state_of(self);
  Step* step = absent(s->scaling) && !s->optimizer && no_others(s) ? numbered_step(s) : nullptr;
  Pass* opener = step ? opener_of(step) : nullptr;
  if (!opener || opener->died || !opener->trains || !step->stepped_by) Py_RETURN_FALSE;
  Ref key(PyLong_FromVoidPtr(optimizer)), backwards(PyLong_FromLongLong(s->backwards));
  if (!key || !backwards || PyDict_SetItem(step->stepped_by, key.get(), backwards.get()) < 0) return nullptr;
  int64_t start = now();
  s->optimizer = int64_t(reinterpret_cast<uintptr_t>(optimizer));
  s->optimizer_start = start;
  word_begins(g_words.step);
  if (s->depth == 0) s->free = start;  // a closure computes forward inside
  Py_RETURN_TRUE;
}

PyObject* optimizer_ended(PyObject* self, PyObject* optimizer) {
  State* s = state_of(self);
  bool its = s->optimizer == int64_t(reinterpret_cast<uintptr_t>(optimizer)) && no_others(s);
  Step* step = its && absent(s->scaling) ? numbered_step(s) : nullptr;
  if (!step) Py_RETURN_FALSE;
  int64_t end = now(), start = s->optimizer_start;
  s->optimizer = 0;
  word_ends(g_words.step);
  if (s->depth == 0) {
    if (start < s->backward_end) start = s->backward_end;
    s->free = end;
  }
  log_in_step(g_words.step, s, start, end);
  if (end > s->last) s->last = end;
  step->stepped = true;
  step->last_end = end;
  Py_RETURN_TRUE;
}

// step_rule(block, fetch, forward, backward, step, tensor): the words it says, and what a batch is made of.
PyObject* step_rule(PyObject*, PyObject* args) {
  Words w{};
  PyTypeObject* tensor;
  if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!", &g_word_type, &w.block, &g_word_type, &w.fetch, &g_word_type, &w.forward,
                        &g_word_type, &w.backward, &g_word_type, &w.step, &PyType_Type, &tensor))
    return nullptr;
  for (Word* each : {w.block, w.fetch, w.forward, w.backward, w.step}) Py_INCREF(each);
  Py_INCREF(tensor);
  g_words = w;  // once per process; those before are kept
  g_tensor = tensor;
  Py_RETURN_NONE;
}

template <typename T>
void dealloc(PyObject* self);

template <>
void dealloc<Pass>(PyObject* self) {
  auto* p = reinterpret_cast<Pass*>(self);
  for (PyObject* each : {p->iterator, p->workers}) Py_XDECREF(each);
  Py_TYPE(self)->tp_free(self);
}

template <>
void dealloc<Step>(PyObject* self) {
  auto* s = reinterpret_cast<Step*>(self);
  for (PyObject* each : {s->passes, s->stepped_by, s->next_fetch}) Py_XDECREF(each);
  Py_TYPE(self)->tp_free(self);
}

template <>
void dealloc<State>(PyObject* self) {
  State* s = state_of(self);
  for (PyObject* each : {s->step, s->epoch, s->epoch_pass, s->evaluation, s->loaders, s->leftover, s->marked_forward,
                         s->optimizers, s->scaling, s->batch, s->latest, s->facts})
    Py_XDECREF(each);
  Py_TYPE(self)->tp_free(self);
}

#define FIELD(type, owner, field, name) {name, type, offsetof(owner, field), 0, nullptr}

PyMemberDef g_pass_members[] = {
    FIELD(T_OBJECT, Pass, iterator, "iterator"), FIELD(T_OBJECT, Pass, workers, "workers"),
    FIELD(T_LONGLONG, Pass, fetches, "fetches"), FIELD(T_LONGLONG, Pass, died, "died"),
    FIELD(T_BOOL, Pass, trains, "trains"),       {},
};

PyMemberDef g_step_members[] = {
    FIELD(T_OBJECT, Step, passes, "passes"),
    FIELD(T_OBJECT, Step, stepped_by, "stepped_by"),
    FIELD(T_OBJECT, Step, next_fetch, "next_fetch"),
    FIELD(T_LONGLONG, Step, start, "start"),
    FIELD(T_LONGLONG, Step, body, "body"),
    FIELD(T_LONGLONG, Step, last_end, "last_end"),
    FIELD(T_BOOL, Step, backward, "backward"),
    FIELD(T_BOOL, Step, stepped, "stepped"),
    {},
};

PyMemberDef g_state_members[] = {
    FIELD(T_OBJECT, State, step, "step"),
    FIELD(T_OBJECT, State, epoch, "epoch"),
    FIELD(T_OBJECT, State, epoch_pass, "_epoch_pass"),
    FIELD(T_OBJECT, State, evaluation, "evaluation"),
    FIELD(T_OBJECT, State, loaders, "_loaders"),
    FIELD(T_OBJECT, State, leftover, "_leftover"),
    FIELD(T_OBJECT, State, marked_forward, "_marked_forward"),
    FIELD(T_OBJECT, State, optimizers, "_optimizers"),
    FIELD(T_OBJECT, State, scaling, "scaling"),
    FIELD(T_OBJECT, State, batch, "batch"),
    FIELD(T_OBJECT, State, latest, "latest"),
    FIELD(T_OBJECT, State, facts, "facts"),
    FIELD(T_LONGLONG, State, number, "number"),
    FIELD(T_LONGLONG, State, free, "_free"),
    FIELD(T_LONGLONG, State, last, "_last"),
    FIELD(T_LONGLONG, State, first, "_first"),
    FIELD(T_LONGLONG, State, step_end, "_step_end"),
    FIELD(T_LONGLONG, State, epoch_start, "_epoch_start"),
    FIELD(T_LONGLONG, State, backwards, "_backwards"),
    FIELD(T_LONGLONG, State, depth, "_depth"),
    FIELD(T_LONGLONG, State, backward_start, "_backward_start"),
    FIELD(T_LONGLONG, State, backward_end, "_backward_end"),
    FIELD(T_LONGLONG, State, forward_done, "_forward_done"),
    FIELD(T_LONGLONG, State, fetch_end, "fetch_end"),
    FIELD(T_LONGLONG, State, optimizer, "_optimizer"),
    FIELD(T_LONGLONG, State, optimizer_start, "_optimizer_start"),
    FIELD(T_BOOL, State, counts, "_counts"),
    FIELD(T_BOOL, State, framework_steps, "_framework_steps"),
    FIELD(T_BOOL, State, framework_evaluates, "_framework_evaluates"),
    FIELD(T_BOOL, State, fetching, "fetching"),
    FIELD(T_BOOL, State, scaled, "scaled"),
    {},
};

#undef FIELD

PyMethodDef g_state_methods[] = {
    {"asks", asks, METH_NOARGS, nullptr},
    {"got", reinterpret_cast<PyCFunction>(got), METH_FASTCALL, nullptr},
    {"backward_began", backward_began, METH_NOARGS, nullptr},
    {"backward_ended", backward_ended, METH_NOARGS, nullptr},
    {"optimizer_began", optimizer_began, METH_O, nullptr},
    {"optimizer_ended", optimizer_ended, METH_O, nullptr},
    {},
};

PyMethodDef g_rule_functions[] = {
    {"step_rule", step_rule, METH_VARARGS, nullptr},
    {},
};

template <typename T>
bool add_fields(PyObject* module, const char* name, PyTypeObject& t, PyMemberDef* members) {
  t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  t.tp_new = PyType_GenericNew;
  t.tp_dealloc = dealloc<T>;
  t.tp_members = members;
  return PyType_Ready(&t) == 0 && add_type(module, name, &t);
}

}  // namespace

bool init_step_rule(PyObject* module) {
  g_state_type.tp_methods = g_state_methods;
  return add_fields<Pass>(module, "PassFields", g_pass_type, g_pass_members) &&
         add_fields<Step>(module, "StepFields", g_step_type, g_step_members) &&
         add_fields<State>(module, "StateFields", g_state_type, g_state_members) &&
         PyModule_AddFunctions(module, g_rule_functions) == 0;
}

}  // namespace dft::py
