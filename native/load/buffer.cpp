#include "buffer.hpp"

namespace dft::load {
namespace {

void buffer_dealloc(PyObject* self) {
  auto* b = reinterpret_cast<BufferObject*>(self);
  delete b->owner;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}
int buffer_get(PyObject* self, Py_buffer* view, int flags) {
  auto* b = reinterpret_cast<BufferObject*>(self);
  static char nothing;
  return PyBuffer_FillInfo(view, self, b->data ? b->data : &nothing, b->size, 1, flags);
}
PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(buffer_dealloc)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(buffer_get)},
    {0, nullptr},
};

}  // namespace

PyType_Spec g_buffer_spec = {"dftracer.load._scan.Buffer", sizeof(BufferObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, buffer_slots};
PyTypeObject* g_buffer_type = nullptr;

PyObject* make_buffer(std::shared_ptr<void> owner, const void* data, size_t bytes, bool full) {
  auto* b = PyObject_New(BufferObject, g_buffer_type);
  if (!b) return nullptr;
  b->owner = new std::shared_ptr<void>(std::move(owner));
  b->data = const_cast<void*>(data);
  b->size = Py_ssize_t(bytes);
  b->full = full;
  return reinterpret_cast<PyObject*>(b);
}

}  // namespace dft::load
