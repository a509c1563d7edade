// The calls of torch that every training step makes: the next batch, making it, backward. They are observed natively,
// because Python functions around them would cost more than everything that is recorded there.
#pragma once

#include "module/cpython_util.hpp"

namespace dft::py {

bool init_torch_calls(PyObject* module);

}  // namespace dft::py
