// A profiler window becomes events, in one call: only the getters of its activities need the interpreter lock.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

extern PyMethodDef g_profiler_functions[];

}  // namespace dft::py
