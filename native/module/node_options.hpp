// The keywords that all uses and updates of a node share: epoch, step, image_idx, image_size, args, enable.
#pragma once

#include "module/cpython_util.hpp"
#include "module/values.hpp"

namespace dft::py {

struct UseOptions {
  Args args;
  int enable = -1;  // -1: not given
};
// With tracing off the keywords are checked and nothing is formatted.
bool parse_options(PyObject* kwargs, UseOptions* out, bool allow_enable);
// The arguments of update(), given by position or by name.
bool parse_update(PyObject* args, PyObject* kwargs, UseOptions* out);
void init_options();

}  // namespace dft::py
