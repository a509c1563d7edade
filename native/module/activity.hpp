// Activity: an open event that is left and entered again, as a generator's body is.
#pragma once

#include "module/node.hpp"

namespace dft::py {

PyObject* make_activity(Node* node, Args args, bool on);
bool init_activities(PyObject* module);

}  // namespace dft::py
