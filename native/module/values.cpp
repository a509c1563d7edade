#include "module/values.hpp"

#include <cmath>
#include <unordered_set>

#include "format/json.hpp"

namespace dft::py {
namespace {

constexpr int kMaxDepth = 16;
// A container that holds itself is endless in breadth long before it is in depth.
constexpr size_t kMaxContainerText = 4 << 20;

void append_text(std::string& out, PyObject* str) {
  Py_ssize_t n;
  if (const char* s = PyUnicode_AsUTF8AndSize(str, &n)) {
    append_json_string(out, {s, size_t(n)});
    return;
  }
  PyErr_Clear();
  Ref bytes(PyUnicode_AsEncodedString(str, "utf-8", "replace"));
  if (!bytes) {
    PyErr_Clear();
    out += "\"?\"";
    return;
  }
  append_json_string(out, {PyBytes_AS_STRING(bytes.get()), size_t(PyBytes_GET_SIZE(bytes.get()))});
}

void append_long(std::string& out, PyObject* value) {
  int overflow = 0;
  long long v = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (!overflow) {
    append_int(out, v);
    return;
  }
  // Beyond 64 bits a JSON number would lose digits in most readers; a string keeps them.
  Ref digits(PyObject_Str(value));
  if (digits) {
    append_text(out, digits.get());
  } else {
    PyErr_Clear();
    out += "\"int\"";
  }
}

void append_double(std::string& out, double v) {
  if (!std::isfinite(v)) {
    out += "null";
    return;
  }
  char* s = PyOS_double_to_string(v, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
  out += s ? s : "null";
  PyMem_Free(s);
}

void append_sequence(std::string& out, PyObject* value, int depth) {
  Ref fast(PySequence_Fast(value, "sequence"));
  if (!fast) {
    PyErr_Clear();
    out += "null";
    return;
  }
  out += '[';
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
    if (i) out += ',';
    if (out.size() > kMaxContainerText) {
      out += "\"...\"";
      break;
    }
    Ref item(new_ref(PySequence_Fast_GET_ITEM(fast.get(), i)));  // a __str__ may change the list
    append_value(out, item.get(), depth + 1);
  }
  out += ']';
}

std::string json_key(PyObject* key) {
  std::string out;
  append_json_string(out, text_of(key));
  out += ':';
  return out;
}

void append_dict(std::string& out, PyObject* value, int depth) {
  out += '{';
  PyObject *key, *item;
  Py_ssize_t at = 0;
  bool first = true;
  std::unordered_set<std::string> seen;
  Ref copy(PyDict_Copy(value));  // a __str__ may change the dict
  if (!copy) PyErr_Clear();
  while (copy && PyDict_Next(copy.get(), &at, &key, &item)) {
    std::string k = json_key(key);
    // 1 and "1" are two keys to Python and one to JSON: the first stays.
    if (!seen.insert(k).second || out.size() > kMaxContainerText) continue;
    if (!first) out += ',';
    first = false;
    out += k;
    append_value(out, item, depth + 1);
  }
  out += '}';
}

bool from_module(PyObject* value, const char* module) {
  const char* name = Py_TYPE(value)->tp_name;
  size_t n = strlen(module);
  return strncmp(name, module, n) == 0 && name[n] == '.';
}

bool append_numpy_scalar(std::string& out, PyObject* value) {
  if (!from_module(value, "numpy") || strcmp(Py_TYPE(value)->tp_name, "numpy.ndarray") == 0) return false;
  Ref item(PyObject_CallMethod(value, "item", nullptr));
  if (!item) {
    PyErr_Clear();
    return false;
  }
  if (!PyLong_Check(item.get()) && !PyFloat_Check(item.get())) return false;
  append_value(out, item.get(), kMaxDepth);
  return true;
}

// Anything else by its str(), except arrays: printing one would copy it from the device.
void append_object(std::string& out, PyObject* value) {
  if (append_numpy_scalar(out, value)) return;
  bool array = PyObject_HasAttrString(value, "shape") && PyObject_HasAttrString(value, "dtype");
  Ref text;
  if (array) {
    Ref shape(PyObject_GetAttrString(value, "shape"));
    if (shape)
      text = Ref(PyUnicode_FromFormat(
          "%s%S",
          strrchr(Py_TYPE(value)->tp_name, '.') ? strrchr(Py_TYPE(value)->tp_name, '.') + 1 : Py_TYPE(value)->tp_name,
          shape.get()));
  } else {
    text = Ref(PyObject_Str(value));
  }
  if (!text) {
    PyErr_Clear();
    append_json_string(out, std::string("<") + Py_TYPE(value)->tp_name + ">");
    return;
  }
  append_text(out, text.get());
}

}  // namespace

void append_value(std::string& out, PyObject* value, int depth) {
  if (value == Py_None) {
    out += "null";
  } else if (PyBool_Check(value)) {
    out += value == Py_True ? "true" : "false";
  } else if (PyLong_Check(value)) {
    append_long(out, value);
  } else if (PyFloat_Check(value)) {
    append_double(out, PyFloat_AS_DOUBLE(value));
  } else if (PyUnicode_Check(value)) {
    append_text(out, value);
  } else if (PyBytes_Check(value)) {
    append_json_string(out, {PyBytes_AS_STRING(value), size_t(PyBytes_GET_SIZE(value))});
  } else if (PyByteArray_Check(value)) {
    append_json_string(out, {PyByteArray_AS_STRING(value), size_t(PyByteArray_GET_SIZE(value))});
  } else if (depth < kMaxDepth && (PyList_Check(value) || PyTuple_Check(value))) {
    append_sequence(out, value, depth);
  } else if (depth < kMaxDepth && PyDict_Check(value)) {
    append_dict(out, value, depth);
  } else {
    append_object(out, value);
  }
}

std::string text_of(PyObject* value) {
  if (PyBytes_Check(value)) return {PyBytes_AS_STRING(value), size_t(PyBytes_GET_SIZE(value))};
  Ref text(PyUnicode_Check(value) ? new_ref(value) : PyObject_Str(value));
  if (!text) {
    PyErr_Clear();
    return Py_TYPE(value)->tp_name;
  }
  Py_ssize_t n;
  if (const char* s = PyUnicode_AsUTF8AndSize(text.get(), &n)) return {s, size_t(n)};
  PyErr_Clear();
  Ref bytes(PyUnicode_AsEncodedString(text.get(), "utf-8", "replace"));
  if (!bytes) {
    PyErr_Clear();
    return "?";
  }
  return {PyBytes_AS_STRING(bytes.get()), size_t(PyBytes_GET_SIZE(bytes.get()))};
}

std::string key_text(PyObject* key) {
  std::string name = text_of(key);
  // The format's own keys are not the user's to overwrite.
  if (name == "hhash" || name == "p_idx" || name == "level") name += '_';
  std::string out;
  append_json_string(out, name);
  out += ':';
  return out;
}

bool Args::has(std::string_view key) const {
  for (size_t i = 0; i < count_; ++i)
    if (this->key(i) == key) return true;
  return false;
}

void Args::remove(std::string_view key) {
  for (size_t i = 0; i < count_; ++i) {
    if (this->key(i) != key) continue;
    uint32_t size = piece(i).size;
    text_.erase(piece(i).start, size);
    for (size_t k = i + 1; k < count_; ++k) {
      piece(k - 1) = piece(k);
      piece(k - 1).start -= size;
    }
    --count_;
    if (count_ >= kInline) more_.pop_back();
    return;
  }
}

void Args::begin(std::string_view key) {
  Piece p{uint32_t(text_.size()), 0, uint32_t(key.size())};
  if (count_ < kInline) {
    inline_[count_] = p;
  } else {
    more_.push_back(p);
  }
  ++count_;
  text_ += ',';
  text_ += key;
}

void Args::end() {
  Piece& last = piece(count_ - 1);
  last.size = uint32_t(text_.size()) - last.start;
}

void Args::set(std::string_view key, PyObject* value) {
  remove(key);
  begin(key);
  append_value(text_, value);
  end();
}

void Args::set_text(std::string_view key, std::string_view json) {
  remove(key);
  begin(key);
  text_ += json;
  end();
}

void Args::set_all(PyObject* mapping) {
  if (!mapping || mapping == Py_None) return;
  Ref dict(PyDict_Check(mapping)
               ? new_ref(mapping)
               : PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&PyDict_Type), mapping, nullptr));
  if (!dict) {
    PyErr_Clear();
    set("\"args\":", mapping);
    return;
  }
  PyObject *key, *item;
  Py_ssize_t at = 0;
  // Different str keys cannot meet in JSON, except those that key_text renames.
  bool distinct = empty() && PyDict_GET_SIZE(dict.get()) > 32;
  while (PyDict_Next(dict.get(), &at, &key, &item)) {
    Ref keep_key(new_ref(key)), keep_item(new_ref(item));  // a __str__ may change the dict
    std::string text = key_text(key);
    if (!(distinct && PyUnicode_CheckExact(key))) remove(text);
    begin(text);
    append_value(text_, item);
    end();
  }
}

}  // namespace dft::py
