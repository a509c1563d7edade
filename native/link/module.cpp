// dftracer.link._text: what linking does byte by byte.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <charconv>
#include <new>

#include "json.hpp"

namespace {
using namespace dft::link;

template <class T>
PyObject* bytes_of(const std::vector<T>& column) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(column.data()),
                                   static_cast<Py_ssize_t>(column.size() * sizeof(T)));
}

PyObject* bytes_of(std::string_view text) {
  return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* list_of(const std::vector<std::string_view>& texts) {
  PyObject* out = PyList_New(static_cast<Py_ssize_t>(texts.size()));
  if (out == nullptr) return nullptr;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    PyObject* text = bytes_of(texts[i]);
    if (text == nullptr) {
      Py_DECREF(out);
      return nullptr;
    }
    PyList_SET_ITEM(out, static_cast<Py_ssize_t>(i), text);
  }
  return out;
}

class Dictionary {
 public:
  Dictionary() : dict_(PyDict_New()), good_(dict_ != nullptr) {}
  Dictionary(const Dictionary&) = delete;
  Dictionary& operator=(const Dictionary&) = delete;
  ~Dictionary() { Py_XDECREF(dict_); }

  void add(const char* name, PyObject* value) {
    good_ = good_ && value != nullptr && PyDict_SetItemString(dict_, name, value) == 0;
    Py_XDECREF(value);
  }
  PyObject* release() {
    if (!good_) return nullptr;
    PyObject* out = dict_;
    dict_ = nullptr;
    return out;
  }

 private:
  PyObject* dict_;
  bool good_;
};

void add_side(Dictionary& d, const Side& side, const char* const (&names)[8]) {
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
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(arg, &data, &size) != 0) return nullptr;
  try {
    Nodes nodes;
    bool good = false;
    Py_BEGIN_ALLOW_THREADS;
    good = parse_nodes({data, static_cast<std::size_t>(size)}, nodes);
    Py_END_ALLOW_THREADS;
    if (!good) Py_RETURN_NONE;
    Dictionary d;
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
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* py_parse_events(PyObject*, PyObject* arg) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(arg, &data, &size) != 0) return nullptr;
  try {
    Events e;
    bool good = false;
    Py_BEGIN_ALLOW_THREADS;
    good = parse_events({data, static_cast<std::size_t>(size)}, e);
    Py_END_ALLOW_THREADS;
    if (!good) Py_RETURN_NONE;
    Dictionary d;
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
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

// One column of byte strings, of which row after row is wanted.
struct Column {
  enum Kind { kSame, kCodes, kSlices, kNumbers, kThree } kind = kSame;
  std::string_view text;
  std::vector<std::string_view> pieces;
  const std::int32_t* codes = nullptr;
  const std::int64_t* numbers = nullptr;  // ends of slices, or the numbers themselves
  Py_ssize_t rows = -1;                   // -1: any

  // The bytes of a row; numbers are written to `digits`. False: the column has no such row.
  bool get(std::int64_t row, char (&digits)[24], std::string_view& out) const {
    if (kind == kSame) {
      out = text;
      return true;
    }
    if (row < 0 || row >= rows) return false;
    switch (kind) {
      case kCodes: {
        const auto code = static_cast<std::size_t>(static_cast<std::uint32_t>(codes[row]));
        if (code >= pieces.size()) return false;
        out = pieces[code];
        return true;
      }
      case kSlices: {
        const std::int64_t begin = row == 0 ? 0 : numbers[row - 1];
        if (begin < 0 || begin > numbers[row] || numbers[row] > static_cast<std::int64_t>(text.size())) return false;
        out = {text.data() + begin, static_cast<std::size_t>(numbers[row] - begin)};
        return true;
      }
      case kNumbers: {
        const auto done = std::to_chars(digits, digits + sizeof digits, numbers[row]);
        out = {digits, static_cast<std::size_t>(done.ptr - digits)};
        return true;
      }
      default: {
        const auto n = static_cast<unsigned>(numbers[row]) % 1000u;
        digits[0] = static_cast<char>('0' + n / 100);
        digits[1] = static_cast<char>('0' + n / 10 % 10);
        digits[2] = static_cast<char>('0' + n % 10);
        out = {digits, 3};
        return true;
      }
    }
  }
};

// Holds the buffers that columns look into.
class Views {
 public:
  Views() = default;
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;
  ~Views() {
    for (auto& v : views_) PyBuffer_Release(&v);
  }
  const Py_buffer* get(PyObject* object) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0) return nullptr;
    views_.push_back(view);
    return &views_.back();
  }
  void reserve(std::size_t n) { views_.reserve(n); }

 private:
  std::vector<Py_buffer> views_;
};

bool read_column(PyObject* spec, Views& views, Column& out) {
  if (PyBytes_Check(spec)) {
    out.text = {PyBytes_AS_STRING(spec), static_cast<std::size_t>(PyBytes_GET_SIZE(spec))};
    return true;
  }
  const char* kind = nullptr;
  PyObject* first = nullptr;
  PyObject* second = nullptr;
  if (!PyTuple_Check(spec) || !PyArg_ParseTuple(spec, "sO|O", &kind, &first, &second)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a column is bytes or a tuple");
    return false;
  }
  const std::string_view name = kind;
  const Py_buffer* view = views.get(first);
  if (view == nullptr) return false;
  if (name == "codes" && second != nullptr && PyList_Check(second)) {
    out.kind = Column::kCodes;
    out.codes = static_cast<const std::int32_t*>(view->buf);
    out.rows = view->len / 4;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(second); ++i) {
      PyObject* piece = PyList_GET_ITEM(second, i);
      if (!PyBytes_Check(piece)) {
        PyErr_SetString(PyExc_TypeError, "pieces are bytes");
        return false;
      }
      out.pieces.emplace_back(PyBytes_AS_STRING(piece), static_cast<std::size_t>(PyBytes_GET_SIZE(piece)));
    }
    return true;
  }
  if (name == "slices" && second != nullptr) {
    const Py_buffer* ends = views.get(second);
    if (ends == nullptr) return false;
    out.kind = Column::kSlices;
    out.text = {static_cast<const char*>(view->buf), static_cast<std::size_t>(view->len)};
    out.numbers = static_cast<const std::int64_t*>(ends->buf);
    out.rows = ends->len / 8;
    return true;
  }
  if (name == "numbers" || name == "three") {
    out.kind = name == "three" ? Column::kThree : Column::kNumbers;
    out.numbers = static_cast<const std::int64_t*>(view->buf);
    out.rows = view->len / 8;
    return true;
  }
  PyErr_Format(PyExc_ValueError, "unknown kind of column: %s", kind);
  return false;
}

PyObject* py_join_columns(PyObject*, PyObject* args) {
  PyObject* specs = nullptr;
  PyObject* order = nullptr;
  if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &specs, &order)) return nullptr;
  try {
    const auto n = static_cast<std::size_t>(PyList_GET_SIZE(specs));
    Views views;
    views.reserve(2 * n + 1);
    std::vector<Column> columns(n);
    for (std::size_t i = 0; i < n; ++i)
      if (!read_column(PyList_GET_ITEM(specs, static_cast<Py_ssize_t>(i)), views, columns[i])) return nullptr;
    const Py_buffer* view = views.get(order);
    if (view == nullptr) return nullptr;
    const auto* rows = static_cast<const std::int64_t*>(view->buf);
    const auto count = static_cast<std::size_t>(view->len / 8);
    // Sizes first: the result is written once, into its own memory.
    std::vector<std::int64_t> ends(count);
    std::int64_t total = 0;
    bool good = true;
    char digits[24];
    Py_BEGIN_ALLOW_THREADS;
    for (std::size_t k = 0; k < count && good; ++k) {
      std::string_view piece;
      for (const Column& c : columns) {
        good = good && c.get(rows[k], digits, piece);
        total += static_cast<std::int64_t>(piece.size());
      }
      ends[k] = total;
    }
    Py_END_ALLOW_THREADS;
    if (!good) {
      PyErr_SetString(PyExc_IndexError, "a row, a code or a slice that a column does not have");
      return nullptr;
    }
    PyObject* text = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(total));
    if (text == nullptr) return nullptr;
    char* to = PyBytes_AS_STRING(text);
    Py_BEGIN_ALLOW_THREADS;
    for (std::size_t k = 0; k < count; ++k) {
      std::string_view piece;
      for (const Column& c : columns) {
        c.get(rows[k], digits, piece);
        std::memcpy(to, piece.data(), piece.size());
        to += piece.size();
      }
    }
    Py_END_ALLOW_THREADS;
    return Py_BuildValue("(NN)", text, bytes_of(ends));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyMethodDef functions[] = {
    {"parse_nodes", py_parse_nodes, METH_O, "Columns of an execution trace's nodes; None: something is unusual"},
    {"parse_events", py_parse_events, METH_O, "Columns of a profiler trace's events; None: something is unusual"},
    {"join_columns", py_join_columns, METH_VARARGS, "Byte strings of several columns joined row by row"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "dftracer.link._text", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};
}  // namespace

PyMODINIT_FUNC PyInit__text() { return PyModule_Create(&module_def); }
