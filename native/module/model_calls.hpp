// Calls of models: the slot that calls an instance is replaced in the types of the models that the program's own code
// calls. Hooks, attributes and methods stay the same; compilers, pickle and copy see the type as it was.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

// A backward came without the call of a model: the types that are called may be others now.
void look_for_models_again();

bool init_model_calls(PyObject* module);

}  // namespace dft::py
