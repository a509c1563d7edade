// Activity: an open event that is left and re-entered, like a generator's body.
#pragma once

#include "module/node.hpp"

namespace dft::py {

PyObject* make_activity(Node* node, Args args, bool on);
bool init_activities(PyObject* module);

}  // namespace dft::py
