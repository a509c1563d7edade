// The common path of a training loop in the step rule of dftracer/auto/_training.py, without Python.
#pragma once

#include "module/seam.hpp"

namespace dft::py {

bool init_step_rule(PyObject* module);

}  // namespace dft::py
