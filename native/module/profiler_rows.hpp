// Rows of a profiler window, written in one call: the loop over hundreds of thousands of operators stays native.
#pragma once

#include "module/python.hpp"

namespace dft::py {

extern PyMethodDef g_profiler_functions[];

}  // namespace dft::py
