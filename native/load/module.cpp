// dftracer.load._scan: the seam between the native reader and Python.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <new>
#include <string>
#include <system_error>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "pixels.hpp"
#include "scanner.hpp"
#include "sweep.hpp"

namespace {
using namespace dft::load;

// A block of native memory as a Python buffer; it lives as long as anyone looks at it.
struct BufferObject {
  PyObject_HEAD
  std::shared_ptr<void>* owner;
  void* data;
  Py_ssize_t size;
  bool full;  // known to have a value in every row
};

void buffer_dealloc(PyObject* self) {
  auto* b = reinterpret_cast<BufferObject*>(self);
  delete b->owner;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}
int buffer_get(PyObject* self, Py_buffer* view, int flags) {
  auto* b = reinterpret_cast<BufferObject*>(self);
  static char nothing;
  return PyBuffer_FillInfo(view, self, b->data != nullptr ? b->data : &nothing, b->size, 1, flags);
}
PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(buffer_dealloc)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(buffer_get)},
    {0, nullptr},
};
PyType_Spec buffer_spec = {"dftracer.load._scan.Buffer", sizeof(BufferObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, buffer_slots};
PyTypeObject* buffer_type = nullptr;

PyObject* make_buffer(std::shared_ptr<void> owner, const void* data, std::size_t bytes, bool full = false) {
  auto* b = PyObject_New(BufferObject, buffer_type);
  if (b == nullptr) return nullptr;
  b->owner = new std::shared_ptr<void>(std::move(owner));
  b->data = const_cast<void*>(data);
  b->size = static_cast<Py_ssize_t>(bytes);
  b->full = full;
  return reinterpret_cast<PyObject*>(b);
}

void raise_current() {
  try {
    throw;
  } catch (const std::system_error& e) {
    errno = e.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

PyObject* text_object(std::string_view s) {
  return PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "replace");
}

bool set_item(PyObject* dict, const char* key, PyObject* value) {
  if (value == nullptr) return false;
  const int rc = PyDict_SetItemString(dict, key, value);
  Py_DECREF(value);
  return rc == 0;
}

struct ScannerObject {
  PyObject_HEAD
  FileScanner* scanner;
  bool busy;
};

bool read_strings(PyObject* list, std::vector<std::string>& out) {
  if (list == nullptr || list == Py_None) return true;
  PyObject* seq = PySequence_Fast(list, "a sequence of str is expected");
  if (seq == nullptr) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(seq); ++i) {
    const char* s = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(seq, i));
    if (s == nullptr) {
      Py_DECREF(seq);
      return false;
    }
    out.emplace_back(s);
  }
  Py_DECREF(seq);
  return true;
}

bool read_range(PyObject* range, std::int64_t& from, std::int64_t& to) {
  if (range == nullptr || range == Py_None) return true;
  long long a = 0, b = 0;
  if (!PyArg_ParseTuple(range, "LL", &a, &b)) return false;
  from = a;
  to = b;
  return true;
}

PyObject* scanner_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"path", "threads", "chunk_text", "ts",   "step", "epoch",
                                "pids", "names",   "cats",       "span", nullptr};
  PyObject* path = nullptr;
  unsigned threads = 1;
  Py_ssize_t chunk = 32 << 20;
  PyObject *ts = nullptr, *step = nullptr, *epoch = nullptr, *pids = nullptr, *name_list = nullptr, *cats = nullptr,
           *span = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|In$OOOOOOO", const_cast<char**>(names), PyUnicode_FSConverter,
                                   &path, &threads, &chunk, &ts, &step, &epoch, &pids, &name_list, &cats, &span))
    return nullptr;
  const std::string file = PyBytes_AS_STRING(path);
  Py_DECREF(path);
  Filter f;
  FileScanner::Span part;
  if (span != nullptr && span != Py_None) {
    unsigned long long from = 0, to = 0;
    if (!PyArg_ParseTuple(span, "KK", &from, &to)) return nullptr;
    part = {from, to};
  }
  if (!read_range(ts, f.ts_min, f.ts_max) || !read_range(step, f.step_min, f.step_max) ||
      !read_range(epoch, f.epoch_min, f.epoch_max) || !read_strings(name_list, f.names) || !read_strings(cats, f.cats))
    return nullptr;
  if (pids != nullptr && pids != Py_None) {
    PyObject* seq = PySequence_Fast(pids, "pids must be a sequence of int");
    if (seq == nullptr) return nullptr;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(seq); ++i) {
      const long long v = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(seq, i));
      if (v == -1 && PyErr_Occurred()) {
        Py_DECREF(seq);
        return nullptr;
      }
      f.pids.insert(v);
    }
    Py_DECREF(seq);
  }
  const auto given = [](PyObject* o) { return o != nullptr && o != Py_None; };
  f.any = given(ts) || given(step) || given(epoch) || given(pids) || given(name_list) || given(cats);
  auto* self = reinterpret_cast<ScannerObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->scanner = nullptr;
  self->busy = false;
  try {
    self->scanner =
        new FileScanner(file, threads, static_cast<std::size_t>(std::max<Py_ssize_t>(chunk, 1)), std::move(f), part);
  } catch (const std::system_error& e) {
    errno = e.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, file.c_str());
  } catch (...) {
    raise_current();
  }
  if (self->scanner == nullptr) {
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

PyObject* scanner_next(PyObject* obj) {
  auto* self = reinterpret_cast<ScannerObject*>(obj);
  if (self->busy) {
    PyErr_SetString(PyExc_RuntimeError, "this scanner is in use by another thread");
    return nullptr;
  }
  self->busy = true;
  std::shared_ptr<Columns> columns;
  std::exception_ptr error;
  Py_BEGIN_ALLOW_THREADS
  try {
    columns = self->scanner->next();
  } catch (...) {
    error = std::current_exception();
  }
  Py_END_ALLOW_THREADS
  self->busy = false;
  if (error) {
    try {
      std::rethrow_exception(error);
    } catch (...) {
      raise_current();
    }
    return nullptr;
  }
  if (!columns) return nullptr;  // StopIteration
  PyObject* out = PyDict_New();
  if (out == nullptr) return nullptr;
  bool ok = set_item(out, "rows", PyLong_FromSize_t(columns->rows));
  // A column without values is left out.
#define X(n)                                                                                                \
  if (columns->n.size() != 0)                                                                               \
    ok = ok && set_item(out, #n,                                                                            \
                        make_buffer(columns, columns->n.data(), columns->rows * sizeof(*columns->n.data()), \
                                    !columns->n.gaps()));
  DFT_INT_COLUMNS(X)
  DFT_CODE_COLUMNS(X)
  X(ph)
  X(args_end)
#undef X
  ok = ok && set_item(out, "args_text", make_buffer(columns, columns->args_text.data(), columns->args_text.size()));
  PyObject* meta = ok ? PyList_New(0) : nullptr;
  for (std::size_t i = 0; meta != nullptr && i < columns->meta.size(); ++i) {
    const Meta& m = columns->meta[i];
    PyObject* t =
        Py_BuildValue("(NNNNLLL)", text_object(m.kind), text_object(m.key), text_object(m.value), text_object(m.rest),
                      static_cast<long long>(m.pid), static_cast<long long>(m.tid), static_cast<long long>(m.ts));
    if (t == nullptr || PyList_Append(meta, t) != 0) Py_CLEAR(meta);
    Py_XDECREF(t);
  }
  ok = ok && set_item(out, "meta", meta);
  if (!ok) {
    Py_DECREF(out);
    return nullptr;
  }
  return out;
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
  if (d == nullptr) return PyErr_Format(PyExc_KeyError, "no dictionary column named '%s'", which);
  PyObject* out = PyList_New(0);
  for (std::size_t i = static_cast<std::size_t>(std::max<Py_ssize_t>(from, 0)); out != nullptr && i < d->size(); ++i) {
    PyObject* s = text_object(d->at(i));
    if (s == nullptr || PyList_Append(out, s) != 0) Py_CLEAR(out);
    Py_XDECREF(s);
  }
  return out;
}

PyObject* scanner_counts(PyObject* obj, PyObject*) {
  const FileScanner& s = *reinterpret_cast<ScannerObject*>(obj)->scanner;
  const LineCounts l = s.line_counts();
  const FileCounts& c = s.counts();
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:O}", "lines", l.lines, "events", l.events,
                       "filtered", l.filtered, "meta", l.meta, "bad_lines", l.bad + c.long_lines, "file_bytes",
                       c.file_bytes, "text_bytes", c.text_bytes, "members", c.members, "members_skipped",
                       c.members_skipped, "members_cut", c.members_cut, "cut_lines", c.cut_lines, "closed",
                       c.closed ? Py_True : Py_False);
}

PyObject* scanner_position(PyObject* obj, PyObject*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<ScannerObject*>(obj)->scanner->position());
}

// A function of this module whose C++ exceptions become Python's.
template <PyObject* (*function)(PyObject*, PyObject*)>
PyObject* guarded(PyObject* self, PyObject* args) {
  try {
    return function(self, args);
  } catch (...) {
    raise_current();
    return nullptr;
  }
}

PyMethodDef scanner_methods[] = {
    {"dictionary", guarded<scanner_dictionary>, METH_VARARGS,
     "dictionary(column, start=0) -> the strings behind a code column"},
    {"counts", scanner_counts, METH_NOARGS, "what was read, skipped and cut so far"},
    {"position", scanner_position, METH_NOARGS, "how far into the file reading has come"},
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
PyType_Spec scanner_spec = {"dftracer.load._scan.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT, scanner_slots};

// Views of int64 arrays ---------------------------------------------------------------------------

struct View {
  Py_buffer b{};
  bool held = false;
  ~View() {
    if (held) PyBuffer_Release(&b);
  }
  bool take(PyObject* o) {
    held = PyObject_GetBuffer(o, &b, PyBUF_C_CONTIGUOUS) == 0;
    return held;
  }
  std::size_t count(std::size_t width) const { return static_cast<std::size_t>(b.len) / width; }
  const std::int64_t* ints() const { return static_cast<const std::int64_t*>(b.buf); }
  const std::uint8_t* bytes() const { return static_cast<const std::uint8_t*>(b.buf); }
};

bool same_length(std::size_t n, std::initializer_list<std::size_t> others) {
  for (const std::size_t o : others)
    if (o != n) {
      PyErr_SetString(PyExc_ValueError, "arrays of one length are expected");
      return false;
    }
  return true;
}

template <class T>
PyObject* vector_buffer(std::vector<T>&& v) {
  auto owner = std::make_shared<std::vector<T>>(std::move(v));
  return make_buffer(owner, owner->data(), owner->size() * sizeof(T));
}

// The interpreter's lock given back for the life of the object, also when an exception ends it.
class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  ~WithoutLock() { PyEval_RestoreThread(state_); }
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

struct SelfTimeObject {
  PyObject_HEAD
  SelfTime* state;
};
PyObject* self_time_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<SelfTimeObject*>(type->tp_alloc(type, 0));
  if (self != nullptr) self->state = new (std::nothrow) SelfTime();
  if (self != nullptr && self->state == nullptr) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(self);
}
void self_time_dealloc(PyObject* self) {
  delete reinterpret_cast<SelfTimeObject*>(self)->state;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}
PyObject* self_time_update(PyObject* obj, PyObject* args) {
  PyObject *a, *b, *c;
  if (!PyArg_ParseTuple(args, "OOO", &a, &b, &c)) return nullptr;
  View id, parent, dur;
  if (!id.take(a) || !parent.take(b) || !dur.take(c)) return nullptr;
  const std::size_t n = id.count(8);
  if (!same_length(n, {parent.count(8), dur.count(8)})) return nullptr;
  std::vector<std::int64_t> self(n);
  SelfTime& state = *reinterpret_cast<SelfTimeObject*>(obj)->state;
  {
    const WithoutLock released;
    state.update(id.ints(), parent.ints(), dur.ints(), n, self.data());
  }
  return vector_buffer(std::move(self));
}
PyMethodDef self_time_methods[] = {
    {"update", guarded<self_time_update>, METH_VARARGS,
     "update(id, p_idx, dur) -> self time of each row of the next chunk"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot self_time_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(self_time_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(self_time_dealloc)},
    {Py_tp_methods, self_time_methods},
    {0, nullptr},
};
PyType_Spec self_time_spec = {"dftracer.load._scan.SelfTime", sizeof(SelfTimeObject), 0, Py_TPFLAGS_DEFAULT,
                              self_time_slots};

// The first begin, the last end, and how many events end before they begin. A sum that no clock shows is held at the
// edge.
PyObject* py_extent(PyObject*, PyObject* args) {
  PyObject *a, *b;
  if (!PyArg_ParseTuple(args, "OO", &a, &b)) return nullptr;
  View ts, dur;
  if (!ts.take(a) || !dur.take(b)) return nullptr;
  const std::size_t n = ts.count(8);
  if (!same_length(n, {dur.count(8)})) return nullptr;
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = std::numeric_limits<std::int64_t>::min();
  std::size_t backwards = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t t = ts.ints()[i], d = dur.ints()[i];
    std::int64_t end;
    if (__builtin_add_overflow(t, d, &end))
      end = d < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
    first = std::min(first, t);
    last = std::max(last, end);
    backwards += d < 0 ? 1 : 0;
  }
  return Py_BuildValue("(LLn)", static_cast<long long>(first), static_cast<long long>(last),
                       static_cast<Py_ssize_t>(backwards));
}

PyObject* py_nest(PyObject*, PyObject* args) {
  PyObject *a, *b, *c;
  if (!PyArg_ParseTuple(args, "OOO", &a, &b, &c)) return nullptr;
  View tid, ts, dur;
  if (!tid.take(a) || !ts.take(b) || !dur.take(c)) return nullptr;
  const std::size_t n = ts.count(8);
  if (!same_length(n, {tid.count(8), dur.count(8)})) return nullptr;
  std::vector<std::int64_t> parent(n), self(n);
  {
    const WithoutLock released;
    nest(tid.ints(), ts.ints(), dur.ints(), n, parent.data(), self.data());
  }
  return Py_BuildValue("(NN)", vector_buffer(std::move(parent)), vector_buffer(std::move(self)));
}

PyObject* py_stack(PyObject*, PyObject* args) {
  PyObject *a, *b, *c;
  long long slack = 0;
  if (!PyArg_ParseTuple(args, "OOOL", &a, &b, &c, &slack)) return nullptr;
  View lane, start, end;
  if (!lane.take(a) || !start.take(b) || !end.take(c)) return nullptr;
  const std::size_t n = start.count(8);
  if (!same_length(n, {lane.count(8), end.count(8)})) return nullptr;
  std::vector<std::int32_t> row(n);
  {
    const WithoutLock released;
    stack(lane.ints(), start.ints(), end.ints(), n, slack, row.data());
  }
  return vector_buffer(std::move(row));
}

PyObject* py_pixels(PyObject*, PyObject* args) {
  PyObject *a, *b, *c, *d, *e, *f, *g;
  unsigned block = 0, steps = 0;
  long long t0 = 0, t1 = 0;
  Py_ssize_t width = 0;
  if (!PyArg_ParseTuple(args, "OOOOOOIOLLnI", &a, &b, &c, &d, &e, &f, &block, &g, &t0, &t1, &width, &steps))
    return nullptr;
  View start, end, pair, class_of_pair, classes, sums, visible;
  if (!start.take(a) || !end.take(b) || !pair.take(c) || !class_of_pair.take(d) || !classes.take(e) || !sums.take(f) ||
      !visible.take(g))
    return nullptr;
  const std::size_t n = start.count(8), kinds = classes.count(1);
  if (!same_length(n, {end.count(8), pair.count(4)})) return nullptr;
  if (block == 0 || kinds == 0 || width <= 0 || t1 <= t0 || steps == 0 || steps > 255 || visible.count(1) < 256 ||
      sums.count(8) < (n / block + 1) * kinds)
    return PyErr_Format(PyExc_ValueError, "no such picture");
  const PixelRow row{start.ints(),
                     end.ints(),
                     static_cast<const std::int32_t*>(pair.b.buf),
                     n,
                     class_of_pair.bytes(),
                     class_of_pair.count(1),
                     classes.bytes(),
                     kinds,
                     sums.ints(),
                     block};
  std::vector<std::uint8_t> cls(static_cast<std::size_t>(width)), fill(static_cast<std::size_t>(width));
  {
    const WithoutLock released;
    fill_pixels(row, visible.bytes(), t0, t1, static_cast<std::size_t>(width), steps, cls.data(), fill.data());
  }
  return Py_BuildValue("(NN)", vector_buffer(std::move(cls)), vector_buffer(std::move(fill)));
}

PyObject* py_timeline(PyObject*, PyObject* args) {
  PyObject *a, *b, *c, *r;
  unsigned stages = 0, none = 0;
  if (!PyArg_ParseTuple(args, "OOOOII", &a, &b, &c, &r, &stages, &none)) return nullptr;
  View ts, dur, cls, rule;
  if (!ts.take(a) || !dur.take(b) || !cls.take(c) || !rule.take(r)) return nullptr;
  const std::size_t n = ts.count(8);
  if (!same_length(n, {dur.count(8), cls.count(1)})) return nullptr;
  const std::size_t classes = stages == 0 ? 0 : rule.count(1) / stages;
  for (std::size_t i = 0; i < n; ++i)
    if (cls.bytes()[i] >= classes) return PyErr_Format(PyExc_ValueError, "class %d has no rule", cls.bytes()[i]);
  for (std::size_t i = 0; i < rule.count(1); ++i)
    if (rule.bytes()[i] >= stages) return PyErr_Format(PyExc_ValueError, "a rule names stage %d", rule.bytes()[i]);
  if (none >= stages) return PyErr_Format(PyExc_ValueError, "no stage %d", none);
  Segments s;
  {
    const WithoutLock released;
    s = timeline(ts.ints(), dur.ints(), cls.bytes(), n, rule.bytes(), stages, static_cast<std::uint8_t>(none));
  }
  return Py_BuildValue("(NNN)", vector_buffer(std::move(s.from)), vector_buffer(std::move(s.to)),
                       vector_buffer(std::move(s.stage)));
}

// Eight values to a byte of an Arrow bitmap.
inline unsigned there8(const std::int32_t* v) {
  unsigned byte = 0;
#if defined(__SSE2__)
  const __m128i none = _mm_set1_epi32(kNoCode);
  for (int k = 0; k < 2; ++k) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 4 * k));
    byte |= static_cast<unsigned>(_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(x, none)))) << (4 * k);
  }
  return byte ^ 0xff;
#else
  for (unsigned k = 0; k < 8; ++k) byte |= static_cast<unsigned>(v[k] != kNoCode) << k;
  return byte;
#endif
}
inline unsigned there8(const std::int64_t* v) {
  unsigned byte = 0;
#if defined(__SSE2__)
  const __m128i none = _mm_set1_epi64x(kMissing);
  for (int k = 0; k < 4; ++k) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 2 * k));
    const __m128i halves = _mm_cmpeq_epi32(x, none);
    const __m128i both = _mm_and_si128(halves, _mm_shuffle_epi32(halves, 0xb1));
    byte |= static_cast<unsigned>(_mm_movemask_pd(_mm_castsi128_pd(both))) << (2 * k);
  }
  return byte ^ 0xff;
#else
  for (unsigned k = 0; k < 8; ++k) byte |= static_cast<unsigned>(v[k] != kMissing) << k;
  return byte;
#endif
}

template <class T>
std::size_t there_bits(const T* values, std::size_t n, T none, std::uint8_t* bits) {
  static constexpr std::uint8_t ones[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
  std::size_t there = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    const unsigned byte = there8(values + i);
    bits[i >> 3] = static_cast<std::uint8_t>(byte);
    there += ones[byte & 15] + std::size_t{ones[byte >> 4]};
  }
  for (; i < n; ++i)
    if (values[i] != none) {
      bits[i >> 3] |= static_cast<std::uint8_t>(1u << (i & 7));
      ++there;
    }
  return there;
}

// Arrow validity bitmap of an int64 column (kMissing) or an int32 code column (-1); None when nothing is missing.
PyObject* py_validity(PyObject*, PyObject* args) {
  PyObject* a;
  int width = 8;
  if (!PyArg_ParseTuple(args, "Oi", &a, &width)) return nullptr;
  if (Py_TYPE(a) == buffer_type && reinterpret_cast<BufferObject*>(a)->full)
    return Py_BuildValue("(On)", Py_None, Py_ssize_t{0});
  View v;
  if (!v.take(a)) return nullptr;
  const std::size_t n = v.count(static_cast<std::size_t>(width));
  std::vector<std::uint8_t> bits((n + 7) / 8, 0);
  std::size_t there = 0;
  Py_BEGIN_ALLOW_THREADS
  there = width == 8 ? there_bits(v.ints(), n, kMissing, bits.data())
                     : there_bits(static_cast<const std::int32_t*>(v.b.buf), n, kNoCode, bits.data());
  Py_END_ALLOW_THREADS
  const std::size_t missing = n - there;
  if (missing == 0) return Py_BuildValue("(On)", Py_None, Py_ssize_t{0});
  return Py_BuildValue("(Nn)", vector_buffer(std::move(bits)), static_cast<Py_ssize_t>(missing));
}

PyMethodDef functions[] = {
    {"extent", py_extent, METH_VARARGS,
     "extent(ts, dur) -> (first begin, last end, events that end before they begin)"},
    {"nest", guarded<py_nest>, METH_VARARGS, "nest(tid, ts, dur) -> (parent row, self time) by time alone"},
    {"pixels", guarded<py_pixels>, METH_VARARGS,
     "pixels(start, end, pair, class_of_pair, classes, sums, block, visible, t0, t1, width, steps) -> (class, fill)"},
    {"stack", guarded<py_stack>, METH_VARARGS,
     "stack(lane, start, end, slack) -> the row of each span, below what holds it; spans sorted, outer first"},
    {"timeline", guarded<py_timeline>, METH_VARARGS,
     "timeline(ts, dur, cls, rule, stages, none) -> (from, to, stage) of one thread's exclusive timeline"},
    {"validity", guarded<py_validity>, METH_VARARGS, "validity(column, width) -> (Arrow bitmap or None, nulls)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "dftracer.load._scan", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

bool add_type(PyObject* m, const char* name, PyType_Spec* spec, PyTypeObject** keep = nullptr) {
  PyObject* t = PyType_FromSpec(spec);
  if (t == nullptr) return false;
  if (keep != nullptr) *keep = reinterpret_cast<PyTypeObject*>(t);
  return PyModule_AddObjectRef(m, name, t) == 0;
}
}  // namespace

PyMODINIT_FUNC PyInit__scan() {
  PyObject* m = PyModule_Create(&module_def);
  if (m == nullptr) return nullptr;
  if (!add_type(m, "Buffer", &buffer_spec, &buffer_type) || !add_type(m, "Scanner", &scanner_spec) ||
      !add_type(m, "SelfTime", &self_time_spec) ||
      PyModule_AddObject(m, "MISSING", PyLong_FromLongLong(kMissing)) != 0) {
    Py_DECREF(m);
    return nullptr;
  }
  return m;
}
