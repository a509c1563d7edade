// Observing the calls of functions that are not ours, without another object taking their place: the function or
// method descriptor that the program holds stays the same, only what its calls run is changed. Pickling, identity,
// names and signatures follow from that.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

// exchange_code(function, code, closure): a Python function runs this code from now on.
PyObject* exchange_code(PyObject*, PyObject* args);

// watch_method(descriptor, observer, plain, uninteresting): after every call of a method written in C that returns
// another object than `self`, `observer(self, result, start_ns)` is called, if the types of both are among `plain`
// and the first argument is no instance of `uninteresting`. Returns whether this method can be watched.
PyObject* watch_method(PyObject*, PyObject* args);

// unwatch_method(descriptor)
PyObject* unwatch_method(PyObject*, PyObject* descriptor);

}  // namespace dft::py
