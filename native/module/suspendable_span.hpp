// SuspendableSpan: an open event that is left and re-entered, like a generator's body.
#pragma once

#include "module/node.hpp"

namespace dft::py {

PyObject* make_suspendable_span(Node* node, Args args, bool on);
bool init_suspendable_spans(PyObject* module);

}  // namespace dft::py
