// The keywords that all uses and updates of a node share: epoch, step, image_idx, image_size, args, enable.
#pragma once

#include "module/cpython_util.hpp"
#include "module/values.hpp"

namespace dft::py {

// Keyword arguments as CPython passes them: a dictionary, or values beside a tuple of their names. Null: none.
struct Keywords {
  PyObject* dict = nullptr;
  PyObject* names = nullptr;
  PyObject* const* values = nullptr;
};

// With tracing off the keywords are checked and nothing is formatted. `enable` stays as it is if not given; null: it
// is not a keyword here.
bool parse_options(const Keywords& given, Args* args, int* enable);
// The arguments of update(), given by position or by name.
bool parse_update(PyObject* args, PyObject* kwargs, Args* out);
void init_options();

}  // namespace dft::py
