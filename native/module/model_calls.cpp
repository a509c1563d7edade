#include "module/model_calls.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>

#include "module/auto_event.hpp"
#include "module/training.hpp"

namespace dft::py {
namespace {

// A type is watched from its creation on. After this many calls, one that is only called as a part of other models is
// no longer watched: it is not a model of the program's loop.
constexpr uint32_t kProbation = 32;

struct Watched {
  uint32_t nested = 0;  // calls inside another watched call
  uint64_t since = 0;   // how many outermost calls there had been
  bool outermost = false;
};

PyTypeObject* g_module_type = nullptr;  // torch.nn.Module
ternaryfunc g_call = nullptr;           // what calls an instance of a class written in Python
std::unordered_map<PyTypeObject*, Watched> g_watched;
Relaxed<uint64_t> g_outermost_calls = 0;
uint64_t g_unseen = 0;
Relaxed<int> g_watching = 0;  // how many requested it
Relaxed<int> g_detail = 0;    // and how many requested an event of every call
Relaxed<bool> g_muted = false;
PyObject* g_training_key = nullptr;  // "training"

thread_local int tls_depth = 0;
thread_local const void* tls_compiled = nullptr;  // the frame in which a compiled function was entered

PyObject* watched_call(PyObject* self, PyObject* args, PyObject* kwargs);

void leave_alone(PyTypeObject* type) {
  if (type->tp_call == watched_call) type->tp_call = g_call;
}

void watch(PyTypeObject* type) {
  Section section(module_state());
  // Only classes that Python itself dispatches: others may not be called through us.
  if (type->tp_call != g_call && type->tp_call != watched_call) return;
  try {
    Watched& w = g_watched[type];
    if (w.outermost && type->tp_call == watched_call) return;
    w = {0, g_outermost_calls, false};
    type->tp_call = watched_call;
  } catch (const std::bad_alloc&) {
    leave_alone(type);
  }
}

// `visit` for a type and all those below it. False with a Python exception.
template <typename F>
bool each_type(PyTypeObject* type, F visit) {
  Ref below(PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyType_Type), "__subclasses__", "O", type));
  if (!below) return false;
  visit(type);
  for (Py_ssize_t i = 0; PyList_Check(below.get()) && i < PyList_GET_SIZE(below.get()); ++i)
    if (!each_type(reinterpret_cast<PyTypeObject*>(PyList_GET_ITEM(below.get(), i)), visit)) return false;
  return true;
}

void nested_call(PyTypeObject* type) {
  if (g_detail) return;
  Section section(module_state());
  auto at = g_watched.find(type);
  if (at == g_watched.end() || at->second.outermost) return;
  Watched& w = at->second;
  if (++w.nested >= kProbation && w.nested > g_outermost_calls - w.since) leave_alone(type);
}

// The flag that eval() and train() set, read from memory: no code of the program runs.
bool in_evaluation_mode(PyObject* model) {
  Ref dict(PyObject_GenericGetDict(model, nullptr));
  PyObject* training = dict ? PyDict_GetItemWithError(dict.get(), g_training_key) : nullptr;
  if (PyErr_Occurred()) PyErr_Clear();
  return training == Py_False;
}

// The call itself; where detail is wanted, as `compute/forward.<class>`.
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (DFT_LIKELY(!g_detail)) return g_call(self, args, kwargs);
  int64_t start = rule_clock();
  PyObject* result = g_call(self, args, kwargs);
  if (!result) return nullptr;
  recording([&] {
    std::string name = "forward.";
    name += Py_TYPE(self)->tp_name;
    emit(name, "compute", uint64_t(start), uint64_t(rule_clock()), ",\"auto\":1");
  });
  return result;
}

using Gone = std::shared_ptr<std::atomic<bool>>;

PyObject* is_gone(PyObject* gone, PyObject*) {
  (*static_cast<Gone*>(PyCapsule_GetPointer(gone, nullptr)))->store(true, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyMethodDef g_is_gone = {"is_gone", is_gone, METH_O, nullptr};

// Lets the rule know when a model that is new to it is gone.
void follow(Training* here, PyObject* model) {
  KeepError keep;
  possible([&] {
    Gone gone = std::make_shared<std::atomic<bool>>(false);
    auto owned = std::make_unique<Gone>(gone);
    Ref capsule(PyCapsule_New(owned.get(), nullptr,
                              [](PyObject* c) { delete static_cast<Gone*>(PyCapsule_GetPointer(c, nullptr)); }));
    if (!capsule) return;
    owned.release();
    Ref callback(PyCFunction_New(&g_is_gone, capsule.get()));
    PyObject* reference = callback ? PyWeakref_NewRef(model, callback.get()) : nullptr;
    if (!reference) return;
    // The rule keeps the reference: without it, nobody is called.
    Gone kept(gone.get(), [gone, reference](std::atomic<bool>*) { Py_DECREF(reference); });
    Section section(reinterpret_cast<PyObject*>(here));
    here->rule->follow_model(reinterpret_cast<uintptr_t>(model), kept);
  });
  if (PyErr_Occurred()) PyErr_Clear();
}

PyObject* watched_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (tls_depth) {
    nested_call(Py_TYPE(self));
    return call(self, args, kwargs);
  }
  int64_t start = rule_clock();  // a thread's first call sets its training up: milliseconds on a loaded machine
  Training* here = g_muted ? nullptr : training_here();
  if (!here || here->muted) {
    Py_XDECREF(here);
    return call(self, args, kwargs);
  }
  bool outermost = false;
  bool gradients = gradients_on(), evaluating = in_evaluation_mode(self);
  {
    Section section(reinterpret_cast<PyObject*>(here));
    recording(
        [&] { outermost = here->rule->model_begins(start, gradients, reinterpret_cast<uintptr_t>(self), evaluating); });
  }
  if (outermost) {
    if (DFT_UNLIKELY(here->rule->model_is_new())) follow(here, self);
    tell_steps(here);
    notify(Boundary::kModel, true);
    ++g_outermost_calls;
    Section section(module_state());
    if (auto at = g_watched.find(Py_TYPE(self)); at != g_watched.end()) at->second.outermost = true;
  } else {
    nested_call(Py_TYPE(self));
  }
  ++tls_depth;
  PyObject* result = call(self, args, kwargs);
  --tls_depth;
  KeepError keep;
  {
    Section section(reinterpret_cast<PyObject*>(here));
    recording([&] { here->rule->model_ends(rule_clock()); });
  }
  if (outermost) notify(Boundary::kModel, false);
  Py_DECREF(here);
  return result;
}

// watch_models(torch.nn.Module): this type and those below it.
PyObject* watch_models(PyObject*, PyObject* type) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "torch.nn.Module is a type");
    return nullptr;
  }
  auto* module = reinterpret_cast<PyTypeObject*>(type);
  Section section(module_state());
  if (g_watching) {
    ++g_watching;
    Py_RETURN_NONE;
  }
  if (g_module_type != module) {
    Py_INCREF(type);  // once per process
    g_module_type = module;
    g_call = module->tp_call;
  }
  g_watching = g_call != nullptr;
  if (g_watching && !each_type(module, watch)) return nullptr;
  Py_RETURN_NONE;
}

// watch_model_type(type): one that has just been made.
PyObject* watch_model_type(PyObject*, PyObject* type) {
  if (g_watching && PyType_Check(type)) watch(reinterpret_cast<PyTypeObject*>(type));
  Py_RETURN_NONE;
}

PyObject* unwatch_models(PyObject*, PyObject*) {
  Section section(module_state());
  if (g_watching > 1) {
    g_watching = g_watching - 1;
    Py_RETURN_NONE;
  }
  g_watching = 0;
  if (g_module_type && !each_type(g_module_type, leave_alone)) return nullptr;
  g_watched.clear();
  g_unseen = 0;
  Py_RETURN_NONE;
}

// record_modules(on): an event of every call of a module, not of models alone.
PyObject* record_modules(PyObject*, PyObject* on) {
  Section section(module_state());
  g_detail = g_detail + (on == Py_True ? 1 : -1);
  if (on == Py_True && g_watching && !each_type(g_module_type, watch)) return nullptr;
  Py_RETURN_NONE;
}

// mute_models(on): ignores calls of models in this process, which makes batches.
PyObject* mute_models(PyObject*, PyObject* on) {
  g_muted = on == Py_True;
  Py_RETURN_NONE;
}

// Replaces torch._dynamo.eval_frame._maybe_set_eval_frame; `original` is that. A compiled function sets its
// callback, runs, and sets the one before: to the rule it is a model.
PyObject* set_eval_frame(PyObject* original, PyObject* callback) {
  const void* frame = running_frame(PyThreadState_Get());
  bool on = callback != Py_None && callback != Py_False;
  // Nothing of ours runs while the callback is set: it would be compiled.
  if (on && !tls_depth && !g_muted) {
    if (Training* here = training_here()) {
      bool gradients = gradients_on();
      auto function = reinterpret_cast<uintptr_t>(callback);
      bool outermost = false;
      {
        Section section(reinterpret_cast<PyObject*>(here));
        recording([&] { outermost = here->rule->model_begins(rule_clock(), gradients, function, false); });
      }
      tell_steps(here);
      if (outermost) notify(Boundary::kModel, true);
      tls_compiled = frame;
      ++tls_depth;
      Py_DECREF(here);
    }
  }
  PyObject* before = PyObject_CallOneArg(original, callback);
  if (!on && tls_compiled && tls_compiled == frame) {
    tls_compiled = nullptr;
    --tls_depth;
    KeepError keep;
    if (Training* here = training_here()) {
      {
        Section section(reinterpret_cast<PyObject*>(here));
        recording([&] { here->rule->model_ends(rule_clock()); });
      }
      notify(Boundary::kModel, false);
      Py_DECREF(here);
    }
  }
  return before;
}

PyMethodDef g_set_eval_frame = {"set_eval_frame", set_eval_frame, METH_O, nullptr};

// watch_compiled(function): returns its replacement.
PyObject* watch_compiled(PyObject*, PyObject* original) { return PyCFunction_New(&g_set_eval_frame, original); }

PyMethodDef g_model_functions[] = {
    {"watch_models", watch_models, METH_O, nullptr},
    {"watch_model_type", watch_model_type, METH_O, nullptr},
    {"unwatch_models", unwatch_models, METH_NOARGS, nullptr},
    {"mute_models", mute_models, METH_O, nullptr},
    {"watch_compiled", watch_compiled, METH_O, nullptr},
    {"record_modules", record_modules, METH_O, nullptr},
    {},
};

}  // namespace

void look_for_models_again() {
  // A program whose models are no modules would be searched at every step.
  if (!g_watching) return;
  Section section(module_state());
  ++g_unseen;
  if (g_unseen & (g_unseen - 1)) return;
  KeepError keep;
  if (!each_type(g_module_type, watch)) PyErr_Clear();
}

bool init_model_calls(PyObject* module) {
  g_training_key = PyUnicode_InternFromString("training");
  return g_training_key && PyModule_AddFunctions(module, g_model_functions) == 0;
}

}  // namespace dft::py
