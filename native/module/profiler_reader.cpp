#include "module/profiler_reader.hpp"

#include "format/json.hpp"
#include "module/values.hpp"

namespace dft::py {
namespace {

constexpr int32_t kUnknown = -1, kAskEachTime = -2;

int64_t integer_of(PyObject* value) {
  if (PyLong_Check(value)) {
    int overflow = 0;
    int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow ? 0 : number;
  }
  // An enumeration of torch.
  Ref inner(PyObject_GetAttrString(value, "value"));
  if (!inner || !PyLong_Check(inner.get())) {
    PyErr_Clear();
    return 0;
  }
  return integer_of(inner.get());
}

// Sizes of tensors, nested as they are: [[4, 8], []].
void append_shape(std::string& out, PyObject* value, int depth = 0) {
  if (PyLong_Check(value)) {
    append_int(out, integer_of(value));
    return;
  }
  out += '[';
  if (PyList_Check(value) && depth < 4)
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) {
      if (i) out += ", ";
      append_shape(out, PyList_GET_ITEM(value, i), depth + 1);
    }
  out += ']';
}

void append_texts(std::string& out, PyObject* list, std::string_view between, bool quoted) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    if (i) out += between;
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(list, i), &size);
    if (!data) {
      PyErr_Clear();
      continue;
    }
    if (quoted) out += '"';
    out.append(data, size_t(size));
    if (quoted) out += '"';
  }
}

}  // namespace

const char* const Reader::kNames[kSlots] = {"name",
                                            "start",
                                            "duration",
                                            "tid",
                                            "correlation",
                                            "linked",
                                            "device",
                                            "type",
                                            "guess",
                                            "annotation",
                                            "metadata",
                                            "shapes",
                                            "dtypes",
                                            "sequence",
                                            "forward_thread",
                                            "stack",
                                            "python_id",
                                            "python_parent_id",
                                            "python_module_id",
                                            "bytes",
                                            "device_type",
                                            "flops"};

bool Reader::open(PyObject* getters, PyObject* activities, Table* table) {
  activities_ = activities;
  table_ = table;
  for (int slot = 0; slot < kSlots; ++slot) {
    slots_[slot] = PyDict_GetItemString(getters, kNames[slot]);
    if (slots_[slot] && PyCFunction_CheckExact(slots_[slot]) &&
        PyCFunction_GET_FLAGS(slots_[slot]) == (METH_VARARGS | METH_KEYWORDS))
      direct_[slot] = reinterpret_cast<PyCFunctionWithKeywords>(
          reinterpret_cast<void (*)()>(PyCFunction_GET_FUNCTION(slots_[slot])));
    if (slots_[slot] || (slot >= kNeeded && slot != kGuess)) continue;
    if (slot == kGuess && slots_[kType]) continue;
    PyErr_Format(PyExc_AttributeError, "this profiler's events have no %s", kNames[slot]);
    return false;
  }
  return true;
}

// Not reached if the interpreter ends this thread: then nothing can be released, as the lock is not held.
Reader::~Reader() { release_args(); }

bool Reader::release_args() {
  PyObject* args = args_;
  args_ = nullptr;
  Py_XDECREF(args);
  return true;
}

// One tuple serves all calls, unless a reference to it was kept.
PyObject* Reader::call(Slot slot, PyObject* activity) {
  if (!args_ || Py_REFCNT(args_) != 1) {
    release_args();
    args_ = PyTuple_Pack(1, activity);
    if (!args_) return nullptr;
  } else if (PyTuple_GET_ITEM(args_, 0) != activity) {
    PyObject* before = PyTuple_GET_ITEM(args_, 0);
    PyTuple_SET_ITEM(args_, 0, new_ref(activity));
    Py_DECREF(before);
  }
  if (direct_[slot]) return direct_[slot](PyCFunction_GET_SELF(slots_[slot]), args_, nullptr);
  return PyObject_Call(slots_[slot], args_, nullptr);
}

bool Reader::number(Slot slot, PyObject* activity, int64_t* out) {
  PyObject* value = call(slot, activity);
  if (!value) return false;
  *out = integer_of(value);
  Py_DECREF(value);
  return true;
}

bool Reader::optional_number(Slot slot, PyObject* activity, int64_t* out) {
  return !slots_[slot] || number(slot, activity, out);
}

bool Reader::text(Slot slot, PyObject* activity, std::string* out, const char* fallback) {
  Ref value(call(slot, activity));
  Py_ssize_t size = 0;
  const char* data = value ? PyUnicode_AsUTF8AndSize(value.get(), &size) : nullptr;
  if (data) {
    out->append(data, size_t(size));
    return true;
  }
  if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return false;
  PyErr_Clear();
  out->append(fallback);
  return true;
}

bool Reader::read_name(Row& row, PyObject* activity) {
  scratch_.clear();
  if (!text(kName, activity, &scratch_, "(name is not valid UTF-8)")) return false;
  row.name = table_->names.number(scratch_);
  return true;
}

// The kind of an activity follows from its name, except for annotations, whose names are the user's. Asking costs more
// than everything else, so it is done once per name; names with a namespace are operators.
bool Reader::guess_kind(Row& row, PyObject* activity) {
  if (!read_name(row, activity)) return false;
  if (guessed_.size() <= row.name) guessed_.resize(row.name + 64, kUnknown);
  int32_t known = guessed_[row.name];
  if (known >= 0) {
    bool namespaced = table_->names[row.name].find("::") != std::string_view::npos;
    int64_t annotation = 0;
    if (!namespaced && !optional_number(kAnnotation, activity, &annotation)) return false;
    if (!annotation) {
      row.sort = uint16_t(known);
      return true;
    }
  }
  scratch_.clear();
  if (!text(kGuess, activity, &scratch_, "cpu_op")) return false;
  row.sort = table_->sort(scratch_);
  if (known == kUnknown) guessed_[row.name] = scratch_.ends_with("user_annotation") ? kAskEachTime : row.sort;
  return true;
}

bool Reader::read_kind(Row& row, PyObject* activity) {
  if (!slots_[kType]) return guess_kind(row, activity);
  scratch_.clear();
  if (!text(kType, activity, &scratch_, "cpu_op")) return false;
  row.sort = table_->sort(scratch_);
  return true;
}

bool Reader::begin(size_t i) {
  Row& row = table_->rows[i];
  PyObject* activity = PyList_GET_ITEM(activities_, Py_ssize_t(i));
  if (!number(kStart, activity, &row.start) || !number(kDuration, activity, &row.duration) || !read_kind(row, activity))
    return false;
  if (row.duration < 0) row.duration = 0;
  const Sort& sort = table_->sort_of(row);
  // Kineto gives instants the rest of the window as their duration.
  if (sort.where == Class::kInstant) row.duration = 0;
  return (slots_[kType] && sort.where == Class::kHost && !sort.annotation) || complete(i);
}

bool Reader::complete(size_t i) {
  PyObject* activity = PyList_GET_ITEM(activities_, Py_ssize_t(i));
  Row& row = table_->rows[i];
  Class where = table_->sort_of(row).where;
  if (slots_[kType] && !read_name(row, activity)) return false;
  if (!number(kTid, activity, &row.tid)) return false;
  if (where != Class::kInstant && !number(kCorrelation, activity, &row.correlation)) return false;
  int64_t device = -1;
  if (where == Class::kOnDevice && !number(kDevice, activity, &device)) return false;
  row.device = int32_t(device);
  if ((where == Class::kOnDevice || where == Class::kLaunch) && !number(kLinked, activity, &row.linked)) return false;
  size_t start = texts_.size();
  bool from_parts = slots_[kBytes] && (where == Class::kHost || where == Class::kInstant);
  if (from_parts) {
    if (!read_event(row, activity)) return false;
  } else if (slots_[kMetadata] && !text(kMetadata, activity, &texts_, "")) {
    return false;
  }
  if (texts_.size() > start) pending_.push_back({i, start, texts_.size() - start});
  PyList_SetItem(activities_, Py_ssize_t(i), new_ref(Py_None));
  return true;
}

// The profiler's own event objects have the facts one by one; inputs and stack are written as Kineto's text has them.
bool Reader::read_event(Row& row, PyObject* activity) {
  if (table_->sort_of(row).where == Class::kInstant) {
    int64_t kind = 0, device = -1;
    if (!number(kBytes, activity, &row.more[0]) || !optional_number(kDeviceType, activity, &kind)) return false;
    row.more[4] = kind != 0;
    if (kind && !number(kDevice, activity, &device)) return false;
    row.device = int32_t(device);
    return true;
  }
  if (!optional_number(kSequence, activity, &row.sequence)) return false;
  if (row.sequence >= 0 && !optional_number(kForwardThread, activity, &row.forward_thread)) return false;
  int64_t flops = 0;
  if (!optional_number(kFlops, activity, &flops)) return false;
  if (flops) table_->set_flops(row, flops);
  if (table_->sort_of(row).name == "python_function" &&
      (!optional_number(kPythonId, activity, &row.more[0]) || !optional_number(kPythonParent, activity, &row.more[1]) ||
       !optional_number(kPythonModule, activity, &row.more[2])))
    return false;
  for (int64_t& id : row.more)
    if (id < 0) id = kAbsent;
  return write_inputs(activity);
}

bool Reader::write_inputs(PyObject* activity) {
  size_t before = texts_.size();
  if (slots_[kDtypes] && slots_[kShapes]) {
    Ref types(call(kDtypes, activity));
    if (!types) return false;
    if (PyList_Check(types.get()) && PyList_GET_SIZE(types.get())) {
      Ref shapes(call(kShapes, activity));
      if (!shapes) return false;
      texts_ += "\"Input type\": [";
      append_texts(texts_, types.get(), ", ", true);
      texts_ += "], \"Input Dims\": ";
      append_shape(texts_, shapes.get());
    }
  }
  if (!slots_[kStack]) return true;
  Ref stack(call(kStack, activity));
  if (!stack) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return false;
    PyErr_Clear();
  } else if (PyList_Check(stack.get()) && PyList_GET_SIZE(stack.get())) {
    if (texts_.size() > before) texts_ += ", ";
    scratch_.clear();
    append_texts(scratch_, stack.get(), ";", false);
    texts_ += "\"Call stack\": ";
    append_json_string(texts_, scratch_);
  }
  return true;
}

void Reader::digest() {
  for (const Text& one : pending_)
    table_->digest(table_->rows[one.row], std::string_view(texts_).substr(one.start, one.size));
  pending_.clear();
  texts_.clear();
}

}  // namespace dft::py
