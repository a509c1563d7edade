#include "module/values.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "format/json.hpp"
#include "format/keys.hpp"
#include "record/engine.hpp"

namespace dft::py {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::string_view kCut = "...";

struct KeptError {
  PyObject *type, *value, *trace;
};
// Of the thread: a __str__ may let others run.
thread_local KeptError t_kept = {nullptr, nullptr, nullptr};

size_t room_in(const std::string& out) { return out.size() < kMaxArgsText ? kMaxArgsText - out.size() : 0; }

// As much as fits, with a mark if something is missing.
void append_bounded(std::string& out, std::string_view text) {
  size_t room = room_in(out);
  if (DFT_LIKELY(text.size() <= room)) {
    append_json_string(out, text);
    return;
  }
  while (room && (uint8_t(text[room]) & 0xc0) == 0x80) --room;  // whole characters
  append_json_string(out, text.substr(0, room));
  out.insert(out.size() - 1, kCut);
  count_cut_value();
}

void append_text(std::string& out, PyObject* str) {
  Ref part;
  // A long text is not encoded as a whole: the copy would stay with the string.
  if (Py_ssize_t(kMaxArgsText) < PyUnicode_GET_LENGTH(str)) {
    part = Ref(PyUnicode_Substring(str, 0, Py_ssize_t(room_in(out)) + 1));
    if (!part) {
      forgive();
      out += "\"?\"";
      return;
    }
    str = part.get();
  }
  Py_ssize_t n;
  if (const char* s = PyUnicode_AsUTF8AndSize(str, &n)) {
    append_bounded(out, {s, size_t(n)});
    return;
  }
  forgive();
  Ref bytes(PyUnicode_AsEncodedString(str, "utf-8", "replace"));
  if (!bytes) {
    forgive();
    out += "\"?\"";
    return;
  }
  append_bounded(out, {PyBytes_AS_STRING(bytes.get()), size_t(PyBytes_GET_SIZE(bytes.get()))});
}

void append_long(std::string& out, PyObject* value) {
  int overflow = 0;
  long long v = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (!overflow) {
    char digits[24];
    out.append(digits, size_t(put_int(digits, v) - digits));
    return;
  }
  // Beyond 64 bits a JSON number would lose digits in most readers; a string keeps them.
  Ref digits(PyObject_Str(value));
  if (digits) {
    append_text(out, digits.get());
  } else {
    forgive();
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
  // Of a list that another thread may change, a copy.
  Ref fast(kFreeThreaded ? PySequence_Tuple(value) : PySequence_Fast(value, "sequence"));
  if (!fast) {
    forgive();
    out += "null";
    return;
  }
  out += '[';
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
    if (i) out += ',';
    // A container that contains itself grows in breadth long before it does in depth.
    if (out.size() > kMaxArgsText) {
      out += "\"...\"";
      count_cut_value();
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
  Section section(value);
  while (PyDict_Next(value, &at, &key, &item)) {
    if (out.size() > kMaxArgsText) {
      count_cut_value();
      break;
    }
    Ref keep_key(new_ref(key)), keep_item(new_ref(item));  // a __str__ may change the dict
    std::string k = json_key(key);
    // 1 and "1" are two keys to Python and one to JSON: the first stays.
    if (!seen.insert(k).second) continue;
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
    forgive();
    return false;
  }
  if (!PyLong_Check(item.get()) && !PyFloat_Check(item.get())) return false;
  append_value(out, item.get(), kMaxDepth);
  return true;
}

Ref attribute_or_null(PyObject* object, const char* name) {
  Ref found(PyObject_GetAttrString(object, name));
  if (!found) forgive();
  return found;
}

// Anything else by its str(), except arrays: printing one would copy it from the device.
void append_object(std::string& out, PyObject* value) {
  if (append_numpy_scalar(out, value)) return;
  Ref shape = attribute_or_null(value, "shape");
  bool array = shape && attribute_or_null(value, "dtype");
  Ref text;
  if (t_kept.type) {
    // The program wants to end: no more of its code is run.
  } else if (array) {
    const char* dot = strrchr(Py_TYPE(value)->tp_name, '.');
    text = Ref(PyUnicode_FromFormat("%s%S", dot ? dot + 1 : Py_TYPE(value)->tp_name, shape.get()));
  } else {
    text = Ref(PyObject_Str(value));
  }
  if (!text) {
    forgive();
    append_json_string(out, std::string("<") + Py_TYPE(value)->tp_name + ">");
    return;
  }
  append_text(out, text.get());
}

}  // namespace

void forgive() {
  if (!PyErr_Occurred()) return;
  bool error = PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_SystemExit);
  if (error || t_kept.type) {
    PyErr_Clear();
  } else {
    PyErr_Fetch(&t_kept.type, &t_kept.value, &t_kept.trace);
    g_kept_errors.fetch_add(1, std::memory_order_relaxed);
  }
}

std::atomic<uint32_t> g_kept_errors{0};

bool raise_own_kept() {
  if (!t_kept.type) return false;
  g_kept_errors.fetch_sub(1, std::memory_order_relaxed);
  PyErr_Restore(t_kept.type, t_kept.value, t_kept.trace);
  t_kept = {nullptr, nullptr, nullptr};
  return true;
}

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
    append_bounded(out, {PyBytes_AS_STRING(value), size_t(PyBytes_GET_SIZE(value))});
  } else if (PyByteArray_Check(value)) {
    Section section(value);
    append_bounded(out, {PyByteArray_AS_STRING(value), size_t(PyByteArray_GET_SIZE(value))});
  } else if (depth < kMaxDepth && (PyList_Check(value) || PyTuple_Check(value))) {
    append_sequence(out, value, depth);
  } else if (depth < kMaxDepth && PyDict_Check(value)) {
    append_dict(out, value, depth);
  } else {
    append_object(out, value);
  }
}

std::string text_of(PyObject* value) {
  auto bounded = [](const char* s, Py_ssize_t n) { return std::string(s, std::min(size_t(n), kMaxArgsText)); };
  if (PyBytes_Check(value)) return bounded(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
  Ref text(PyUnicode_Check(value) ? new_ref(value) : PyObject_Str(value));
  if (text && PyUnicode_GET_LENGTH(text.get()) > Py_ssize_t(kMaxArgsText)) {
    text = Ref(PyUnicode_Substring(text.get(), 0, Py_ssize_t(kMaxArgsText) / 4));
    count_cut_value();
  }
  if (!text) {
    forgive();
    return Py_TYPE(value)->tp_name;
  }
  Py_ssize_t n;
  if (const char* s = PyUnicode_AsUTF8AndSize(text.get(), &n)) return {s, size_t(n)};
  forgive();
  Ref bytes(PyUnicode_AsEncodedString(text.get(), "utf-8", "replace"));
  if (!bytes) {
    forgive();
    return "?";
  }
  return bounded(PyBytes_AS_STRING(bytes.get()), PyBytes_GET_SIZE(bytes.get()));
}

std::string key_text(PyObject* key) {
  std::string name = text_of(key);
  if (keys::is_reserved(name)) name += '_';
  std::string out;
  append_json_string(out, name);
  out += ':';
  return out;
}

namespace {

// The texts of keys that were used lately, with their commas: a program gives the same few objects again and again.
// Without the interpreter lock there is none, since threads would share it.
struct KnownKey {
  PyObject* key;  // a reference: no other string gets its address
  std::string text;
};
constexpr size_t kKnownKeys = 64;

__attribute__((noinline)) const std::string* learn_key(KnownKey& slot, PyObject* key) {
  constexpr Py_ssize_t kLongest = 64;
  if (!PyUnicode_CheckExact(key) || !PyUnicode_CHECK_INTERNED(key) || PyUnicode_GET_LENGTH(key) > kLongest)
    return nullptr;
  slot.text = "," + key_text(key);
  Py_XSETREF(slot.key, new_ref(key));
  return &slot.text;
}

inline const std::string* known_key(PyObject* key) {
  if (kFreeThreaded) return nullptr;
  static auto* const known = new KnownKey[kKnownKeys]();  // not destroyed while another thread may still record
  KnownKey& slot = known[reinterpret_cast<uintptr_t>(key) / 16 % kKnownKeys];
  return DFT_LIKELY(slot.key == key) ? &slot.text : learn_key(slot, key);
}

// The value of an int; one of a few digits is read without a call.
inline bool fits_64_bits(PyObject* value, int64_t* out) {
  auto* number = reinterpret_cast<PyLongObject*>(value);
#if PY_VERSION_HEX >= 0x030C0000
  if (DFT_LIKELY(PyUnstable_Long_IsCompact(number))) {
    *out = PyUnstable_Long_CompactValue(number);
    return true;
  }
#else
  if (const Py_ssize_t size = Py_SIZE(value); DFT_LIKELY(size >= -1 && size <= 1)) {
    *out = size ? size * int64_t(number->ob_digit[0]) : 0;
    return true;
  }
#endif
  int overflow = 0;
  *out = PyLong_AsLongLongAndOverflow(value, &overflow);
  return !overflow;
}

// Whether the value becomes text without any code of the program's.
bool runs_no_code(PyObject* value) {
  return PyLong_CheckExact(value) || PyUnicode_CheckExact(value) || PyFloat_CheckExact(value) || value == Py_None ||
         PyBool_Check(value);
}

}  // namespace

void Args::make_roomy() {
  if (!short_size_) return;
  text_.assign(short_, short_size_);
  short_size_ = 0;
}

void Args::remove_known(std::string_view key) {
  for (size_t i = 0; i < count_; ++i) {
    if (this->key(i) != key) continue;
    make_roomy();
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

void Args::begin(std::string_view key, bool known) {
  Piece p{uint32_t(text_.size()), 0, uint32_t(key.size()) - known};
  if (count_ < kInline) {
    inline_[count_] = p;
  } else {
    more_.push_back(p);
  }
  ++count_;
  traits_ |= trait(key.substr(known));
  if (!known) text_ += ',';
  text_ += key;
}

template <typename Append>
void Args::add(std::string_view key, bool known, Append append) {
  make_roomy();
  size_t before = text_.size(), count = count_;
  try {
    begin(key, known);
    append();
  } catch (...) {
    // Out of memory in the middle: as if the pair had not been given.
    text_.resize(before);
    if (count_ > count && count_ > kInline) more_.pop_back();
    count_ = count;
    throw;
  }
  Piece& last = piece(count_ - 1);
  last.size = uint32_t(text_.size()) - last.start;
}

// The most frequent pair, in one go; false if it is not that.
inline bool Args::add_number(std::string_view known, PyObject* value) {
  constexpr size_t kLongestNumber = 20, kLongestKey = 96;
  int64_t number;
  if (!PyLong_CheckExact(value) || count_ >= kInline || known.size() > kLongestKey || !fits_64_bits(value, &number))
    return false;
  const bool is_short = text_.empty() && short_size_ + known.size() + kLongestNumber <= kShort;
  if (DFT_UNLIKELY(!is_short)) make_roomy();
  char beside[kLongestKey + kLongestNumber];
  char* const begin = is_short ? short_ + short_size_ : beside;
  copy_text(begin, known);
  const auto size = uint32_t(put_int(begin + known.size(), number) - begin);
  const auto start = is_short ? uint32_t(short_size_) : uint32_t(text_.size());
  if (DFT_LIKELY(is_short))
    short_size_ = uint8_t(short_size_ + size);
  else
    text_.append(begin, size);
  inline_[count_++] = {start, size, uint32_t(known.size()) - 1};
  traits_ |= trait(known.substr(1));
  return true;
}

void Args::set(std::string_view key, PyObject* value) {
  remove(key);
  add(key, false, [&] { append_value(text_, value); });
}

void Args::set_text(std::string_view key, std::string_view json) {
  remove(key);
  add(key, false, [&] { text_ += json; });
}

void Args::set_all(PyObject* mapping) {
  if (!mapping || mapping == Py_None) return;
  if (DFT_LIKELY(PyDict_CheckExact(mapping))) return set_dict(mapping);  // whoever gave it holds it
  Ref dict(PyDict_Check(mapping)
               ? new_ref(mapping)
               : PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&PyDict_Type), mapping, nullptr));
  if (dict) return set_dict(dict.get());
  forgive();
  set("\"args\":", mapping);
}

void Args::set_dict(PyObject* dict) {
  PyObject *key, *item;
  Py_ssize_t at = 0, left = PyDict_GET_SIZE(dict);
  // Different str keys cannot collide in JSON, except those that key_text renames.
  Section section(dict);
  bool distinct = empty() && left > 32;
  while (left-- > 0 && PyDict_Next(dict, &at, &key, &item)) {
    if (text_.size() > kMaxArgsText) {
      count_cut_value();
      break;
    }
    const std::string* known = known_key(key);
    if (DFT_LIKELY(known && PyLong_CheckExact(item))) {
      if (!distinct) remove(std::string_view(*known).substr(1));
      if (DFT_LIKELY(add_number(*known, item))) continue;
    }
    set_any(known, key, item, distinct);
  }
}

__attribute__((noinline)) void Args::set_any(const std::string* known, PyObject* key, PyObject* item, bool distinct) {
  if (known && runs_no_code(item)) {
    if (!distinct) remove(std::string_view(*known).substr(1));
    add(*known, true, [&] { append_value(text_, item); });
    return;
  }
  Ref keep_key(new_ref(key)), keep_item(new_ref(item));  // a __str__ may change the dict
  std::string text = key_text(key);
  if (!(distinct && PyUnicode_CheckExact(key))) remove(text);
  add(text, false, [&] { append_value(text_, item); });
}

}  // namespace dft::py
