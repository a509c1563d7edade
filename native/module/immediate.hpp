// An awaitable that is already done: `async with` on spans never waits.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

// Takes over the reference; null passes an error on.
PyObject* immediate(PyObject* owned_value);
bool init_immediate();

}  // namespace dft::py
