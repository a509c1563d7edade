// Byte strings of several columns, joined row by row.
#pragma once

#include "python.hpp"

namespace dft::link {

// join_columns(columns, rows) -> (text, ends). A column is bytes, the same in every row, or a tuple of its kind and
// data.
PyObject* join_columns(PyObject*, PyObject* args);

}  // namespace dft::link
