// The interface to CPython shared by the extension modules. Python.h is included only here.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

namespace dft::py {

// A strong reference that is released automatically.
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

inline PyObject* text_object(std::string_view s) {
  return PyUnicode_DecodeUTF8(s.data(), Py_ssize_t(s.size()), "replace");
}

// The C++ exception that is being handled, as Python's.
inline void raise_current() {
  try {
    throw;
  } catch (const std::system_error& e) {
    errno = e.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

// A function of a module whose C++ exceptions become Python's.
template <PyObject* (*function)(PyObject*, PyObject*)>
PyObject* guarded(PyObject* self, PyObject* args) {
  try {
    return function(self, args);
  } catch (...) {
    raise_current();
    return nullptr;
  }
}

// Free-threaded builds of CPython have no interpreter lock: what it protected here needs locks of its own. With the
// lock these classes do nothing.
#ifdef Py_GIL_DISABLED
inline constexpr bool kFreeThreaded = true;

// The lock of one object. Like the interpreter lock, it is released while the thread waits for something else.
class Section {
 public:
  explicit Section(PyObject* object) { PyCriticalSection_Begin(&section_, object); }
  ~Section() { PyCriticalSection_End(&section_); }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

 private:
  PyCriticalSection section_;
};
#else
inline constexpr bool kFreeThreaded = false;

class Section {
 public:
  explicit Section(PyObject*) {}
  ~Section() {}
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;
};
#endif

// What several threads read and write, in no particular order: plain loads and stores that are never torn. It converts
// like the T it stands for.
// NOLINTBEGIN(google-explicit-constructor)
template <typename T>
class Relaxed {
 public:
  constexpr Relaxed(T value = T()) : value_(value) {}
  // Of two threads that count at once, one may not be counted.
  T operator++() { return *this = T(*this) + 1; }
#ifdef Py_GIL_DISABLED
  operator T() const { return value_.load(std::memory_order_relaxed); }
  T operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return value;
  }

 private:
  std::atomic<T> value_;
#else
  operator T() const { return value_; }
  T operator=(T value) { return value_ = value; }

 private:
  T value_;
#endif
};
// NOLINTEND(google-explicit-constructor)

// Says that the module needs no interpreter lock; an import would otherwise switch it on again.
inline PyObject* without_interpreter_lock(PyObject* module) {
#ifdef Py_GIL_DISABLED
  if (module && PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
#endif
  return module;
}

// Releases the interpreter lock for the lifetime of the object, also if an exception ends it.
class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  ~WithoutLock() {
#ifdef __GLIBCXX__
    // While the interpreter ends, it ends threads that ask for the lock, here: within a destructor, which would end the
    // process. They wait for its end instead, as they do from Python 3.14 on.
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) ::pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

// Runs `f` without the interpreter lock. False, with a Python exception set, if it threw.
template <class F>
bool released_lock(F f) {
  try {
    const WithoutLock released;
    f();
    return true;
  } catch (...) {
    raise_current();
    return false;
  }
}

// The memory of an object that offers a buffer, held for the lifetime of this object.
class View {
 public:
  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (held_) PyBuffer_Release(&buffer_);
  }
  // False, with an exception set, if the object offers none.
  bool take(PyObject* o) {
    held_ = PyObject_GetBuffer(o, &buffer_, PyBUF_C_CONTIGUOUS) == 0;
    return held_;
  }
  size_t size() const { return size_t(buffer_.len); }
  size_t count(size_t width) const { return size() / width; }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(buffer_.buf);
  }
  std::string_view text() const { return {as<char>(), size()}; }

 private:
  Py_buffer buffer_{};
  bool held_ = false;
};

// A dictionary filled with new references; null once one of them could not be created.
class Dict {
 public:
  Dict() : dict_(PyDict_New()) {}
  void add(const char* key, PyObject* owned) {
    Ref value(owned);
    if (!dict_ || !value || PyDict_SetItemString(dict_.get(), key, value.get()) != 0) dict_ = Ref();
  }
  PyObject* release() { return dict_.release(); }

 private:
  Ref dict_;
};

}  // namespace dft::py
