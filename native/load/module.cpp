// dftracer.load._scan: the interface between the native reader and Python.
#include <algorithm>
#include <cstring>
#include <limits>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "args_text.hpp"
#include "buffer.hpp"
#include "event_sums.hpp"
#include "format/stage.hpp"
#include "format/step_row.hpp"
#include "format/timeline.hpp"
#include "intervals.hpp"
#include "pixels.hpp"
#include "python.hpp"
#include "scanner_type.hpp"
#include "sweep.hpp"
#include "validity.hpp"

namespace {
using namespace dft::load;
using dft::py::guarded;
using dft::py::View;
using dft::py::WithoutLock;

bool same_length(size_t n, std::initializer_list<size_t> others) {
  for (const size_t o : others)
    if (o != n) {
      PyErr_SetString(PyExc_ValueError, "expected arrays of the same length");
      return false;
    }
  return true;
}

struct SelfTimeObject {
  PyObject_HEAD
  SelfTime* state;
};
PyObject* self_time_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<SelfTimeObject*>(type->tp_alloc(type, 0));
  if (self) self->state = new (std::nothrow) SelfTime();
  if (self && !self->state) {
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
  const size_t n = id.count(8);
  if (!same_length(n, {parent.count(8), dur.count(8)})) return nullptr;
  std::vector<int64_t> self(n);
  SelfTime& state = *reinterpret_cast<SelfTimeObject*>(obj)->state;
  {
    const WithoutLock released;
    state.update(id.as<int64_t>(), parent.as<int64_t>(), dur.as<int64_t>(), n, self.data());
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

struct DurationSumsObject {
  PyObject_HEAD
  DurationSums* state;
};
PyObject* duration_sums_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<DurationSumsObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  try {
    self->state = new DurationSums();
  } catch (const std::bad_alloc&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(self);
}
void duration_sums_dealloc(PyObject* self) {
  delete reinterpret_cast<DurationSumsObject*>(self)->state;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}
PyObject* duration_sums_add(PyObject* obj, PyObject* args) {
  PyObject *a, *b, *c, *d = Py_None;
  if (!PyArg_ParseTuple(args, "OOO|O", &a, &b, &c, &d)) return nullptr;
  View pair, dur, self, counts;
  if (!pair.take(a) || !dur.take(b) || !self.take(c) || (d != Py_None && !counts.take(d))) return nullptr;
  const size_t n = pair.count(4);
  if (!same_length(n, {dur.count(8), self.count(8), d == Py_None ? n : counts.count(8)})) return nullptr;
  DurationSums& sums = *reinterpret_cast<DurationSumsObject*>(obj)->state;
  {
    const WithoutLock released;
    for (size_t i = 0; i < n; ++i) {
      DurationSum& sum = sums.of(dur.as<int64_t>()[i], pair.as<int32_t>()[i]);
      sum.n += d == Py_None ? 1 : uint32_t(counts.as<int64_t>()[i]);
      sum.self += self.as<int64_t>()[i];
    }
  }
  Py_RETURN_NONE;
}
PyObject* duration_sums_columns(PyObject* obj, PyObject*) {
  const auto& entries = reinterpret_cast<DurationSumsObject*>(obj)->state->entries();
  std::vector<int32_t> pair(entries.size());
  std::vector<uint32_t> n(entries.size());
  std::vector<int64_t> dur(entries.size()), self(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    pair[i] = entries[i].b;
    dur[i] = entries[i].a;
    n[i] = entries[i].value.n;
    self[i] = entries[i].value.self;
  }
  return Py_BuildValue("(NNNN)", vector_buffer(std::move(pair)), vector_buffer(std::move(dur)),
                       vector_buffer(std::move(n)), vector_buffer(std::move(self)));
}
PyMethodDef duration_sums_methods[] = {
    {"add", guarded<duration_sums_add>, METH_VARARGS,
     "add(pair, dur, self, n=None): count events, each once or n times, and add up their self time"},
    {"columns", guarded<duration_sums_columns>, METH_NOARGS, "columns() -> (pair, dur, n, self)"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot duration_sums_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(duration_sums_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(duration_sums_dealloc)},
    {Py_tp_methods, duration_sums_methods},
    {0, nullptr},
};
PyType_Spec duration_sums_spec = {"dftracer.load._scan.DurationSums", sizeof(DurationSumsObject), 0, Py_TPFLAGS_DEFAULT,
                                  duration_sums_slots};

// Whether all numbers are below a limit; an exception is set otherwise.
bool all_below(const View& numbers, size_t limit) {
  const auto* const each = numbers.as<uint32_t>();
  bool all = limit <= uint32_t(std::numeric_limits<int32_t>::max());
  for (size_t i = 0; i < numbers.count(4); ++i) all &= each[i] < uint32_t(limit);  // without a branch: they are many
  if (all) return true;
  for (size_t i = 0; i < numbers.count(4); ++i)
    if (uint32_t(numbers.as<int32_t>()[i]) >= limit) {
      PyErr_Format(PyExc_ValueError, "pair %d is not in the table", numbers.as<int32_t>()[i]);
      return false;
    }
  return true;
}

// A column that may be missing, of a chunk with so many rows.
struct OptionalColumn {
  View view;
  bool there = false;
  bool take(PyObject* o, size_t rows, size_t width) {
    if (o == Py_None) return true;
    there = view.take(o) && same_length(rows, {view.count(width)});
    return there;
  }
  template <class T>
  const T* as() const {
    return there ? view.as<T>() : nullptr;
  }
};

// What the functions below are given: events, what is known of their pairs, and the chunk they are in.
struct CallArguments {
  View pair, kinds, items;
  OptionalColumn rows, ret, size, count;
  CallColumns columns{};

  bool take(PyObject* of, PyObject* kind, PyObject* item, PyObject* place, Py_ssize_t chunk_rows, PyObject* returned,
            PyObject* sized, PyObject* counted) {
    if (!pair.take(of) || !kinds.take(kind) || !items.take(item)) return false;
    const size_t n = pair.count(4), all = size_t(chunk_rows);
    if (chunk_rows < 0 || !same_length(kinds.count(1), {items.count(1)}) || !all_below(pair, kinds.count(1)) ||
        !rows.take(place, n, 8) || !ret.take(returned, all, 8) || !size.take(sized, all, 8) ||
        !count.take(counted, all, 8) || (!rows.there && !same_length(all, {n})))
      return false;
    const auto* const places = rows.as<int64_t>();
    for (size_t i = 0; places && i < n; ++i)
      if (uint64_t(places[i]) >= all) return PyErr_Format(PyExc_ValueError, "no such row") != nullptr;
    columns.pair = pair.as<int32_t>();
    columns.n = n;
    columns.rows = places;
    columns.chunk_rows = all;
    columns.ret = ret.as<int64_t>();
    columns.size = size.as<int64_t>();
    columns.count = count.as<int64_t>();
    return true;
  }
};

PyObject* call_columns(const CallSums& sums) {
  struct Columns {
    std::vector<uint8_t> kind;
    std::vector<uint32_t> n;
    std::vector<int64_t> bytes, us, extent;
    void add(uint8_t k, const CallSum& s) {
      kind.push_back(k);
      n.push_back(s.n);
      bytes.push_back(s.bytes);
      us.push_back(s.us);
      extent.push_back(s.extent);
    }
  } by_file, by_time;
  std::vector<int32_t> files;
  std::vector<uint8_t> size;
  std::vector<int64_t> time;
  for (const auto& entry : sums.files.entries()) {
    files.push_back(int32_t(entry.a));
    size.push_back(uint8_t(entry.b));
    by_file.add(uint8_t(entry.b >> 8), entry.value);
  }
  for (const auto& entry : sums.times.entries()) {
    time.push_back(entry.a);
    by_time.add(uint8_t(entry.b), entry.value);
  }
  return Py_BuildValue("((NNNNNNN)(NNNNN))", vector_buffer(std::move(files)), vector_buffer(std::move(by_file.kind)),
                       vector_buffer(std::move(size)), vector_buffer(std::move(by_file.n)),
                       vector_buffer(std::move(by_file.bytes)), vector_buffer(std::move(by_file.us)),
                       vector_buffer(std::move(by_file.extent)), vector_buffer(std::move(time)),
                       vector_buffer(std::move(by_time.kind)), vector_buffer(std::move(by_time.n)),
                       vector_buffer(std::move(by_time.bytes)), vector_buffer(std::move(by_time.us)));
}

PyObject* py_digest_calls(PyObject*, PyObject* args) {
  PyObject *a, *b, *c, *d, *e, *f, *g, *h, *r, *s, *t, *u, *v;
  Py_ssize_t all = 0;
  unsigned shift = 0;
  if (!PyArg_ParseTuple(args, "OOOOnOOOOOOOOOI", &a, &b, &c, &d, &all, &e, &f, &g, &h, &r, &s, &t, &u, &v, &shift))
    return nullptr;
  CallArguments calls;
  OptionalColumn file, offset;
  View ts, dur, args_end, args_text;
  if (!calls.take(a, b, c, d, all, e, f, g) || !offset.take(h, size_t(all), 8) || !file.take(r, size_t(all), 4) ||
      !ts.take(s) || !dur.take(t) || !args_end.take(u) || !args_text.take(v) ||
      !same_length(calls.columns.n, {ts.count(8), dur.count(8)}) || !same_length(size_t(all), {args_end.count(4)}))
    return nullptr;
  if (shift > 63) return PyErr_Format(PyExc_ValueError, "no such shift");
  calls.columns.offset = offset.as<int64_t>();
  calls.columns.file = file.as<int32_t>();
  calls.columns.ts = ts.as<int64_t>();
  calls.columns.dur = dur.as<int64_t>();
  calls.columns.args_end = args_end.as<int32_t>();
  calls.columns.args_text = args_text.text();
  DigestedCalls out;
  {
    const WithoutLock released;
    out = digest_calls(calls.columns, calls.kinds.as<uint8_t>(), calls.items.as<uint8_t>(), shift);
  }
  return Py_BuildValue("NN(NNN)", vector_buffer(std::move(out.to_write)), call_columns(out.sums),
                       vector_buffer(std::move(out.data_file)), vector_buffer(std::move(out.data_ts)),
                       vector_buffer(std::move(out.data_dur)));
}

PyObject* py_bytes_of_calls(PyObject*, PyObject* args) {
  PyObject *a, *b, *c, *d, *e, *f, *g;
  Py_ssize_t all = 0;
  if (!PyArg_ParseTuple(args, "OOOOnOOO", &a, &b, &c, &d, &all, &e, &f, &g)) return nullptr;
  CallArguments calls;
  if (!calls.take(a, b, c, d, all, e, f, g)) return nullptr;
  return vector_buffer(bytes_of_calls(calls.columns, calls.kinds.as<uint8_t>(), calls.items.as<uint8_t>()));
}

struct CallSumsObject {
  PyObject_HEAD
  CallSums* state;
};
PyObject* call_sums_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<CallSumsObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  try {
    self->state = new CallSums();
  } catch (const std::bad_alloc&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(self);
}
void call_sums_dealloc(PyObject* self) {
  delete reinterpret_cast<CallSumsObject*>(self)->state;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}
PyObject* call_sums_add(PyObject* obj, PyObject* args) {
  PyObject *a, *b, *c, *d, *e, *f, *g, *h, *r, *s, *t, *u;
  if (!PyArg_ParseTuple(args, "(OOOOOOO)(OOOOO)", &a, &b, &c, &d, &e, &f, &g, &h, &r, &s, &t, &u)) return nullptr;
  View file, kind, size, n, bytes, us, extent, time, time_kind, time_n, time_bytes, time_us;
  if (!file.take(a) || !kind.take(b) || !size.take(c) || !n.take(d) || !bytes.take(e) || !us.take(f) ||
      !extent.take(g) || !time.take(h) || !time_kind.take(r) || !time_n.take(s) || !time_bytes.take(t) ||
      !time_us.take(u))
    return nullptr;
  const size_t files = file.count(4), times = time.count(8);
  if (!same_length(files, {kind.count(1), size.count(1), n.count(4), bytes.count(8), us.count(8), extent.count(8)}) ||
      !same_length(times, {time_kind.count(1), time_n.count(4), time_bytes.count(8), time_us.count(8)}))
    return nullptr;
  CallSums& sums = *reinterpret_cast<CallSumsObject*>(obj)->state;
  for (size_t i = 0; i < files; ++i)
    sums.files.of(file.as<int32_t>()[i], int32_t(kind.as<uint8_t>()[i]) << 8 | size.as<uint8_t>()[i])
        .add({n.as<uint32_t>()[i], bytes.as<int64_t>()[i], us.as<int64_t>()[i], extent.as<int64_t>()[i]});
  for (size_t i = 0; i < times; ++i)
    sums.times.of(time.as<int64_t>()[i], time_kind.as<uint8_t>()[i])
        .add({time_n.as<uint32_t>()[i], time_bytes.as<int64_t>()[i], time_us.as<int64_t>()[i], 0});
  Py_RETURN_NONE;
}
PyObject* call_sums_columns(PyObject* obj, PyObject*) {
  return call_columns(*reinterpret_cast<CallSumsObject*>(obj)->state);
}
PyMethodDef call_sums_methods[] = {
    {"add", guarded<call_sums_add>, METH_VARARGS, "add(by_file, by_time): columns as `columns` gives them"},
    {"columns", guarded<call_sums_columns>, METH_NOARGS,
     "columns() -> (file, kind, size, n, bytes, us, extent), (time, kind, n, bytes, us)"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot call_sums_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(call_sums_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(call_sums_dealloc)},
    {Py_tp_methods, call_sums_methods},
    {0, nullptr},
};
PyType_Spec call_sums_spec = {"dftracer.load._scan.CallSums", sizeof(CallSumsObject), 0, Py_TPFLAGS_DEFAULT,
                              call_sums_slots};

PyObject* py_pair_numbers(PyObject*, PyObject* args) {
  PyObject *a, *b, *c;
  Py_ssize_t width = 0;
  if (!PyArg_ParseTuple(args, "OOOn", &a, &b, &c, &width)) return nullptr;
  View category, name, table;
  if (!category.take(a) || !name.take(b) || !table.take(c) || !same_length(category.count(4), {name.count(4)}))
    return nullptr;
  if (width < 1) return PyErr_Format(PyExc_ValueError, "no such width");
  std::vector<int32_t> pair(category.count(4));
  std::vector<int64_t> unknown;
  {
    const WithoutLock released;
    unknown = pair_numbers(category.as<int32_t>(), name.as<int32_t>(), pair.size(), table.as<int32_t>(), table.count(4),
                           size_t(width), pair.data());
  }
  return Py_BuildValue("(NN)", vector_buffer(std::move(pair)), vector_buffer(std::move(unknown)));
}

PyObject* py_rows_of_pairs(PyObject*, PyObject* args) {
  PyObject *a, *b, *c = Py_None;
  long long at_least = 0;
  if (!PyArg_ParseTuple(args, "OO|OL", &a, &b, &c, &at_least)) return nullptr;
  View pair, wanted;
  OptionalColumn dur;
  if (!pair.take(a) || !wanted.take(b) || !dur.take(c, pair.count(4), 8) || !all_below(pair, wanted.count(1)))
    return nullptr;
  return vector_buffer(
      rows_of_pairs(pair.as<int32_t>(), pair.count(4), wanted.as<uint8_t>(), dur.as<int64_t>(), at_least));
}

PyObject* py_keep_events(PyObject*, PyObject* args) {
  PyObject *a, *b, *c, *d, *e, *f, *g;
  unsigned char skip = 0, of_flagged = 0;
  if (!PyArg_ParseTuple(args, "OOOOOOObb", &a, &b, &c, &d, &e, &f, &g, &skip, &of_flagged)) return nullptr;
  View pair, tid, ts, dur, flagged, classes, marked;
  if (!pair.take(a) || !tid.take(b) || !ts.take(c) || !dur.take(d) || !flagged.take(e) || !classes.take(f) ||
      !marked.take(g))
    return nullptr;
  const size_t n = ts.count(8), pairs = classes.count(1);
  if (!same_length(n, {pair.count(4), tid.count(8), dur.count(8)})) return nullptr;
  if (!same_length(pairs, {marked.count(1)})) return nullptr;
  if (!all_below(pair, pairs)) return nullptr;
  KeptEvents kept;
  {
    const WithoutLock released;
    kept = keep_events({pair.as<int32_t>(), tid.as<int64_t>(), ts.as<int64_t>(), dur.as<int64_t>(), n,
                        flagged.as<int64_t>(), flagged.count(8)},
                       classes.as<uint8_t>(), marked.as<uint8_t>(), skip, of_flagged);
  }
  const auto number = [](int64_t v) { return static_cast<long long>(v); };
  return Py_BuildValue("((LL)(LL)(NNNNN)(NN))", number(kept.first), number(kept.last), number(kept.marked_first),
                       number(kept.marked_last), vector_buffer(std::move(kept.tid)), vector_buffer(std::move(kept.ts)),
                       vector_buffer(std::move(kept.dur)), vector_buffer(std::move(kept.code)),
                       vector_buffer(std::move(kept.cls)), vector_buffer(std::move(kept.skipped_pair)),
                       vector_buffer(std::move(kept.skipped_dur)));
}

// Intervals out of two objects; false, with an exception set, if they are none.
struct IntervalViews {
  View start, end;
  bool take(PyObject* a, PyObject* b) {
    return start.take(a) && end.take(b) && same_length(start.count(8), {end.count(8)});
  }
  IntervalSet set() const { return {start.as<int64_t>(), end.as<int64_t>(), start.count(8)}; }
};

PyObject* py_union(PyObject*, PyObject* args) {
  PyObject *a, *b, *c = Py_None, *d = Py_None;
  if (!PyArg_ParseTuple(args, "OO|OO", &a, &b, &c, &d)) return nullptr;
  IntervalViews all;
  View key, wanted;
  if (!all.take(a, b)) return nullptr;
  const bool keyed = c != Py_None;
  if (keyed && (!key.take(c) || !wanted.take(d) || !same_length(all.set().n, {key.count(1)}))) return nullptr;
  if (keyed && wanted.count(1) < 256) return PyErr_Format(PyExc_ValueError, "a table of 256 keys is needed");
  IntervalVectors out;
  {
    const WithoutLock released;
    out = union_of_intervals(all.set(), keyed ? key.as<uint8_t>() : nullptr, keyed ? wanted.as<uint8_t>() : nullptr);
  }
  return Py_BuildValue("(NN)", vector_buffer(std::move(out.start)), vector_buffer(std::move(out.end)));
}

PyObject* py_covered_until(PyObject*, PyObject* args) {
  PyObject *a, *b, *c;
  if (!PyArg_ParseTuple(args, "OOO", &a, &b, &c)) return nullptr;
  IntervalViews all;
  View times;
  if (!all.take(a, b) || !times.take(c)) return nullptr;
  std::vector<int64_t> out(times.count(8));
  {
    const WithoutLock released;
    covered_until(all.set(), times.as<int64_t>(), out.size(), out.data());
  }
  return vector_buffer(std::move(out));
}

PyObject* py_pieces(PyObject*, PyObject* args) {
  PyObject *a, *b, *c, *d;
  if (!PyArg_ParseTuple(args, "OOOO", &a, &b, &c, &d)) return nullptr;
  IntervalViews windows, all;
  if (!windows.take(a, b) || !all.take(c, d)) return nullptr;
  Pieces out;
  {
    const WithoutLock released;
    out = pieces_in_windows(windows.set(), all.set());
  }
  return Py_BuildValue("(NNN)", vector_buffer(std::move(out.start)), vector_buffer(std::move(out.end)),
                       vector_buffer(std::move(out.which)));
}

PyObject* py_account(PyObject*, PyObject* args) {
  PyObject *a, *b, *c, *d, *e;
  Py_ssize_t keys = 0;
  if (!PyArg_ParseTuple(args, "OOOnOO", &a, &b, &c, &keys, &d, &e)) return nullptr;
  IntervalViews all, windows;
  View key;
  if (!all.take(a, b) || !key.take(c) || !windows.take(d, e) || !same_length(all.set().n, {key.count(1)}))
    return nullptr;
  for (size_t i = 0; i < key.count(1); ++i)
    if (key.as<uint8_t>()[i] >= keys) return PyErr_Format(PyExc_ValueError, "no key %d", key.as<uint8_t>()[i]);
  std::vector<int64_t> out(windows.set().n * size_t(std::max<Py_ssize_t>(keys, 0)));
  {
    const WithoutLock released;
    account_by_key(all.set(), key.as<uint8_t>(), size_t(keys), windows.set(), out.data());
  }
  return vector_buffer(std::move(out));
}

PyObject* py_pack_intervals(PyObject*, PyObject* args) {
  PyObject *a, *b;
  if (!PyArg_ParseTuple(args, "OO", &a, &b)) return nullptr;
  IntervalViews all;
  if (!all.take(a, b)) return nullptr;
  std::string out;
  {
    const WithoutLock released;
    out = pack_intervals(all.set());
  }
  return PyBytes_FromStringAndSize(out.data(), Py_ssize_t(out.size()));
}

PyObject* py_unpack_intervals(PyObject*, PyObject* args) {
  PyObject* a;
  Py_ssize_t n = 0;
  if (!PyArg_ParseTuple(args, "On", &a, &n)) return nullptr;
  View packed;
  if (!packed.take(a)) return nullptr;
  IntervalVectors out;
  bool right = n >= 0;
  if (right) {
    const WithoutLock released;
    right = unpack_intervals(packed.text(), size_t(n), out);
  }
  if (!right) return PyErr_Format(PyExc_ValueError, "not %zd intervals", n);
  return Py_BuildValue("(NN)", vector_buffer(std::move(out.start)), vector_buffer(std::move(out.end)));
}

// The first start, the last end, and how many events end before they begin. An impossible sum is
// clamped.
PyObject* py_extent(PyObject*, PyObject* args) {
  PyObject *a, *b;
  if (!PyArg_ParseTuple(args, "OO", &a, &b)) return nullptr;
  View ts, dur;
  if (!ts.take(a) || !dur.take(b)) return nullptr;
  const size_t n = ts.count(8);
  if (!same_length(n, {dur.count(8)})) return nullptr;
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  size_t backwards = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t t = ts.as<int64_t>()[i], d = dur.as<int64_t>()[i];
    int64_t end;
    if (__builtin_add_overflow(t, d, &end))
      end = d < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
    first = std::min(first, t);
    last = std::max(last, end);
    backwards += d < 0 ? 1 : 0;
  }
  return Py_BuildValue("(LLn)", static_cast<long long>(first), static_cast<long long>(last), Py_ssize_t(backwards));
}

PyObject* py_nest(PyObject*, PyObject* args) {
  PyObject *a, *b, *c;
  if (!PyArg_ParseTuple(args, "OOO", &a, &b, &c)) return nullptr;
  View tid, ts, dur;
  if (!tid.take(a) || !ts.take(b) || !dur.take(c)) return nullptr;
  const size_t n = ts.count(8);
  if (!same_length(n, {tid.count(8), dur.count(8)})) return nullptr;
  std::vector<int64_t> parent(n), self(n);
  {
    const WithoutLock released;
    nest(tid.as<int64_t>(), ts.as<int64_t>(), dur.as<int64_t>(), n, parent.data(), self.data());
  }
  return Py_BuildValue("(NN)", vector_buffer(std::move(parent)), vector_buffer(std::move(self)));
}

PyObject* py_stack(PyObject*, PyObject* args) {
  PyObject *a, *b, *c;
  long long slack = 0;
  if (!PyArg_ParseTuple(args, "OOOL", &a, &b, &c, &slack)) return nullptr;
  View lane, start, end;
  if (!lane.take(a) || !start.take(b) || !end.take(c)) return nullptr;
  const size_t n = start.count(8);
  if (!same_length(n, {lane.count(8), end.count(8)})) return nullptr;
  std::vector<int32_t> row(n);
  {
    const WithoutLock released;
    stack(lane.as<int64_t>(), start.as<int64_t>(), end.as<int64_t>(), n, slack, row.data());
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
  const size_t n = start.count(8), kinds = classes.count(1);
  if (!same_length(n, {end.count(8), pair.count(4)})) return nullptr;
  if (block == 0 || kinds == 0 || width <= 0 || t1 <= t0 || steps == 0 || steps > 255 || visible.count(1) < 256 ||
      sums.count(8) < (n / block + 1) * kinds)
    return PyErr_Format(PyExc_ValueError, "no such picture");
  const PixelRow row{start.as<int64_t>(),         end.as<int64_t>(),
                     pair.as<int32_t>(),          n,
                     class_of_pair.as<uint8_t>(), class_of_pair.count(1),
                     classes.as<uint8_t>(),       kinds,
                     sums.as<int64_t>(),          block};
  const auto pixels = size_t(width);
  std::vector<uint8_t> cls(pixels), fill(pixels);
  {
    const WithoutLock released;
    fill_pixels(row, visible.as<uint8_t>(), t0, t1, pixels, steps, cls.data(), fill.data());
  }
  return Py_BuildValue("(NN)", vector_buffer(std::move(cls)), vector_buffer(std::move(fill)));
}

PyObject* py_timeline(PyObject*, PyObject* args) {
  PyObject *a, *b, *c, *r;
  unsigned stages = 0, none = 0;
  if (!PyArg_ParseTuple(args, "OOOOII", &a, &b, &c, &r, &stages, &none)) return nullptr;
  View ts, dur, cls, rule;
  if (!ts.take(a) || !dur.take(b) || !cls.take(c) || !rule.take(r)) return nullptr;
  const size_t n = ts.count(8);
  if (!same_length(n, {dur.count(8), cls.count(1)})) return nullptr;
  const size_t classes = stages == 0 ? 0 : rule.count(1) / stages;
  for (size_t i = 0; i < n; ++i)
    if (cls.as<uint8_t>()[i] >= classes)
      return PyErr_Format(PyExc_ValueError, "class %d has no rule", cls.as<uint8_t>()[i]);
  for (size_t i = 0; i < rule.count(1); ++i)
    if (rule.as<uint8_t>()[i] >= stages)
      return PyErr_Format(PyExc_ValueError, "a rule names stage %d", rule.as<uint8_t>()[i]);
  if (none >= stages) return PyErr_Format(PyExc_ValueError, "no stage %d", none);
  dft::Segments s;
  {
    const WithoutLock released;
    s = dft::timeline(ts.as<int64_t>(), dur.as<int64_t>(), cls.as<uint8_t>(), n, rule.as<uint8_t>(), stages,
                      uint8_t(none));
  }
  return Py_BuildValue("(NNN)", vector_buffer(std::move(s.from)), vector_buffer(std::move(s.to)),
                       vector_buffer(std::move(s.stage)));
}

// The rows of a file of step rows, one after the other; the facts in it; bytes that could not be read.
PyObject* py_step_rows(PyObject*, PyObject* given) {
  View bytes;
  if (!bytes.take(given)) return nullptr;
  dft::RowBlocks found;
  {
    const WithoutLock released;
    found = dft::read_row_blocks({bytes.as<char>(), bytes.count(1)});
  }
  dft::py::Ref facts(PyList_New(0));
  for (const std::string& each : found.facts) {
    dft::py::Ref text(dft::py::text_object(each));
    if (!facts || !text || PyList_Append(facts.get(), text.get()) < 0) return nullptr;
  }
  if (!facts) return nullptr;
  return Py_BuildValue("(NNK)", vector_buffer(std::move(found.rows)), facts.release(),
                       static_cast<unsigned long long>(found.damaged));
}

// For rows made elsewhere: the bytes of a file with these rows and facts.
PyObject* py_pack_step_rows(PyObject*, PyObject* args) {
  PyObject* given;
  const char* facts;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "Os#", &given, &facts, &size)) return nullptr;
  View rows;
  if (!rows.take(given)) return nullptr;
  const size_t n = rows.count(sizeof(dft::StepRow));
  std::string out;
  {
    const WithoutLock released;
    std::vector<dft::StepRow> all(n);
    if (n) memcpy(static_cast<void*>(all.data()), rows.as<char>(), n * sizeof(dft::StepRow));
    dft::append_fact_block(out, {facts, size_t(size)});
    dft::append_row_blocks(out, all);
  }
  return PyBytes_FromStringAndSize(out.data(), Py_ssize_t(out.size()));
}

PyObject* py_step_row_columns(PyObject*, PyObject*) {
  dft::py::Ref out(PyTuple_New(Py_ssize_t(dft::kRowColumns)));
  for (size_t i = 0; out && i < dft::kRowColumns; ++i) {
    PyObject* name = dft::py::text_object(dft::row_column(i));
    if (!name) return nullptr;
    PyTuple_SET_ITEM(out.get(), Py_ssize_t(i), name);
  }
  return out.release();
}

PyObject* py_event_class(PyObject*, PyObject* args) {
  const char *category, *name;
  Py_ssize_t category_size, name_size;
  if (!PyArg_ParseTuple(args, "s#s#", &category, &category_size, &name, &name_size)) return nullptr;
  return PyLong_FromLong(long(dft::kind_of_event({category, size_t(category_size)}, {name, size_t(name_size)}).cls));
}

PyObject* py_stage_rules(PyObject*, PyObject* automatic) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(dft::stage_rules(automatic == Py_True)),
                                   dft::kEventClasses * dft::kRowStageCount);
}

// Arrow validity bitmap of an int64 column (kMissing) or an int32 code column (-1); None when nothing is missing.
PyObject* py_validity(PyObject*, PyObject* args) {
  PyObject* a;
  int width = 8;
  if (!PyArg_ParseTuple(args, "Oi", &a, &width)) return nullptr;
  if (Py_TYPE(a) == g_buffer_type && reinterpret_cast<BufferObject*>(a)->full)
    return Py_BuildValue("(On)", Py_None, Py_ssize_t{0});
  View v;
  if (!v.take(a)) return nullptr;
  const size_t n = v.count(size_t(width));
  std::vector<uint8_t> bits((n + 7) / 8, 0);
  size_t there = 0;
  Py_BEGIN_ALLOW_THREADS
  there = width == 8 ? there_bits(v.as<int64_t>(), n, kMissing, bits.data())
                     : there_bits(v.as<int32_t>(), n, kNoCode, bits.data());
  Py_END_ALLOW_THREADS
  const size_t missing = n - there;
  if (missing == 0) return Py_BuildValue("(On)", Py_None, Py_ssize_t{0});
  return Py_BuildValue("(Nn)", vector_buffer(std::move(bits)), Py_ssize_t(missing));
}

PyObject* py_arg_numbers(PyObject*, PyObject* args) {
  PyObject *a, *b;
  const char* key;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "OOy#", &a, &b, &key, &size)) return nullptr;
  View ends, text;
  if (!ends.take(a) || !text.take(b)) return nullptr;
  std::vector<int64_t> out(ends.count(8));
  {
    const WithoutLock released;
    numbers_of_key(ends.as<int64_t>(), out.size(), {text.as<char>(), text.count(1)}, {key, size_t(size)}, out.data());
  }
  return vector_buffer(std::move(out));
}

PyObject* py_arg_texts(PyObject*, PyObject* args) {
  PyObject *a, *b;
  const char* key;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "OOy#", &a, &b, &key, &size)) return nullptr;
  View ends, text;
  if (!ends.take(a) || !text.take(b)) return nullptr;
  std::vector<int64_t> out(ends.count(8));
  std::vector<std::string_view> values;
  {
    const WithoutLock released;
    texts_of_key(ends.as<int64_t>(), out.size(), {text.as<char>(), text.count(1)}, {key, size_t(size)}, out.data(),
                 &values);
  }
  PyObject* list = PyList_New(Py_ssize_t(values.size()));
  for (size_t i = 0; list && i < values.size(); ++i) {
    PyObject* value = PyUnicode_DecodeUTF8(values[i].data(), Py_ssize_t(values[i].size()), "replace");
    if (!value) {
      Py_CLEAR(list);
      break;
    }
    PyList_SET_ITEM(list, Py_ssize_t(i), value);
  }
  if (!list) return nullptr;
  return Py_BuildValue("NN", vector_buffer(std::move(out)), list);
}

// For a process that reads one trace after another: memory that was given back is taken again, instead of being
// returned to the kernel and cleared by it every time.
PyObject* py_keep_freed_memory(PyObject*, PyObject*) {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 128 << 20);
  mallopt(M_ARENA_MAX, 1);  // memory that a reading thread frees is not its own, but for whoever is next
#endif
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"account", guarded<py_account>, METH_VARARGS,
     "account(start, end, key, keys, window_start, window_end) -> [window][key], windows in the order of their start"},
    {"arg_numbers", guarded<py_arg_numbers>, METH_VARARGS,
     "arg_numbers(ends, text, key) -> the number after `key` in each text, -1 where there is none"},
    {"arg_texts", guarded<py_arg_texts>, METH_VARARGS,
     "arg_texts(ends, text, key) -> (number, -1 where there is none; values) of the strings that `key` opens"},
    {"bytes_of_calls", guarded<py_bytes_of_calls>, METH_VARARGS,
     "bytes_of_calls(pair, kind_of_pair, counts_items, rows, chunk_rows, ret, size, count) -> what each event moved"},
    {"covered_until", guarded<py_covered_until>, METH_VARARGS,
     "covered_until(start, end, times) -> how much of the intervals lies before each time"},
    {"digest_calls", guarded<py_digest_calls>, METH_VARARGS,
     "digest_calls(pair, kind_of_pair, counts_items, rows, chunk_rows, ret, size, count, offset, file, ts, dur, args_end, "
     "args_text, shift) -> opens to write, columns as of CallSums, (file, ts, dur) of reads and writes"},
    {"extent", py_extent, METH_VARARGS,
     "extent(ts, dur) -> (first begin, last end, events that end before they begin)"},
    {"keep_events", guarded<py_keep_events>, METH_VARARGS,
     "keep_events(pair, tid, ts, dur, flagged, class_of_pair, marked, skip, class_of_flagged) -> (first, last), "
     "(first, last) of marked pairs, (tid, ts, dur, code, class) of those kept, (pair, dur) of the others"},
    {"keep_freed_memory", py_keep_freed_memory, METH_NOARGS,
     "keep_freed_memory(): of this process, for later use by it; for programs of our own"},
    {"nest", guarded<py_nest>, METH_VARARGS, "nest(tid, ts, dur) -> (parent row, self time) by time alone"},
    {"pack_intervals", guarded<py_pack_intervals>, METH_VARARGS, "pack_intervals(start, end) -> bytes"},
    {"pair_numbers", guarded<py_pair_numbers>, METH_VARARGS,
     "pair_numbers(cat, name, table, width) -> number of each row, -1 where the table has none; places of those in it"},
    {"pieces", guarded<py_pieces>, METH_VARARGS,
     "pieces(window_start, window_end, start, end) -> (start, end, which interval) of the parts in the windows"},
    {"pixels", guarded<py_pixels>, METH_VARARGS,
     "pixels(start, end, pair, class_of_pair, classes, sums, block, visible, t0, t1, width, steps) -> (class, fill)"},
    {"rows_of_pairs", guarded<py_rows_of_pairs>, METH_VARARGS,
     "rows_of_pairs(pair, wanted, dur=None, at_least=0) -> the rows whose pair is wanted and that took so long"},
    {"stack", guarded<py_stack>, METH_VARARGS,
     "stack(lane, start, end, slack) -> the row of each span, below what holds it; spans sorted, outer first"},
    {"step_rows", guarded<py_step_rows>, METH_O,
     "step_rows(bytes) -> (rows of int64 values, facts as JSON, bytes that belong to no readable block)"},
    {"pack_step_rows", guarded<py_pack_step_rows>, METH_VARARGS, "pack_step_rows(rows, facts) -> bytes of such a file"},
    {"step_row_columns", guarded<py_step_row_columns>, METH_NOARGS, "step_row_columns() -> names"},
    {"event_class", guarded<py_event_class>, METH_VARARGS, "event_class(category, name) -> class"},
    {"stage_rules", guarded<py_stage_rules>, METH_O, "stage_rules(automatic) -> [class][stage around] -> stage"},
    {"timeline", guarded<py_timeline>, METH_VARARGS,
     "timeline(ts, dur, cls, rule, stages, none) -> (from, to, stage) of one thread's exclusive timeline"},
    {"union", guarded<py_union>, METH_VARARGS,
     "union(start, end, key=None, wanted=None) -> disjoint intervals of the same time, of wanted keys"},
    {"unpack_intervals", guarded<py_unpack_intervals>, METH_VARARGS, "unpack_intervals(bytes, n) -> (start, end)"},
    {"validity", guarded<py_validity>, METH_VARARGS, "validity(column, width) -> (Arrow bitmap or None, nulls)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "dftracer.load._scan", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

bool add_type(PyObject* m, const char* name, PyType_Spec* spec, PyTypeObject** keep = nullptr) {
  PyObject* t = PyType_FromSpec(spec);
  if (!t) return false;
  if (keep) *keep = reinterpret_cast<PyTypeObject*>(t);
  return PyModule_AddObjectRef(m, name, t) == 0;
}
}  // namespace

PyMODINIT_FUNC PyInit__scan() {
  dft::py::Ref m(PyModule_Create(&module_def));
  if (!m || !add_type(m.get(), "Buffer", &g_buffer_spec, &g_buffer_type) ||
      !add_type(m.get(), "Scanner", &g_scanner_spec) || !add_type(m.get(), "SelfTime", &self_time_spec) ||
      !add_type(m.get(), "DurationSums", &duration_sums_spec) || !add_type(m.get(), "CallSums", &call_sums_spec) ||
      PyModule_AddIntConstant(m.get(), "MISSING", kMissing) != 0)
    return nullptr;
  return dft::py::without_interpreter_lock(m.release());
}
