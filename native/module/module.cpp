#include "module/auto_event.hpp"
#include "module/context.hpp"
#include "module/immediate.hpp"
#include "module/loop.hpp"
#include "module/node.hpp"
#include "module/node_use.hpp"
#include "module/observe.hpp"
#include "module/profiler_window.hpp"
#include "module/session_api.hpp"
#include "module/suspendable_span.hpp"
#include "module/training.hpp"
#include "module/wrapped.hpp"

namespace dft::py {

PyObject* g_module_state = nullptr;

bool add_type(PyObject* module, const char* name, PyTypeObject* type) {
  return PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(type)) == 0;
}

namespace {

PyMethodDef g_functions[] = {
    {"set_decorator", set_decorator, METH_O, nullptr},
    {"set_waiting", set_waiting, METH_O, nullptr},
    {"set_traceable_call", set_traceable_call, METH_O, nullptr},
    {"wrap", wrap, METH_VARARGS, nullptr},
    {"disguise", disguise, METH_VARARGS, nullptr},
    {"loop", loop, METH_VARARGS, nullptr},
    {"set_boundary_hook", set_boundary_hook, METH_VARARGS, nullptr},
    {"set_hook_mask", set_hook_mask, METH_O, nullptr},
    {"keep_forever", keep_forever, METH_O, nullptr},
    {"subscribe", subscribe, METH_VARARGS, nullptr},
    {"exchange_code", exchange_code, METH_VARARGS, nullptr},
    {"watch_method", watch_method, METH_VARARGS, nullptr},
    {"unwatch_method", unwatch_method, METH_O, nullptr},
    {},
};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT, "dftracer._core", "The native recorder.", -1, g_functions};

}  // namespace
}  // namespace dft::py

PyMODINIT_FUNC PyInit__core() {
  using namespace dft::py;
  PyObject* module = PyModule_Create(&g_module);
  if (!module) return nullptr;
  g_module_state = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  bool ok = g_module_state && PyModule_AddFunctions(module, g_session_functions) == 0 &&
            PyModule_AddFunctions(module, g_profiler_functions) == 0 && init_contexts() && init_immediate() &&
            init_nodes(module) && init_uses(module) && init_suspendable_spans(module) && init_wrapped(module) &&
            init_loops(module) && init_auto_events(module) && init_training(module);
  if (!ok) {
    Py_DECREF(module);
    return nullptr;
  }
  return without_interpreter_lock(module);
}
