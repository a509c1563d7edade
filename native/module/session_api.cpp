#include "module/session_api.hpp"

#include <optional>

#include "format/md5.hpp"
#include "intercept/collectives.hpp"
#include "intercept/intercept.hpp"
#include "module/node.hpp"
#include "session/environment.hpp"
#include "session/left_rings.hpp"
#include "session/peek_ring.hpp"
#include "session/run.hpp"
#include "session/session.hpp"

namespace dft::py {

void count_lost_event() { count_lost(Drop::kMemory); }
void count_lost_value() { count_cut_value(); }

Frame frame_for_event(ThreadState* t, bool other_lane) {
  if (other_lane) {
    Frame f{};
    f.parent = -1;
    f.level = 1;
    f.id = new_id(t);
    return f;
  }
  Stack* s = t->stack;
  Frame* top = s->size ? &s->frames[s->size - 1] : nullptr;
  if (top && (top->flags & (kAnonymous | kNamed)) == kAnonymous) {
    top->flags |= kNamed;
    return *top;
  }
  return unopened_frame(t);
}

uint64_t clamp_ns(PyObject* value) {
  double approximate = 0;
  if (PyLong_Check(value)) {
    int overflow = 0;
    long long v = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (!overflow) return v < 0 ? 0 : uint64_t(v);
    return 0;
  }
  approximate = PyFloat_AsDouble(value);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return 0;
  }
  return approximate > 0 && approximate < 9e18 ? uint64_t(approximate) : 0;
}

namespace {

template <typename F>
auto without_gil(F f) {
  PyThreadState* saved = PyEval_SaveThread();
  auto result = f();
  PyEval_RestoreThread(saved);
  return result;
}

std::string text_at(PyObject* dict, const char* key, const char* otherwise) {
  PyObject* v = PyDict_GetItemString(dict, key);
  return v && v != Py_None ? text_of(v) : otherwise;
}

// The settings in the dict; a value of the wrong type counts as missing.
SettingValues values_in(PyObject* dict) {
  SettingValues out;
  for (const SettingRow& row : kSettings) {
    PyObject* v = PyDict_GetItemString(dict, row.name);
    if (!v || v == Py_None) continue;
    SettingValue value;
    if (PyUnicode_Check(v)) {
      value.is_text = true;
      value.text = text_of(v);
    } else if (PyLong_Check(v)) {  // bool too
      value.number = PyLong_AsLongLong(v);
    }
    if (PyErr_Occurred()) {
      PyErr_Clear();
      continue;
    }
    out[row.name] = value;
  }
  return out;
}

PyObject* py_configure(PyObject*, PyObject* dict) {
  if (!PyDict_Check(dict)) {
    PyErr_SetString(PyExc_TypeError, "settings must be a dict");
    return nullptr;
  }
  SettingValues values = values_in(dict);
  g_tracing = values["enable"].number != 0;
  Settings s = settings_from(values);
  PyObject* dirs = PyDict_GetItemString(dict, "import_dirs");
  for (Py_ssize_t i = 0; dirs && PyList_Check(dirs) && i < PyList_GET_SIZE(dirs); ++i)
    s.import_dirs.push_back(text_of(PyList_GET_ITEM(dirs, i)));
  s.version = text_at(dict, "version", "0");
  PyObject* facts = PyDict_GetItemString(dict, "facts");
  if (facts && PyDict_Check(facts)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(facts, &at, &key, &value)) s.facts.emplace_back(text_of(key), text_of(value));
  }
  configure(std::move(s));
  Py_RETURN_NONE;
}

PyObject* py_initialize(PyObject*, PyObject* path) {
  if (!g_tracing) Py_RETURN_FALSE;
  return PyBool_FromLong(start_session(path == Py_None ? std::string() : text_of(path), "app"));
}

PyObject* py_hide_io(PyObject*, PyObject* hidden) {
  hide_io(hidden == Py_True);
  Py_RETURN_NONE;
}

PyObject* py_set_data_dir(PyObject*, PyObject* list) {
  set_data_dirs(text_of(list));
  Py_RETURN_NONE;
}

PyObject* py_rename(PyObject*, PyObject* path) {
  rename_session(text_of(path));
  Py_RETURN_NONE;
}

PyObject* py_finalize(PyObject*, PyObject*) {
  without_gil([] {
    finish_session();
    stop_interception();
    return 0;
  });
  Py_RETURN_NONE;
}

PyObject* py_flush(PyObject*, PyObject*) {
  return PyBool_FromLong(without_gil([] { return flush_session(10000); }));
}

PyObject* py_active(PyObject*, PyObject*) { return PyBool_FromLong(session_armed()); }

PyObject* py_trace_path(PyObject*, PyObject*) {
  std::string path = session_path();
  if (path.empty()) Py_RETURN_NONE;
  return PyUnicode_DecodeFSDefaultAndSize(path.data(), Py_ssize_t(path.size()));
}

PyObject* py_run_id(PyObject*, PyObject*) {
  std::string id = run_id();
  return PyUnicode_FromStringAndSize(id.data(), Py_ssize_t(id.size()));
}

PyObject* py_identify_run(PyObject*, PyObject* stem) {
  std::string id = identify_run(text_of(stem)).id;
  return PyUnicode_FromStringAndSize(id.data(), Py_ssize_t(id.size()));
}

PyObject* py_spool_path(PyObject*, PyObject* name) {
  std::string path = spool_path(text_of(name));
  return PyUnicode_DecodeFSDefaultAndSize(path.data(), Py_ssize_t(path.size()));
}

// For the environment of processes started from now on, this one having given the name.
PyObject* py_given_names(PyObject*, PyObject* path) {
  std::string names = given_names_with(run_id(), text_of(path));
  return PyUnicode_FromStringAndSize(names.data(), Py_ssize_t(names.size()));
}

// read_setting(name, raw, is_number): the value that a text stands for; ValueError says what is wrong with it.
PyObject* py_read_setting(PyObject*, PyObject* args) {
  const char *name, *raw;
  Py_ssize_t size;
  int is_number;
  if (!PyArg_ParseTuple(args, "sy#p", &name, &raw, &size, &is_number)) return nullptr;
  const SettingRow* row = find_setting(name);
  if (!row) {
    PyErr_Format(PyExc_KeyError, "%s", name);
    return nullptr;
  }
  SettingReading found = read_setting(*row, std::string(raw, size_t(size)), is_number != 0);
  if (!found.value) {
    PyErr_SetString(PyExc_ValueError, found.problem.c_str());
    return nullptr;
  }
  const SettingValue& value = *found.value;
  if (value.is_text) return PyUnicode_DecodeFSDefaultAndSize(value.text.data(), Py_ssize_t(value.text.size()));
  return row->kind == std::string_view("bool") ? PyBool_FromLong(value.number != 0) : PyLong_FromLongLong(value.number);
}

// rank(environ): rank, local rank and world size as a launcher left them in a dict, or, without one, in the
// environment; and its name.
PyObject* py_rank(PyObject*, PyObject* environ) {
  Rank rank = environ == Py_None ? rank_in_environment() : rank_among([&](const char* name) {
    Ref key(PyUnicode_FromString(name));
    PyObject* value = key ? PyDict_GetItemWithError(environ, key.get()) : nullptr;
    Py_ssize_t size = 0;
    const char* text = value ? PyUnicode_AsUTF8AndSize(value, &size) : nullptr;
    PyErr_Clear();  // not a string: no rank
    return text ? std::string(text, size_t(size)) : std::string();
  });
  auto number = [](const std::string& text) {
    return text.empty() ? new_ref(Py_None) : PyLong_FromString(text.c_str(), nullptr, 10);
  };
  return Py_BuildValue("(NNNs)", number(rank.rank), number(rank.local_rank), number(rank.world_size),
                       rank.row ? rank.launcher.c_str() : nullptr);
}

PyObject* py_stats(PyObject*, PyObject*) {
  Stats s = session_stats();
  return Py_BuildValue("{sKsKsKsKsKsKsK}", "events", s.events, "dropped_ring_full", s.dropped[int(Drop::kRingFull)],
                       "dropped_disk", s.dropped[int(Drop::kDisk)], "dropped_size_limit",
                       s.dropped[int(Drop::kSizeLimit)], "bytes", s.bytes, "rings", s.rings, "members", s.members);
}

PyObject* row_object(const StepRow& row) {
  Ref out(PyDict_New());
  int64_t values[kRowColumns];
  memcpy(values, &row, sizeof values);
  for (size_t i = 0; out && i < kRowColumns; ++i) {
    Ref value(PyLong_FromLongLong(values[i]));
    if (!value || PyDict_SetItemString(out.get(), row_column(i).c_str(), value.get()) < 0) return nullptr;
  }
  return out.release();
}

// last_row(): the latest step of this process as it will be in the file of rows; None before the first.
PyObject* py_last_row(PyObject*, PyObject*) {
  auto known = session_rows();
  if (!known) Py_RETURN_NONE;
  return row_object(known->last);
}

// row_sums(): how many steps there were, and the sums of their columns; None before the first.
PyObject* py_row_sums(PyObject*, PyObject*) {
  auto known = session_rows();
  if (!known) Py_RETURN_NONE;
  Ref sums(row_object(known->sums)), steps(PyLong_FromUnsignedLongLong(known->steps));
  if (!sums || !steps || PyDict_SetItemString(sums.get(), "steps", steps.get()) < 0) return nullptr;
  for (const char* of_one : {"epoch", "step", "start_us"})
    if (PyDict_DelItemString(sums.get(), of_one) < 0) return nullptr;
  return sums.release();
}

// Owned by the caller; text of the file system, whatever its bytes.
PyObject* path_text(const std::string& path) {
  return PyUnicode_DecodeFSDefaultAndSize(path.data(), Py_ssize_t(path.size()));
}

bool path_argument(PyObject* given, std::string* out) {
  PyObject* raw = nullptr;
  if (!PyUnicode_FSConverter(given, &raw)) return false;
  Ref holder(raw);
  out->assign(PyBytes_AS_STRING(raw), size_t(PyBytes_GET_SIZE(raw)));
  return true;
}

// recover(directory, below): the traces completed, in it or anywhere below it
PyObject* py_recover(PyObject*, PyObject* args) {
  PyObject* directory;
  int below = 0;
  std::string path;
  if (!PyArg_ParseTuple(args, "O|p", &directory, &below) || !path_argument(directory, &path)) return nullptr;
  auto files = without_gil([&] { return recover_directory(path, below != 0); });
  Ref out(PyList_New(0));
  for (const auto& f : files) {
    Ref name(path_text(f));
    if (!name || PyList_Append(out.get(), name.get()) < 0) return nullptr;
  }
  return out.release();
}

// rings(directories): what processes have left behind, as dictionaries.
PyObject* py_rings(PyObject*, PyObject* directories) {
  Ref places(PySequence_Fast(directories, "a list of directories"));
  if (!places) return nullptr;
  std::vector<std::string> more;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(places.get()); ++i)
    if (!path_argument(PySequence_Fast_GET_ITEM(places.get(), i), &more.emplace_back())) return nullptr;
  auto found = without_gil([&] { return left_rings(more); });
  Ref out(PyList_New(0));
  for (const auto& r : found) {
    Ref path(path_text(r.path)), trace(path_text(r.trace));
    if (!path || !trace) return nullptr;
    Ref row(Py_BuildValue("{s:O,s:s,s:K,s:K,s:O,s:I,s:K}", "ring", path.get(), "state", r.state.c_str(), "owner",
                          r.owner, "bytes", r.bytes, "trace", trace.get(), "pid", r.pid, "records", r.records));
    if (!row || PyList_Append(out.get(), row.get()) < 0) return nullptr;
  }
  return out.release();
}

// ring_paths(directories): where rings of this user are, none of them looked at.
PyObject* py_ring_paths(PyObject*, PyObject* directories) {
  Ref places(PySequence_Fast(directories, "a list of directories"));
  if (!places) return nullptr;
  std::vector<std::string> more;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(places.get()); ++i)
    if (!path_argument(PySequence_Fast_GET_ITEM(places.get(), i), &more.emplace_back())) return nullptr;
  auto found = without_gil([&] { return ring_paths(more); });
  Ref out(PyList_New(0));
  for (const auto& r : found) {
    Ref path(path_text(r));
    if (!path || PyList_Append(out.get(), path.get()) < 0) return nullptr;
  }
  return out.release();
}

// recover_ring(ring, trace, apart, surely_dead) -> (outcome, why, events)
PyObject* py_recover_ring(PyObject*, PyObject* args) {
  PyObject *ring_object, *trace_object;
  int apart, surely_dead;
  if (!PyArg_ParseTuple(args, "OOpp", &ring_object, &trace_object, &apart, &surely_dead)) return nullptr;
  std::string ring, trace;
  if (!path_argument(ring_object, &ring) || !path_argument(trace_object, &trace)) return nullptr;
  Completion done = without_gil([&] { return recover_ring(ring, trace, apart, surely_dead); });
  const char* outcome = done.outcome == Completion::kCompleted     ? "recovered"
                        : done.outcome == Completion::kNothingToDo ? "nothing left"
                                                                   : "kept";
  return Py_BuildValue("ssK", outcome, done.why.c_str(), done.events);
}

PyObject* py_ring_belongs_to(PyObject*, PyObject* args) {
  PyObject *ring_object, *trace_object;
  if (!PyArg_ParseTuple(args, "OO", &ring_object, &trace_object)) return nullptr;
  std::string ring, trace;
  if (!path_argument(ring_object, &ring) || !path_argument(trace_object, &trace)) return nullptr;
  return PyBool_FromLong(without_gil([&] { return ring_belongs_to(ring, trace); }));
}

// peek_ring(ring) -> what a process has recorded and not finished writing, or None where it cannot be seen.
PyObject* py_peek_ring(PyObject*, PyObject* ring) {
  std::string path;
  if (!path_argument(ring, &path)) return nullptr;
  std::optional<PeekedRing> seen = without_gil([&] { return peek_ring(path); });
  if (!seen) Py_RETURN_NONE;
  Ref trace(path_text(seen->trace));
  if (!trace) return nullptr;
  return Py_BuildValue("{s:O,s:I,s:s,s:K,s:K,s:y#,s:y#,s:K,s:K,s:K,s:O,s:O}", "trace", trace.get(), "pid", seen->pid,
                       "state", seen->state.c_str(), "final", seen->final_size, "size", seen->size, "tail",
                       seen->tail.data(), Py_ssize_t(seen->tail.size()), "text", seen->text.data(),
                       Py_ssize_t(seen->text.size()), "records", seen->records, "lost", seen->lost, "dropped",
                       seen->dropped, "refusing", seen->refusing ? Py_True : Py_False, "consistent",
                       seen->consistent ? Py_True : Py_False);
}

PyObject* py_discard_ring(PyObject*, PyObject* ring) {
  std::string path;
  if (!path_argument(ring, &path)) return nullptr;
  return PyBool_FromLong(without_gil([&] { return discard_ring(path); }));
}

PyObject* py_time_ns(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(now_epoch_ns()); }

// enter_event/log_event/exit_event: the caller opens an event, names it when it knows more, and closes it.
const int kAnonymousKey = 0;

PyObject* py_enter_event(PyObject*, PyObject*) {
  if (g_tracing)
    if (ThreadState* t = thread_in_context()) push_frame(t, &kAnonymousKey, kAnonymous);
  Py_RETURN_NONE;
}

PyObject* py_exit_event(PyObject*, PyObject*) {
  Frame f;
  if (g_tracing)
    if (ThreadState* t = thread_in_context()) take_frame(t, &kAnonymousKey, kAnonymous, &f);
  Py_RETURN_NONE;
}

PyObject* py_log_event(PyObject*, PyObject* args) {
  PyObject *name, *cat, *start, *duration, *mapping = Py_None, *tid = Py_None;
  if (!PyArg_ParseTuple(args, "OOOO|OO", &name, &cat, &start, &duration, &mapping, &tid)) return nullptr;
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  if (!t) Py_RETURN_NONE;
  recording([&] {
    Args pairs;
    pairs.set_all(mapping);
    std::string name_text = text_of(name), cat_text = text_of(cat);
    t = thread_in_context();  // a __str__ may have ended the session
    if (!t) return;
    bool other_lane = tid != Py_None;
    Frame f = frame_for_event(t, other_lane);
    f.start = clamp_ns(start);
    uint8_t flags = uint8_t(kAbsoluteTime | (other_lane ? kOtherLane : 0));
    emit_strings(t, Kind::kEvent, flags, f, f.start + clamp_ns(duration), other_lane ? PyLong_AsLongLong(tid) : 0,
                 name_text, cat_text, pairs.text());
  });
  PyErr_Clear();
  if (raise_kept()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_log_counter(PyObject*, PyObject* args) {
  PyObject *name, *cat, *values, *ts = Py_None;
  if (!PyArg_ParseTuple(args, "OOO|O", &name, &cat, &values, &ts)) return nullptr;
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  if (!t) Py_RETURN_NONE;
  recording([&] {
    Args pairs;
    pairs.set_all(values);
    std::string name_text = text_of(name), cat_text = text_of(cat);
    t = thread_in_context();
    if (!t) return;
    Frame f{};
    f.id = new_id(t);
    f.start = ts == Py_None ? now_epoch_ns() : clamp_ns(ts);
    emit_strings(t, Kind::kCounter, kAbsoluteTime, f, f.start, 0, name_text, cat_text, pairs.text());
  });
  if (raise_kept()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_log_metadata(PyObject*, PyObject* args) {
  PyObject *kind, *key, *value, *tid = Py_None;
  if (!PyArg_ParseTuple(args, "OOO|O", &kind, &key, &value, &tid)) return nullptr;
  ThreadState* t = g_tracing ? thread_in_context() : nullptr;
  if (!t) Py_RETURN_NONE;
  recording([&] {
    std::string kind_text = text_of(kind), key_text = text_of(key), value_text = text_of(value);
    t = thread_in_context();
    if (!t) return;
    Frame f{};
    f.id = new_id(t);
    bool other_lane = tid != Py_None;
    emit_strings(t, Kind::kMetadata, other_lane ? kOtherLane : 0, f, 0, other_lane ? PyLong_AsLongLong(tid) : 0,
                 kind_text, key_text, value_text);
  });
  PyErr_Clear();
  if (raise_kept()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_collective_begins(PyObject*, PyObject* recorded) {
  python_collective_begins(PyObject_IsTrue(recorded) == 1);
  Py_RETURN_NONE;
}

PyObject* py_collective_ends(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(python_collective_ends()); }

PyObject* py_skip_collectives(PyObject*, PyObject* skip) {
  skip_collectives(PyObject_IsTrue(skip) == 1);
  Py_RETURN_NONE;
}

PyObject* py_wait_until_gloo_lets_go(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  wait_for_gloo_threads();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_name_groups(PyObject*, PyObject* name) {
  Py_ssize_t n = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name, &n);
  if (!text) return nullptr;
  name_new_groups({text, size_t(n)});
  Py_RETURN_NONE;
}

PyObject* py_open_collectives(PyObject*, PyObject*) {
  OpenCollective open[64];
  size_t n = open_collectives(open, std::size(open));
  PyObject* out = PyList_New(0);
  for (size_t i = 0; out && i < n; ++i) {
    const OpenCollective& o = open[i];
    PyObject* row = Py_BuildValue("(ssKL)", o.operation, o.group, o.seq, o.bytes);
    if (!row || PyList_Append(out, row) != 0) Py_CLEAR(out);
    Py_XDECREF(row);
  }
  return out;
}

PyObject* py_string_hash(PyObject*, PyObject* text) {
  std::string hash;
  if (!possible([&] { hash = short_hash(text_of(text)); }) || raise_kept()) return nullptr;
  return PyUnicode_FromStringAndSize(hash.data(), Py_ssize_t(hash.size()));
}

}  // namespace

PyMethodDef g_session_functions[] = {
    {"configure", py_configure, METH_O, nullptr},
    {"initialize", py_initialize, METH_O, nullptr},
    {"rename", py_rename, METH_O, nullptr},
    {"hide_io", py_hide_io, METH_O, nullptr},
    {"set_data_dir", py_set_data_dir, METH_O, nullptr},
    {"finalize", py_finalize, METH_NOARGS, nullptr},
    {"flush", py_flush, METH_NOARGS, nullptr},
    {"active", py_active, METH_NOARGS, nullptr},
    {"trace_path", py_trace_path, METH_NOARGS, nullptr},
    {"run_id", py_run_id, METH_NOARGS, nullptr},
    {"identify_run", py_identify_run, METH_O, nullptr},
    {"given_names", py_given_names, METH_O, nullptr},
    {"spool_path", py_spool_path, METH_O, nullptr},
    {"read_setting", py_read_setting, METH_VARARGS, nullptr},
    {"rank", py_rank, METH_O, nullptr},
    {"stats", py_stats, METH_NOARGS, nullptr},
    {"last_row", py_last_row, METH_NOARGS, nullptr},
    {"row_sums", py_row_sums, METH_NOARGS, nullptr},
    {"recover", py_recover, METH_VARARGS, nullptr},
    {"rings", py_rings, METH_O, nullptr},
    {"recover_ring", py_recover_ring, METH_VARARGS, nullptr},
    {"ring_belongs_to", py_ring_belongs_to, METH_VARARGS, nullptr},
    {"discard_ring", py_discard_ring, METH_O, nullptr},
    {"peek_ring", py_peek_ring, METH_O, nullptr},
    {"ring_paths", py_ring_paths, METH_O, nullptr},
    {"time_ns", py_time_ns, METH_NOARGS, nullptr},
    {"enter_event", py_enter_event, METH_NOARGS, nullptr},
    {"exit_event", py_exit_event, METH_NOARGS, nullptr},
    {"log_event", py_log_event, METH_VARARGS, nullptr},
    {"log_counter", py_log_counter, METH_VARARGS, nullptr},
    {"log_metadata", py_log_metadata, METH_VARARGS, nullptr},
    {"string_hash", py_string_hash, METH_O, nullptr},
    {"collective_begins", py_collective_begins, METH_O, nullptr},
    {"collective_ends", py_collective_ends, METH_NOARGS, nullptr},
    {"skip_collectives", py_skip_collectives, METH_O, nullptr},
    {"wait_for_gloo_threads", py_wait_until_gloo_lets_go, METH_NOARGS, nullptr},
    {"name_groups", py_name_groups, METH_O, nullptr},
    {"open_collectives", py_open_collectives, METH_NOARGS, nullptr},
    {},
};

}  // namespace dft::py
