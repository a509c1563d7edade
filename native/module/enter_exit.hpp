// `node.__enter__` and `node.__exit__`: the hot path of a `with`.
#pragma once

#include "module/node.hpp"

namespace dft::py {

NodeMethod* make_enter(Node* n);
NodeMethod* make_exit(Node* n);
// Puts both into the dictionary of the type Node.
bool add_enter_and_exit(PyObject* type_dict);

}  // namespace dft::py
