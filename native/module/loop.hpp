// loop(): an iterator that times the wait for each item and the body that uses it.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

PyObject* loop(PyObject* module, PyObject* args);
bool init_loops(PyObject* module);

}  // namespace dft::py
