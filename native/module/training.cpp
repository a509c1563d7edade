#include "module/training.hpp"

#include <structmember.h>

#include <cstddef>
#include <memory>
#include <string>

#include "module/auto_event.hpp"
#include "module/hang_watch.hpp"
#include "module/model_calls.hpp"
#include "module/node.hpp"
#include "module/torch_calls.hpp"
#include "session/session.hpp"

namespace dft::py {

int64_t rule_clock() { return int64_t(now_epoch_ns()); }

namespace {

// Those of earlier installations are kept: another thread may be using one.
Relaxed<AutoEvent*> g_auto_events[kStages];
Relaxed<PyObject*> g_grad_enabled = nullptr;  // torch.is_grad_enabled
Relaxed<PyObject*> g_compiler = nullptr;      // the names of torch.compiler
PyObject* g_compiling_key = nullptr;
Relaxed<PyObject*> g_make = nullptr;   // makes the training of a thread, or finds that of the thread it works for
Relaxed<uint32_t> g_installation = 1;  // trainings of an earlier one, or of the parent process, do not count

// One pointer of the small static TLS reserve each.
thread_local Training* tls_training = nullptr;
thread_local uint32_t tls_installation = 0;

class AutoEvents final : public StageEvents {
 public:
  void write(Stage stage, int64_t start, int64_t end, std::string_view args) override {
    AutoEvent* e = event_of(stage);
    if (!e || annotated_by_hand(e)) return;
    recording([&] {
      constexpr std::string_view kAuto = ",\"auto\":1";
      char buffer[512];
      if (DFT_LIKELY(args.size() + kAuto.size() <= sizeof buffer)) {
        char* at = put(put(buffer, args), kAuto);
        emit(e, uint64_t(start), uint64_t(end), {buffer, size_t(at - buffer)});
      } else {
        emit(e, uint64_t(start), uint64_t(end), std::string(args).append(kAuto));
      }
    });
    if (DFT_UNLIKELY(PyErr_Occurred() != nullptr)) PyErr_Clear();
  }
  void begins(Stage stage) override {
    if (AutoEvent* e = event_of(stage)) event_begins(e);
  }
  void ends(Stage stage) override {
    if (AutoEvent* e = event_of(stage)) event_ends(e);
  }
  bool by_hand(Stage stage) override {
    AutoEvent* e = event_of(stage);
    return e && annotated_by_hand(e);
  }
  void forward_unseen() override { look_for_models_again(); }

 private:
  static AutoEvent* event_of(Stage stage) { return g_auto_events[size_t(stage)]; }
};

AutoEvents g_events;
Now g_unshown;  // of threads beyond those that can be shown; never read

struct LoaderPass {
  PyObject_HEAD
  PassPtr* pass;
  PyObject* iterator;  // a weak reference
  char has_workers;    // whether other processes make its batches
};

PyTypeObject g_pass_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.LoaderPass", sizeof(LoaderPass)};
PyTypeObject g_training_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Training", sizeof(Training)};

Training* training_of(PyObject* self) { return reinterpret_cast<Training*>(self); }
LoaderPass* pass_of(PyObject* o) {
  return o && PyObject_TypeCheck(o, &g_pass_type) ? reinterpret_cast<LoaderPass*>(o) : nullptr;
}
bool absent(PyObject* o) { return !o || o == Py_None; }

void set(PyObject*& field, PyObject* owned) {
  PyObject* old = field;
  field = owned;
  Py_XDECREF(old);
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

std::string_view error_name(PyObject* error) { return absent(error) ? std::string_view() : Py_TYPE(error)->tp_name; }

// The rule allocates little and rarely; without memory an event is lost, not the program. False, with an exception, if
// one was raised from outside meanwhile.
template <typename F>
bool tell_rule(Training* t, F f) {
  Section section(reinterpret_cast<PyObject*>(t));  // autograd's threads work for the one that called backward
  if (!t->muted) recording([&] { f(*t->rule); });
  tell_steps(t);
  return !raise_kept();
}
PyObject* none_if(bool fine) { return fine ? new_ref(Py_None) : nullptr; }

bool times(PyObject* const* values, Py_ssize_t n, std::initializer_list<int64_t*> out) {
  if (n != Py_ssize_t(out.size())) {
    PyErr_Format(PyExc_TypeError, "takes %zd arguments", Py_ssize_t(out.size()));
    return false;
  }
  for (int64_t* each : out) {
    *each = PyLong_AsLongLong(*values++);
    if (*each == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

// Loader --------------------------------------------------------------------------------------------------------------

void batch_came(Training* t, LoaderPass* of, int64_t start) {
  int64_t end = rule_clock();
  t->rule->fetching(false);
  g_events.ends(Stage::kFetch);
  Ref facts(t->facts);
  t->facts = nullptr;
  recording([&] {
    Pairs pairs;
    if (!of->has_workers) {
      pairs.add("batch", (*of->pass)->fetches);
    } else if (facts && PyTuple_CheckExact(facts.get())) {
      for (Py_ssize_t i = 0; i + 1 < PyTuple_GET_SIZE(facts.get()); i += 2)
        pairs.add(view_of(PyTuple_GET_ITEM(facts.get(), i)), PyTuple_GET_ITEM(facts.get(), i + 1));
    }
    bool gradients = (*of->pass)->trains || gradients_on();
    t->rule->fetched(*of->pass, start, end, gradients, pairs.plain());
  });
  if (PyErr_Occurred()) PyErr_Clear();
  tell_steps(t);
  notify(Boundary::kBatch, false);
}

// Compute -------------------------------------------------------------------------------------------------------------

PyObject* py_backward_begins(PyObject* self, PyObject*) { return none_if(backward_begins(training_of(self))); }

// backward_ends(error=None)
PyObject* py_backward_ends(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  return none_if(backward_ends(training_of(self), error_name(n ? values[0] : Py_None)));
}

// took_gradients(start, end, of_graph): whether gradients of these can be taken.
PyObject* took_gradients(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  int64_t start, end, of_graph;
  if (!times(values, n, {&start, &end, &of_graph})) return nullptr;
  return none_if(tell_rule(training_of(self), [&](StepRule& rule) { rule.took_gradients(start, end, of_graph != 0); }));
}

PyObject* optimizer_made(PyObject* self, PyObject*) {
  StepRule::optimizer_seen = true;
  ++StepRule::optimizers_made;
  return none_if(tell_rule(training_of(self), [](StepRule& rule) { rule.optimizer_made(rule_clock()); }));
}

uintptr_t key_of(PyObject* object) { return reinterpret_cast<uintptr_t>(object); }
bool is_a_part(const Training* t, PyObject* optimizer) {
  return t->scaling == -1 || (t->scaling && t->scaling == int64_t(key_of(optimizer)));
}

PyObject* py_optimizer_begins(PyObject* self, PyObject* optimizer) {
  return none_if(optimizer_begins(training_of(self), optimizer));
}

// optimizer_ends(optimizer, skipped=False)
PyObject* py_optimizer_ends(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  if (n < 1 || n > 2) {
    PyErr_SetString(PyExc_TypeError, "optimizer_ends() takes an optimizer and whether it was skipped");
    return nullptr;
  }
  return none_if(optimizer_ends(training_of(self), values[0], n == 2 && values[1] == Py_True));
}

PyObject* interrupt(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  int64_t start, end;
  if (!times(values, n, {&start, &end})) return nullptr;
  return none_if(tell_rule(training_of(self), [&](StepRule& rule) { rule.interrupt(start, end); }));
}

// Frameworks ----------------------------------------------------------------------------------------------------------

template <void (StepRule::*mark)(int64_t)>
PyObject* marked(PyObject* self, PyObject*) {
  return none_if(tell_rule(training_of(self), [](StepRule& rule) { (rule.*mark)(rule_clock()); }));
}

PyObject* resume(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  int64_t number, epoch;
  if (!times(values, n, {&number, &epoch})) return nullptr;
  return none_if(tell_rule(training_of(self), [&](StepRule& rule) { rule.resume(number, epoch); }));
}

// The end, and other events -------------------------------------------------------------------------------------------

// finish(error=None): the name of the exception that ended the program.
PyObject* finish(PyObject* self, PyObject* const* values, Py_ssize_t n) {
  std::string_view error = n && values[0] != Py_None ? view_of(values[0]) : std::string_view();
  training_of(self)->muted = false;
  return none_if(tell_rule(training_of(self), [&](StepRule& rule) { rule.finish(rule_clock(), error); }));
}

// write(event, start, end, **args): another event of this thread, with the number of its step.
PyObject* write_event(PyObject* self, PyObject* args, PyObject* kwargs) {
  AutoEvent* e;
  long long start, end;
  if (!PyArg_ParseTuple(args, "O!LL", &g_auto_event_type, &e, &start, &end)) return nullptr;
  Section section(self);
  Training* t = training_of(self);
  if (t->muted) Py_RETURN_NONE;
  t->rule->saw(end);
  if (annotated_by_hand(e)) Py_RETURN_NONE;
  recording([&] {
    py::Args pairs;
    if (kwargs) pairs.set_all(kwargs);
    emit(e, uint64_t(start), uint64_t(end), std::string(pairs.text()) + t->rule->numbers() + ",\"auto\":1");
  });
  PyErr_Clear();
  if (raise_kept()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* fetching(PyObject* self, void*) { return PyBool_FromLong(training_of(self)->rule->fetching()); }
PyObject* in_backward(PyObject* self, void*) { return PyBool_FromLong(training_of(self)->rule->in_backward()); }
PyObject* backwards(PyObject* self, void*) { return PyLong_FromLongLong(training_of(self)->rule->backwards()); }

PyMethodDef g_training_methods[] = {
    {"backward_begins", py_backward_begins, METH_NOARGS, nullptr},
    {"backward_ends", reinterpret_cast<PyCFunction>(py_backward_ends), METH_FASTCALL, nullptr},
    {"took_gradients", reinterpret_cast<PyCFunction>(took_gradients), METH_FASTCALL, nullptr},
    {"optimizer_made", optimizer_made, METH_NOARGS, nullptr},
    {"optimizer_begins", py_optimizer_begins, METH_O, nullptr},
    {"optimizer_ends", reinterpret_cast<PyCFunction>(py_optimizer_ends), METH_FASTCALL, nullptr},
    {"interrupt", reinterpret_cast<PyCFunction>(interrupt), METH_FASTCALL, nullptr},
    {"forward_begins", marked<&StepRule::forward_begins>, METH_NOARGS, nullptr},
    {"forward_ends", marked<&StepRule::forward_ends>, METH_NOARGS, nullptr},
    {"step_ends", marked<&StepRule::step_ends>, METH_NOARGS, nullptr},
    {"batch_ends", marked<&StepRule::batch_ends>, METH_NOARGS, nullptr},
    {"evaluation_begins", marked<&StepRule::evaluation_begins>, METH_NOARGS, nullptr},
    {"evaluation_ends", marked<&StepRule::evaluation_ends>, METH_NOARGS, nullptr},
    {"resume", reinterpret_cast<PyCFunction>(resume), METH_FASTCALL, nullptr},
    {"finish", reinterpret_cast<PyCFunction>(finish), METH_FASTCALL, nullptr},
    {"write", reinterpret_cast<PyCFunction>(write_event), METH_VARARGS | METH_KEYWORDS, nullptr},
    {},
};

PyMemberDef g_training_members[] = {
    {"facts", T_OBJECT, offsetof(Training, facts), 0, nullptr},
    {"latest", T_OBJECT, offsetof(Training, latest), READONLY, nullptr},
    {"scaling", T_LONGLONG, offsetof(Training, scaling), 0, nullptr},
    {"scaled", T_BOOL, offsetof(Training, scaled), 0, nullptr},
    {"muted", T_BOOL, offsetof(Training, muted), 0, nullptr},
    {},
};

PyGetSetDef g_training_properties[] = {
    {"fetching", fetching, nullptr, nullptr, nullptr},
    {"in_backward", in_backward, nullptr, nullptr, nullptr},
    {"backwards", backwards, nullptr, nullptr, nullptr},
    {},
};

// Training(main_thread)
PyObject* training_new(PyTypeObject* type, PyObject* args, PyObject*) {
  int main_thread;
  if (!PyArg_ParseTuple(args, "p", &main_thread)) return nullptr;
  auto* t = reinterpret_cast<Training*>(type->tp_alloc(type, 0));
  if (!t) return nullptr;
  t->installation = g_installation;
  t->shown = show_thread(PyThreadState_Get());
  watch_this_process();
  if (!possible([&] { t->rule = new StepRule(g_events, t->shown ? t->shown->now : g_unshown, main_thread != 0); })) {
    Py_DECREF(t);
    return nullptr;
  }
  tls_training = t;
  tls_installation = g_installation;
  // What the first record of a thread needs is made here, where the boundary has been timed already, and not after the
  // end of a stage: on a loaded machine it takes milliseconds, which would count for the next stage.
  if (g_tracing) thread_in_context();
  return reinterpret_cast<PyObject*>(t);
}

void training_dealloc(PyObject* self) {
  Training* t = training_of(self);
  if (t->installation == g_installation) hide_thread(t->shown);
  if (tls_training == t) tls_training = nullptr;
  Py_XDECREF(t->latest);
  Py_XDECREF(t->facts);
  delete t->rule;
  Py_TYPE(self)->tp_free(self);
}

// LoaderPass(loader, began, ready, restarts)
PyObject* pass_new(PyTypeObject* type, PyObject* args, PyObject*) {
  long long loader, began, ready, restarts = 0;
  if (!PyArg_ParseTuple(args, "LLL|L", &loader, &began, &ready, &restarts)) return nullptr;
  auto* p = reinterpret_cast<LoaderPass*>(type->tp_alloc(type, 0));
  if (!p) return nullptr;
  if (!possible([&] { p->pass = new PassPtr(std::make_shared<Pass>()); })) {
    Py_DECREF(p);
    return nullptr;
  }
  Pass& pass = **p->pass;
  pass.loader = loader;
  pass.began = began;
  pass.ready = ready;
  pass.restarts = restarts;
  return reinterpret_cast<PyObject*>(p);
}

void pass_dealloc(PyObject* self) {
  auto* p = reinterpret_cast<LoaderPass*>(self);
  Py_XDECREF(p->iterator);
  delete p->pass;
  Py_TYPE(self)->tp_free(self);
}

PyObject* pass_dies(PyObject* self, PyObject*) {
  (*pass_of(self)->pass)->died = rule_clock();
  Py_RETURN_NONE;
}
PyObject* pass_restarts(PyObject* self, void*) { return PyLong_FromLongLong((*pass_of(self)->pass)->restarts); }

PyMethodDef g_pass_methods[] = {{"dies", pass_dies, METH_NOARGS, nullptr}, {}};
PyGetSetDef g_pass_properties[] = {{"restarts", pass_restarts, nullptr, nullptr, nullptr}, {}};
PyMemberDef g_pass_members[] = {
    {"iterator", T_OBJECT, offsetof(LoaderPass, iterator), 0, nullptr},
    {"has_workers", T_BOOL, offsetof(LoaderPass, has_workers), 0, nullptr},
    {},
};

// training(): this thread's.
PyObject* py_training(PyObject*, PyObject*) {
  if (DFT_LIKELY(tls_training && tls_installation == g_installation))
    return new_ref(reinterpret_cast<PyObject*>(tls_training));
  if (g_make) return PyObject_CallNoArgs(g_make);
  PyErr_SetString(PyExc_RuntimeError, "the step rule has not been set up");
  return nullptr;
}

// step_rule(events, is_grad_enabled, make, compiler): the kinds of events it writes in the order of `Stage`, what says
// whether torch's gradients are on, what makes the training of a thread, and the dict of `torch.compiler`.
PyObject* step_rule(PyObject*, PyObject* args) {
  PyObject *events, *grad_enabled, *make, *compiler = nullptr;
  if (!PyArg_ParseTuple(args, "O!OO|O!", &PyTuple_Type, &events, &grad_enabled, &make, &PyDict_Type, &compiler))
    return nullptr;
  if (PyTuple_GET_SIZE(events) != Py_ssize_t(kStages)) {
    PyErr_SetString(PyExc_ValueError, "an event for every stage");
    return nullptr;
  }
  for (size_t i = 0; i < kStages; ++i) {
    PyObject* each = PyTuple_GET_ITEM(events, Py_ssize_t(i));
    if (!PyObject_TypeCheck(each, &g_auto_event_type)) {
      PyErr_SetString(PyExc_TypeError, "automatic events only");
      return nullptr;
    }
    Py_INCREF(each);
    g_auto_events[i] = reinterpret_cast<AutoEvent*>(each);
  }
  g_grad_enabled = grad_enabled == Py_None ? nullptr : new_ref(grad_enabled);
  g_make = new_ref(make);
  g_compiler = Py_XNewRef(compiler);
  Py_RETURN_NONE;
}

// forget_trainings(): detaches all trainings from their threads.
PyObject* forget_trainings(PyObject*, PyObject*) {
  ++g_installation;
  hide_all_threads();
  StepRule::optimizer_seen = false;
  StepRule::optimizers_made = 0;
  Py_RETURN_NONE;
}

PyObject* forget_training(PyObject*, PyObject*) {
  tls_training = nullptr;
  Py_RETURN_NONE;
}

// no_optimizer(known): whether the process is known to have none.
PyObject* no_optimizer(PyObject*, PyObject* known) {
  StepRule::no_optimizer = known == Py_True;
  Py_RETURN_NONE;
}

PyMethodDef g_rule_functions[] = {
    {"training", py_training, METH_NOARGS, nullptr},
    {"step_rule", step_rule, METH_VARARGS, nullptr},
    {"forget_trainings", forget_trainings, METH_NOARGS, nullptr},
    {"forget_training", forget_training, METH_NOARGS, nullptr},
    {"no_optimizer", no_optimizer, METH_O, nullptr},
    {},
};

}  // namespace

bool torch_compiles() {
  if (!g_compiler) return false;
  PyObject* flag = PyDict_GetItemWithError(g_compiler, g_compiling_key);
  if (DFT_UNLIKELY(!flag && PyErr_Occurred())) PyErr_Clear();
  return flag && flag != Py_False;
}

bool is_pass(PyObject* object) { return pass_of(object) != nullptr; }

bool is_latest_pass(Training* t, PyObject* iterator) {
  Section section(reinterpret_cast<PyObject*>(t));
  if (t->muted) return true;
  LoaderPass* of = pass_of(t->latest);
  return of && refers_to(of->iterator, iterator);
}

bool fetch_begins(Training* t, PyObject* iterator, int64_t* at) {
  Section section(reinterpret_cast<PyObject*>(t));
  *at = rule_clock();
  if (t->muted) return true;
  LoaderPass* of = pass_of(t->latest);
  t->rule->fetch_begins(*at, of && refers_to(of->iterator, iterator) ? of->pass->get() : nullptr);
  if (t->rule->over() != t->over) {
    tell_ended_steps(t);
    *at = rule_clock();
  }
  notify(Boundary::kBatch, true);
  return !raise_kept();
}

bool fetched(Training* t, PyObject* pass, int64_t start) {
  Section section(reinterpret_cast<PyObject*>(t));
  if (t->muted) return true;
  if (t->latest != pass) set(t->latest, new_ref(pass));
  batch_came(t, pass_of(pass), start);
  return !raise_kept();
}

bool loader_ended(Training* t, PyObject* pass, int64_t start) {
  g_events.ends(Stage::kFetch);
  return tell_rule(t, [&](StepRule& rule) {
    rule.loader_ended(*pass_of(pass)->pass, start, rule_clock());
    notify(Boundary::kBatch, false);
  });
}

bool fetch_failed(Training* t, PyObject* pass, int64_t start, std::string_view error) {
  return tell_rule(t, [&](StepRule& rule) {
    rule.fetch_failed(*pass_of(pass)->pass, start, rule_clock(), error);
    notify(Boundary::kBatch, false);
  });
}

bool backward_begins(Training* t) {
  return tell_rule(t, [](StepRule& rule) {
    if (rule.backward_begins(rule_clock())) notify(Boundary::kBackward, true);
  });
}

bool backward_ends(Training* t, std::string_view error) {
  return tell_rule(t, [&](StepRule& rule) {
    rule.backward_ends(rule_clock(), error);
    if (!rule.in_backward()) notify(Boundary::kBackward, false);
  });
}

bool transform_begins(Training* t) {
  return tell_rule(t, [](StepRule& rule) { rule.transform_begins(rule_clock()); });
}

bool transform_ends(Training* t) {
  return tell_rule(t, [](StepRule& rule) { rule.transform_ends(rule_clock()); });
}

bool optimizer_begins(Training* t, PyObject* optimizer) {
  if (is_a_part(t, optimizer)) return true;
  return tell_rule(t, [&](StepRule& rule) {
    rule.optimizer_begins(key_of(optimizer), rule_clock());
    notify(Boundary::kOptimizer, true, optimizer);
  });
}

bool optimizer_ends(Training* t, PyObject* optimizer, bool skipped) {
  if (is_a_part(t, optimizer)) {
    t->scaled = true;
    return true;
  }
  return tell_rule(t, [&](StepRule& rule) {
    rule.optimizer_ends(key_of(optimizer), rule_clock(), skipped);
    notify(Boundary::kOptimizer, false, optimizer);
  });
}

void tell_ended_steps(Training* t) {
  while (t->over < t->rule->over()) {
    int64_t before = t->rule->over() - ++t->over;  // of two that end at once, the first has the number before
    Ref number(PyLong_FromLongLong(t->rule->over_number() - before));
    if (number) notify(Boundary::kStep, false, number.get());
  }
  if (g_subscribers[size_t(Boundary::kStep)]) t->rule->resumes(rule_clock());
}

Training* training_here() {
  if (DFT_LIKELY(tls_training && tls_installation == g_installation)) {
    Py_INCREF(tls_training);
    return tls_training;
  }
  PyObject* make = g_make;
  PyObject* made = make ? PyObject_CallNoArgs(make) : nullptr;
  if (made && PyObject_TypeCheck(made, &g_training_type)) return training_of(made);
  Py_XDECREF(made);
  PyErr_Clear();
  return nullptr;
}

bool follows_training() { return bool(g_make); }

void program_counts(int64_t step, int64_t epoch) {
  if (!follows_training() || (step < 0 && epoch < 0)) return;
  Training* t = training_here();
  if (!t) return;
  {
    Section section(reinterpret_cast<PyObject*>(t));
    if (!t->muted) recording([&] { t->rule->numbered(step, epoch); });
  }
  Py_DECREF(t);
}

bool gradients_on() {
  if (!g_grad_enabled) return true;
  KeepError keep;
  Ref on(PyObject_CallNoArgs(g_grad_enabled));
  if (!on) PyErr_Clear();
  return on.get() != Py_False;
}

bool init_training(PyObject* module) {
  g_compiling_key = PyUnicode_InternFromString("_is_compiling_flag");
  PyTypeObject& t = g_training_type;
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_new = training_new;
  t.tp_dealloc = training_dealloc;
  t.tp_methods = g_training_methods;
  t.tp_members = g_training_members;
  t.tp_getset = g_training_properties;
  PyTypeObject& p = g_pass_type;
  p.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  p.tp_new = pass_new;
  p.tp_dealloc = pass_dealloc;
  p.tp_methods = g_pass_methods;
  p.tp_members = g_pass_members;
  p.tp_getset = g_pass_properties;
  return PyType_Ready(&t) == 0 && PyType_Ready(&p) == 0 && add_type(module, "Training", &t) &&
         add_type(module, "LoaderPass", &p) && PyModule_AddFunctions(module, g_rule_functions) == 0 &&
         g_compiling_key && init_torch_calls(module) && init_model_calls(module) && init_own_code(module) &&
         init_hang_watch(module);
}

}  // namespace dft::py
