// Native memory as Python buffers.
#pragma once

#include <memory>
#include <vector>

#include "python.hpp"

namespace dft::load {

// A block of native memory as a Python buffer; it lives as long as it is referenced.
struct BufferObject {
  PyObject_HEAD
  std::shared_ptr<void>* owner;
  void* data;
  Py_ssize_t size;
  bool full;  // known to have a value in every row
};

extern PyTypeObject* g_buffer_type;
extern PyType_Spec g_buffer_spec;

PyObject* make_buffer(std::shared_ptr<void> owner, const void* data, size_t bytes, bool full = false);

template <class T>
PyObject* vector_buffer(std::vector<T>&& v) {
  auto owner = std::make_shared<std::vector<T>>(std::move(v));
  return make_buffer(owner, owner->data(), owner->size() * sizeof(T));
}

}  // namespace dft::load
