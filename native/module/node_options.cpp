#include "module/node_options.hpp"

#include "module/node.hpp"

namespace dft::py {
namespace {

struct Option {
  enum Kind { kValue, kArgs, kEnable } kind;
  const char* name;
  const char* key;
  PyObject* interned;
};
Option g_options[] = {
    {Option::kArgs, "args", nullptr, nullptr},
    {Option::kValue, "epoch", "\"epoch\":", nullptr},
    {Option::kValue, "step", "\"step\":", nullptr},
    {Option::kEnable, "enable", nullptr, nullptr},
    {Option::kValue, "image_idx", "\"image_idx\":", nullptr},
    {Option::kValue, "image_size", "\"image_size\":", nullptr},
};

const Option* find_option(PyObject* key) {
  for (const Option& o : g_options)
    if (o.interned == key) return &o;
  for (const Option& o : g_options)
    if (PyUnicode_CompareWithASCIIString(key, o.name) == 0) return &o;
  return nullptr;
}
}  // namespace

bool parse_options(PyObject* kwargs, UseOptions* out, bool allow_enable) {
  if (!kwargs) return true;
  PyObject *key, *value;
  Py_ssize_t at = 0;
  PyObject* args = nullptr;
  while (PyDict_Next(kwargs, &at, &key, &value)) {
    const Option* option = find_option(key);
    if (!option || (option->kind == Option::kEnable && !allow_enable)) {
      PyErr_Format(PyExc_TypeError, "unexpected keyword argument %R", key);
      return false;
    }
    if (value == Py_None || !g_tracing) continue;
    if (option->kind == Option::kArgs) {
      args = value;
    } else if (option->kind == Option::kEnable) {
      out->enable = PyObject_IsTrue(value) > 0;
      forgive();
    } else {
      formatting([&] { out->args.set(option->key, value); });
    }
  }
  if (args) formatting([&] { out->args.set_all(args); });
  return !raise_kept();
}

bool parse_update(PyObject* args, PyObject* kwargs, UseOptions* out) {
  static const char* names[] = {"epoch", "step", "image_idx", "image_size", "args"};
  Py_ssize_t given = PyTuple_GET_SIZE(args);
  if (given > 5) {
    PyErr_SetString(PyExc_TypeError, "update() takes epoch, step, image_idx, image_size and args");
    return false;
  }
  if (!given) return parse_options(kwargs, out, false);
  Ref all(kwargs ? PyDict_Copy(kwargs) : PyDict_New());
  if (!all) return false;
  for (Py_ssize_t i = 0; i < given; ++i)
    if (PyDict_SetItemString(all.get(), names[i], PyTuple_GET_ITEM(args, i)) < 0) return false;
  return parse_options(all.get(), out, false);
}

void init_options() {
  for (Option& o : g_options) o.interned = PyUnicode_InternFromString(o.name);
}

}  // namespace dft::py
