// dftracer.link._text: what linking does byte by byte.
#include "bytes.hpp"
#include "join_columns.hpp"
#include "json.hpp"
#include "python.hpp"

namespace {
using namespace dft::link;
using dft::py::Dict;
using dft::py::guarded;
using dft::py::Ref;
using dft::py::View;
using dft::py::WithoutLock;

PyObject* list_of(const std::vector<std::string_view>& texts) {
  Ref out(PyList_New(Py_ssize_t(texts.size())));
  for (size_t i = 0; out && i < texts.size(); ++i) {
    PyObject* text = bytes_of(texts[i]);
    if (!text) return nullptr;
    PyList_SET_ITEM(out.get(), Py_ssize_t(i), text);
  }
  return out.release();
}

void add_side(Dict& d, const Side& side, const char* const (&names)[8]) {
  d.add(names[0], bytes_of(std::string_view(side.values.text)));
  d.add(names[1], bytes_of(side.values.ends));
  d.add(names[2], bytes_of(side.kind));
  d.add(names[3], bytes_of(side.tensors.node));
  d.add(names[4], bytes_of(side.tensors.tensor));
  d.add(names[5], bytes_of(side.tensors.storage));
  d.add(names[6], bytes_of(side.tensors.elements));
  d.add(names[7], bytes_of(side.tensors.item));
}

PyObject* py_parse_nodes(PyObject*, PyObject* arg) {
  View text;
  if (!text.take(arg)) return nullptr;
  Nodes nodes;
  bool good = false;
  {
    const WithoutLock released;
    good = parse_nodes(text.text(), nodes);
  }
  if (!good) Py_RETURN_NONE;
  Dict d;
  d.add("id", bytes_of(nodes.id));
  d.add("parent", bytes_of(nodes.parent));
  d.add("rf", bytes_of(nodes.rf));
  d.add("fw_parent", bytes_of(nodes.fw_parent));
  d.add("seq", bytes_of(nodes.seq));
  d.add("name", bytes_of(nodes.name));
  d.add("rest", bytes_of(nodes.rest));
  d.add("names", list_of(nodes.names.list));
  d.add("rests", list_of(nodes.rests.list));
  d.add("shapes", list_of(nodes.kind_shapes));
  d.add("types", list_of(nodes.kind_types));
  add_side(d, nodes.inputs,
           {"input_values", "input_ends", "input_kinds", "input_node", "input_tensor", "input_storage",
            "input_elements", "input_item"});
  add_side(d, nodes.outputs,
           {"output_values", "output_ends", "output_kinds", "output_node", "output_tensor", "output_storage",
            "output_elements", "output_item"});
  return d.release();
}

PyObject* py_parse_events(PyObject*, PyObject* arg) {
  View text;
  if (!text.take(arg)) return nullptr;
  Events e;
  bool good = false;
  {
    const WithoutLock released;
    good = parse_events(text.text(), e);
  }
  if (!good) Py_RETURN_NONE;
  Dict d;
  d.add("name", bytes_of(e.name));
  d.add("cat", bytes_of(e.cat));
  d.add("names", list_of(e.names.list));
  d.add("cats", list_of(e.cats.list));
  d.add("pid", bytes_of(e.pid));
  d.add("tid", bytes_of(e.tid));
  d.add("ts", bytes_of(e.ts));
  d.add("dur", bytes_of(e.dur));
  d.add("rf", bytes_of(e.rf));
  d.add("external", bytes_of(e.external));
  d.add("correlation", bytes_of(e.correlation));
  d.add("seq", bytes_of(e.seq));
  d.add("fw_tid", bytes_of(e.fw_tid));
  d.add("device", bytes_of(e.device));
  d.add("stream", bytes_of(e.stream));
  d.add("args_begin", bytes_of(e.args_begin));
  d.add("args_end", bytes_of(e.args_end));
  d.add("thread_tid", bytes_of(e.thread_tid));
  d.add("thread_begin", bytes_of(e.thread_begin));
  d.add("thread_end", bytes_of(e.thread_end));
  return d.release();
}

PyMethodDef functions[] = {
    {"parse_nodes", guarded<py_parse_nodes>, METH_O,
     "Columns of an execution trace's nodes; None: something is unusual"},
    {"parse_events", guarded<py_parse_events>, METH_O,
     "Columns of a profiler trace's events; None: something is unusual"},
    {"join_columns", guarded<join_columns>, METH_VARARGS, "Byte strings of several columns joined row by row"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "dftracer.link._text", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};
}  // namespace

PyMODINIT_FUNC PyInit__text() { return dft::py::without_interpreter_lock(PyModule_Create(&module_def)); }
