// What the recorder's module needs from the C API besides what all modules share.
#pragma once

#include <new>
#include <string>
#include <string_view>

#include "python.hpp"

namespace dft::py {

// Saves a pending exception during our own calls, whatever they do.
class KeepError {
 public:
  KeepError() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~KeepError() { PyErr_Restore(type_, value_, trace_); }
  KeepError(const KeepError&) = delete;
  KeepError& operator=(const KeepError&) = delete;
  bool matches(PyObject* type) const { return type_ && PyErr_GivenExceptionMatches(type_, type); }
  // The name of its class; empty without one.
  std::string_view name() const {
    return type_ && PyType_Check(type_) ? reinterpret_cast<PyTypeObject*>(type_)->tp_name : std::string_view();
  }

 private:
  PyObject *type_, *value_, *trace_;
};

// The Python function, generator or coroutine that runs now: an address that is its own as long as it lives, also
// while it is suspended or its greenlet is switched out. Only compared, never followed.
inline const void* running_frame(const PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread->current_frame;
#else
  return thread->cframe->current_frame;
#endif
}

// Runs code that may run out of memory: a C++ exception must not pass through C. An event then lacks its
// argument, or is not recorded; both are counted. What the program itself requested fails as Python code
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

// Without the interpreter lock, counting the references of an object that several threads use makes them wait for each
// other; that of an immortal one is not counted. Only for a new object that nobody else knows.
inline void free_never([[maybe_unused]] PyObject* object) {
#ifdef Py_GIL_DISABLED
  if (PyObject_IS_GC(object) && PyObject_GC_IsTracked(object)) PyObject_GC_UnTrack(object);
  object->ob_tid = 0;
  object->ob_ref_local = _Py_IMMORTAL_REFCNT_LOCAL;
  object->ob_ref_shared = 0;
#endif
}

// An object out of a stock of dead ones, whose type is static and still set: what PyObject_Init() does, without the
// call where nobody else is to know.
inline void revive(PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000 || defined(Py_REF_DEBUG) || defined(Py_TRACE_REFS)
  PyObject_Init(object, Py_TYPE(object));
#else
  Py_SET_REFCNT(object, 1);
#endif
}

// What has no object of its own to be protected by: the state of the whole module.
extern PyObject* g_module_state;
inline PyObject* module_state() { return g_module_state; }

// What a variable of the module refers to, while others may exchange it.
inline Ref shared(PyObject* const& variable) {
  Section section(module_state());
  return Ref(Py_XNewRef(variable));
}

bool add_type(PyObject* module, const char* name, PyTypeObject* type);

}  // namespace dft::py
