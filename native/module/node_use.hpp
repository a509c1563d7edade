// NodeUse: one use of a node with its own arguments; its on/off state is fixed when it is created.
#pragma once

#include "module/node.hpp"
#include "module/node_options.hpp"

namespace dft::py {

struct NodeUse {
  PyObject_HEAD
  Node* node;
  Args args;
  Relaxed<bool> on;
  PyObject* given;  // while tracing is off: the options as given, for when it is switched on
};

extern PyTypeObject g_use_type;

PyObject* make_use(Node* node, const Keywords& given);
bool init_uses(PyObject* module);

// What a span object (Node or NodeUse) means when it is entered now.
struct Span {
  Node* node;
  const Args* extra;  // null: only the node's own
  const void* key;
  bool on;
};
bool span_of(PyObject* object, Span* out);
// The node's current args with `extra` set over them, and what `tail` adds. If they are those of a use, its section
// must be held: update() changes them.
void emit_merged(ThreadState* t, Node* node, const Frame& f, uint64_t end, const Args* extra, std::string_view tail);

}  // namespace dft::py
