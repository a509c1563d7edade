// Small helpers over the C API, shared by the files of the seam.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <string_view>

namespace dft::py {

// A strong reference that lets go by itself.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : p_(owned) {}
  Ref(Ref&& o) noexcept : p_(o.p_) { o.p_ = nullptr; }
  Ref(const Ref&) = delete;
  Ref& operator=(Ref&& o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() { Py_XDECREF(p_); }
  PyObject* get() const { return p_; }
  PyObject* release() {
    PyObject* p = p_;
    p_ = nullptr;
    return p;
  }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  PyObject* p_ = nullptr;
};

inline PyObject* new_ref(PyObject* o) {
  Py_INCREF(o);
  return o;
}

// Keeps a pending exception out of the way of our own calls, whatever they do.
class KeepError {
 public:
  KeepError() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~KeepError() { PyErr_Restore(type_, value_, trace_); }
  KeepError(const KeepError&) = delete;
  KeepError& operator=(const KeepError&) = delete;

 private:
  PyObject *type_, *value_, *trace_;
};

bool add_type(PyObject* module, const char* name, PyTypeObject* type);

}  // namespace dft::py
