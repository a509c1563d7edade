// Columns and texts as Python's bytes.
#pragma once

#include <string_view>
#include <vector>

#include "python.hpp"

namespace dft::link {

template <class T>
PyObject* bytes_of(const std::vector<T>& column) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(column.data()), Py_ssize_t(column.size() * sizeof(T)));
}

inline PyObject* bytes_of(std::string_view text) {
  return PyBytes_FromStringAndSize(text.data(), Py_ssize_t(text.size()));
}

}  // namespace dft::link
