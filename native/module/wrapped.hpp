// Wrapped: a traced plain function that passes for the function it wraps.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

PyObject* wrap(PyObject* module, PyObject* args);
// An object that calls `body` and otherwise passes for `function`.
PyObject* disguise(PyObject* module, PyObject* args);
// What Dynamo may trace in place of a native call: it looks at the type's dict, the interpreter at its slots.
PyObject* set_traceable_call(PyObject* module, PyObject* function);
bool init_wrapped(PyObject* module);

}  // namespace dft::py
