#include "module/context.hpp"

#include <cstdlib>
#include <vector>

#include "session/session_hooks.hpp"

namespace dft::py {
namespace {

// Stored in a ContextVar: copies of a context (new tasks) inherit it and so know where they came from.
struct Marker {
  PyObject_HEAD
  PyObject* owner;  // the context it was set in; only compared, never followed
  Marker* origin;
};

void marker_dealloc(PyObject* self) {
  Py_XDECREF(reinterpret_cast<Marker*>(self)->origin);
  PyObject_Free(self);
}

PyTypeObject g_marker_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core._Marker", sizeof(Marker)};
PyObject* g_marker_var = nullptr;

struct Flow {
  PyObject* context;  // strong while the flow has open events: its address must not be reused
  Marker* marker;
  Stack stack;
};

struct Flows {
  std::vector<Flow*> all;
};

void drop_flow(Flow* f) {
  free_stack(&f->stack);
  Py_DECREF(f->context);
  Py_XDECREF(f->marker);
  delete f;
}

// Runs without the GIL at thread exit: references of flows that are still open are leaked.
void free_flows(void* p) {
  auto* flows = static_cast<Flows*>(p);
  for (Flow* f : flows->all) {
    free_stack(&f->stack);
    delete f;
  }
  delete flows;
}

Marker* marker_of(PyObject* context) {
  PyObject* found = nullptr;
  if (PyContextVar_Get(g_marker_var, nullptr, &found) < 0) {
    PyErr_Clear();
    return nullptr;
  }
  auto* inherited = reinterpret_cast<Marker*>(found);
  if (inherited && inherited->owner == context) return inherited;
  Marker* own = PyObject_New(Marker, &g_marker_type);
  own->owner = context;
  own->origin = inherited;
  Ref token(PyContextVar_Set(g_marker_var, reinterpret_cast<PyObject*>(own)));
  if (!token) PyErr_Clear();
  return own;
}

Stack* stack_of(Flows* flows, PyObject* context) {
  for (Flow* f : flows->all)
    if (f->context == context) return &f->stack;
  return nullptr;
}

// The open event a new flow starts under: the innermost one of the nearest flow it descends from.
void link_to_origin(ThreadState* t, Flows* flows, Flow* flow) {
  Stack* from = &t->root;
  for (Marker* m = flow->marker ? flow->marker->origin : nullptr; m; m = m->origin) {
    Stack* s = stack_of(flows, m->owner);
    if (s && s->size) {
      from = s;
      break;
    }
  }
  if (from->size) {
    flow->stack.outer_id = int64_t(from->frames[from->size - 1].id);
    flow->stack.outer_level = from->frames[from->size - 1].level;
  }
}

void leave_flow(ThreadState* t, Flows* flows) {
  if (!t->context || t->stack->size) return;
  for (size_t i = 0; i < flows->all.size(); ++i) {
    if (flows->all[i]->context != t->context) continue;
    drop_flow(flows->all[i]);
    flows->all[i] = flows->all.back();
    flows->all.pop_back();
    return;
  }
}

}  // namespace

void switch_context(ThreadState* t, PyObject* context) {
  KeepError keep;
  auto* flows = static_cast<Flows*>(t->contexts);
  if (!flows) t->contexts = flows = new Flows;
  leave_flow(t, flows);
  if (!context) {
    t->stack = &t->root;
  } else if (Stack* known = stack_of(flows, context)) {
    t->stack = known;
  } else {
    auto* flow = new Flow{new_ref(context), marker_of(context), Stack{nullptr, 0, 0, -1, 0}};
    link_to_origin(t, flows, flow);
    flows->all.push_back(flow);
    t->stack = &flow->stack;
  }
  t->context = context;
}

namespace {

template <typename Wanted>
bool pop_from_any_flow(ThreadState* t, Frame* out, Wanted wanted) {
  if (!t->contexts) return false;
  if (pop_frame_if(&t->root, out, wanted)) return true;
  for (Flow* f : static_cast<Flows*>(t->contexts)->all)
    if (pop_frame_if(&f->stack, out, wanted)) return true;
  return false;
}

}  // namespace

bool pop_elsewhere(ThreadState* t, const void* key, uint32_t must_flags, Frame* out) {
  return pop_from_any_flow(t, out,
                           [&](const Frame& f) { return f.key == key && (f.flags & must_flags) == must_flags; });
}

bool take_strayed_frame(ThreadState* t, const void* key, const void* owner, Frame* out) {
  if (pop_from_any_flow(t, out, [&](const Frame& f) { return f.key == key && f.owner == owner; })) return true;
  auto any = [&](const Frame& f) { return f.key == key && !(f.flags & kStarted); };
  return pop_frame_if(t->stack, out, any) || pop_from_any_flow(t, out, any);
}

bool take_opened_elsewhere(ThreadState* t, const void* key, uint64_t id, Frame* out) {
  return pop_from_any_flow(t, out, [&](const Frame& f) { return f.key == key && f.id == id; });
}

bool init_contexts() {
  g_marker_type.tp_dealloc = marker_dealloc;
  g_marker_type.tp_flags = Py_TPFLAGS_DEFAULT;
  if (PyType_Ready(&g_marker_type) < 0) return false;
  g_marker_var = PyContextVar_New("dftracer", nullptr);
  set_context_cleanup(free_flows);
  return g_marker_var != nullptr;
}

}  // namespace dft::py
