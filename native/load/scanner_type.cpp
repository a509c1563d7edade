#include "scanner_type.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "buffer.hpp"
#include "scanner.hpp"

namespace dft::load {
namespace {
using py::text_object;

struct ScannerObject {
  PyObject_HEAD
  FileScanner* scanner;
  bool busy;
};

bool given(PyObject* o) { return o && o != Py_None; }

bool read_strings(PyObject* list, std::vector<std::string>& out) {
  if (!given(list)) return true;
  py::Ref all(PySequence_Fast(list, "expected a sequence of str"));
  if (!all) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.get()); ++i) {
    const char* s = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(all.get(), i));
    if (!s) return false;
    out.emplace_back(s);
  }
  return true;
}

// Columns by their names, a bit each.
bool read_columns(PyObject* list, uint32_t& out) {
  std::vector<std::string> names;
  if (!read_strings(list, names)) return false;
  for (const std::string& name : names) {
#define X(c) \
  if (name == #c) out |= 1u << f_##c;
    DFT_INT_COLUMNS(X)
    DFT_CODE_COLUMNS(X)
#undef X
  }
  return true;
}

bool read_pids(PyObject* list, std::unordered_set<int64_t>& out) {
  if (!given(list)) return true;
  py::Ref all(PySequence_Fast(list, "pids must be a sequence of int"));
  if (!all) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.get()); ++i) {
    const long long v = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(all.get(), i));
    if (v == -1 && PyErr_Occurred()) return false;
    out.insert(v);
  }
  return true;
}

bool read_range(PyObject* range, int64_t& from, int64_t& to) {
  if (!given(range)) return true;
  long long a = 0, b = 0;
  if (!PyArg_ParseTuple(range, "LL", &a, &b)) return false;
  from = a;
  to = b;
  return true;
}

PyObject* scanner_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"path",  "threads", "chunk_text", "ts",   "step",    "epoch", "pids",
                                "names", "cats",    "span",       "text", "without", nullptr};
  PyObject* path = nullptr;
  unsigned threads = 1;
  Py_ssize_t chunk = 32 << 20;
  PyObject *ts = nullptr, *step = nullptr, *epoch = nullptr, *pids = nullptr, *name_list = nullptr, *cats = nullptr,
           *span = nullptr, *without = nullptr;
  int text = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|In$OOOOOOOpO", const_cast<char**>(names), PyUnicode_FSConverter,
                                   &path, &threads, &chunk, &ts, &step, &epoch, &pids, &name_list, &cats, &span, &text,
                                   &without))
    return nullptr;
  const std::string file = PyBytes_AS_STRING(path);
  Py_DECREF(path);
  Filter f;
  FileScanner::Span part;
  if (given(span)) {
    unsigned long long from = 0, to = 0;
    if (!PyArg_ParseTuple(span, "KK", &from, &to)) return nullptr;
    part = {from, to};
  }
  if (!read_range(ts, f.ts_min, f.ts_max) || !read_range(step, f.step_min, f.step_max) ||
      !read_range(epoch, f.epoch_min, f.epoch_max) || !read_strings(name_list, f.names) ||
      !read_strings(cats, f.cats) || !read_pids(pids, f.pids) || !read_columns(without, f.left_out))
    return nullptr;
  f.any = given(ts) || given(step) || given(epoch) || given(pids) || given(name_list) || given(cats);
  auto* self = reinterpret_cast<ScannerObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->scanner = nullptr;
  self->busy = false;
  try {
    self->scanner =
        new FileScanner(file, threads, size_t(std::max<Py_ssize_t>(chunk, 1)), std::move(f), part, text != 0);
  } catch (const std::system_error& e) {
    errno = e.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, file.c_str());
  } catch (...) {
    py::raise_current();
  }
  if (!self->scanner) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

void scanner_dealloc(PyObject* self) {
  delete reinterpret_cast<ScannerObject*>(self)->scanner;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// What metadata records say, as tuples.
PyObject* meta_list(const std::vector<Meta>& meta) {
  py::Ref out(PyList_New(0));
  for (size_t i = 0; out && i < meta.size(); ++i) {
    const Meta& m = meta[i];
    py::Ref t(Py_BuildValue("(NNNNLLL)", text_object(m.kind), text_object(m.key), text_object(m.value),
                            text_object(m.rest), static_cast<long long>(m.pid), static_cast<long long>(m.tid),
                            static_cast<long long>(m.ts)));
    if (!t || PyList_Append(out.get(), t.get()) != 0) return nullptr;
  }
  return out.release();
}

PyObject* scanner_next(PyObject* obj) {
  auto* self = reinterpret_cast<ScannerObject*>(obj);
  if (self->busy) {
    PyErr_SetString(PyExc_RuntimeError, "this scanner is in use by another thread");
    return nullptr;
  }
  self->busy = true;
  std::shared_ptr<Columns> columns;
  const bool failed = !py::released_lock([&] { columns = self->scanner->next(); });
  self->busy = false;
  if (failed) return nullptr;
  if (!columns) return nullptr;  // StopIteration
  py::Dict out;
  out.add("rows", PyLong_FromSize_t(columns->rows));
  // A column without values is left out.
#define X(n)                  \
  if (columns->n.size() != 0) \
    out.add(#n,               \
            make_buffer(columns, columns->n.data(), columns->rows * sizeof(*columns->n.data()), !columns->n.gaps()));
  DFT_INT_COLUMNS(X)
  DFT_CODE_COLUMNS(X)
  X(ph)
  X(args_end)
#undef X
  out.add("args_text", make_buffer(columns, columns->args_text.data(), columns->args_text.size()));
  out.add("meta", meta_list(columns->meta));
  if (columns->records_text.size() != 0)
    out.add("text", make_buffer(columns, columns->records_text.data(), columns->records_text.size()));
  return out.release();
}

PyObject* scanner_iter(PyObject* self) {
  Py_INCREF(self);
  return self;
}

PyObject* scanner_dictionary(PyObject* obj, PyObject* args) {
  const char* which = nullptr;
  Py_ssize_t from = 0;
  if (!PyArg_ParseTuple(args, "s|n", &which, &from)) return nullptr;
  Dictionaries& all = reinterpret_cast<ScannerObject*>(obj)->scanner->dictionaries();
  const Dictionary* d = nullptr;
#define X(n) \
  if (std::strcmp(which, #n) == 0) d = &all.n;
  DFT_CODE_COLUMNS(X)
#undef X
  if (!d) return PyErr_Format(PyExc_KeyError, "no dictionary column named '%s'", which);
  py::Ref out(PyList_New(0));
  for (size_t i = size_t(std::max<Py_ssize_t>(from, 0)); out && i < d->size(); ++i) {
    py::Ref text(text_object(d->at(i)));
    if (!text || PyList_Append(out.get(), text.get()) != 0) return nullptr;
  }
  return out.release();
}

PyObject* scanner_counts(PyObject* obj, PyObject*) {
  const FileScanner& s = *reinterpret_cast<ScannerObject*>(obj)->scanner;
  const LineCounts l = s.line_counts();
  const FileCounts& c = s.counts();
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:O}", "lines", l.lines, "events", l.events,
                       "counters", l.counters, "filtered", l.filtered, "meta", l.meta, "bad_lines",
                       l.bad + c.long_lines, "file_bytes", c.file_bytes, "text_bytes", c.text_bytes, "members",
                       c.members, "members_skipped", c.members_skipped, "members_cut", c.members_cut, "cut_lines",
                       c.cut_lines, "closed", c.closed ? Py_True : Py_False);
}

PyObject* scanner_position(PyObject* obj, PyObject*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<ScannerObject*>(obj)->scanner->position());
}

PyMethodDef scanner_methods[] = {
    {"dictionary", py::guarded<scanner_dictionary>, METH_VARARGS,
     "dictionary(column, start=0) -> the strings behind a code column"},
    {"counts", scanner_counts, METH_NOARGS, "what was read, skipped and cut so far"},
    {"position", scanner_position, METH_NOARGS, "how far into the file has been read"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot scanner_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(scanner_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(scanner_dealloc)},
    {Py_tp_iter, reinterpret_cast<void*>(scanner_iter)},
    {Py_tp_iternext, reinterpret_cast<void*>(scanner_next)},
    {Py_tp_methods, scanner_methods},
    {Py_tp_doc, const_cast<char*>("Rows of one trace file, a chunk at a time.")},
    {0, nullptr},
};

}  // namespace

PyType_Spec g_scanner_spec = {"dftracer.load._scan.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT,
                              scanner_slots};

}  // namespace dft::load
