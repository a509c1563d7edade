#include "module/profiler_window.hpp"

#include <algorithm>
#include <new>

#include "module/node.hpp"
#include "module/profiler_details.hpp"
#include "module/profiler_reader.hpp"
#include "module/profiler_table.hpp"
#include "module/profiler_turns.hpp"
#include "record/engine.hpp"
#include "record/record.hpp"

namespace dft::py {
namespace {

// Rows read under one hold of the lock, at most, and between looks at the clock.
constexpr size_t kTurn = 512, kLook = 4;

struct Window {
  Table table;
  Reader reader;
  Turns turns;
  std::string category;
  int64_t offset;

  Window(size_t count, const char* hurry, std::string_view cat, int64_t offset_)
      : table(count), turns(hurry), category(cat), offset(offset_) {}

  bool turn_over(size_t read) const { return read == kTurn || (read % kLook == 0 && read && turns.over()); }

  // Needs no lock. Waits for room in the ring: a window is a burst far larger than that.
  void write(size_t low, size_t high) {
    for (size_t i = low; i < high; ++i) {
      ThreadState* t = g_tracing ? current_thread() : nullptr;
      if (!t) return;
      const Row& row = table.rows[i];
      Frame f{};
      f.parent = -1;
      f.level = 1;
      f.id = new_id(t);
      f.start = uint64_t(std::max<int64_t>(row.start + offset, 0));
      emit_strings(t, Kind::kEvent, kAbsoluteTime | kOtherLane, f, f.start + uint64_t(row.duration), table.lane(row),
                   table.names[row.name], category, table.args(i));
    }
  }

  // Rows that others depend on come first; the rest is written as it is read, unless devices link all rows.
  bool run(int64_t trace_start) {
    size_t count = table.rows.size();
    for (size_t low = 0; low < count;) {
      for (size_t first = low; low < count && !turn_over(low - first); ++low)
        if (!reader.begin(low)) return false;
      turns.give_way([&] { reader.digest(); });
    }
    turns.give_way([&] { table.look_over(trace_start); });
    bool at_once = !table.has_devices();
    for (size_t low = 0; low < count;) {
      size_t first = low, read = 0;
      for (; low < count && !turn_over(read); ++low) {
        if (reader.done(low)) continue;
        if (!reader.complete(low)) return false;
        ++read;
      }
      turns.give_way([&] {
        reader.digest();
        if (at_once) write(first, low);
      });
    }
    if (!at_once)
      turns.give_way([&] {
        table.attribute();
        write(0, count);
      });
    return true;
  }

  PyObject* lanes() const {
    PyObject* list = PyList_New(0);
    for (auto& [lane, place] : table.lanes()) {
      if (!list) return nullptr;
      Ref item(Py_BuildValue("LLL", static_cast<long long>(lane), static_cast<long long>(place.first),
                             static_cast<long long>(place.second)));
      if (!item || PyList_Append(list, item.get()) < 0) Py_CLEAR(list);
    }
    return list;
  }
};

bool read_flops(PyObject* given, Table* table) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  while (PyDict_Next(given, &at, &key, &value)) {
    int64_t correlation = PyLong_AsLongLong(key), flops = PyLong_AsLongLong(value);
    if (PyErr_Occurred()) return false;
    table->flops[correlation] = flops;
  }
  return true;
}

const char* hurry_of(PyObject* bytes) {
  if (PyByteArray_GET_SIZE(bytes) > 0) return PyByteArray_AS_STRING(bytes);
  PyErr_SetString(PyExc_ValueError, "expected one byte");
  return nullptr;
}

PyObject* py_wait_for_turn(PyObject*, PyObject* hurry) {
  if (!PyByteArray_Check(hurry)) {
    PyErr_SetString(PyExc_TypeError, "expected a bytearray");
    return nullptr;
  }
  const char* byte = hurry_of(hurry);
  if (!byte) return nullptr;
  Turns turns(byte);
  turns.give_way([] {});
  Py_RETURN_NONE;
}

PyObject* py_write_profiler_window(PyObject*, PyObject* args) {
  PyObject *activities, *getters, *flops, *hurry;
  const char* category;
  long long trace_start, offset;
  if (!PyArg_ParseTuple(args, "sO!O!O!LLO!", &category, &PyList_Type, &activities, &PyDict_Type, &getters, &PyDict_Type,
                        &flops, &trace_start, &offset, &PyByteArray_Type, &hurry))
    return nullptr;
  const char* byte = hurry_of(hurry);
  if (!byte) return nullptr;
  try {
    Window window(size_t(PyList_GET_SIZE(activities)), byte, category, offset);
    if (!read_flops(flops, &window.table) || !window.reader.open(getters, activities, &window.table) ||
        !window.run(trace_start))
      return nullptr;
    return window.lanes();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* py_profiler_args(PyObject*, PyObject* args) {
  const char* text;
  Py_ssize_t size;
  int on_device;
  if (!PyArg_ParseTuple(args, "s#p", &text, &size, &on_device)) return nullptr;
  std::string_view given(text, size_t(size));
  std::string made = on_device ? device_fragment(given) : operator_fragment(given);
  return PyUnicode_DecodeUTF8(made.data(), Py_ssize_t(made.size()), "replace");
}

}  // namespace

PyMethodDef g_profiler_functions[] = {
    {"write_profiler_window", py_write_profiler_window, METH_VARARGS, nullptr},
    {"wait_for_turn", py_wait_for_turn, METH_O, nullptr},
    {"profiler_args", py_profiler_args, METH_VARARGS, nullptr},
    {},
};

}  // namespace dft::py
