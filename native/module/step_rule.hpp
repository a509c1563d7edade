// The usual course of a training loop, as the step rule of dftracer/auto/_training.py sees it, without Python.
#pragma once

#include "module/seam.hpp"

namespace dft::py {

bool init_step_rule(PyObject* module);

}  // namespace dft::py
