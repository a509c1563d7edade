// Small helpers over the C API, shared by the files of the seam.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <new>
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

// The Python function, generator or coroutine that runs now: an address that is its own as long as it lives, also
// while it is suspended or its greenlet is switched out. Only compared, never followed.
inline const void* running_frame(const PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread->current_frame;
#elif PY_VERSION_HEX >= 0x030B0000
  return thread->cframe->current_frame;
#else
  return thread->frame;
#endif
}

// Runs code that may need memory which C++ does not get: an exception of its kind must not pass through C. An event
// goes without its argument, or is not recorded; both are counted. What the program asked for fails as Python code
// would.
void count_lost_event();
void count_lost_value();
template <typename F>
inline void recording(F f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    count_lost_event();
  }
}
template <typename F>
inline void formatting(F f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    count_lost_value();
  }
}
template <typename F>
inline bool possible(F f) {
  try {
    f();
    return true;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return false;
  }
}

bool add_type(PyObject* module, const char* name, PyTypeObject* type);

}  // namespace dft::py
