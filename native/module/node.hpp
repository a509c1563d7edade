// Node: a named span of the annotation tree.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "module/boundary.hpp"
#include "module/context.hpp"
#include "module/cpython_util.hpp"
#include "module/values.hpp"

namespace dft::py {

struct Node;

// `node.__enter__` / `node.__exit__`, made once per node: a `with` then allocates nothing.
struct NodeMethod {
  PyObject_HEAD
  vectorcallfunc call;
  Node* node;
};

struct OwnArg {
  std::string key, value;
  uint64_t when;  // the later of two settings on the way from the root wins
};

struct NodeArgs {
  std::vector<OwnArg> own;
  Args merged;
  uint64_t version = 0;
};

struct NodeUse;

// By the id of the frame; strong references.
struct StartedUses {
  std::vector<std::pair<uint64_t, NodeUse*>> all;
};

struct Node {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* name;
  PyObject* cat;
  Node* parent;
  std::vector<Node*>* children;  // borrowed; a child leaves when it dies
  size_t place;                  // in the parent's children
  NodeMethod* enter;
  NodeMethod* exit;
  NodeArgs* args;
  PyObject* weakrefs;
  StartedUses* started;    // uses of it whose start() waits for a stop(); null: none yet
  Relaxed<uint64_t> uses;  // how often it was entered, so that automatic tracing yields to manual annotations
  uint64_t number;         // its own, never given again
  uint32_t name_id;
  Phase phase;
  Relaxed<bool> on;
};

extern PyTypeObject g_node_type;
// Counts every change of any node's args.
extern Relaxed<uint64_t> g_args_version;
// False if tracing was off at import: annotations are then entirely different objects.
extern Relaxed<bool> g_tracing;

// Where there is no interpreter lock: of the tree (who is whose child) and of the args of its nodes. No code of
// Python's runs while it is held.
class TreeLock {
 public:
#ifdef Py_GIL_DISABLED
  TreeLock() : lock_(mutex) {}
  static std::mutex mutex;

 private:
  std::lock_guard<std::mutex> lock_;
#else
  TreeLock() {}
#endif
};

#ifdef Py_GIL_DISABLED
// The calling thread's own copy, valid until the thread asks for those of another node.
const Args& args_of(Node* n);
#else
void rebuild_args(Node* n);
inline const Args& args_of(Node* n) {
  if (DFT_UNLIKELY(n->args->version != g_args_version)) rebuild_args(n);
  return n->args->merged;
}
#endif
inline std::string_view fragment_of(Node* n) { return args_of(n).text(); }

// `,"error":"ValueError"` for an exception type, empty for None.
std::string error_fragment(PyObject* exception_type);
bool init_nodes(PyObject* module);
PyObject* set_decorator(PyObject*, PyObject* callable);
PyObject* set_waiting(PyObject*, PyObject* callable);
// The Python side's rules for decorating: span (Node or NodeUse), what is decorated.
PyObject* decorate(PyObject* span, PyObject* target);

// start() of a node, or of a use of it.
void start_span(Node* n, NodeUse* use, bool on);
void stop_span(Node* n);

}  // namespace dft::py
