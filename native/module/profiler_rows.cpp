#include "module/profiler_rows.hpp"

#include <time.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "engine.hpp"
#include "module/context.hpp"
#include "module/node.hpp"
#include "module/values.hpp"
#include "session.hpp"
#include "write/json.hpp"

namespace dft::py {
namespace {

// A contiguous buffer of 64-bit integers (array.array('q')), or nothing for None.
class Integers {
 public:
  Integers() = default;
  Integers(const Integers&) = delete;
  Integers& operator=(const Integers&) = delete;
  ~Integers() {
    if (held_) PyBuffer_Release(&view_);
  }
  bool open(PyObject* object) {
    if (object == Py_None) return true;
    if (PyObject_GetBuffer(object, &view_, PyBUF_FORMAT | PyBUF_ND) < 0) return false;
    held_ = true;
    if (view_.itemsize != 8) {
      PyErr_SetString(PyExc_TypeError, "64-bit integers expected");
      return false;
    }
    return true;
  }
  explicit operator bool() const { return held_; }
  Py_ssize_t size() const { return held_ ? view_.len / 8 : 0; }
  int64_t operator[](Py_ssize_t i) const { return static_cast<const int64_t*>(view_.buf)[i]; }
  const int64_t* begin() const { return static_cast<const int64_t*>(view_.buf); }
  const int64_t* end() const { return begin() + size(); }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

std::string_view view_of(PyObject* text) {
  if (!PyUnicode_Check(text)) return {};
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &size);
  if (!data) {
    PyErr_Clear();
    return {};
  }
  return {data, size_t(size)};
}

int64_t integer_of(PyObject* value) {
  int64_t v = PyLong_AsLongLong(value);
  if (v == -1 && PyErr_Occurred()) PyErr_Clear();
  return v;
}

// Takes `label` and the number after it out of `text`, with the comma that follows.
bool cut_number(std::string& text, std::string_view label, int64_t* out) {
  size_t at = text.find(label);
  if (at == std::string::npos) return false;
  const char* begin = text.data() + at + label.size();
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(begin, end, *out);
  if (error != std::errc()) return false;
  size_t stop = size_t(rest - text.data());
  if (text.compare(stop, 2, ", ") == 0) stop += 2;
  text.erase(at, stop - at);
  return true;
}

void append_percent(std::string& out, int64_t part, int64_t whole) {
  char buf[32];
  double percent = whole > 0 ? 100.0 * double(part) / double(whole) : 0.0;
  out.append(buf, std::to_chars(buf, buf + sizeof buf, percent, std::chars_format::fixed, 4).ptr);
}

void pair(std::string& out, std::string_view key, int64_t value) {
  out += ",\"";
  out += key;
  out += "\":";
  append_int(out, value);
}

struct Steps {
  Integers starts, ends, numbers;

  bool at(int64_t moment, int64_t* out) const {
    if (!starts) return false;
    auto after = std::upper_bound(starts.begin(), starts.end(), moment);
    if (after == starts.begin()) return false;
    Py_ssize_t i = after - starts.begin() - 1;
    if (moment > ends[i]) return false;
    *out = numbers[i];
    return true;
  }
};

// Bytes allocated minus freed on one thread, summed up in time.
struct ThreadMemory {
  Integers moments, host, device;

  bool open(PyObject* columns) {
    if (!PyTuple_Check(columns) || PyTuple_GET_SIZE(columns) != 3) {
      PyErr_SetString(PyExc_TypeError, "three columns expected");
      return false;
    }
    if (!moments.open(PyTuple_GET_ITEM(columns, 0)) || !host.open(PyTuple_GET_ITEM(columns, 1)) ||
        !device.open(PyTuple_GET_ITEM(columns, 2)))
      return false;
    if (host.size() == moments.size() + 1 && device.size() == moments.size() + 1) return true;
    PyErr_SetString(PyExc_ValueError, "sums are one longer than moments");
    return false;
  }
  void within(int64_t start, int64_t end, int64_t* on_host, int64_t* on_device) const {
    auto low = std::lower_bound(moments.begin(), moments.end(), start) - moments.begin();
    auto high = std::upper_bound(moments.begin(), moments.end(), end) - moments.begin();
    *on_host = host[high] - host[low];
    *on_device = device[high] - device[low];
  }
};

using Memory = std::unordered_map<int64_t, ThreadMemory>;

bool open_memory(PyObject* threads, Memory* out) {
  if (threads == Py_None) return true;
  if (!PyDict_Check(threads)) {
    PyErr_SetString(PyExc_TypeError, "memory by thread must be a dict");
    return false;
  }
  PyObject *tid, *columns;
  Py_ssize_t at = 0;
  while (PyDict_Next(threads, &at, &tid, &columns))
    if (!(*out)[integer_of(tid)].open(columns)) return false;
  return true;
}

int64_t field(std::string_view text, std::string_view label, int64_t otherwise) {
  size_t at = text.find(label);
  if (at == std::string_view::npos) return otherwise;
  int64_t value = otherwise;
  std::from_chars(text.data() + at + label.size(), text.data() + text.size(), value);
  return value;
}

// The args of an operator that the columns and its details give. `known` maps details to args already made.
struct Operators {
  PyObject *known, *learn;
  Memory memory;
  Integers device_ns, flops;
  Steps steps;
  int64_t window_ns = 0;
  std::string key, fragment;

  void make_memory(PyObject* details, std::string_view kind, int64_t start) {
    std::string_view text = view_of(details);
    int64_t bytes = field(text, "\"Bytes\": ", 0);
    bool on_device = field(text, "\"Device Type\": ", 0) != 0;
    fragment = on_device ? ",\"device\":1" : ",\"device\":0";
    pair(fragment, "cpu_memory", on_device ? 0 : bytes);
    fragment += ",\"is_remote\":0";
    pair(fragment, "device_memory_usage", on_device ? bytes : 0);
    fragment += ",\"input_size\":0,\"total_cpu_percent\":0.0,\"total_device_percent\":0.0,\"dur_ns\":0";
    pair(fragment, "bytes", bytes);
    pair(fragment, "total_allocated", field(text, "\"Total Allocated\": ", 0));
    pair(fragment, "total_reserved", field(text, "\"Total Reserved\": ", 0));
    pair(fragment, "addr", field(text, "\"Addr\": ", 0));
    pair(fragment, "device_index", field(text, "\"Device Id\": ", -1));
    finish(start, kind);
  }

  void finish(int64_t start, std::string_view kind) {
    int64_t step;
    if (steps.at(start, &step)) pair(fragment, "step", step);
    fragment += ",\"type\":";
    append_json_string(fragment, kind);
  }

  bool make(Py_ssize_t row, PyObject* details, std::string_view kind, int64_t tid, int64_t start, int64_t duration,
            int64_t correlation) {
    std::string_view text = view_of(details);
    size_t end = text.rfind("\"Ev Idx\"");
    if (end != std::string_view::npos) text = text.substr(0, end);
    if (text.ends_with(", ")) text.remove_suffix(2);
    key.assign(text);
    int64_t sequence = -1, record_function = 0;
    cut_number(key, "\"Sequence number\": ", &sequence);
    cut_number(key, "\"Record function id\": ", &record_function);
    Ref name(PyUnicode_DecodeUTF8(key.data(), Py_ssize_t(key.size()), "replace"));
    if (!name) return false;
    PyObject* shared = PyDict_GetItemWithError(known, name.get());
    Ref learned(nullptr);
    if (!shared) {
      if (PyErr_Occurred()) return false;
      learned = Ref(PyObject_CallOneArg(learn, name.get()));
      if (!learned) return false;
      shared = learned.get();
    }
    int64_t on_device = device_ns ? device_ns[row] : 0;
    fragment = ",\"device\":0";
    int64_t host_bytes = 0, device_bytes = 0;
    auto thread = memory.find(tid);
    if (thread != memory.end()) thread->second.within(start, start + duration, &host_bytes, &device_bytes);
    pair(fragment, "cpu_memory", host_bytes);
    fragment += ",\"is_remote\":0";
    pair(fragment, "device_memory_usage", device_bytes);
    fragment += view_of(shared);
    fragment += ",\"total_cpu_percent\":";
    append_percent(fragment, duration, window_ns);
    fragment += ",\"total_device_percent\":";
    append_percent(fragment, on_device, window_ns);
    pair(fragment, "dur_ns", duration);
    if (on_device) pair(fragment, "device_ns", on_device);
    if (correlation) pair(fragment, "external_id", correlation);
    if (flops && flops[row]) pair(fragment, "flops", flops[row]);
    if (sequence >= 0) pair(fragment, "sequence", sequence);
    if (record_function) pair(fragment, "rf_id", record_function);
    finish(start, kind);
    return true;
  }
};

// A window is a burst far larger than a ring. Its writer is a thread of our own that may wait for room, without the GIL;
// it gives up after seconds without any, and then drops as everybody does.
void wait_for_room(ThreadState* t, size_t size) {
  if (t->head + size <= t->limit) return;
  uint64_t capacity = t->mask + 1;
  auto enough = [&] {
    Writing writing(t);
    if (!writing.live()) return true;
    uint64_t used = t->head - t->ring->tail.load(std::memory_order_acquire);
    if (used + size <= capacity / 2) return true;
    wake_writer();
    return false;
  };
  if (enough()) return;
  PyThreadState* saved = PyEval_SaveThread();
  timespec nap{0, 200000};
  for (int i = 0; i < 25000 && !enough(); ++i) nanosleep(&nap, nullptr);
  PyEval_RestoreThread(saved);
}

PyObject* py_log_profiler_rows(PyObject*, PyObject* args) {
  PyObject *cat, *names, *starts, *durations, *tids, *correlations, *kinds, *details, *ready, *numbers, *steps;
  Operators operators;
  Py_ssize_t low;
  long long offset, window;
  if (!PyArg_ParseTuple(args, "UO!OOO!O!O!O!OO!O!O!OnLL", &cat, &PyList_Type, &names, &starts, &durations,
                        &PyList_Type, &tids, &PyList_Type, &correlations, &PyList_Type, &kinds, &PyList_Type, &details,
                        &ready, &PyTuple_Type, &numbers, &PyTuple_Type, &steps, &PyDict_Type, &operators.known,
                        &operators.learn, &low, &offset, &window))
    return nullptr;
  Py_ssize_t count = PyList_GET_SIZE(names);
  Integers start_of, duration_of;
  Integers* columns[] = {&operators.device_ns, &operators.flops};
  if (!start_of.open(starts) || !duration_of.open(durations)) return nullptr;
  bool fits = start_of.size() >= low + count && duration_of.size() >= low + count && low >= 0 &&
              PyTuple_GET_SIZE(numbers) == 3 && PyTuple_GET_SIZE(steps) == 3;
  for (PyObject* list : {tids, correlations, kinds, details}) fits = fits && PyList_GET_SIZE(list) == count;
  fits = fits && (ready == Py_None || (PyList_Check(ready) && PyList_GET_SIZE(ready) == count));
  if (fits && !open_memory(PyTuple_GET_ITEM(numbers, 0), &operators.memory)) return nullptr;
  for (int i = 0; fits && i < 2; ++i) {
    if (!columns[i]->open(PyTuple_GET_ITEM(numbers, i + 1))) return nullptr;
    fits = !*columns[i] || columns[i]->size() == count;
  }
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    return nullptr;
  }
  Steps& s = operators.steps;
  if (!s.starts.open(PyTuple_GET_ITEM(steps, 0)) || !s.ends.open(PyTuple_GET_ITEM(steps, 1)) ||
      !s.numbers.open(PyTuple_GET_ITEM(steps, 2)))
    return nullptr;
  if (s.ends.size() != s.starts.size() || s.numbers.size() != s.starts.size()) {
    PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    return nullptr;
  }
  operators.window_ns = window;
  std::string_view category = view_of(cat);

  for (Py_ssize_t i = 0; i < count; ++i) {
    // Looked up each time: the session may end while another thread runs in wait_for_room.
    ThreadState* t = g_tracing ? thread_in_context() : nullptr;
    if (!t) break;
    int64_t start = start_of[low + i], duration = std::max<int64_t>(duration_of[low + i], 0);
    int64_t tid = integer_of(PyList_GET_ITEM(tids, i));
    PyObject* given = ready == Py_None ? Py_None : PyList_GET_ITEM(ready, i);
    std::string_view fragment;
    if (given != Py_None) {
      fragment = view_of(given);
    } else {
      std::string_view kind = view_of(PyList_GET_ITEM(kinds, i));
      if (kind == "cpu_instant_event")
        operators.make_memory(PyList_GET_ITEM(details, i), kind, start);
      else if (!operators.make(i, PyList_GET_ITEM(details, i), kind, tid, start, duration,
                               integer_of(PyList_GET_ITEM(correlations, i))))
        return nullptr;
      fragment = operators.fragment;
    }
    std::string_view name = view_of(PyList_GET_ITEM(names, i));
    wait_for_room(t, sizeof(Record) + sizeof(Strings) + name.size() + category.size() + fragment.size() + 8);
    t = thread_in_context();
    if (!t) break;
    Frame f{};
    f.parent = -1;
    f.level = 1;
    f.id = new_id(t);
    f.start = uint64_t(std::max<int64_t>(start + offset, 0));
    emit_strings(t, Kind::kEvent, kAbsoluteTime | kOtherLane, f, f.start + uint64_t(duration), tid, name, category,
                 fragment);
  }
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef g_profiler_functions[] = {
    {"log_profiler_rows", py_log_profiler_rows, METH_VARARGS, nullptr},
    {},
};

}  // namespace dft::py
